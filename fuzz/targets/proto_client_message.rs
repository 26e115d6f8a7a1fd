//! What the daemon does with a frame of a client.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_proto::framed::fuzzing::fuzz_client_message(data));
