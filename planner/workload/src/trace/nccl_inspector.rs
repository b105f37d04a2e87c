//! Reader of the JSON of NCCL's Inspector (NCCL 2.28 and later, `plugins/profiler/inspector/inspector_json.cc`).
//!
//! ```text
//! {"header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
//!  "metadata": {"inspector_output_format_version": "v4.0", …, "hostname": "a", "pid": 1639453},
//!  "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, …}}
//! ```
//!
//! A file has the calls of one process, an object per call and rank; files may be concatenated. `coll_msg_size_bytes`
//! is the `count` of a rank. `p2p_perf` are messages. `event_trace_ts` (NCCL_INSPECTOR_DUMP_VERBOSE=1) has times in µs.

use fabricast_topologies::SourceLocation;
use fabricast_topologies::read::Limit;
use serde::Deserialize;

use super::communicators::trace;
use super::contents::Contents;
use super::gzip::decompress;
use super::recorded_call::{Process, RecordedCall, RecordedKind};
use super::{MAX_EVENTS, Trace, json};
use crate::job::JobError;

/// Object of one call.
#[derive(Deserialize)]
struct Record {
    header: Header,
    metadata: Metadata,
    coll_perf: Option<Collective>,
    p2p_perf: Option<Message>,
}

#[derive(Deserialize)]
struct Header {
    id: String,
    rank: u32,
    n_ranks: u32,
}

#[derive(Deserialize)]
struct Metadata {
    hostname: String,
    pid: u64,
}

#[derive(Deserialize)]
struct Collective {
    coll: String,
    coll_sn: u64,
    coll_msg_size_bytes: u64,
    event_trace_ts: Option<Times>,
}

#[derive(Deserialize)]
struct Message {
    p2p: String,
    p2p_peer: u32,
    p2p_msg_size_bytes: u64,
    event_trace_ts: Option<Times>,
}

#[derive(Deserialize)]
struct Times {
    #[serde(default)]
    kernel_events: Vec<KernelTimes>,
}

/// Times of a thread block, in µs; 0 if they are unknown.
#[derive(Deserialize)]
struct KernelTimes {
    #[serde(default)]
    kernel_start_ts: u64,
    #[serde(default)]
    kernel_stop_ts: u64,
}

impl Times {
    /// Returns the first start and the last end of the thread blocks.
    fn span(&self) -> Option<(u64, u64)> {
        let start = self.kernel_events.iter().map(|block| block.kernel_start_ts).filter(|time| *time > 0).min()?;
        let end = self.kernel_events.iter().map(|block| block.kernel_stop_ts).max()?;
        (end >= start).then_some((start, end))
    }
}

/// Returns true if a text begins as a file of the Inspector does.
pub(super) fn is_inspector(head: &[u8]) -> bool {
    let contains = |key: &[u8]| head.windows(key.len()).any(|window| window == key);
    contains(b"inspector_output_format_version") || contains(b"\"coll_perf\"") || contains(b"\"p2p_perf\"")
}

/// Reads the files of all processes.
///
/// # Errors
/// [`JobError`] with the file and line: invalid JSON, a missing field, or calls that cannot be joined.
pub fn read_nccl_inspector(files: &[Contents]) -> Result<Trace, JobError> {
    let mut calls: Vec<RecordedCall> = Vec::new();
    let mut unknown = 0;
    for (source, bytes) in files {
        let text = decompress(source, bytes, Limit::JSON_TRACE)?;
        let mut records = serde_json::Deserializer::from_slice(&text).into_iter::<Record>();
        let (mut line, mut counted) = (1, 0);
        while let Some(record) = records.next() {
            let record = record.map_err(|error| json::error(source, &error))?;
            let end = records.byte_offset();
            let passed = text.get(counted..end).unwrap_or_default();
            line += passed.iter().filter(|byte| **byte == b'\n').count() as u32;
            counted = end;
            let location = SourceLocation { line, ..SourceLocation::from_source(source) };
            match call(record, &location) {
                Some(call) => calls.push(call),
                None => unknown += 1,
            }
            if calls.len() > MAX_EVENTS {
                return Err(JobError::at(&location, format!("more than {MAX_EVENTS} calls")));
            }
        }
    }
    let source = files.first().map_or("", |file| file.0.as_str());
    let mut remarks = Vec::new();
    if unknown > 0 {
        remarks.push(format!("{unknown} records are neither a collective nor a send or receive"));
    }
    trace(&calls, remarks, source)
}

