//! NCCL topology files.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = fabricast_topologies::read::nccl_xml::parse(text, "fuzz");
});
