//! Reader of NCCL logs written with `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL`, of all ranks in one text,
//! interleaved or concatenated.
//!
//! ```text
//! host:pid:tid [0] NCCL INFO AllReduce: opCount 1e7 sendbuff 0x… recvbuff 0x… count 1024 datatype 7 op 0 root 0 comm 0x… [nranks=8] stream 0x…
//! host:pid:tid [0] NCCL INFO ncclCommInitRank comm 0x… rank 0 nranks 8 cudaDev 0 … commId 0x… - Init COMPLETE
//! ```
//!
//! The formats are those of NCCL's `src/enqueue.cc` and `src/init.cc`, and equal to those of RCCL. Unknown words are
//! ignored.
//!
//! A communicator has a separate address in each process. Init lines identify the addresses that belong together, and
//! their ranks. The largest communicator defines the ranks of the trace. Without init lines, newer versions log
//! `globalrank`; otherwise there must be one communicator in each process, and ranks are numbered in order of first
//! appearance.
//!
//! The n-th call of a communicator is the same call on all of its ranks, and the calls of a rank are in stream order. A
//! log contains no computation. `count` is that of one rank; sends are matched with their receives in order, and both
//! must have the same size.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos, SourceLocation};
use rustc_hash::FxHashMap;

use super::messages::{Endpoint, Messages, message};
use super::{Call, Event, EventKind, MAX_EVENTS, Trace, ranks::MAX_RANKS};
use crate::job::JobError;

/// Collectives by their names in the log, with the ratio of the larger buffer to a rank's `count`.
const CALLS: [(&str, Collective, CountScale); 10] = [
    ("AllReduce", Collective::AllReduce, CountScale::Whole),
    ("Broadcast", Collective::Broadcast, CountScale::Whole),
    ("Reduce", Collective::Reduce, CountScale::Whole),
    ("AllGather", Collective::AllGather, CountScale::Part),
    ("ReduceScatter", Collective::ReduceScatter, CountScale::Part),
    ("AlltoAll", Collective::AllToAll, CountScale::Part),
    ("AllToAll", Collective::AllToAll, CountScale::Part),
    ("All2All", Collective::AllToAll, CountScale::Part),
    ("Gather", Collective::Gather, CountScale::Part),
    ("Scatter", Collective::Scatter, CountScale::Part),
];

/// Relation of a rank's `count` to the larger buffer: equal, or one part per rank.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CountScale {
    Whole,
    Part,
}

/// Returns the collective of a name of NCCL, and the message size of a call: the larger buffer, as in nccl-tests. `None`
/// if the name is unknown or the size too large. `bytes`: `count` of a rank in bytes.
pub(super) fn collective_size(name: &str, bytes: u64, ranks: u32) -> Option<(Collective, Bytes)> {
    let (_, collective, scale) = CALLS.iter().find(|row| row.0 == name)?;
    let parts = if *scale == CountScale::Part { u64::from(ranks) } else { 1 };
    let bytes = bytes.checked_mul(parts).filter(|bytes| *bytes < 1 << 60)?;
    Some((*collective, Bytes(bytes)))
}

/// Element size in bytes by NCCL's type number (`ncclDataType_t`, nccl.h): 8-bit, 32-bit and 64-bit integers, half,
/// float, double, bfloat16 and two 8-bit floating-point types.
const ELEMENTS: [u64; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];

/// Key of a communicator in a process: process (host and pid), and address of the communicator.
type Handle<'a> = (&'a str, &'a str);

/// Call on a line of the log.
struct LoggedCall<'a> {
    line: u32,
    handle: Handle<'a>,
    /// NCCL's `opCount`, which is equal for calls of one group (`ncclGroupStart`).
    number: &'a str,
    name: &'a str,
    bytes: u64,
    root: u32,
    ranks: u32,
    stream: &'a str,
    global: Option<u32>,
}

/// Membership of a process in a communicator: the communicator, and the rank in it.
struct Member<'a> {
    communicator: &'a str,
    rank: u32,
    ranks: u32,
}

