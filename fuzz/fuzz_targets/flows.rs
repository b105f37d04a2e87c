//! Flows between the devices of a small fabric.
#![no_main]

use std::sync::LazyLock;

use fabricast_topologies::{Fabric, read_text};

static FABRIC: LazyLock<Option<Fabric>> =
    LazyLock::new(|| read_text(include_str!("../flows-fabric.toml"), "fabric").ok());

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Some(fabric) = &*FABRIC {
        let _ = fabricast_sim::flows::parse(text, "fuzz", fabric);
    }
});
