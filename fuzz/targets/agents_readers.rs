//! Any output of an agent, read whole and in pieces.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_agents::fuzzing::fuzz_readers(data));
