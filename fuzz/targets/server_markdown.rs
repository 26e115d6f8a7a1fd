//! Markdown that an agent writes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_server::fuzzing::fuzz_markdown(data));
