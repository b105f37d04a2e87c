//! Matrices of `nvidia-smi topo -m`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = fabricast_topologies::read::smi::parse(text, "fuzz");
});
