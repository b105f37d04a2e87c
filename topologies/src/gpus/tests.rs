//! Tests of the model table, the look-up of names, and the evidence of models.

use super::*;

fn found(name: &str) -> Vec<&'static str> {
    name::find(name).into_iter().map(|model| model.name.as_str()).collect()
}

#[test]
fn built_in_table_is_complete_and_unambiguous() {
    let read = read(include_str!("../../data/gpus.toml")).unwrap();
    assert_eq!(read.len(), models().len());
    for (i, a) in read.iter().enumerate() {
        assert!(!a.source.is_empty(), "{}", a.name);
        assert_eq!(a.link.is_some(), a.links > 0, "{}", a.name);
        for b in &read[..i] {
            assert_ne!(a.name, b.name);
            assert!(a.pci.iter().all(|id| !b.pci.contains(id)), "{} and {}", a.name, b.name);
        }
        // A name refers to its own model only, in every notation.
        for name in std::iter::once(&a.name).chain(&a.aliases) {
            assert_eq!(found(name), [a.name.as_str()], "{name}");
            assert_eq!(found(&format!("NVIDIA {}", name.to_uppercase())), [a.name.as_str()], "{name}");
            assert_eq!(found(&name.replace(' ', "-")), [a.name.as_str()], "{name}");
            assert_eq!(found(&name.replace(' ', "")), [a.name.as_str()], "{name}");
        }
    }
}

#[test]
fn names_printed_by_tools_find_their_models() {
    for (name, expected) in [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100 SXM 80GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server"),
        ("NVIDIA B300 SXM6 AC", "B300 SXM"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI250X/MI250", "MI250X"),
        ("AMD Instinct MI355X", "MI355X"),
    ] {
        assert_eq!(found(name), [expected], "{name}");
    }
    assert_eq!(found("NVIDIA A100-SXM..."), ["A100 SXM 80GB", "A100 SXM 40GB"]);
    assert_eq!(found("Matrox G200"), [""; 0]);
    assert_eq!(found(""), [""; 0]);
    let error = name::find_unique("h101").unwrap_err().to_string();
    assert!(error.contains("h101"), "{error}");
}

#[test]
fn gpus_are_found_in_output_of_tools() {
    let find_models =
        |text: &str| name::mentions(text).into_iter().flat_map(|mention| mention.models).collect::<Vec<_>>();
    assert_eq!(
        find_models("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)"),
        ["H100 SXM"]
    );
    assert_eq!(find_models("GPU models and configuration: \nGPU 0: NVIDIA A10G\nNvidia driver version: 535"), ["A10G"]);
    assert_eq!(find_models("GPU 0,1,2,3,4,5,6,7: NVIDIA H200"), ["H200 SXM"]);
    assert_eq!(
        find_models("#  Rank  0 Group  0 Pid  1 on  host-1 device  0 [0000:1b:00] NVIDIA A100-SXM4-80GB"),
        ["A100 SXM 80GB"]
    );
    assert_eq!(find_models("|   0  NVIDIA B200                    On  |   00000000:1B:00.0 Off |"), ["B200 SXM"]);
    assert_eq!(
        find_models("|   0  Tesla V100-SXM2...  On   | 00000000:06:00.0 Off |"),
        ["V100 SXM2 32GB", "V100 SXM2 16GB"]
    );
    assert_eq!(find_models("GPU0\t X \tNV4\nNVIDIA-SMI 535.104\n| NVIDIA-SMI 535"), [""; 0]);
}

#[test]
fn number_of_nvlinks_narrows_down_the_models() {
    let find_capabilities = |nvlinks, on_grace| {
        // Bridges of four links join two cards; a GPU with more links has links to several peers.
        let evidence = Evidence { nvlinks, has_c2c: on_grace, bridged: nvlinks <= 4, ..Evidence::default() };
        let found = evidence.likely_candidates().map_or_else(|| evidence.candidates(), |(candidates, _)| candidates);
        let mut capabilities: Vec<u32> = found.iter().map(|model| model.compute_capability).collect();
        capabilities.dedup();
        capabilities
    };
    assert_eq!(find_capabilities(6, false), [70]);
    assert_eq!(find_capabilities(12, false), [80]);
    assert_eq!(find_capabilities(18, false), [90]);
    assert_eq!(find_capabilities(18, true), [100]);
    // Bridges of four links are fitted to Pascal, A30, A40, A6000 and RTX 3090.
    assert_eq!(find_capabilities(4, false), [60, 80, 86]);
    assert!(find_capabilities(0, false).len() > 5);
    assert!(find_capabilities(8, false).len() > 1);
    let hopper = Evidence { capability: Some(90), nvlinks: 18, ..Evidence::default() }.candidates();
    let names: Vec<&str> = hopper.iter().map(|model| model.name.as_str()).collect();
    assert!(names.contains(&"H100 SXM") && names.contains(&"H20") && !names.contains(&"H100 NVL"), "{names:?}");
}

#[test]
fn driver_names_match_fabric_names() {
    for (log, fabric, one) in [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", true),
        ("NVIDIA H200", "H200 SXM", true),
        ("NVIDIA H200 NVL", "H200 SXM", false),
        ("NVIDIA H100 PCIe", "H100 SXM", false),
        ("NVIDIA H100 NVL", "H100 NVL", true),
        ("NVIDIA H200", "H100 SXM", false),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 80GB", true),
        ("NVIDIA A100 80GB PCIe", "A100 SXM 80GB", false),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 32GB", true),
        ("NVIDIA GH200 120GB", "GH200 96GB", true),
        ("NVIDIA GB200", "GB200", true),
        ("NVIDIA B200", "B200 SXM", true),
        ("NVIDIA H20-3e", "H100 SXM", false),
        ("AMD Instinct MI300X VF", "MI300X", true),
        ("AMD Instinct MI355X", "H100 SXM", false),
        ("NVIDIA L40S", "L40S", true),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", true),
        ("NVIDIA RTX 6000D", "RTX PRO 6000 Blackwell Server", false),
        ("NVIDIA A100-SXM...", "A100 SXM 40GB", true),
        ("NVIDIA H20", "H20 141GB", true),
        ("NVIDIA X999", "x999", true),
        ("NVIDIA X999", "H100 SXM", false),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server", true),
    ] {
        assert_eq!(name::may_be_same_model(log, fabric), one, "{log} · {fabric}");
    }
    assert!(name::is_amd("AMD Instinct MI300X VF") && name::is_amd("MI355X") && !name::is_amd("NVIDIA H100"));
}
