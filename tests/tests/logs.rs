//! Tests of nccl-tests logs: its output, with any flags and with NCCL's messages in between, is read back exactly; no
//! text makes a reader panic; manifests find their logs and fabrics.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Collective;
use fabricast_validate::measured::{manifest, read_log};
use proptest::prelude::*;

/// Formats a number as nccl-tests does: with two, one or no decimals, whichever fits the column, otherwise with an
/// exponent.
fn fitted(value: f64, width: usize) -> String {
    let plain = [2, 1, 0].map(|decimals| format!("{value:.decimals$}"));
    plain.into_iter().find(|text| text.len() <= width).unwrap_or_else(|| {
        let power = value.abs().log10().floor() as i32;
        let decimals = usize::from(width >= 7);
        format!("{:.decimals$}e{power:+03}", value / 10f64.powi(power))
    })
}

/// Options of a printed log.
#[derive(Clone, Copy, Debug)]
struct Flags {
    /// True if the time of each call is printed (flag `-I`).
    per_call: bool,
    /// True if each row has a time stamp (flag `-S`).
    stamps: bool,
    /// Output format of versions before 2.11: `error` instead of `#wrong`, no root, no version.
    old: bool,
    /// Number of launches of the CUDA graph per measurement (flag `-G`); 0 without a graph.
    graph: u32,
    threads: u32,
    gpus: u32,
    processes: u32,
    /// Output with NCCL_DEBUG=INFO: messages between rows, and rows interrupted by messages.
    messages: bool,
    /// Output of a replayed trace, which has only in-place times.
    replay: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    count: u64,
    out_of_place: f64,
    in_place: f64,
    interruption: u8,
}

/// Name of the program, its collective, the name of its reduction, and the number of blocks in the larger buffer as a
/// function of ranks.
type Program = (&'static str, Collective, &'static str, fn(u64) -> u64);

const PROGRAMS: [Program; 9] = [
    ("all_reduce_perf", Collective::AllReduce, "sum", |_| 1),
    ("all_gather_perf", Collective::AllGather, "none", |n| n),
    ("reduce_scatter_perf", Collective::ReduceScatter, "max", |n| n),
    ("broadcast_perf", Collective::Broadcast, "none", |_| 1),
    ("reduce_perf", Collective::Reduce, "avg", |_| 1),
    ("alltoall_perf", Collective::AllToAll, "none", |n| n),
    ("gather_perf", Collective::Gather, "none", |n| n),
    ("scatter_perf", Collective::Scatter, "none", |n| n),
    ("sendrecv_perf", Collective::SendRecv, "none", |_| 1),
];

const TYPES: [(&str, u64); 5] = [("float", 4), ("half", 2), ("bfloat16", 2), ("int8", 1), ("double", 8)];

fn message(out: &mut String) {
    out.push_str("node-1:4822:4830 [0] NCCL INFO AllReduce: opCount 5 sendbuff 0x7f 1024 8 float sum\n");
}