/// Reads a log. `source`: name of the log in errors.
///
/// # Errors
/// [`JobError`] with the line: a missing or invalid field, ranks whose calls do not match, or a communicator whose
/// ranks are unknown.
pub fn read_nccl_log(text: &str, source: &str) -> Result<Trace, JobError> {
    let mut calls = Vec::new();
    let mut members: BTreeMap<Handle<'_>, Member<'_>> = BTreeMap::new();
    for (number, line) in (1u32..).zip(text.lines()) {
        let Some((head, tail)) = line.split_once("NCCL INFO ") else { continue };
        let process = process(head);
        if tail.contains("Init COMPLETE") || tail.contains("commId") {
            if let Some((handle, member)) = parse_init(process, tail) {
                members.insert(handle, member);
            }
        } else if let Some((name, fields)) = tail.split_once(": opCount ") {
            let error = |message: String| JobError::at(&at(source, number), message);
            calls.extend(call(number, process, name.trim(), fields).map_err(error)?);
        }
        if calls.len() > MAX_EVENTS {
            return Err(JobError::at(&at(source, number), format!("more than {MAX_EVENTS} calls")));
        }
    }
    if calls.is_empty() {
        let message = "no calls: expected lines as `… NCCL INFO AllReduce: opCount …` (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL)";
        return Err(JobError::at(&SourceLocation::from_source(source), message));
    }
    let groups = CommunicatorMembers::new(&calls, members, source)?;
    groups.trace(&calls, source)
}

fn at(source: &str, line: u32) -> SourceLocation {
    SourceLocation { line, ..SourceLocation::from_source(source) }
}

/// Returns host and pid, without the thread id, from the text before `[device] NCCL INFO`.
fn process(head: &str) -> &str {
    let word = head.split_whitespace().rfind(|word| word.matches(':').count() >= 2).unwrap_or(head.trim());
    word.rsplit_once(':').map_or(word, |(process, _)| process)
}

/// Returns the word that follows `key`; `None` if there is none.
fn word_after<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    let index = words.iter().position(|word| *word == key)?;
    words.get(index + 1).copied()
}

fn parse_init<'a>(process: &'a str, tail: &'a str) -> Option<(Handle<'a>, Member<'a>)> {
    let words: Vec<&str> = tail.split_whitespace().collect();
    let rank = word_after(&words, "rank")?.parse().ok()?;
    let ranks = word_after(&words, "nranks")?.parse().ok()?;
    Some(((process, word_after(&words, "comm")?), Member { communicator: word_after(&words, "commId")?, rank, ranks }))
}

/// Parses the fields of a call; `None` if the name of the call is unknown.
///
/// # Errors
/// [`JobError`] for a missing or invalid field.
fn call<'a>(line: u32, process: &'a str, name: &'a str, fields: &'a str) -> Result<Option<LoggedCall<'a>>, String> {
    let name = name.rsplit_once(' ').map_or(name, |(_, last)| last);
    let collective = CALLS.iter().find(|row| row.0 == name);
    if collective.is_none() && !matches!(name, "Send" | "Recv") {
        return Ok(None);
    }
    let words: Vec<&str> = fields.split_whitespace().collect();
    let word = |key: &str| word_after(&words, key).ok_or_else(|| format!("{name}: no `{key}` on this line"));
    let number = |key: &str| {
        let text = word(key)?;
        text.parse::<u64>().map_err(|_| format!("{name}: {key} `{text}` is not a number"))
    };
    let ranks = words.iter().find_map(|word| word.strip_prefix("[nranks=")?.strip_suffix(']'));
    let ranks = ranks.ok_or_else(|| format!("{name}: no `[nranks=…]` on this line"))?;
    let ranks: u32 = ranks
        .parse()
        .ok()
        .filter(|ranks| (1..=MAX_RANKS).contains(ranks))
        .ok_or_else(|| format!("{name}: nranks `{ranks}` is not from 1 to {MAX_RANKS}"))?;
    let datatype = number("datatype")?;
    let element = usize::try_from(datatype).ok().and_then(|number| ELEMENTS.get(number));
    let element =
        element.ok_or_else(|| format!("{name}: datatype {datatype} is none of NCCL's 0 to {}", ELEMENTS.len() - 1))?;
    let parts = collective.filter(|row| row.2 == CountScale::Part).map_or(1, |_| u64::from(ranks));
    let bytes = number("count")?.checked_mul(*element).and_then(|bytes| bytes.checked_mul(parts));
    let bytes = bytes.filter(|bytes| *bytes < 1 << 60).ok_or_else(|| format!("{name}: count is too large"))?;
    let root = u32::try_from(number("root")?).map_err(|_| format!("{name}: root is too large"))?;
    let global = match word_after(&words, "globalrank") {
        None => None,
        Some(text) => Some(
            text.parse()
                .ok()
                .filter(|rank| *rank < MAX_RANKS)
                .ok_or_else(|| format!("{name}: globalrank `{text}` is not a number under {MAX_RANKS}"))?,
        ),
    };
    let stream = word_after(&words, "stream").unwrap_or_default();
    Ok(Some(LoggedCall {
        line,
        handle: (process, word("comm")?),
        number: words.first().copied().unwrap_or_default(),
        name,
        bytes,
        root,
        ranks,
        stream,
        global,
    }))
}

