//! Names of skills, of their files and of what is attached.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_server::fuzzing::fuzz_skill(data));