fn print(program: usize, dtype: usize, flags: Flags, samples: &[Sample]) -> String {
    let (name, collective, redop, blocks) = PROGRAMS[program];
    let (dtype, element) = TYPES[dtype];
    let ranks = flags.threads * flags.gpus * flags.processes;
    let is_single_rank = ranks == 1 && (collective.busbw_factor(2) - collective.busbw_factor(3)).abs() > 1e-9;
    let factor = if is_single_rank { 0.0 } else { collective.busbw_factor(ranks) };
    let mut out = String::new();
    if !flags.old {
        out.push_str("# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n");
    }
    // Old versions do not print the name of the program.
    if !flags.old {
        writeln!(out, "# Collective test starting: {name}").unwrap();
    }
    let graph = if flags.old { String::new() } else { format!("graph: {} unalign: 0", flags.graph) };
    writeln!(
        out,
        "# nThread {} nGpus {} minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 0 {graph}",
        flags.threads, flags.gpus
    )
    .unwrap();
    out.push_str("#\n# Using devices\n");
    for rank in 0..ranks {
        writeln!(
            out,
            "#  Rank {rank:>2} Group  0 Pid {:>6} on {:>10} device {rank:>2} [0000:00:06] NVIDIA H200",
            100, "node-1"
        )
        .unwrap();
        if flags.messages {
            message(&mut out);
        }
    }
    let columns = if flags.old { "time algbw busbw error" } else { "time algbw busbw #wrong" };
    let calls = if flags.per_call { " i_min i_max i_p99 i_cv%" } else { "" };
    let root = if flags.old { "" } else { "root " };
    let stamp = if flags.stamps { " timestamp" } else { "" };
    writeln!(
        out,
        "#\n#   out-of-place   in-place\n#  size  count  type  redop  {root}{columns}{calls} {columns}{calls}{stamp}"
    )
    .unwrap();
    out.push_str("#  (B)  (elements)  (us)  (GB/s)  (GB/s)\n");
    for sample in samples {
        let bytes = sample.count * element * blocks(u64::from(ranks));
        write!(out, "{bytes:>12}  {:>12}  {dtype:>8}  {redop:>6}", sample.count).unwrap();
        if !flags.old {
            write!(out, "  {:>6}", -1).unwrap();
        }
        let interrupt = |piece: u8, out: &mut String| {
            if flags.messages && sample.interruption == piece {
                message(out);
            }
        };
        interrupt(1, &mut out);
        for (piece, time) in [sample.out_of_place, sample.in_place].into_iter().enumerate() {
            if piece == 0 && flags.replay {
                write!(out, "{:32}", "").unwrap();
                continue;
            }
            let rate = bytes as f64 / time / 1e3;
            let wrong = if flags.old { "0e+00" } else { "N/A" };
            let busbw = fitted(rate * factor, 6);
            write!(out, "  {:>7}  {:>6}  {busbw:>6}  {wrong:>6}", fitted(time, 7), fitted(rate, 6)).unwrap();
            if flags.per_call {
                let [low, high, p99, cv] = [0.9 * time, 1.2 * time, 1.1 * time, 2.5].map(|figure| fitted(figure, 7));
                write!(out, "  {low:>7}  {high:>7}  {p99:>7}  {cv:>7}").unwrap();
            }
            if piece == 0 {
                interrupt(2, &mut out);
            }
        }
        if flags.stamps {
            write!(out, "{:>21}", "2026-01-02 10:11:12").unwrap();
        }
        out.push('\n');
        interrupt(3, &mut out);
    }
    out.push_str("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 37.3309 \n#\n");
    out
}

fn flags() -> impl Strategy<Value = Flags> {
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (switches, 0..3u32, 1..4u32, 1..5u32, 1..4u32).prop_map(|(switches, graph, threads, gpus, processes)| {
        let (per_call, stamps, old, messages, replay) = switches;
        // Old versions have none of the flags; a replay has only in-place columns and no interrupted rows.
        let (per_call, stamps) = (per_call && !old && !replay, stamps && !old && !replay);
        Flags {
            per_call,
            stamps,
            old,
            graph,
            threads,
            gpus,
            processes,
            messages: messages && !replay,
            replay: replay && !old,
        }
    })
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let time = || (-0.25..9.5f64).prop_map(|power| 10f64.powf(power));
    let sample = (1..1u64 << 32, time(), time(), 0..4u8).prop_map(|(count, out_of_place, in_place, tear)| Sample {
        count,
        out_of_place,
        in_place,
        interruption: tear,
    });
    prop::collection::vec(sample, 1..8)
}

