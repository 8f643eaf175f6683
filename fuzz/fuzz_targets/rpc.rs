//! `model::heads` of ONC RPC over bytes that the fuzzer searches for.
#![no_main]

#[path = "../../layers/rpc/tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::heads(data));
