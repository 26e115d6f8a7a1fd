//! What shim and daemon say to one another.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_supervise::fuzzing::fuzz_frames(data));
