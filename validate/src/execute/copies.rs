//! Executor for copy engines: peer copies on streams of each GPU, synchronized by memory words that streams write and
//! wait for.
//!
//! A call is divided into one *lane* per peer that a rank sends to or receives from, and one lane for local copies, so
//! that all links are used concurrently. Each lane has a stream. It signals the peer that this rank has entered the
//! call, waits until the peer has entered, copies, signals the completion, and waits until the peer has completed. The
//! caller's stream then waits for all lanes.
//!
//! Each word is set by the sender of a signal and cleared by the receiver, so that a captured graph can be launched
//! repeatedly. A word is set again only after its receiver has entered the next call, and the receiver clears the word
//! before that. Lanes do not wait for each other, and calls run one after another, so streams that share a hardware
//! queue cannot deadlock.

use fabricast_topologies::Bytes;

use crate::cuda::{DeviceMemory, DeviceSlice, Event, Stream, WaitCondition, WordOperation};
use crate::kernel::{CopyOperation, Devices, Kernel, UserBuffer};

use super::{Buffers, ExecuteError, Executor, Job, Testbed};

/// Copies of every rank, and the words for synchronization.
#[derive(Debug)]
pub struct Copies<'a> {
    testbed: &'a Testbed,
    buffers: &'a Buffers,
    job: &'a Job,
    copies: Vec<CopyOperation>,
    members: Vec<Streams>,
    /// Words of each rank: one for the entry of every other rank, then one for the completion of every other rank.
    words: Vec<DeviceMemory>,
}

/// Streams of a rank, in addition to the caller's stream.
#[derive(Debug)]
struct Streams {
    /// Event recorded at the start of a call.
    started: Event,
    lanes: Vec<Lane>,
}

/// Stream for the copies between a rank and a peer, or within the rank.
#[derive(Debug)]
struct Lane {
    /// The other rank, or the rank itself for local copies.
    peer: usize,
    stream: Stream,
    /// Event recorded at the end of the lane's part of a call.
    done: Event,
}

impl<'a> Copies<'a> {
    /// Creates the executor from the copies of a schedule.
    ///
    /// # Errors
    /// The ranks share a GPU, the schedule reduces or forwards received data, or a driver call fails.
    pub fn new(
        testbed: &'a Testbed,
        buffers: &'a Buffers,
        job: &'a Job,
        kernel: &Kernel,
    ) -> Result<Self, ExecuteError> {
        let unsupported = |reason: &str| ExecuteError::Unsupported { executor: "copies", reason: reason.to_owned() };
        if testbed.devices() == Devices::Shared {
            return Err(unsupported("its streams wait for each other, which needs a GPU for each rank"));
        }
        let copies =
            kernel.copies().ok_or_else(|| unsupported("copy engines neither reduce nor forward received data"))?;
        let copies = merge_adjacent(copies);
        let (mut words, mut members) = (Vec::new(), Vec::new());
        for (member, context) in testbed.contexts().iter().enumerate() {
            let memory = DeviceMemory::new(context, Bytes(u64::from(testbed.ranks()) * 8))?;
            let stream = Stream::new(context)?;
            stream.fill(memory.all(), 0)?;
            stream.synchronize()?;
            words.push(memory);
            let lane = |peer| {
                Ok::<_, ExecuteError>(Lane { peer, stream: Stream::new(context)?, done: Event::ordering(context)? })
            };
            let lanes = peers(&copies, member as u32).into_iter().map(lane).collect::<Result<_, _>>()?;
            members.push(Streams { started: Event::ordering(context)?, lanes });
        }
        Ok(Self { testbed, buffers, job, copies, members, words })
    }

