//! Event streams on their way to a client: a byte chooses the dialect, two how they are cut, the rest is the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tidegate_proxy::fuzzing::pass_on(data));
