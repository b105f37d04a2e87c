//! Tests of `fabric export`: with an exported file, calls take the same time as with the flags, to the picosecond;
//! otherwise the export reports what the format cannot express.

use std::path::Path;

use proptest::prelude::*;

use crate::run::{Run, refused, run, run_in};

/// Fabric as flags on the command line.
#[derive(Clone, Debug)]
struct Flags {
    fabric: &'static str,
    words: Vec<String>,
}

impl Flags {
    fn export(&self, folder: &Path, format: &str) -> Run {
        run_in(
            folder,
            &format!("fabric export {} {} --to {format} -o {format} --force", self.fabric, self.words.join(" ")),
        )
    }

    /// Returns the time of a call with the flags, and with the file instead of them.
    fn times(&self, folder: &Path, file: &str, call: &str) -> [String; 2] {
        let time = |fabric: &str| {
            let run = run_in(folder, &format!("simulate {fabric} {call} --format json"));
            match serde_json::from_str::<serde_json::Value>(&run.stdout) {
                Ok(json) => format!("{} {}", json["time_us"], json["ranks"]),
                Err(_) => {
                    format!("{} {}", run.code, run.stderr.lines().next().unwrap_or_default().replace(file, self.fabric))
                }
            }
        };
        [time(&format!("--fabric {} {}", self.fabric, self.words.join(" "))), time(&format!("--fabric ./{file}"))]
    }
}

const CALLS: [&str; 4] = [
    "--collective all_reduce --bytes 1MiB --algorithm ring --protocol simple",
    "--collective all_to_all --bytes 777KiB --algorithm direct --protocol simple",
    "--collective all_gather --bytes 64KiB --algorithm ring --protocol ll",
    "--collective send_recv --bytes 10MiB --algorithm direct --protocol simple",
];

