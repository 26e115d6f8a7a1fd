//! What a completed run hands back.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_server::fuzzing::fuzz_artifacts(data));
