//! Passes the fuzzer's input to `fuse::fuzz::ring_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuse::fuzz::ring_request(bytes));
