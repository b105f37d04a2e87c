//! Copy engines: peer copies on streams of each GPU, and words that streams write and wait for.
//!
//! A call forks into a *lane* for each other rank that a rank sends to or takes from, and one for what it copies for itself, so that
//! all links work at once. A lane tells its peer that this rank has come, waits until the peer has, copies, tells that it is done, and
//! waits until the peer is; then the lanes join. Words are set by their sender and cleared by their receiver, so that a captured graph
//! can be launched again: a sender sets a word again only after its receiver has come to the next call, which is after it cleared it.
//! No lane waits for another, and calls follow each other, so streams that share a queue of the hardware do not hold each other up
//! for ever.

use fabricast_topologies::Bytes;

use crate::cuda::{DeviceMemory, Event, Part, Stream, Until, WordStep};
use crate::kernel::{Copied, Devices, Kernel, UserBuffer};

use super::{Buffers, ExecuteError, Executor, Job, Stage};

/// Copies of every rank, and its words.
#[derive(Debug)]
pub struct Copies<'a> {
    stage: &'a Stage,
    buffers: &'a Buffers,
    job: &'a Job,
    copies: Vec<Copied>,
    members: Vec<Streams>,
    /// Of every rank: a word for each other that has come, then one for each that is done.
    words: Vec<DeviceMemory>,
}

/// A rank's streams besides the one that it is called on.
#[derive(Debug)]
struct Streams {
    /// Reached when a call begins.
    begun: Event,
    lanes: Vec<Lane>,
}

/// A stream for what a rank has to do with another, or for itself.
#[derive(Debug)]
struct Lane {
    /// The other rank; itself where it copies for itself.
    peer: usize,
    stream: Stream,
    /// Reached when its part of a call is done.
    done: Event,
}

impl<'a> Copies<'a> {
    /// Takes the copies of a schedule.
    ///
    /// # Errors
    /// A schedule that reduces, or passes on what arrived.
    pub fn new(stage: &'a Stage, buffers: &'a Buffers, job: &'a Job, kernel: &Kernel) -> Result<Self, ExecuteError> {
        let unsupported = |reason: &str| ExecuteError::Unsupported { executor: "copies", reason: reason.to_owned() };
        if stage.devices() == Devices::Shared {
            return Err(unsupported("its streams wait for each other, which takes a GPU each"));
        }
        let copies =
            kernel.copies().ok_or_else(|| unsupported("copy engines neither reduce nor pass on what arrives"))?;
        let copies = joined(copies);
        let (mut words, mut members) = (Vec::new(), Vec::new());
        for (member, context) in stage.contexts().iter().enumerate() {
            let memory = DeviceMemory::new(context, Bytes(u64::from(stage.ranks()) * 8))?;
            let stream = Stream::new(context)?;
            stream.fill(memory.all(), 0)?;
            stream.synchronize()?;
            words.push(memory);
            let lane = |peer| {
                Ok::<_, ExecuteError>(Lane { peer, stream: Stream::new(context)?, done: Event::ordering(context)? })
            };
            let lanes = peers(&copies, member as u32).into_iter().map(lane).collect::<Result<_, _>>()?;
            members.push(Streams { begun: Event::ordering(context)?, lanes });
        }
        Ok(Self { stage, buffers, job, copies, members, words })
    }

