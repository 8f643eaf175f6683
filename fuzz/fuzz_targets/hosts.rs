//! `model::hosts` over bytes that the fuzzer searches for.
#![no_main]

#[path = "../../tests/model/hosts.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::hosts(data));
