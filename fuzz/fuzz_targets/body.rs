//! Bodies of requests: `cargo fuzz run --sanitizer none body`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pulselet_apiserver::fuzzing::read_body(bytes));
