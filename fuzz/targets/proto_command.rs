//! The gate of commands, for text that is JSON.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_proto::framed::fuzzing::fuzz_command(data));
