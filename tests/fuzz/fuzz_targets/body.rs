//! Bodies of errors.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tidegate_core::fuzzing::body(data));