    /// Word in the memory of rank `owner` that rank `setter` sets to signal its entry or completion.
    fn word(&self, owner: usize, setter: usize, kind: FlagKind) -> Result<DeviceSlice<'_>, ExecuteError> {
        let ranks = self.testbed.ranks() as usize;
        let number = match kind {
            FlagKind::Entered => setter,
            FlagKind::Done => ranks + setter,
        };
        Ok(self.words[owner].part(Bytes(number as u64 * 4), Bytes(4))?)
    }

    fn has(&self, from: usize, to: usize) -> bool {
        self.copies.iter().any(|copy| (copy.from as usize, copy.to as usize) == (from, to))
    }

    /// Enqueues a lane's part of a call.
    fn enqueue_lane(&self, member: usize, Lane { peer, stream, .. }: &Lane) -> Result<(), ExecuteError> {
        let peer = *peer;
        let (sends, receives) = (self.has(member, peer), self.has(peer, member));
        let is_local = peer == member;
        let signal_and_wait = |kind, signals: bool, waits: bool| {
            let mut steps = Vec::new();
            if signals {
                steps.push(WordOperation::Write(self.word(peer, member, kind)?, 1));
            }
            if waits {
                let word = self.word(member, peer, kind)?;
                steps.extend([WordOperation::Wait(word, 1, WaitCondition::Equal), WordOperation::Write(word, 0)]);
            }
            if steps.is_empty() { Ok(()) } else { Ok::<_, ExecuteError>(stream.enqueue_word_operations(&steps)?) }
        };
        // A receiver signals that it has entered the call, and its sender waits for this signal.
        signal_and_wait(FlagKind::Entered, receives && !is_local, sends && !is_local)?;
        let (me, to) = (member as u32, peer as u32);
        for copy in self.copies.iter().filter(|copy| copy.from == me && copy.to == to && copy.bytes.0 > 0) {
            let source = self.buffers.range(self.job, member, UserBuffer::Input, copy.source, copy.bytes)?;
            let target = self.buffers.range(self.job, peer, UserBuffer::Output, copy.target, copy.bytes)?;
            stream.copy_accessible(target, source)?;
        }
        signal_and_wait(FlagKind::Done, sends && !is_local, receives && !is_local)
    }
}

/// Peers that a rank sends to or receives from, including the rank itself if it copies locally.
fn peers(copies: &[CopyOperation], member: u32) -> Vec<usize> {
    let of_copy = |copy: &CopyOperation| match (copy.from == member, copy.to == member) {
        (true, _) => Some(copy.to as usize),
        (false, true) => Some(copy.from as usize),
        (false, false) => None,
    };
    let mut peers: Vec<usize> = copies.iter().filter_map(of_copy).collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

/// Merges adjacent copies between two ranks, which the schedule divides among channels.
fn merge_adjacent(mut copies: Vec<CopyOperation>) -> Vec<CopyOperation> {
    copies.sort_unstable_by_key(|copy| (copy.from, copy.to, copy.source.0));
    let mut merged: Vec<CopyOperation> = Vec::new();
    for copy in copies {
        match merged.last_mut() {
            Some(last)
                if (last.from, last.to) == (copy.from, copy.to)
                    && last.source.0 + last.bytes.0 == copy.source.0
                    && last.target.0 + last.bytes.0 == copy.target.0 =>
            {
                last.bytes.0 += copy.bytes.0;
            }
            _ => merged.push(copy),
        }
    }
    merged
}

#[derive(Clone, Copy)]
enum FlagKind {
    Entered,
    Done,
}

impl Executor for Copies<'_> {
    fn waiting(&self, member: usize) -> String {
        let peers: Vec<String> = peers(&self.copies, member as u32)
            .into_iter()
            .filter(|&peer| peer != member)
            .map(|peer| peer.to_string())
            .collect();
        format!("rank {member}, in {} by copy engines: for ranks {} to start or to finish", self.job, peers.join(", "))
    }

    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        let Streams { started: begun, lanes } = &self.members[member];
        stream.record(begun)?;
        for lane in lanes {
            lane.stream.wait_for(begun)?;
            self.enqueue_lane(member, lane)?;
            lane.stream.record(&lane.done)?;
        }
        lanes.iter().try_for_each(|lane| Ok(stream.wait_for(&lane.done)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_copies_are_merged() {
        let copy = |from, source, to, target, bytes| CopyOperation {
            from,
            source: Bytes(source),
            to,
            target: Bytes(target),
            bytes: Bytes(bytes),
        };
        let all = vec![copy(0, 8, 1, 108, 8), copy(0, 0, 1, 100, 8), copy(0, 16, 1, 200, 8), copy(0, 16, 2, 116, 8)];
        assert_eq!(merge_adjacent(all), [copy(0, 0, 1, 100, 16), copy(0, 16, 1, 200, 8), copy(0, 16, 2, 116, 8)]);
        assert_eq!(peers(&[copy(0, 0, 1, 0, 8), copy(2, 0, 0, 0, 8), copy(1, 0, 2, 0, 8)], 0), [1, 2]);
    }
}
