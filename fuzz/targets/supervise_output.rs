//! The reader of output logs, from any place of any log.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_supervise::fuzzing::fuzz_output(data));
