//! Passes the fuzzer's input to `meta::fuzz::server`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| meta::fuzz::server(bytes));
