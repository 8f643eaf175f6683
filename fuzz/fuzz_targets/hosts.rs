//! Messages of another host: `model::hosts`, and those of `fabric`, over bytes that the fuzzer
//! searches for.
#![no_main]

#[path = "../../tests/model/host_fabric.rs"]
mod fabric;
#[path = "../../tests/model/hosts.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    model::hosts(data);
    fabric::fabric(data);
    fabric::words(data);
    fabric::figures(data);
});
