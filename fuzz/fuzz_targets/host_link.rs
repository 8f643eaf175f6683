//! `model::link` over bytes that the fuzzer searches for.
#![no_main]

#[path = "../../tests/model/host_ends.rs"]
#[allow(dead_code)]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = model::link(data);
});
