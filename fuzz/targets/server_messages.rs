//! Output of a run, by the fast reader and the careful one.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_server::fuzzing::fuzz_messages(data));
