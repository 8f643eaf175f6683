//! `model::ring` over bytes that the fuzzer searches for.
#![no_main]

#[path = "../../tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::ring(data));