fn call(record: Record, location: &SourceLocation) -> Option<RecordedCall> {
    let (kind, bytes, times) = match (record.coll_perf, record.p2p_perf) {
        (Some(Collective { coll, coll_sn, coll_msg_size_bytes, event_trace_ts }), _) => {
            (RecordedKind::Collective { name: coll, number: coll_sn }, coll_msg_size_bytes, event_trace_ts)
        }
        (None, Some(Message { p2p, p2p_peer, p2p_msg_size_bytes, event_trace_ts })) => {
            let kind = match p2p.as_str() {
                "Send" => RecordedKind::Send(p2p_peer),
                "Recv" => RecordedKind::Receive(p2p_peer),
                _ => return None,
            };
            (kind, p2p_msg_size_bytes, event_trace_ts)
        }
        (None, None) => return None,
    };
    Some(RecordedCall {
        process: Process { host: record.metadata.hostname, id: record.metadata.pid },
        communicator: record.header.id,
        rank: record.header.rank,
        ranks: Some(record.header.n_ranks),
        kind,
        bytes,
        time: times.as_ref().and_then(Times::span),
        location: location.clone(),
    })
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Collective;
    use fabricast_topologies::Picos;
    use proptest::prelude::*;

    use super::*;
    use crate::trace::read;

    /// Record in the layout of `inspector_json.cc`.
    fn record(communicator: &str, rank: u32, ranks: u32, pid: u32, perf: &str) -> String {
        format!(
            "{{\"header\": {{\"id\": \"{communicator}\", \"comm_name\": \"unknown\", \"rank\": {rank}, \"n_ranks\": {ranks}, \
             \"nnodes\": 1}}, \"metadata\": {{\"inspector_output_format_version\": \"v4.0\", \"git_rev\": \"\", \
             \"rec_mechanism\": \"nccl_profiler_interface\", \"dump_timestamp_us\": 1748030377748202, \"hostname\": \"a\", \
             \"pid\": {pid}}}, {perf}}}\n"
        )
    }

    fn collective(name: &str, number: u64, bytes: u64, more: &str) -> String {
        format!(
            "\"coll_perf\": {{\"coll\": \"{name}\", \"coll_sn\": {number}, \"coll_msg_size_bytes\": {bytes}, \
             \"coll_exec_time_us\": 61974, \"coll_timing_source\": \"kernel_gpu\", \"coll_algobw_gbs\": 277.210914, \
             \"coll_busbw_gbs\": 485.119099{more}}}"
        )
    }

    fn times(start: u64, end: u64) -> String {
        format!(
            ", \"event_trace_ts\": {{\"coll_start_ts\": {start}, \"coll_stop_ts\": {start}, \"kernel_events\": \
             [{{\"channel_id\": 0, \"kernel_start_ts\": {start}, \"kernel_stop_ts\": {end}, \"kernel_record_ts\": {end}}}]}}"
        )
    }

    fn read_text(text: &str) -> Result<Trace, JobError> {
        read(&[("a-pid1.log".to_owned(), text.as_bytes().to_vec())], None)
    }

    fn calls(trace: &Trace) -> Vec<(Collective, Vec<u32>, u64)> {
        let summary = |call: &crate::trace::Call| (call.collective, call.group.to_vec(), call.bytes.0);
        trace.events.iter().filter_map(|event| event.kind.call()).map(summary).collect()
    }

    #[test]
    fn calls_of_all_ranks_are_joined() {
        let mut text = String::new();
        for rank in 0..4 {
            text += &record("0x7f", rank, 4, 10 + rank, &collective("AllReduce", 7, 4096, ""));
            text += &record("0x7f", rank, 4, 10 + rank, &collective("AllGather", 3, 1024, ""));
            // A group of every second rank.
            let pair = format!("0x{}", rank % 2);
            text += &record(&pair, rank / 2, 2, 10 + rank, &collective("ReduceScatter", 0, 512, ""));
        }
        let send = "\"p2p_perf\": {\"p2p\": \"Send\", \"p2p_sn\": 0, \"p2p_peer\": 1, \"p2p_msg_size_bytes\": 64}";
        let receive = "\"p2p_perf\": {\"p2p\": \"Recv\", \"p2p_sn\": 0, \"p2p_peer\": 0, \"p2p_msg_size_bytes\": 64}";
        text += &record("0x1", 0, 2, 11, send);
        text += &record("0x1", 1, 2, 13, receive);
        let trace = read_text(&text).unwrap();
        assert_eq!(
            calls(&trace),
            [
                (Collective::AllReduce, vec![0, 1, 2, 3], 4096),
                (Collective::AllGather, vec![0, 1, 2, 3], 4096),
                (Collective::ReduceScatter, vec![0, 2], 1024),
                (Collective::ReduceScatter, vec![1, 3], 1024),
                (Collective::SendRecv, vec![1, 3], 64),
            ]
        );
        assert_eq!(trace.events[1].after, [0]);
        assert!(trace.events[2].after.is_empty() && trace.events[4].after.is_empty());
        assert_eq!(trace.ignored.len(), 1, "{:?}", trace.ignored);
        assert!(trace.ignored[0].starts_with("computation is not recorded"), "{:?}", trace.ignored);
    }

    #[test]
    fn recorded_times_delay_calls() {
        let text: String = (0..2)
            .flat_map(|rank| {
                let first = record("0x7f", rank, 2, rank, &collective("AllReduce", 0, 64, &times(1_000, 1_020)));
                let start = 1_100 + u64::from(rank);
                [first, record("0x7f", rank, 2, rank, &collective("AllReduce", 1, 64, &times(start, 1_130)))]
            })
            .collect();
        let trace = read_text(&text).unwrap();
        assert_eq!((trace.events[1].start, trace.recorded), (Picos::from_us(101.0), Some(Picos::from_us(130.0))));
    }

    #[test]
    fn missing_parts_are_named() {
        // Rank 2 recorded nothing, one call is missing, one is on one rank only, one communicator is incomplete.
        let mut text = String::new();
        for rank in [0, 1, 3] {
            text += &record("0x7f", rank, 4, rank, &collective("AllReduce", 0, 64, ""));
            text += &record("0x7f", rank, 4, rank, &collective("AllReduce", 2, 64, ""));
        }
        text += &record("0x7f", 3, 4, 3, &collective("AllGatherV", 0, 64, ""));
        text += &record("0xab", 0, 2, 1, &collective("AllReduce", 0, 64, ""));
        let trace = read_text(&text).unwrap();
        let remarks = trace.ignored.join("\n");
        for expected in [
            "ranks 2 of 4 recorded no call",
            "communicator 0xab: of its 2 ranks only 0 recorded calls, the others are unknown; its 1 calls are left out",
            "communicator 0x7f: 1 of 3 AllReduce calls are not recorded",
            "2 calls are recorded by some of their ranks only",
            "1 calls of AllGatherV are left out",
        ] {
            assert!(remarks.contains(expected), "{expected}: {remarks}");
        }
        assert_eq!(calls(&trace).len(), 2);
        // Two pairs without a communicator of all.
        let pairs: String = (0..4)
            .map(|pid| record(&format!("0x{}", pid / 2), pid % 2, 2, pid, &collective("AllReduce", 0, 8, "")))
            .collect();
        let trace = read_text(&pairs).unwrap();
        assert_eq!(calls(&trace).iter().map(|call| call.1.clone()).collect::<Vec<_>>(), [[0, 1], [2, 3]]);
        assert!(trace.ignored[0].starts_with("no communicator has all 4 processes"), "{:?}", trace.ignored);
    }

    #[test]
    fn invalid_records_are_located() {
        let good = record("0x7f", 0, 2, 1, &collective("AllReduce", 0, 64, ""));
        for (text, expected) in [
            (format!("{good}{}", &good[..40]), "a-pid1.log:2:40: EOF"),
            (format!("{good}{}", good.replace("\"pid\": 1", "\"pid\": \"x\"")), "a-pid1.log:2:"),
            (format!("{good}{good}"), "a-pid1.log:2: rank 0 recorded AllReduce 0 of communicator 0x7f twice"),
            (good.replace("\"rank\": 0", "\"rank\": 5"), "a-pid1.log:1: rank 5 or its peer is not in a communicator"),
            (good.replace("\"n_ranks\": 2", "\"n_ranks\": 4294967295"), "a-pid1.log:1: rank 0 or its peer"),
            (format!("{good}{}", "[".repeat(100_000)), "a-pid1.log:2:"),
        ] {
            let error = read_text(&text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn damaged_records_are_no_panic(at in 0usize..100_000, byte: u8) {
            let mut text: Vec<u8> = (0..3)
                .flat_map(|rank| record("0x7f", rank, 3, rank, &collective("AllGather", 1, 64, &times(5, 9))).into_bytes())
                .collect();
            let index = at % text.len();
            text[index] = byte;
            if let Err(error) = read_nccl_inspector(&[("a.log".to_owned(), text)]) {
                prop_assert!(error.to_string().starts_with("a.log"), "{}", error);
            }
        }
    }
}
