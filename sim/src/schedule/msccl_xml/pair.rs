//! Numbering of all steps of a file: pairs of sends and receives, and dependencies between steps.
//!
//! A connection leads from one GPU to another on a channel. One thread block sends into it and one receives from it,
//! each in the order of its steps, so that the k-th send pairs with the k-th receive. A step that names another waits
//! for the first step at or after that one that sets its completion flag (`hasdep`): flags only increase.

use rustc_hash::FxHashMap;

use super::parse::{Algo, Block, Step, StepKind};
use crate::schedule::format::{FormatError, Source};

/// Marks a missing step.
pub(super) const NONE: u32 = u32::MAX;

/// A thread block and the number of its first step.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockAt<'a> {
    pub(super) gpu: u32,
    pub(super) number: u32,
    pub(super) block: &'a Block,
    pub(super) first: u32,
}

impl BlockAt<'_> {
    pub(super) fn steps(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.block.steps.len() as u32
    }
}

/// The steps of all thread blocks of all GPUs.
pub(super) struct Steps<'a> {
    source: Source<'a>,
    pub(super) blocks: Vec<BlockAt<'a>>,
    pub(super) steps: Vec<&'a Step>,
    block_of: Vec<u32>,
    /// For each sending step, its receiving step.
    pub(super) receiver: Vec<u32>,
    /// For each receiving step, its sending step.
    pub(super) sender: Vec<u32>,
    /// The step of another thread block that each step waits for.
    pub(super) awaited: Vec<u32>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(source: Source<'a>, algo: &'a Algo) -> Result<Self, FormatError> {
        let (mut blocks, mut steps, mut block_of) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_blocks = Vec::with_capacity(algo.gpus.len());
        for (gpu, content) in algo.gpus.iter().enumerate() {
            first_blocks.push(blocks.len());
            for (number, block) in content.blocks.iter().enumerate() {
                let at = BlockAt { gpu: gpu as u32, number: number as u32, block, first: steps.len() as u32 };
                block_of.extend(std::iter::repeat_n(blocks.len() as u32, block.steps.len()));
                blocks.push(at);
                steps.extend(&block.steps);
            }
        }
        let none = vec![NONE; steps.len()];
        let mut all =
            Self { source, blocks, steps, block_of, receiver: none.clone(), sender: none.clone(), awaited: none };
        all.connect()?;
        all.find_awaited(&first_blocks)?;
        Ok(all)
    }

    /// The thread block of a step.
    pub(super) fn block(&self, step: u32) -> &BlockAt<'a> {
        &self.blocks[self.block_of[step as usize] as usize]
    }

    /// Name of a step, such as `step 3 (rrs) of thread block 2 of gpu 0`.
    pub(super) fn name(&self, step: u32) -> String {
        let block = self.block(step);
        let kind = self.steps[step as usize].kind.name();
        format!("step {} ({kind}) of thread block {} of gpu {}", step - block.first, block.number, block.gpu)
    }

    /// Creates an error about a step; the message follows the step's name.
    pub(super) fn error(&self, step: u32, message: impl std::fmt::Display) -> FormatError {
        let at = self.steps[step as usize].at;
        self.source.error(at..at + "<step".len(), format!("{} {message}", self.name(step)))
    }

    fn connect(&mut self) -> Result<(), FormatError> {
        let mut receiving: FxHashMap<(u32, u32, u32), usize> = FxHashMap::default();
        let mut sending: FxHashMap<(u32, u32, u32), usize> = FxHashMap::default();
        for (i, at) in self.blocks.iter().enumerate() {
            let channel = at.block.channel;
            let ends = [
                (
                    at.block.send.map(|to| (channel, at.gpu, to)),
                    &mut sending,
                    StepKind::sends as fn(StepKind) -> bool,
                    "sends to",
                ),
                (
                    at.block.recv.map(|from| (channel, from, at.gpu)),
                    &mut receiving,
                    StepKind::receives,
                    "receives from",
                ),
            ];
            for (connection, known, uses, does) in ends {
                let Some(connection) = connection.filter(|_| at.block.steps.iter().any(|step| uses(step.kind))) else {
                    continue;
                };
                if let Some(other) = known.insert(connection, i) {
                    let (number, other) = (at.number, self.blocks[other].number);
                    let peer = if connection.1 == at.gpu { connection.2 } else { connection.1 };
                    let message = format!(
                        "thread block {number} of gpu {} {does} gpu {peer} on channel {channel}, as thread block {other} \
                         does; expected one thread block for a connection",
                        at.gpu
                    );
                    return Err(self.source.error(at.block.at..at.block.at + "<tb".len(), message));
                }
            }
        }
        for i in 0..self.blocks.len() {
            let at = self.blocks[i];
            if let Some(to) = at.block.send {
                let receiver = receiving.get(&(at.block.channel, at.gpu, to)).map(|&block| self.blocks[block]);
                self.pair(at, receiver, to)?;
            }
            if let Some(from) = at.block.recv
                && !sending.contains_key(&(at.block.channel, from, at.gpu))
                && let Some(step) = at.steps().find(|&step| self.steps[step as usize].kind.receives())
            {
                let channel = at.block.channel;
                return Err(self
                    .error(step, format!("receives from gpu {from}, which sends nothing to it on channel {channel}")));
            }
        }
        Ok(())
    }

    /// Pairs the sends of a thread block with the receives of another.
    fn pair(&mut self, from: BlockAt<'a>, to: Option<BlockAt<'a>>, peer: u32) -> Result<(), FormatError> {
        let channel = from.block.channel;
        let mut receives = to.map_or(0..0, |to| to.steps());
        for send in from.steps().filter(|&step| self.steps[step as usize].kind.sends()).collect::<Vec<_>>() {
            let Some(receive) = receives.find(|&step| self.steps[step as usize].kind.receives()) else {
                return Err(
                    self.error(send, format!("sends to gpu {peer}, which does not receive it on channel {channel}"))
                );
            };
            let (sent, taken) = (self.steps[send as usize].count, self.steps[receive as usize].count);
            if sent != taken {
                let message = format!("takes {taken} chunks where {} sends {sent}", self.name(send));
                return Err(self.error(receive, message));
            }
            self.receiver[send as usize] = receive;
            self.sender[receive as usize] = send;
        }
        match receives.find(|&step| self.steps[step as usize].kind.receives()) {
            Some(step) => {
                let message = format!("receives from gpu {}, which sends no more on channel {channel}", from.gpu);
                Err(self.error(step, message))
            }
            None => Ok(()),
        }
    }

    fn find_awaited(&mut self, first_blocks: &[usize]) -> Result<(), FormatError> {
        // For each step, the first step at or after it that sets its completion flag.
        let mut telling = vec![NONE; self.steps.len()];
        for at in &self.blocks {
            let mut next = NONE;
            for step in at.steps().rev() {
                let content = self.steps[step as usize];
                if content.tells && content.kind != StepKind::Nothing {
                    next = step;
                }
                telling[step as usize] = next;
            }
        }
        for step in 0..self.steps.len() as u32 {
            let Some((block, number)) = self.steps[step as usize].after else { continue };
            let own = self.block(step);
            let first = first_blocks[own.gpu as usize];
            let found = self.blocks.get(first + block as usize).filter(|at| at.gpu == own.gpu);
            let Some(target) = found.filter(|at| (number as usize) < at.block.steps.len()) else {
                return Err(
                    self.error(step, format!("waits for step {number} of thread block {block}, which does not exist"))
                );
            };
            let awaited = telling[(target.first + number) as usize];
            if awaited == NONE {
                let message = format!(
                    "waits for step {number} of thread block {block}, which never says that it is done (hasdep)"
                );
                return Err(self.error(step, message));
            }
            self.awaited[step as usize] = awaited;
        }
        Ok(())
    }
}
