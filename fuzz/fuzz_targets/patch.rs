//! Patches of a Pod: `cargo fuzz run --sanitizer none patch`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pulselet_apiserver::fuzzing::patch_pod(bytes));
