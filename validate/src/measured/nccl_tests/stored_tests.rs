//! Tests of logs as users store and paste them: prefixes, blanks in host names, processes without MPI, tables without a
//! header.

use fabricast_sim::profile::Launch;
use fabricast_sim::schedule::Collective;
use proptest::prelude::*;

use crate::measured::{ConnectionCounts, LibraryName, P2pChannels, Table, Timing, read_log};

macro_rules! log {
    ($name:literal) => {
        include_str!(concat!("../../../../tests/data/logs/", $name))
    };
}

fn tables(text: &str) -> Vec<Table> {
    read_log(text, "log").unwrap()
}

fn one(text: &str) -> Table {
    let mut tables = tables(text);
    assert_eq!(tables.len(), 1, "{tables:#?}");
    tables.remove(0)
}

/// Text of the header and rows, without their line numbers.
fn content(table: &Table) -> String {
    let rows: Vec<_> = table.rows.iter().map(|row| crate::measured::Row { line: 0, ..row.clone() }).collect();
    format!("{:?} {rows:?} {}", table.header, table.rejected.len())
}

const PLAIN: &str = log!("host-name-with-space.txt");

/// Name of a launcher, the text before a line by its number, and the text after it.
type Prefix = (&'static str, fn(u32) -> String, &'static str);

#[test]
fn launcher_prefixes_are_stripped() {
    let plain = content(&one(&PLAIN.replace("NODE A", "nodea").replace("NODE B", "nodeb")));
    for (name, text) in [
        ("compose", log!("prefix-compose.txt")),
        ("gha", log!("prefix-gha.txt")),
        ("hydra", log!("prefix-hydra.txt")),
        ("kubectl", log!("prefix-kubectl-timestamps.txt")),
        ("ompi5", log!("prefix-ompi5.txt")),
        ("quote", log!("prefix-quote.txt")),
        ("ray", log!("prefix-ray.txt")),
        ("srun", log!("prefix-srun.txt")),
    ] {
        let table = one(text);
        assert_eq!(table.rows.len(), 1, "{name}");
        assert_eq!(content(&table), plain, "{name}");
    }
}

#[test]
fn host_names_may_contain_blanks() {
    let header = one(PLAIN).header;
    assert_eq!((header.hosts(), header.ranks), (Some(2), Some(16)));
}

/// Adds a prefix, which depends on the line number, and an ending to each line.
fn prefixed(text: &str, prefix: impl Fn(u32) -> String, end: &str) -> String {
    (0..).zip(text.lines()).map(|(number, line)| format!("{}{line}{end}\n", prefix(number))).collect()
}

#[test]
fn prefixes_may_count_lines_and_time() {
    let text = log!("gh200-2x4-int8.txt");
    let plain = content(&one(text));
    let prefixes: [Prefix; 13] = [
        ("journald", |n| format!("Jun 13 08:{n:02}:59 nodea nccl[1234]: "), ""),
        ("jenkins", |n| format!("[2025-06-13T08:{:02}:02.{:03}Z] ", n, n * 7), ""),
        ("gitlab", |n| format!("2025-06-13T08:25:{n:02}.123456Z 01O "), ""),
        ("grep -n", |n| format!("{}:", n + 1), ""),
        ("cat -n", |n| format!("{:>6}\t", n + 1), ""),
        ("buildkit", |n| format!("#12 {}.{} ", n, n * n), ""),
        ("Open MPI with times", |n| format!("Fri Jun 13 08:25:{n:02} 2025[1,0]<stdout>:"), ""),
        ("Open MPI", |_| "[1,0]<stdout>:".to_owned(), ""),
        ("torchrun", |_| "[default0]:".to_owned(), ""),
        ("stern", |_| "nccl-test-launcher-abc12 nccl ".to_owned(), ""),
        ("dmesg", |n| format!("[{:>5}.{:06}] ", n, n * 31), ""),
        ("ansible", |_| "        \"".to_owned(), "\","),
        ("docker", |_| "{\"log\":\"".to_owned(), "\\n\",\"stream\":\"stdout\",\"time\":\"2025-06-13T08:25:02Z\"}"),
    ];
    for (name, prefix, end) in prefixes {
        let text = prefixed(text, prefix, end);
        assert_eq!(content(&one(&text)), plain, "{name}: {text}");
    }
    let coloured = prefixed(text, |_| "\u{1b}[36mnccl-0  |\u{1b}[0m ".to_owned(), "");
    assert_eq!(content(&one(&coloured)), plain);
}

