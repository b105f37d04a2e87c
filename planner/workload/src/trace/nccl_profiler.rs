//! Reader of the events that NCCL's example profiler writes (`plugins/profiler/example/print_event.cc`; before NCCL
//! 2.28 `ext-profiler/example`).
//!
//! ```text
//! {"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "pid": 225798, …, "args": {"SeqNum": 0,
//!  "CommHash": 1493613951195738943, "Rank": 0, "Count": 262144, "Datatype": "ncclFloat32", …}},
//! ```
//!
//! A file has the events of one process, one event per line. Only the beginnings of collectives (`COLL`) and messages
//! (`P2P`) are read: other lines of some versions are not JSON (`"Stream": 0x5020000567d0`). Times are those of the host
//! and start at 0 in each process, so they are not used. The size of a communicator is the greatest rank that occurs,
//! plus one.

use std::collections::BTreeMap;

use fabricast_topologies::SourceLocation;
use fabricast_topologies::read::Limit;
use serde::Deserialize;

use super::communicators::trace;
use super::contents::Contents;
use super::gzip::decompress;
use super::recorded_call::{Process, RecordedCall, RecordedKind};
use super::{MAX_EVENTS, Trace, json};
use crate::job::JobError;

/// Beginning of a collective or message.
#[derive(Deserialize)]
struct ProfilerEvent {
    name: String,
    cat: String,
    ph: String,
    pid: u64,
    args: Option<CallArguments>,
}

#[derive(Deserialize)]
struct CallArguments {
    #[serde(rename = "SeqNum")]
    number: Option<u64>,
    #[serde(rename = "CommHash")]
    communicator: u64,
    #[serde(rename = "Rank")]
    rank: u32,
    #[serde(rename = "Peer")]
    peer: Option<u32>,
    #[serde(rename = "Count")]
    count: u64,
    #[serde(rename = "Datatype")]
    datatype: String,
}

/// Reads the files of all processes.
///
/// # Errors
/// [`JobError`] with the file and line: an invalid event, no collective or message, or calls that cannot be joined.
pub fn read_nccl_profiler(files: &[Contents]) -> Result<Trace, JobError> {
    let mut calls: Vec<RecordedCall> = Vec::new();
    let mut unknown_types: BTreeMap<String, usize> = BTreeMap::new();
    for (source, bytes) in files {
        let text = decompress(source, bytes, Limit::JSON_TRACE)?;
        for (number, line) in (1u32..).zip(text.split(|byte| *byte == b'\n')) {
            if !is_call(line) {
                continue;
            }
            let location = SourceLocation { line: number, ..SourceLocation::from_source(source) };
            let line = line.trim_ascii();
            let event: ProfilerEvent =
                serde_json::from_slice(line.strip_suffix(b",").unwrap_or(line)).map_err(|error| {
                    let one = json::error(source, &error);
                    JobError { location: SourceLocation { line: number, ..one.location.clone() }, ..one }
                })?;
            if event.ph != "b" {
                continue;
            }
            let Some(arguments) = event.args else {
                return Err(JobError::at(&location, format!("{}: no args", event.name)));
            };
            let kind = match (event.cat.as_str(), event.name.as_str(), arguments.peer) {
                ("P2P", "Send", Some(peer)) => RecordedKind::Send(peer),
                ("P2P", "Recv", Some(peer)) => RecordedKind::Receive(peer),
                ("COLL", name, _) => {
                    RecordedKind::Collective { name: name.to_owned(), number: arguments.number.unwrap_or_default() }
                }
                _ => continue,
            };
            let Some(element) = element_bytes(&arguments.datatype) else {
                *unknown_types.entry(arguments.datatype).or_default() += 1;
                continue;
            };
            let Some(bytes) = arguments.count.checked_mul(element) else {
                return Err(JobError::at(&location, format!("{}: Count is too large", event.name)));
            };
            calls.push(RecordedCall {
                process: Process { host: source.clone(), id: event.pid },
                communicator: format!("{:#x}", arguments.communicator),
                rank: arguments.rank,
                ranks: None,
                kind,
                bytes,
                time: None,
                location,
            });
            if calls.len() > MAX_EVENTS {
                let location = SourceLocation { line: number, ..SourceLocation::from_source(source) };
                return Err(JobError::at(&location, format!("more than {MAX_EVENTS} calls")));
            }
        }
    }
    let source = files.first().map_or("", |file| file.0.as_str());
    if calls.is_empty() {
        let message = "no event with \"cat\": \"COLL\" or \"P2P\": expected the events of NCCL's example profiler";
        return Err(JobError::at(&SourceLocation::from_source(source), message));
    }
    let remarks = unknown_types
        .into_iter()
        .map(|(name, count)| format!("{count} calls have the unknown type {name} and are left out"))
        .collect();
    trace(&calls, remarks, source)
}

/// Returns true for the line of a collective or message.
fn is_call(line: &[u8]) -> bool {
    let contains = |key: &[u8]| line.windows(key.len()).any(|window| window == key);
    contains(b"\"cat\": \"COLL\"") || contains(b"\"cat\": \"P2P\"")
}

