//! Hands what the fuzzer makes up to `meta::fuzz::server`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| meta::fuzz::server(bytes));