#[test]
fn torn_rows_behind_prefixes_are_joined_or_rejected() {
    let torn = PLAIN.replace("  131.43  246.44", "\nnodea:12:34 [0] NCCL INFO comm 0x5\n  131.43  246.44");
    let expected = content(&one(PLAIN));
    assert_eq!(content(&one(&torn)), expected);
    let behind = prefixed(&torn, |n| format!("2025-06-13T08:25:{n:02}Z [3] "), "");
    assert_eq!(content(&one(&behind)), expected);
    let cut = PLAIN.replace("  131.43  246.44      0    65308", "");
    let table = one(&prefixed(&cut, |_| "> ".to_owned(), ""));
    assert!(table.rows.is_empty(), "{:?}", table.rows);
    assert_eq!((table.rejected[0].line, table.rejected[0].reason.to_string().as_str()), (25, "the row is truncated"));
    // The text contains the end of a row whose beginning is missing.
    let end = PLAIN.replace("# Out of bounds", "  12.43  0.44      0    65308  131.53  246.62      0\n# Out of bounds");
    assert_eq!(one(&end).rejected[0].line, 26);
}

#[test]
fn processes_without_mpi_are_separate_runs() {
    let runs = tables(log!("no-mpi-107.txt"));
    assert_eq!(runs.len(), 2);
    for run in &runs {
        assert_eq!((run.header.separate_runs, run.header.ranks, run.header.hosts()), (Some(2), Some(1), Some(1)));
        assert_eq!(run.rows.len(), 1);
    }
    let runs = tables(log!("no-mpi-all-rank0.txt"));
    assert_eq!((runs.len(), runs[0].header.separate_runs, runs[0].header.ranks), (1, Some(4), Some(1)));
    assert_eq!((runs[0].header.collective, runs[0].rows.len()), (Some(Collective::AllToAll), 2));
    // A launcher labels the lines of separate runs.
    let process = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n\
        #  Rank  0 Group  0 Pid 7 on a device  0 [0000:1b:00] NVIDIA H100 80GB HBM3\n\
        #  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n\
        8  2  float  sum  -1  5.83  0.00  0.00  0  5.78  0.00  0.00  0\n";
    let labelled: String =
        process.lines().flat_map(|line| (0..3).map(move |rank| format!("{rank}: {line}\n"))).collect();
    let runs = tables(&labelled);
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().all(|run| run.header.separate_runs == Some(3) && run.rows.len() == 1));
}

#[test]
fn consecutive_tables_are_not_merged() {
    let parsed = tables(log!("rtx6000d-2x8-two-tables.txt"));
    let named: Vec<_> =
        parsed.iter().map(|table| (table.header.collective, table.header.ranks, table.rows.len())).collect();
    assert_eq!(named, [(Some(Collective::AllReduce), Some(16), 10), (Some(Collective::AllToAll), Some(16), 7)]);
    let behind = tables(&prefixed(log!("rtx6000d-2x8-two-tables.txt"), |_| "[0] ".to_owned(), ""));
    assert_eq!(behind.iter().map(content).collect::<Vec<_>>(), parsed.iter().map(content).collect::<Vec<_>>());
}

#[test]
fn correct_logs_lose_no_ranks_or_rows() {
    for (text, ranks, hosts, rows) in [
        (log!("oke-a100-elided-ranks.txt"), Some(16), Some(2), 3),
        (log!("gh200-2x4-int8.txt"), Some(8), Some(2), 12),
        (log!("h200-256-baremetal.txt"), Some(16), Some(2), 3),
        (log!("h200-256-vm.txt"), Some(16), Some(2), 6),
        (log!("h20-vm-321-alltoall.txt"), Some(4), Some(2), 11),
        (log!("gh200-4x4-corrupt.txt"), Some(16), Some(4), 8),
        (log!("old-error-652.txt"), None, None, 6),
        (log!("p4d-scatter-elided.txt"), Some(16), None, 3),
        (log!("mi300x-vf-rccl1562.txt"), Some(8), Some(1), 10),
    ] {
        let table = one(text);
        assert_eq!((table.header.ranks, table.header.hosts(), table.rows.len()), (ranks, hosts, rows), "{table:#?}");
    }
    let channels = one(log!("h20-vm-321-alltoall.txt")).header.p2p_channels;
    assert_eq!(channels, Some(P2pChannels { all: 4, per_peer: 2 }));
    let report = one(log!("h20-vm-321-alltoall.txt")).header.report;
    assert_eq!(report.connections, ConnectionCounts { gpu_direct: 1, ..ConnectionCounts::default() });
    assert_eq!(report.variable("NCCL_SOCKET_IFNAME"), Some("bond0"));
}

