//! Copy engines: peer copies on a stream of each GPU, and words that streams write and wait for.
//!
//! A call begins when every rank that will be written to has said that it has come, and ends when everything that is meant
//! for a rank has arrived. Words are set by their sender and cleared by their receiver, so that a captured graph can be
//! launched again: a sender sets a word again only after its receiver has come to the next call, which is after it cleared
//! it.

use fabricast_topologies::Bytes;

use crate::cuda::{DeviceMemory, Stream, Until};
use crate::kernel::{Copied, Devices, Kernel, UserBuffer};

use super::{Buffers, ExecuteError, Executor, Job, Stage};

/// Copies of every rank, and its words.
#[derive(Debug)]
pub struct Copies<'a> {
    stage: &'a Stage,
    buffers: &'a Buffers,
    job: &'a Job,
    copies: Vec<Copied>,
    /// Of every rank: a word for each other that has come, then one for each that is done.
    words: Vec<DeviceMemory>,
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
        let mut words = Vec::new();
        for context in stage.contexts() {
            let memory = DeviceMemory::new(context, Bytes(u64::from(stage.ranks()) * 8))?;
            let stream = Stream::new(context)?;
            stream.fill(memory.all(), 0)?;
            stream.synchronize()?;
            words.push(memory);
        }
        Ok(Self { stage, buffers, job, copies, words })
    }

    /// Whom a rank sends to, and who sends to it.
    fn peers(&self, member: usize) -> (Vec<usize>, Vec<usize>) {
        let me = member as u32;
        let others = |of: &dyn Fn(&Copied) -> Option<u32>| {
            let mut peers: Vec<usize> = self
                .copies
                .iter()
                .filter(|copy| copy.from != copy.to)
                .filter_map(of)
                .map(|peer| peer as usize)
                .collect();
            peers.sort_unstable();
            peers.dedup();
            peers
        };
        (others(&|copy| (copy.from == me).then_some(copy.to)), others(&|copy| (copy.to == me).then_some(copy.from)))
    }

    /// The word at a rank that another one sets.
    fn word(&self, at: usize, of: usize, kind: Kind) -> Result<crate::cuda::Part<'_>, ExecuteError> {
        let ranks = self.stage.ranks() as usize;
        let number = match kind {
            Kind::Come => of,
            Kind::Done => ranks + of,
        };
        Ok(self.words[at].part(Bytes(number as u64 * 4), Bytes(4))?)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Come,
    Done,
}

impl Executor for Copies<'_> {
    fn waiting(&self, member: usize) -> String {
        let (to, from) = self.peers(member);
        let ranks = |peers: &[usize]| peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        format!(
            "rank {member}, in {} by copy engines: for ranks {} to have come, or for what ranks {} send",
            self.job,
            ranks(&to),
            ranks(&from)
        )
    }

    fn enqueue(&self, member: usize, stream: &Stream) -> Result<(), ExecuteError> {
        let me = member as u32;
        let (to, from) = self.peers(member);
        for &peer in &from {
            stream.write_word(self.word(peer, member, Kind::Come)?, 1)?;
        }
        for &peer in &to {
            stream.wait_word(self.word(member, peer, Kind::Come)?, 1, Until::Equal)?;
            stream.write_word(self.word(member, peer, Kind::Come)?, 0)?;
        }
        for copy in self.copies.iter().filter(|copy| copy.from == me && copy.bytes.0 > 0) {
            let source =
                self.buffers.within(self.job, copy.from as usize, UserBuffer::Input, copy.source, copy.bytes)?;
            let target =
                self.buffers.within(self.job, copy.to as usize, UserBuffer::Output, copy.target, copy.bytes)?;
            stream.copy_reached(target, source)?;
        }
        for &peer in &to {
            stream.write_word(self.word(peer, member, Kind::Done)?, 1)?;
        }
        for &peer in &from {
            stream.wait_word(self.word(member, peer, Kind::Done)?, 1, Until::Equal)?;
            stream.write_word(self.word(member, peer, Kind::Done)?, 0)?;
        }
        Ok(())
    }
}
