//! Every other request of a machine.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_server::fuzzing::fuzz_requests(data));