/// Members of each communicator, as ranks of the trace.
struct CommunicatorMembers<'a> {
    /// Ranks of the trace by communicator, in the order of the communicator.
    members: BTreeMap<&'a str, Arc<[u32]>>,
    /// Communicator and rank in it, by process and address.
    ranks_by_handle: BTreeMap<Handle<'a>, (&'a str, u32)>,
}

impl<'a> CommunicatorMembers<'a> {
    fn new(
        calls: &[LoggedCall<'a>],
        handles: BTreeMap<Handle<'a>, Member<'a>>,
        source: &str,
    ) -> Result<Self, JobError> {
        let handles = Self::members(calls, handles, source)?;
        // Ranks in the largest communicator are the ranks of the trace.
        let max_ranks = handles.values().map(|member| member.ranks).max().unwrap_or(0);
        let world = handles.values().find(|member| member.ranks == max_ranks).map(|member| member.communicator);
        let mut globals: BTreeMap<Handle<'a>, u32> = BTreeMap::new();
        // A process may drive several devices. Its addresses are then ambiguous, except in the largest communicator.
        let mut ranks_by_process: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for ((process, _), member) in &handles {
            if Some(member.communicator) == world {
                ranks_by_process.entry(process).or_default().push(member.rank);
            }
        }
        for ((process, address), member) in &handles {
            let process_ranks = ranks_by_process.get(process).map(Vec::as_slice).unwrap_or_default();
            let global = if Some(member.communicator) == world {
                Some(member.rank)
            } else {
                match process_ranks {
                    [process_rank] => Some(*process_rank),
                    _ => None,
                }
            };
            if let Some(global) = global {
                globals.insert((process, address), global);
            }
        }
        let mut members: BTreeMap<&'a str, Vec<Option<u32>>> = BTreeMap::new();
        let mut ranks_by_handle = BTreeMap::new();
        for (handle, member) in &handles {
            let slots = members.entry(member.communicator).or_insert_with(|| vec![None; member.ranks as usize]);
            if Some(member.communicator) == world {
                slots.iter_mut().zip(0..).for_each(|(slot, rank)| *slot = Some(rank));
            } else if let Some(slot) = slots.get_mut(member.rank as usize) {
                *slot = globals.get(handle).copied();
            }
            ranks_by_handle.insert(*handle, (member.communicator, member.rank));
        }
        let mut complete = BTreeMap::new();
        for (communicator, slots) in members {
            let known: Option<Vec<u32>> = slots.into_iter().collect();
            if let Some(known) = known {
                complete.insert(communicator, known.into());
            }
        }
        for call in calls {
            let is_known =
                ranks_by_handle.get(&call.handle).is_some_and(|(communicator, _)| complete.contains_key(communicator));
            if !is_known {
                let message = format!(
                    "{}: the ranks of comm {} are unknown; expected the initialization lines of all of its processes \
                     (NCCL_DEBUG_SUBSYS=INIT,COLL)",
                    call.name, call.handle.1
                );
                return Err(JobError::at(&at(source, call.line), message));
            }
        }
        Ok(Self { members: complete, ranks_by_handle })
    }

    /// Returns the members of all communicators, from init lines or, without these, from the calls.
    ///
    /// # Errors
    /// [`JobError`] if the ranks of a communicator are unknown.
    fn members(
        calls: &[LoggedCall<'a>],
        handles: BTreeMap<Handle<'a>, Member<'a>>,
        source: &str,
    ) -> Result<BTreeMap<Handle<'a>, Member<'a>>, JobError> {
        if !handles.is_empty() {
            return Ok(handles);
        }
        let max_ranks = calls.iter().map(|call| call.ranks).max().unwrap_or(0);
        let mut members: BTreeMap<Handle<'a>, Member<'a>> = BTreeMap::new();
        let mut next = 0;
        for call in calls {
            if members.contains_key(&call.handle) {
                continue;
            }
            if call.ranks < max_ranks {
                let message = format!(
                    "{}: comm {} has {} of {max_ranks} ranks, which the log does not identify; expected NCCL_DEBUG_SUBSYS=INIT,COLL",
                    call.name, call.handle.1, call.ranks
                );
                return Err(JobError::at(&at(source, call.line), message));
            }
            let rank = call.global.unwrap_or(next);
            next += 1;
            if rank >= max_ranks || members.values().any(|member| member.rank == rank) {
                let message = format!(
                    "{}: rank {rank} of {max_ranks} ranks uses two addresses, {} is one",
                    call.name, call.handle.1
                );
                return Err(JobError::at(&at(source, call.line), message));
            }
            members.insert(call.handle, Member { communicator: "all", rank, ranks: max_ranks });
        }
        Ok(members)
    }

    fn trace(&self, calls: &[LoggedCall<'a>], source: &str) -> Result<Trace, JobError> {
        let mut events: Vec<Event> = Vec::new();
        // Calls of each communicator so far, each with the line of the first rank that logged it, and the number of
        // calls of each member.
        let mut calls_by_communicator: FxHashMap<&str, Vec<(u32, u32, &str, u64)>> = FxHashMap::default();
        let mut call_counts: FxHashMap<Handle<'_>, usize> = FxHashMap::default();
        let mut streams: FxHashMap<(u32, &str), Stream<'_>> = FxHashMap::default();
        let mut messages: FxHashMap<(&str, u32, u32), Messages> = FxHashMap::default();
        for call in calls {
            let Some(&(communicator, rank)) = self.ranks_by_handle.get(&call.handle) else { continue };
            let Some(group) = self.members.get(communicator) else { continue };
            let global = group.get(rank as usize).copied().unwrap_or(rank);
            let fail = |message: String| JobError::at(&at(source, call.line), message);
            let event = if let Some((_, collective, _)) = CALLS.iter().find(|row| row.0 == call.name) {
                let logged = calls_by_communicator.entry(communicator).or_default();
                let count = call_counts.entry(call.handle).or_default();
                let event = match logged.get(*count) {
                    None => {
                        let event = events.len() as u32;
                        logged.push((event, call.line, call.name, call.bytes));
                        let collective_call =
                            Call { group: Arc::clone(group), collective: *collective, bytes: Bytes(call.bytes) };
                        events.push(self::event(call, EventKind::Call(collective_call), source));
                        event
                    }
                    Some(&(event, _, name, bytes)) if name == call.name && bytes == call.bytes => event,
                    Some(&(_, line, name, bytes)) => {
                        return Err(fail(format!(
                            "call {} of this communicator is {} of {} bytes here, and {name} of {bytes} bytes on line {line}",
                            *count + 1,
                            call.name,
                            call.bytes
                        )));
                    }
                };
                *count += 1;
                event
            } else {
                let peer = group.get(call.root as usize).copied();
                let peer = peer.ok_or_else(|| {
                    fail(format!("{}: there is no rank {} in this communicator", call.name, call.root))
                })?;
                if peer == global {
                    return Err(fail(format!("{}: rank {global} is its own peer", call.name)));
                }
                let (side, from, to) = match call.name {
                    "Send" => (Endpoint::Sender, global, peer),
                    _ => (Endpoint::Receiver, peer, global),
                };
                let next = events.len() as u32;
                match messages.entry((communicator, from, to)).or_default().next(side, next) {
                    None => {
                        events.push(event(call, message(from, to, call.bytes), source));
                        next
                    }
                    // A send and its receive have the same size (nccl.h, `ncclRecv`).
                    Some(known) => {
                        let other = events.get(known as usize);
                        let other = other.and_then(|event| Some((event.kind.call()?.bytes.0, event.location.line)));
                        if let Some((bytes, line)) = other.filter(|(bytes, _)| *bytes != call.bytes) {
                            return Err(fail(format!(
                                "{}: a message of {} bytes from rank {from} to rank {to} here, and of {bytes} bytes \
                                 on line {line}",
                                call.name, call.bytes
                            )));
                        }
                        known
                    }
                }
            };
            let stream = streams.entry((global, call.stream)).or_default();
            let message = matches!(call.name, "Send" | "Recv").then_some((call.handle, call.number));
            if message.is_none() || stream.group != message {
                stream.before = std::mem::take(&mut stream.now);
                stream.group = message;
            }
            stream.now.push(event);
            if let Some(logged_event) = events.get_mut(event as usize) {
                logged_event.after.extend(stream.before.iter().filter(|before| **before != event));
                logged_event.after.sort_unstable();
                logged_event.after.dedup();
            }
        }
        let mut ignored = Vec::new();
        let silent =
            self.ranks_by_handle.keys().filter(|handle| calls.iter().all(|call| call.handle != **handle)).count();
        if silent > 0 {
            ignored.push(format!(
                "{silent} of {} members of communicators made no call that was logged",
                self.ranks_by_handle.len()
            ));
        }
        Trace::new(events, ignored, source)
    }
}

/// Events on a stream of a rank: its latest calls, and the calls before them.
#[derive(Default)]
struct Stream<'a> {
    before: Vec<u32>,
    now: Vec<u32>,
    /// Handle and `opCount` of the latest sends and receives, which are concurrent within a group; `None` after a
    /// collective.
    group: Option<(Handle<'a>, &'a str)>,
}

fn event(call: &LoggedCall<'_>, kind: EventKind, source: &str) -> Event {
    Event { name: call.name.to_owned(), kind, after: Vec::new(), start: Picos::ZERO, location: at(source, call.line) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = include_str!("../../../data/traces/two-ranks.log");

    fn calls(trace: &Trace) -> Vec<(&str, Vec<u32>, u64, Vec<u32>)> {
        let summary = |event: &Event| {
            let call = event.kind.call().unwrap();
            (call.collective.name(), call.group.to_vec(), call.bytes.0, event.after.clone())
        };
        trace.events.iter().map(summary).collect()
    }

    /// Interleaved lines of two processes at different positions give calls in the order of each rank.
    #[test]
    fn interleaved_logs_are_ordered_by_rank() {
        let trace = read_nccl_log(LOG, "two-ranks.log").unwrap();
        let expected: Vec<_> =
            (0..8u32).map(|n| ("all_reduce", vec![0, 1], 4, if n == 0 { vec![] } else { vec![n - 1] })).collect();
        assert_eq!(calls(&trace), expected);
        // Without init lines, ranks are determined by `globalrank`, or by order of appearance.
        for removed in [&["Init COMPLETE"][..], &["Init COMPLETE", " globalrank "]] {
            let text: Vec<String> = LOG
                .lines()
                .filter(|line| !line.contains(removed[0]))
                .map(|line| {
                    if removed.len() > 1 { line.split(removed[1]).next().unwrap().to_owned() } else { line.to_owned() }
                })
                .collect();
            let other = read_nccl_log(&text.join("\n"), "two-ranks.log").unwrap();
            assert_eq!(calls(&other), calls(&trace));
        }
    }

    fn begin(host: u32, comm: &str, rank: u32, ranks: u32, id: &str) -> String {
        format!(
            "h:{host}:1 [0] NCCL INFO ncclCommInitRank comm {comm} rank {rank} nranks {ranks} cudaDev 0 busId 1 commId {id} - Init COMPLETE\n"
        )
    }

    fn line(host: u32, comm: &str, ranks: u32, name: &str, number: u32, count: u64, root: u32) -> String {
        format!(
            "h:{host}:1 [0] NCCL INFO {name}: opCount {number:x} sendbuff 0x1 recvbuff 0x2 count {count} datatype 9 op 0 root {root} comm {comm} [nranks={ranks}] stream 0x5\n"
        )
    }

    /// Ranks in communicators are mapped to ranks of the trace. The log has four processes, a communicator of all, two
    /// communicators of pairs, and concurrent messages in both directions between the first ranks of the pairs.
    #[test]
    fn communicators_and_messages_are_mapped_to_trace_ranks() {
        let mut text = String::new();
        for rank in 0..4 {
            text += &begin(rank, "0xa", rank, 4, "0xworld");
            text += &begin(rank, "0xb", rank % 2, 2, if rank < 2 { "0xlow" } else { "0xhigh" });
        }
        for rank in (0..4).rev() {
            text += &line(rank, "0xb", 2, "AllGather", 0, 100, 0);
            if rank % 2 == 0 {
                text += &line(rank, "0xa", 4, "Send", 0, 7, 2 - rank);
                text += &line(rank, "0xa", 4, "Recv", 0, 7, 2 - rank);
            }
            text += &line(rank, "0xa", 4, "AllReduce", 1, 10, 0);
        }
        let trace = read_nccl_log(&text, "log").unwrap();
        let mut actual = calls(&trace);
        actual.iter_mut().for_each(|call| call.3.sort_unstable());
        assert_eq!(
            actual,
            [
                ("all_gather", vec![2, 3], 400, vec![]),
                ("all_reduce", vec![0, 1, 2, 3], 20, vec![0, 2, 3, 4]),
                ("send_recv", vec![2, 0], 14, vec![0, 4]),
                ("send_recv", vec![0, 2], 14, vec![0, 4]),
                ("all_gather", vec![0, 1], 400, vec![]),
            ]
        );
    }

    #[test]
    fn invalid_logs_are_rejected_with_line() {
        let init = begin(0, "0xa", 0, 2, "0x1") + &begin(1, "0xb", 1, 2, "0x1");
        let valid_line = line(0, "0xa", 2, "AllReduce", 0, 8, 0);
        for (text, expected) in [
            (String::new(), "log: no calls"),
            (
                init.clone() + &valid_line + &line(1, "0xb", 2, "AllReduce", 0, 9, 0),
                "log:4: call 1 of this communicator is AllReduce of 18 bytes here, and AllReduce of 16 bytes on line 3",
            ),
            (init.clone() + &valid_line.replace("datatype 9", "datatype 99"), "log:3: AllReduce: datatype 99"),
            (init.clone() + &valid_line.replace("count 8", "count x"), "log:3: AllReduce: count `x`"),
            (init.clone() + &valid_line.replace("[nranks=2]", ""), "log:3: AllReduce: no `[nranks"),
            (init.clone() + &valid_line.replace("0xa", "0xc"), "log:3: AllReduce: the ranks of comm 0xc"),
            (init.clone() + &line(0, "0xa", 2, "Send", 0, 8, 5), "log:3: Send: there is no rank 5"),
            (
                init.clone() + &line(0, "0xa", 2, "Send", 0, 8, 1) + &line(1, "0xb", 2, "Recv", 0, 9, 0),
                "log:4: Recv: a message of 18 bytes from rank 0 to rank 1 here, and of 16 bytes on line 3",
            ),
            (valid_line.clone() + &line(1, "0xb", 4, "AllReduce", 0, 8, 0), "log:1: AllReduce: comm 0xa has 2 of 4"),
        ] {
            let error = read_nccl_log(&text, "log").unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
