//! Recovery with any snapshot.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_journal::fuzzing::fuzz_snapshot(data));