fn flags() -> impl Strategy<Value = Flags> {
    let fabrics = prop::sample::select(vec!["hgx-h100", "dgx-a100", "l40s-pcie", "mi300x", "dgx-v100"]);
    let optional = |word: &'static str| prop::option::of(Just(word.to_owned()));
    let nodes = prop::option::of((1..4_u32, prop::sample::select(vec!["rail", "fat_tree", "torus"])));
    (
        fabrics,
        nodes,
        prop::option::of(2..5_u32),
        optional("--no-p2p"),
        optional("--no-gdr"),
        prop::option::of(0..9_u32),
        any::<u8>(),
        0..4_u32,
    )
        .prop_map(|(fabric, nodes, gpus, p2p, gdr, ecmp, pick, what_if)| {
            let count = nodes.map_or(1, |(count, _)| count);
            let mut words = Vec::new();
            if let Some((count, network)) = nodes {
                words.push(format!("--nodes {count}"));
                words.extend((count > 1).then(|| format!("--network {network}")));
            }
            words.extend(gpus.map(|gpus| format!("--gpus {gpus}")));
            words.extend(p2p);
            words.extend(gdr);
            words.extend(ecmp.map(|seed| format!("--ecmp hashed={seed}")));
            let prefix = if count > 1 { "n0/" } else { "" };
            let peer = match fabric {
                "hgx-h100" | "dgx-a100" => "nvswitch0",
                "mi300x" | "dgx-v100" => "gpu3",
                _ => "",
            };
            let gpu = pick % 3;
            if what_if & 1 != 0 && !peer.is_empty() {
                words.push(format!("--slow {prefix}gpu{gpu}-{prefix}{peer}=0.37"));
            }
            if what_if & 2 != 0 {
                words.push(match pick % 4 {
                    0 => format!("--fail {prefix}gpu{gpu}"),
                    _ if peer.is_empty() => format!("--fail {prefix}gpu0"),
                    1 => format!("--fail {prefix}gpu{gpu}->{prefix}{peer}"),
                    _ => format!("--fail {prefix}gpu{gpu}-{prefix}{peer}"),
                });
            }
            Flags { fabric, words }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn exported_files_equal_the_fabric_of_the_flags(flags in flags(), call in 0..CALLS.len()) {
        let folder = tempfile::tempdir().unwrap();
        for format in ["spec", "json"] {
            let export = flags.export(folder.path(), format);
            if export.code == 2 {
                // Flags that describe an impossible fabric are rejected by both commands.
                let shown = run_in(folder.path(), &format!("fabric show {} {}", flags.fabric, flags.words.join(" ")));
                prop_assert_eq!(shown.code, 2, "{:?}: {}", flags, export.stderr);
                continue;
            }
            let [from_flags, from_file] = flags.times(folder.path(), format, CALLS[call]);
            prop_assert_eq!(from_flags, from_file, "{:?} by {}", flags, format);
        }
    }
}

/// An NCCL topology file cannot describe a network; for one host it contains the GPUs in use and omits failed NVLinks.
#[test]
fn topology_files_contain_gpus_in_use_and_failed_links() {
    let folder = tempfile::tempdir().unwrap();
    let export = |fabric: &str, flags: &str, file: &str| {
        let run = run_in(folder.path(), &format!("fabric export {fabric} {flags} --to nccl-xml -o {file} --force"));
        assert_eq!(run.code, 0, "{flags}: {}", run.stderr);
        run.stderr
    };
    for (fabric, flags) in [
        ("dgx-v100", ["--fail gpu7", "--fail gpu0-gpu1", "--gpus 4"].as_slice()),
        ("hgx-h100", ["--fail gpu3", "--gpus 4", "--gpus 3 --fail gpu0"].as_slice()),
    ] {
        // The exported fabric in NCCL's format.
        export(fabric, "", "whole.xml");
        for flags in flags {
            let stderr = export("./whole.xml", flags, "part.xml");
            let reports_mesh = stderr.contains("cannot express paths through GPUs that are not in use");
            assert_eq!(reports_mesh, fabric == "dgx-v100" && flags.contains("--gpus"), "{flags}: {stderr}");
            for call in CALLS {
                let time = |fabric: &str| {
                    let run = run_in(folder.path(), &format!("simulate --fabric {fabric} {call} --format json"));
                    serde_json::from_str::<serde_json::Value>(&run.stdout).ok().map(|json| json["time_us"].clone())
                };
                let (from_flags, from_file) = (time(&format!("./whole.xml {flags}")), time("./part.xml"));
                assert!(
                    reports_mesh || (from_flags.is_some() && from_flags == from_file),
                    "{fabric} {flags} {call}: {from_flags:?} {from_file:?}"
                );
            }
        }
    }
}

#[test]
fn links_with_one_failed_direction_are_shown_as_failed() {
    for direction in ["gpu0->nvswitch0", "nvswitch0->gpu0"] {
        let dot = run(&format!("fabric export hgx-h100 --fail {direction} --to dot")).stdout;
        assert_eq!((dot.matches("out of service").count(), dot.matches("style=dotted").count()), (1, 1), "{dot}");
        let shown = run(&format!("fabric show hgx-h100 --fail {direction}")).stdout;
        assert!(shown.contains("gpu – nvswitch (one direction out of service)"), "{shown}");
        let check = run(&format!("fabric check hgx-h100 --fail {direction}")).stdout;
        assert!(check.contains("straddle NVLink domains: gpu0 | gpu1"), "{check}");
    }
}

#[test]
fn exports_report_what_the_format_cannot_express() {
    for (flags, format, expected) in [
        ("--no-p2p", "nccl-xml", "an NCCL topology file cannot express the setting p2p off"),
        ("--ecmp hashed=7", "nccl-xml", "cannot express the setting ecmp hashed=7"),
        ("--slow gpu0-nvswitch0=0.5", "nccl-xml", "cannot express --slow gpu0-nvswitch0=0.5"),
        (
            "",
            "nccl-xml",
            "cannot express the figures of links; readers assume PCIe 63.015 GB/s instead of 63 GB/s; PCIe 250 ns",
        ),
        ("--fail gpu0->nvswitch0", "nccl-xml", "cannot express that gpu0->nvswitch0 is out of service"),
        ("--gpus 4", "svg", "a picture cannot express that 4 GPUs are not in use"),
        ("--no-gdr", "svg", "a picture cannot express settings of routes"),
    ] {
        let export = run(&format!("fabric export hgx-h100 {flags} --to {format}"));
        assert!(export.code == 0 && export.stderr.contains(expected), "{flags} {format}: {}", export.stderr);
    }
    for (flags, format) in
        [("", "nccl-xml"), ("", "svg"), ("--gpus 4 --no-p2p --fail gpu0", "dot"), ("--gpus 4", "nccl-xml")]
    {
        let export = run(&format!("fabric export hgx-h100 {flags} --to {format}"));
        let other =
            export.stderr.lines().any(|line| line.contains("cannot express") && !line.contains("figures of links"));
        assert!(export.code == 0 && !other, "{flags} {format}: {}", export.stderr);
    }
    let dot = run("fabric export hgx-h100 --gpus 7 --no-p2p --fail gpu0 --to dot").stdout;
    assert_eq!(dot.matches("not in use").count(), 1 + 1, "{dot}");
    assert!(dot.contains("label=\"p2p off\"") && dot.contains("style=dotted"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    refused(folder, "fabric export hgx-h100 --nodes 2 --to nccl-xml", "an NCCL topology file cannot describe");
}
