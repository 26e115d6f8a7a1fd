//! Recovery from any first segment.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_journal::fuzzing::fuzz_segment(data));
