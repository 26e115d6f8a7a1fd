//! HTML that somebody sends, and Markdown of it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_server::fuzzing::fuzz_html(data));
