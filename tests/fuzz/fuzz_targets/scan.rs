//! Event streams as bytes: two bytes choose how they are cut, the rest is the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tidegate_proxy::fuzzing::scan(data));
