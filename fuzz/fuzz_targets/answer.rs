//! Passes the fuzzer's input to `wire::fuzz::answer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wire::fuzz::answer(bytes));
