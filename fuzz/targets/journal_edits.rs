//! Recovery of a good journal with changed bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_journal::fuzzing::fuzz_edits(data));
