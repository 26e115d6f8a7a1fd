//! What a client does with a joined snapshot or event.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_proto::framed::fuzzing::fuzz_document(data));
