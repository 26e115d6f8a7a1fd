//! Chunks in any order.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_proto::framed::fuzzing::fuzz_assembler(data));
