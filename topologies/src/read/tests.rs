//! Tests of format detection, of files that are not text, and of hostile input.

mod cases;

use std::io::Write as _;

use proptest::prelude::*;

use super::*;
use crate::Error;

/// Texts of each format, which the property tests mutate.
const SEEDS: [&str; 8] = [
    include_str!("../../../tests/data/topologies/h200-node.xml"),
    include_str!("../../../tests/data/topologies/infragraph_dgx_a100_nccl_topo.xml"),
    include_str!("../../../tests/data/topologies/aws_p4d-24xl-topo.xml"),
    include_str!("../../../tests/data/topologies/h200-node.topo-m.txt"),
    include_str!("../../../tests/data/topologies/dgx_h100_8gpu_12nic.topo-m.txt"),
    include_str!("../../../tests/data/topologies/stas_a100_8gpu.topo-m.txt"),
    "name = \"t\"\n[device.d]\nmodel = \"m\"\n[[node]]\nid = \"gpu[0-3]\"\nkind = \"gpu\"\ndevice = \"d\"\n[[node]]\nid = \"s\"\nkind = \
     \"nvswitch\"\n[[link]]\na = \"gpu[0-3]\"\nb = \"s\"\nkind = \"nvlink\"\nbandwidth = \"450 GB/s\"\nlatency = \"350 ns\"\n[cluster]\nnode = \
     \"x\"\nnodes = 2\nnetwork = { kind = \"rail\", nic = \"400 Gb/s\" }\n",
    "{\"name\": \"t\", \"nodes\": [{\"id\": \"a\", \"kind\": \"gpu\"}, {\"id\": \"b\", \"kind\": \"nic\", \"figures\": {\"gdr\": true}}], \"links\": [{\"a\": \
     \"a\", \"b\": \"b\", \"kind\": \"pcie\"}, {\"a\": \"b\", \"b\": \"a\", \"kind\": \"pcie\", \"bandwidth_gb_per_s\": 3.5}], \"gpus\": [\"a\"]}",
];

