//! Recovery from any batch whose checksums are right.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_journal::fuzzing::fuzz_batch(data));