/// Size of an element in bytes by the name of its `ncclDataType_t`.
fn element_bytes(name: &str) -> Option<u64> {
    Some(match name {
        "ncclInt8" | "ncclChar" | "ncclUint8" | "ncclFloat8e4m3" | "ncclFloat8e5m2" => 1,
        "ncclFloat16" | "ncclHalf" | "ncclBfloat16" => 2,
        "ncclInt32" | "ncclInt" | "ncclUint32" | "ncclFloat32" | "ncclFloat" => 4,
        "ncclInt64" | "ncclUint64" | "ncclFloat64" | "ncclDouble" => 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Collective;
    use proptest::prelude::*;

    use super::*;
    use crate::trace::read;

    /// Events in the layout of `print_event.cc`; the first lines of some versions are not JSON.
    fn events(pid: u32, rank: u32) -> String {
        format!(
            "[\n\
             {{\"name\": \"KernelLaunch\", \"cat\": \"KERNEL_LAUNCH\", \"ph\": \"b\", \"id\": 0, \"pid\": {pid}, \"tid\": 1, \"ts\": 0.000000, \"args\": {{\"groupId\": 0, \"Stream\": 0x5020000567d0}}}},\n\
             {{\"name\": \"AllReduce\", \"cat\": \"COLL_API\", \"ph\": \"b\", \"id\": 0, \"pid\": {pid}, \"tid\": 1, \"ts\": 0.000000, \"args\": {{\"count\": 262144, \"datatype\": ncclFloat32, \"root\": 0}}}},\n\
             {{\"name\": \"AllReduce\", \"cat\": \"COLL\", \"ph\": \"b\", \"id\": 0, \"pid\": {pid}, \"tid\": 1, \"ts\": 111994.477997, \"args\": {{\"SeqNum\": 0, \"CommHash\": 14936139511957389430, \"Rank\": {rank}, \"Count\": 262144, \"Datatype\": \"ncclFloat32\", \"Algorithm\": \"RING\", \"Protocol\": \"SIMPLE\", \"nChannels\": 2}}}},\n\
             {{\"name\": \"AllReduce\", \"cat\": \"COLL\", \"ph\": \"e\", \"id\": 0, \"pid\": {pid}, \"tid\": 1, \"ts\": 170633.535980}},\n\
             {{\"name\": \"AllGather\", \"cat\": \"COLL\", \"ph\": \"b\", \"id\": 1, \"pid\": {pid}, \"tid\": 1, \"ts\": 180000.0, \"args\": {{\"SeqNum\": 0, \"CommHash\": 14936139511957389430, \"Rank\": {rank}, \"Count\": 1024, \"Datatype\": \"ncclBfloat16\"}}}},\n\
             {{\"name\": \"{}\", \"cat\": \"P2P\", \"ph\": \"b\", \"id\": 0, \"pid\": {pid}, \"tid\": 1, \"ts\": 190000.0, \"args\": {{\"CommHash\": 14936139511957389430, \"Rank\": {rank}, \"Peer\": {}, \"Count\": 16, \"Datatype\": \"ncclInt64\", \"nChannels\": 1}}}},\n\
             {{}}]\n",
            if rank == 0 { "Send" } else { "Recv" },
            1 - rank
        )
    }

    #[test]
    fn events_of_all_ranks_are_joined() {
        let files: Vec<Contents> =
            (0..2).map(|rank| (format!("events-host-{rank}.txt"), events(7, rank).into_bytes())).collect();
        let trace = read(&files, None).unwrap();
        let calls: Vec<_> = trace
            .events
            .iter()
            .filter_map(|event| event.kind.call())
            .map(|call| (call.collective, call.group.to_vec(), call.bytes.0))
            .collect();
        assert_eq!(
            calls,
            [
                (Collective::AllReduce, vec![0, 1], 1 << 20),
                (Collective::AllGather, vec![0, 1], 4096),
                (Collective::SendRecv, vec![0, 1], 128),
            ]
        );
        assert_eq!(
            trace.ignored,
            ["computation is not recorded: the calls of a communicator follow one another at once"]
        );
        let error = read(&[("e.txt".to_owned(), b"[\n{}]\n".to_vec())], None).unwrap_err().to_string();
        assert!(error.starts_with("e.txt: no event with "), "{error}");
        let broken = events(7, 0).replace("\"Count\": 1024", "\"Count\": -4");
        let error = read(&[("e.txt".to_owned(), broken.into_bytes())], None).unwrap_err().to_string();
        assert!(error.starts_with("e.txt:6:"), "{error}");
    }

    proptest! {
        #[test]
        fn damaged_events_are_no_panic(at in 0usize..100_000, byte: u8) {
            let mut text = events(7, 0).into_bytes();
            let index = at % text.len();
            text[index] = byte;
            if let Err(error) = read_nccl_profiler(&[("e.txt".to_owned(), text)]) {
                prop_assert!(error.to_string().starts_with("e.txt"), "{}", error);
            }
        }
    }
}
