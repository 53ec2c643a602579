//! Passes the fuzzer's input to `fuse::fuzz::request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuse::fuzz::request(bytes));
