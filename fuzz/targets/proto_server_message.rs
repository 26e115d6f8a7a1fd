//! What a client does with a frame of the daemon.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_proto::framed::fuzzing::fuzz_server_message(data));
