//! The scrubber, over any secret in any output.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_supervise::fuzzing::fuzz_scrub(data));
