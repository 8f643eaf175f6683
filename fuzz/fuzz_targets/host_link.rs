//! `model::link` and `model::rails` over bytes that the fuzzer searches for.
#![no_main]

#[path = "../../tests/model/host_ends.rs"]
#[allow(dead_code)]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    match data.split_first() {
        Some((0..128, data)) => _ = model::link(data),
        Some((_, data)) => _ = model::rails(data),
        None => {}
    }
});