/// Returns the relative rounding error of a time that nccl-tests prints in seven columns.
fn precision(time: f64) -> f64 {
    let decimals = if time < 9999.995 {
        0.005
    } else if time < 99_999.95 {
        0.05
    } else if time < 9_999_999.5 {
        0.5
    } else {
        return 0.0501;
    };
    decimals * 1.000_001 / time
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn printed_logs_are_read_back(
        program in 0..PROGRAMS.len(),
        dtype in 0..TYPES.len(),
        flags in flags(),
        samples in samples(),
    ) {
        let text = print(program, dtype, flags, &samples);
        let tables = read_log(&text, "log").map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(tables.len(), 1);
        let table = &tables[0];
        prop_assert!(table.rejected.is_empty(), "{:?}\n{}", table.rejected, text);
        prop_assert_eq!(table.rows.len(), samples.len(), "{}", text);
        let (_, collective, _, blocks) = PROGRAMS[program];
        let ranks = flags.threads * flags.gpus * flags.processes;
        prop_assert_eq!(table.header.ranks, Some(ranks));
        // Without a program name the columns may identify one collective, which must be the right one; with a single
        // rank, data is only copied.
        match table.header.collective {
            Some(detected) => prop_assert!(detected == collective || flags.old && ranks == 1, "{detected} of {text}"),
            None => prop_assert!(flags.old),
        }
        let launch = if flags.graph > 0 && !flags.old { Launch::Graph } else { Launch::Stream };
        prop_assert_eq!(table.header.launch, Some(launch));
        let processes = if flags.gpus > 1 { Processes::Single } else { Processes::PerGpu };
        prop_assert_eq!(table.header.processes, Some(processes));
        for (row, sample) in table.rows.iter().zip(&samples) {
            prop_assert_eq!(row.bytes.0, sample.count * TYPES[dtype].1 * blocks(u64::from(ranks)));
            prop_assert_eq!(row.count, Some(sample.count));
            prop_assert_eq!(row.dtype.map(|dtype| dtype.size().0), Some(TYPES[dtype].1));
            prop_assert_eq!(row.out_of_place.is_some(), !flags.replay);
            let line = text.lines().nth(row.line as usize - 1).unwrap_or_default();
            prop_assert!(line.trim_start().starts_with(&row.bytes.0.to_string()), "line {}: {line}", row.line);
            for (timing, time) in [(row.out_of_place, sample.out_of_place), (row.in_place, sample.in_place)] {
                let Some(timing) = timing else { continue };
                let error = (timing.time.us() / time - 1.0).abs();
                prop_assert!(error <= precision(time), "{} is {time}\n{text}", timing.time.us());
                prop_assert_eq!(timing.spread.is_some(), flags.per_call);
            }
        }
    }

    /// A truncated log yields the rows before the cut, and at most one rejection for the truncated row.
    #[test]
    fn truncated_logs_yield_the_rows_before_the_cut(
        program in 0..PROGRAMS.len(),
        flags in flags(),
        samples in samples(),
        fraction in 0.0..1.0f64,
    ) {
        let text = print(program, 0, flags, &samples);
        let complete = read_log(&text, "log").unwrap().remove(0);
        let truncated = &text[..(text.len() as f64 * fraction) as usize];
        if let Ok(tables) = read_log(truncated, "log") {
            let table = &tables[0];
            let last = truncated.lines().count() as u32;
            let rows: Vec<_> = table.rows.iter().filter(|row| row.line < last).collect();
            for (row, expected) in rows.iter().zip(&complete.rows) {
                // A row interrupted by messages may end after the cut.
                prop_assert!(row.line != expected.line || row.bytes == expected.bytes);
            }
            prop_assert!(table.rejected.len() <= 1, "{:?}\n{truncated}", table.rejected);
            prop_assert!(table.rows.len() + table.rejected.len() >= rows.len());
        }
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in ".{0,200}", lines in prop::collection::vec("[#0-9 a-z{}\\[\\]\":,.=N/A_e+-]{0,60}", 0..12)) {
        let _ = read_log(&text, "log");
        let _ = manifest::read(&text, "manifest");
        let lines = lines.join("\n");
        let _ = read_log(&lines, "log");
        let _ = manifest::read(&lines, "manifest");
        let _ = read_log(&format!("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n{lines}"), "log");
        let _ = read_log(&format!("bytes,time_us\n{lines}"), "log");
        let _ = read_log(&format!("{{\"results\":[{lines}]}}"), "log");
        let _ = manifest::read(&format!("[[measurement]]\n{lines}"), "manifest");
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/measured").join(name)
}

#[test]
fn manifests_find_their_logs_and_fabrics() {
    let loaded = manifest::load(&data("manifest.toml")).unwrap();
    let summaries: Vec<_> = loaded
        .measurements
        .iter()
        .map(|measurement| {
            let collective = measurement.configuration.collective.name();
            (
                measurement.name.as_str(),
                collective,
                measurement.ranks(),
                measurement.fabric.gpus().len(),
                measurement.rows.len(),
                measurement.rejected.len(),
            )
        })
        .collect();
    assert_eq!(
        summaries,
        [
            ("tg_allreduce_x8_default.txt", "all_reduce", 8, 8, 22, 0),
            ("g_allreduce_x8_Ring_LL.txt", "all_reduce", 8, 8, 26, 0),
            ("allreduce_x8_RingSimple_ch8.txt", "all_reduce", 8, 8, 8, 0),
            ("t_alltoall_x2_default.txt", "all_to_all", 2, 2, 25, 0),
            ("all_reduce-2x4-ring-ll.csv", "all_reduce", 8, 8, 10, 0),
            ("h200_sxm-all_reduce-x2.csv", "all_reduce", 2, 2, 21, 0),
        ]
    );
    let launches: Vec<_> = loaded
        .measurements
        .iter()
        .map(|measurement| (measurement.configuration.launch, measurement.configuration.processes))
        .collect();
    assert_eq!(launches[0], (Launch::Graph, Processes::PerGpu));
    assert_eq!(launches[1], (Launch::Graph, Processes::Single));
    assert_eq!(launches[2], (Launch::Stream, Processes::Single));
    assert_eq!(launches[3], (Launch::Stream, Processes::PerGpu));
    assert_eq!(loaded.contradictions, []);
}

/// Loads a manifest from a separate folder that also contains the other files.
fn load(manifest: &str, files: &[(&str, &str)]) -> Result<manifest::LoadedManifest, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    std::fs::write(folder.path().join("m.toml"), manifest).unwrap();
    let prefix = format!("{}/", folder.path().display());
    manifest::load(&folder.path().join("m.toml")).map_err(|error| error.to_string().replace(&prefix, ""))
}

