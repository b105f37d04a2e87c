//! Tests of unmodified logs: rows split by NCCL's messages, several tables, truncated ends.

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType, ReduceOp};

use crate::measured::{Table, read_log};

const HEAD: &str = "\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 10 iters: 50 agg iters: 1 validation: 0 graph: 5 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   5560 on host device  0 [0000:00:06] NVIDIA H200
#  Rank  1 Group  0 Pid   5560 on host device  1 [0000:00:07] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
";
const FOOT: &str = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 37.3309 \n#\n";

fn one(text: &str) -> Table {
    let mut tables = read_log(text, "log").unwrap();
    assert_eq!(tables.len(), 1);
    tables.remove(0)
}

fn lines(table: &Table) -> (Vec<u32>, Vec<u32>) {
    let rejected = table.rejected.iter().map(|rejected| rejected.line);
    (table.rows.iter().map(|row| row.line).collect(), rejected.collect())
}

#[test]
fn headers_and_rows_are_parsed() {
    let row = "           8             2     float     sum      -1     5.83    0.00    0.00    N/A     5.78    0.00    0.00    N/A\n";
    let table = one(&format!("{HEAD}{row}{FOOT}"));
    let header = &table.header;
    assert_eq!((header.collective, header.ranks), (Some(Collective::AllReduce), Some(2)));
    assert_eq!((header.launch, header.processes), (Some(Launch::Graph), Some(Processes::Single)));
    assert_eq!((header.hosts(), table.line), (Some(1), 10));
    let row = &table.rows[0];
    assert_eq!((row.bytes.0, row.count, row.line), (8, Some(2), 12));
    assert_eq!((row.dtype, row.op, row.root), (Some(DataType::F32), Some(ReduceOp::Sum), None));
    assert_eq!((row.measured().0, row.in_place.unwrap().time.0), (5_830_000, 5_780_000));
}

#[test]
fn rows_split_by_messages_are_joined() {
    let body = "\
h:1:2 [0] NCCL INFO one
  8  2  float  sum  -1h:1:2 [0] NCCL INFO AllReduce: opCount 0
h:1:2 [1] NCCL INFO AllReduce: opCount 0
  5.83  0.00  0.00  N/A[2026-01-01 00:00:00] h:1:2 [0] NCCL WARN x
     5.78    0.00    0.00    N/A
  16  4  float  sum  -1  5.68  0.00  0.00  N/A  5.69  0.01  0.01  N/A
";
    let table = one(&format!("{HEAD}{body}{FOOT}"));
    assert_eq!(lines(&table), (vec![13, 17], vec![]), "{:?}", table.rejected);
    assert_eq!((table.rows[0].bytes.0, table.rows[0].in_place.unwrap().time.0), (8, 5_780_000));
}

#[test]
fn torn_and_wrong_rows_are_rejected_with_a_reason() {
    let body = "\
  8  2  float  sum  -1  5.83  0.00
  16  4  float  sum  -1  5.68  0.00  0.00  N/A  5.69  0.01  0.01  N/A
  16  5  float  sum  -1  5.68  0.00  0.00  N/A  5.69  0.01  0.01  N/A
  32  8  float  sum  -1  5.68  0.00  0.00  1  5.69  0.01  0.01  N/A
something else speaks
  64  16  float  sum  -1  5.6";
    let table = one(&format!("{HEAD}{body}"));
    assert_eq!(lines(&table), (vec![13], vec![12, 14, 15, 17]), "{:?}", table.rejected);
    let reasons: Vec<String> = table.rejected.iter().map(|rejected| rejected.reason.to_string()).collect();
    assert_eq!(reasons[0], "the row is truncated");
    assert_eq!(reasons[1], "all_reduce of 5 elements of f32 on 2 ranks is 20 B, not 16 B");
    assert!(reasons[2].contains("wrong results") && reasons[3] == "the row is truncated");
}

#[test]
fn several_tables_have_their_own_headers() {
    let row = "  8  2  float  sum  -1  5.83  0.00  0.00  N/A  5.78  0.00  0.00  N/A\n";
    let second_head = HEAD.replace("all_reduce_perf", "hypercube_perf").replace("graph: 5", "graph: 0");
    let tables = read_log(&format!("{HEAD}{row}{FOOT}{second_head}{row}{FOOT}"), "log").unwrap();
    assert_eq!(tables.len(), 2);
    assert_eq!((tables[0].rows.len(), tables[1].rows.len()), (1, 0));
    assert_eq!(tables[1].header.launch, Some(Launch::Stream));
    assert_eq!(tables[1].rejected[0].reason.to_string(), "the test `hypercube_perf` measures an unknown collective");
    // Two tables follow one header, as with several reductions or with `-m`.
    let (header, columns) = HEAD.split_at(HEAD.find("#       size").unwrap());
    let tables = read_log(&format!("{header}{columns}{row}{FOOT}{columns}{row}"), "log").unwrap();
    assert_eq!(tables.iter().map(|table| table.header.ranks).collect::<Vec<_>>(), [Some(2), Some(2)]);
}

#[test]
fn truncated_device_lists_and_split_ranks_give_the_rank_count() {
    let (start, end) = HEAD.split_at(HEAD.find("#  Rank  1").unwrap());
    let table = one(&format!("{start}...\n{end}")
        .replace("nThread 1 nGpus 2", "nThread 4 nGpus 2")
        .replace("#  Rank  1", "#  Ronk  1"));
    assert_eq!(table.header.ranks, Some(8));
    let split = HEAD.replace("Rank  1 Group  0", "Rank  1 Group  1");
    assert_eq!(one(&split).header.ranks, Some(1));
}

#[test]
fn cpu_times_are_rejected() {
    let row = "  8  2  float  sum  -1  5.83  0.00  0.00  N/A  5.78  0.00  0.00  N/A\n";
    let table = one(&format!("{}{row}", HEAD.replace("    time ", " cputime ")));
    assert!(table.rows.is_empty() && table.rejected[0].reason.to_string().contains("CPU"));
}

#[test]
fn no_table_is_an_error() {
    let error = read_log("hello\n", "log").unwrap_err().to_string();
    assert!(error.starts_with("log: no table"), "{error}");
    let error = read_log("\n  8  2  float  sum  -1  5.83  0.00  0.00  N/A\n", "log").unwrap_err().to_string();
    assert!(error.starts_with("log:2: a row without the head line"), "{error}");
}