    /// The word at a rank that another one sets.
    fn word(&self, at: usize, of: usize, kind: Kind) -> Result<Part<'_>, ExecuteError> {
        let ranks = self.stage.ranks() as usize;
        let number = match kind {
            Kind::Come => of,
            Kind::Done => ranks + of,
        };
        Ok(self.words[at].part(Bytes(number as u64 * 4), Bytes(4))?)
    }

    fn has(&self, from: usize, to: usize) -> bool {
        self.copies.iter().any(|copy| (copy.from as usize, copy.to as usize) == (from, to))
    }

    /// A lane's part of a call.
    fn enqueue_lane(&self, member: usize, Lane { peer, stream, .. }: &Lane) -> Result<(), ExecuteError> {
        let peer = *peer;
        let (sends, takes) = (self.has(member, peer), self.has(peer, member));
        let is_own = peer == member;
        let told_and_heard = |kind, tells: bool, hears: bool| {
            let mut steps = Vec::new();
            if tells {
                steps.push(WordStep::Write(self.word(peer, member, kind)?, 1));
            }
            if hears {
                let own = self.word(member, peer, kind)?;
                steps.extend([WordStep::Wait(own, 1, Until::Equal), WordStep::Write(own, 0)]);
            }
            if steps.is_empty() { Ok(()) } else { Ok::<_, ExecuteError>(stream.word_steps(&steps)?) }
        };
        // Who takes says that it has come; who sends waits for that.
        told_and_heard(Kind::Come, takes && !is_own, sends && !is_own)?;
        let (me, to) = (member as u32, peer as u32);
        for copy in self.copies.iter().filter(|copy| copy.from == me && copy.to == to && copy.bytes.0 > 0) {
            let source = self.buffers.within(self.job, member, UserBuffer::Input, copy.source, copy.bytes)?;
            let target = self.buffers.within(self.job, peer, UserBuffer::Output, copy.target, copy.bytes)?;
            stream.copy_reached(target, source)?;
        }
        told_and_heard(Kind::Done, sends && !is_own, takes && !is_own)
    }
}

/// Whom a rank sends to or takes from; itself, where it copies for itself.
fn peers(copies: &[Copied], member: u32) -> Vec<usize> {
    let of_copy = |copy: &Copied| match (copy.from == member, copy.to == member) {
        (true, _) => Some(copy.to as usize),
        (false, true) => Some(copy.from as usize),
        (false, false) => None,
    };
    let mut peers: Vec<usize> = copies.iter().filter_map(of_copy).collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

/// Neighbours from one rank to another as one copy: what channels divide, engines need not.
fn joined(mut copies: Vec<Copied>) -> Vec<Copied> {
    copies.sort_unstable_by_key(|copy| (copy.from, copy.to, copy.source.0));
    let mut all: Vec<Copied> = Vec::new();
    for copy in copies {
        match all.last_mut() {
            Some(last)
                if (last.from, last.to) == (copy.from, copy.to)
                    && last.source.0 + last.bytes.0 == copy.source.0
                    && last.target.0 + last.bytes.0 == copy.target.0 =>
            {
                last.bytes.0 += copy.bytes.0;
            }
            _ => all.push(copy),
        }
    }
    all
}

#[derive(Clone, Copy)]
enum Kind {
    Come,
    Done,
}

impl Executor for Copies<'_> {
    fn waiting(&self, member: usize) -> String {
        let peers: Vec<String> = peers(&self.copies, member as u32)
            .into_iter()
            .filter(|&peer| peer != member)
            .map(|peer| peer.to_string())
            .collect();
        format!("rank {member}, in {} by copy engines: for ranks {} to come, or to be done", self.job, peers.join(", "))
    }

    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        let Streams { begun, lanes } = &self.members[member];
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
    fn neighbours_are_one_copy() {
        let copy = |from, source, to, target, bytes| Copied {
            from,
            source: Bytes(source),
            to,
            target: Bytes(target),
            bytes: Bytes(bytes),
        };
        let all = vec![copy(0, 8, 1, 108, 8), copy(0, 0, 1, 100, 8), copy(0, 16, 1, 200, 8), copy(0, 16, 2, 116, 8)];
        assert_eq!(joined(all), [copy(0, 0, 1, 100, 16), copy(0, 16, 1, 200, 8), copy(0, 16, 2, 116, 8)]);
        assert_eq!(peers(&[copy(0, 0, 1, 0, 8), copy(2, 0, 0, 0, 8), copy(1, 0, 2, 0, 8)], 0), [1, 2]);
    }
}