#[test]
fn collective_and_ranks_are_inferred_where_columns_fit_one() {
    let header = one(log!("a3mega-2x8-table-only.txt")).header;
    assert_eq!((header.collective, header.ranks, header.launch), (None, Some(16), None));
    assert_eq!(header.candidates, [Collective::AllGather, Collective::AllToAll]);
    let header = one(log!("p4d-scatter-elided.txt")).header;
    assert_eq!(header.candidates, [Collective::Gather, Collective::Scatter]);
    let header = one(log!("h200-256-baremetal.txt")).header;
    assert_eq!((header.collective, header.ranks), (Some(Collective::AllReduce), Some(16)));
    assert!(header.inferred.collective && !header.inferred.ranks);
}

#[test]
fn rccl_tests_are_read() {
    let table = one(log!("mi300x-vf-rccl1562.txt"));
    assert_eq!(table.header.library.map(|library| library.name), Some(LibraryName::Rccl));
    assert_eq!(table.header.launch, Some(Launch::Stream));
    let table = one(log!("rccl-tests-json.json"));
    let header = &table.header;
    assert_eq!((header.collective, header.ranks, header.hosts()), (Some(Collective::AllReduce), Some(2), Some(1)));
    assert_eq!(header.library.as_ref().map(|library| library.name), Some(LibraryName::Rccl));
    let rows: Vec<_> =
        table.rows.iter().map(|row| (row.bytes.0, row.out_of_place.is_some(), row.in_place.is_some())).collect();
    assert_eq!(rows, [1 << 20, 1 << 24, 1 << 27, 1 << 30].map(|bytes| (bytes, true, true)));
    for (text, expected) in [
        ("[]", "the list is empty"),
        ("[{\"name\": 1}]", "log:1: not a row of rccl-tests"),
        ("[{]", "log:1:3: not the JSON of rccl-tests"),
    ] {
        let error = read_log(text, "log").unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn rejected_side_of_rccl_tests_leaves_other_sizes_unchanged() {
    let entry = |size: u64, in_place: u32, wrong: u32| {
        format!(
            r#"{{"name":"AllReduce","ranks":2,"size":{size},"inPlace":{in_place},"time":{size},"wrong":"{wrong}"}}"#
        )
    };
    // In-place calls of 1024 bytes and out-of-place calls of 2048 bytes have wrong results.
    let entries = [entry(1024, 0, 0), entry(1024, 1, 3), entry(2048, 0, 3), entry(2048, 1, 0)];
    let table = one(&format!("[\n{}\n]", entries.join(",\n")));
    let time = |side: Option<Timing>| side.map(|timing| timing.time.us());
    let rows: Vec<_> = table.rows.iter().map(|row| (row.bytes.0, time(row.out_of_place), time(row.in_place))).collect();
    assert_eq!(rows, [(1024, Some(1024.0), None), (2048, None, Some(2048.0))]);
    assert_eq!(table.rejected.iter().map(|rejected| rejected.line).collect::<Vec<_>>(), [3, 4]);
}

proptest! {
    /// Any prefix that all lines share leaves the table unchanged.
    #[test]
    fn any_common_prefix_is_stripped(
        name in "[A-Za-z][A-Za-z0-9_./-]{0,12}", opens in "[\\[(<{]?", closes in "[\\])>}]?[:|>]?[ \t]{1,3}",
        clock in any::<bool>(), counter in any::<bool>()
    ) {
        let prefix = |n: u32| {
            let clock = if clock { format!("2025-06-13T{:02}:25:{:02}.{:06}Z ", n % 24, n % 60, n * 977) } else { String::new() };
            let counter = if counter { format!(" {n}") } else { String::new() };
            format!("{clock}{opens}{name}{counter}{closes}")
        };
        let text = log!("gh200-2x4-int8.txt");
        let parsed = tables(&prefixed(text, prefix, ""));
        prop_assert_eq!(parsed.len(), 1);
        prop_assert_eq!(content(&parsed[0]), content(&one(text)));
    }
}