const ONE: &str =
    "[[measurement]]\nfile = \"a.csv\"\nfabric = \"hgx-h200\"\nnodes = 1\ngpus = 8\ncollective = \"all_reduce\"\n";

#[test]
fn contradictions_of_manifest_and_log_are_reported() {
    let csv = ("a.csv", "bytes,time_us\n1024,5\n");
    let log = std::fs::read_to_string(data("tg_allreduce_x8_default.txt")).unwrap();
    for (manifest, file, expected) in [
        (ONE.to_owned(), ("b.csv", ""), "m.toml:2:8: cannot read a.csv: No such file"),
        (ONE.to_owned(), ("a.csv", "hello"), "a.csv: no table"),
        (ONE.replace("hgx-h200", "hgx-h20"), csv, "m.toml:3:10: unknown fabric `hgx-h20`; did you mean hgx-h200"),
        (ONE.replace("hgx-h200", "f.toml"), csv, "m.toml:3:10: f.toml: cannot read"),
        (ONE.replace("gpus = 8", "gpus = 9"), csv, "m.toml:3:10: "),
        (ONE.replace("gpus = 8", "gpus = 4"), ("a.csv", &log), "a.csv:16: has 8 ranks; m.toml:1:1 says 4 (1 × 4)"),
        (format!("{ONE}launch = \"stream\"\n"), ("a.csv", &log), "m.toml:7:10: `stream`, but a.csv:16 says `graph`"),
        (ONE.replace("all_reduce", "all_gather"), ("a.csv", &log), "m.toml:2:8: a.csv has no table of this collective"),
        (ONE.replace("collective = \"all_reduce\"\n", ""), csv, "m.toml:1:1: a.csv:1 does not say which collective"),
    ] {
        let error = load(&manifest, &[file]).unwrap_err();
        assert!(error.contains(expected), "{error}\nexpected {expected}");
    }
}

#[test]
fn contradictions_and_rejected_rows_are_returned() {
    let manifest = format!(
        "{ONE}{}{}",
        ONE.replace("a.csv", "b.csv"),
        ONE.replace("a.csv", "c.csv").replace("gpus = 8", "gpus = 4")
    );
    let files = [
        ("a.csv", "bytes,time_us\n1024,5\n2048,6\n4096,0\n"),
        ("b.csv", "bytes,time_us\n1024,15.1\n2048,17.9\n"),
        ("c.csv", "bytes,time_us\n1024,500\n"),
    ];
    let loaded = load(&manifest, &files).unwrap();
    assert_eq!(loaded.contradictions.len(), 1);
    let contradiction = &loaded.contradictions[0];
    assert_eq!((contradiction.bytes.0, contradiction.shortest.0.line, contradiction.longest.1.us()), (1024, 2, 15.1));
    assert!(contradiction.longest.0.source.ends_with("b.csv") && (contradiction.factor() - 3.02).abs() < 1e-9);
    assert_eq!(loaded.measurements[0].rejected[0].line, 4);
    let loaded = load(
        &format!("{ONE}dtype = \"bf16\"\n"),
        &[("a.csv", &std::fs::read_to_string(data("tg_allreduce_x8_default.txt")).unwrap())],
    )
    .unwrap();
    assert_eq!(
        loaded.measurements[0].rejected[0].reason.to_string(),
        "has the element type f32, but the measurement has bf16"
    );
    assert!(loaded.measurements[0].rows.is_empty());
}
