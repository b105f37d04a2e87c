//! Specs, and the fabrics that they describe (clusters aside: copies of a preset may be as many as anyone asks for).
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(spec) = fabricast_topologies::read::spec::parse(text, "fuzz")
        && spec.cluster.is_none()
    {
        let _ = spec.build_nodes();
    }
});