/// Runs every reader on a text and ignores the results.
fn read_all(text: &str) {
    let _ = parse(text, "t");
    let _ = nccl_xml::parse(text, "t");
    let _ = smi::parse(text, "t");
    let _ = json::parse(text, "t");
    let _ = spec::parse(text, "t").and_then(|spec| spec.build_nodes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        read_all(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn arbitrary_format_characters_never_panic(text in "[<>/=\"'\\[\\]{}#,.: \t\nGPUNIVXSY0-9a-f\u{1b}é]{0,200}") {
        read_all(&text);
    }

    #[test]
    fn mutated_valid_texts_never_panic(
        seed in 0..SEEDS.len(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 0..4u8, "[<>/=\"\\[\\]{}\n\t0-9a-zé-]{0,4}"), 1..5),
    ) {
        let mut characters: Vec<char> = SEEDS[seed].chars().collect();
        for (at, operation, text) in edits {
            let at = at.index(characters.len().max(1)).min(characters.len());
            let end = (at + text.len()).min(characters.len());
            match operation {
                0 => characters.truncate(at),
                1 => drop(characters.splice(at..at, text.chars())),
                2 => drop(characters.splice(at..end, text.chars())),
                _ => drop(characters.drain(at..(at + 40 * text.len()).min(characters.len()))),
            }
        }
        read_all(&characters.into_iter().collect::<String>());
    }

    #[test]
    fn error_locations_are_inside_the_text(seed in 0..SEEDS.len(), cut in any::<prop::sample::Index>()) {
        let text: String = SEEDS[seed].chars().take(cut.index(SEEDS[seed].chars().count())).collect();
        if let Err(error) = parse(&text, "t") {
            let location = error.location().expect("every reader knows the place");
            prop_assert!(location.line >= 1 && location.column >= 1);
            prop_assert!(location.line as usize <= text.lines().count() + 1, "{}", error);
        }
    }
}

#[test]
fn formats_are_detected_by_content() {
    let expected = [Format::NcclXml; 3].into_iter().chain([Format::Smi; 3]).chain([Format::Spec, Format::Json]);
    for (text, format) in SEEDS.iter().zip(expected) {
        assert_eq!(detect(text), Some(format));
    }
    assert_eq!(detect("# a comment\n\n[[node]]"), Some(Format::Spec));
    assert_eq!(detect("\u{feff}  <?xml version=\"1.0\"?><system/>"), Some(Format::NcclXml));
    assert_eq!(
        detect(include_str!("../../../tests/data/topologies/msccl_dgx1_v100_8gpu_4ib.topo-m.txt")),
        Some(Format::Smi)
    );
    for none in ["", "hello", "a,b\n1,2\n"] {
        assert_eq!(detect(none), None);
        assert!(matches!(parse(none, "t"), Err(Error::Syntax { .. })));
    }
}

#[test]
fn binary_and_oversized_files_are_unreadable() {
    let folder = std::env::temp_dir().join(format!("fabricast-readers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let reason = |name: &str, bytes: Option<&[u8]>| {
        let path = folder.join(name);
        if let Some(bytes) = bytes {
            std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        }
        match file(&path) {
            Err(Error::Unreadable { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert!(reason("missing", None).contains("No such file"));
    assert!(reason("", None).contains("directory"));
    assert!(reason("binary", Some(b"<system>\0</system>")).contains("byte 8 is zero"));
    assert!(reason("latin1", Some(b"name = \"caf\xe9\"")).contains("not UTF-8 text from byte 11"));
    assert!(reason("large", Some(&vec![b'a'; (64 << 20) + 1])).contains("larger than 64 MiB"));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A text of a megabyte is read or rejected quickly, even if it is built to exhaust the stack of a recursive parser or
/// to slow down a quadratic one.
#[test]
fn large_hostile_texts_are_read_or_rejected_quickly() {
    let megabyte = |piece: &str| piece.repeat((1 << 20) / piece.len());
    let xml_tail = "</a>".repeat((1 << 20) / 7);
    let texts = [
        megabyte("<a>") + &xml_tail,
        megabyte("<a>"),
        format!("<system><cpu {}/></system>", (0..60_000).map(|i| format!("a{i}=\"\" ")).collect::<String>()),
        format!("<system {}/>", (0..40_000).map(|i| format!("xmlns:a{i}=\"u{i}\" ")).collect::<String>()),
        format!(
            "<system><cpu>{}</cpu></system>",
            (0..20_000).map(|i| format!("<pci busid=\"{i}\" class=\"0x0604\"/>")).collect::<String>()
        ),
        megabyte("\n<!-- -->"),
        megabyte("["),
        "x = ".to_owned() + &megabyte("["),
        "x = ".to_owned() + &megabyte("{a="),
        megabyte("a."),
        megabyte("[[node]]\n"),
        (0..30_000).map(|i| format!("[[node]]\nid = \"{i}\"\nkind = \"gpu\"\n")).collect(),
        format!("[[node]]\nid = \"{}]\"\nkind = \"gpu\"\n", megabyte("[")),
        megabyte("{\"a\":"),
        megabyte("[{\"nodes\":"),
        format!("\tGPU0\t{}\n", (0..100_000).map(|i| format!("NIC{i}\t")).collect::<String>()),
        format!(
            "\tGPU0{0}\nGPU0\tX{1}\n",
            (0..60_000).map(|i| format!("\tN{i}")).collect::<String>(),
            "\tSYS".repeat(60_000)
        ),
        format!("[[node]]\nid = \"g[0-262143]\"\nkind = \"gpu\"\nattributes = {{ a = \"{}\" }}\n", "a".repeat(500_000)),
        megabyte("GPU0 GPU1\n"),
        format!("\tGPU0\tGPU1\n{}", megabyte("GPU0\tX\tSYS\n")),
        megabyte("\u{1b}[4m"),
        megabyte("\"\"\""),
    ];
    for text in &texts {
        read_all(text);
    }
}
