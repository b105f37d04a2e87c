//! Numbering of all steps of a file: pairs of sends and receives, and dependencies between steps.
//!
//! A connection leads from one GPU to another on a channel. One thread block sends into it and one receives from it,
//! each in the order of its steps, so that the k-th send pairs with the k-th receive. A step with a dependency
//! (`depid`, `deps`) waits for the first step, at or after the named one, that sets its completion flag (`hasdep`),
//! because flags only increase.

use rustc_hash::FxHashMap;

use super::parse::{Algo, BlockElement, Step, StepKind};
use crate::schedule::file_format::{FormatError, Source};

/// Placeholder for a missing step number.
pub(super) const NONE: u32 = u32::MAX;

/// Thread block with the number of its first step.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberedBlock<'a> {
    pub(super) gpu: u32,
    pub(super) number: u32,
    pub(super) block: &'a BlockElement,
    pub(super) first: u32,
}

impl NumberedBlock<'_> {
    pub(super) fn steps(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.block.steps.len() as u32
    }
}

/// Steps of all thread blocks of all GPUs.
pub(super) struct StepPairing<'a> {
    source: Source<'a>,
    pub(super) blocks: Vec<NumberedBlock<'a>>,
    pub(super) steps: Vec<&'a Step>,
    block_by_step: Vec<u32>,
    /// Receiving step that each sending step is paired with; [`NONE`] for other steps.
    pub(super) receiver: Vec<u32>,
    /// Sending step that each receiving step is paired with; [`NONE`] for other steps.
    pub(super) sender: Vec<u32>,
    /// Step of another thread block that each step waits for; [`NONE`] if there is none.
    pub(super) awaited: Vec<u32>,
}

impl<'a> StepPairing<'a> {
    pub(super) fn new(source: Source<'a>, algo: &'a Algo) -> Result<Self, FormatError> {
        let (mut blocks, mut steps, mut block_of) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_blocks = Vec::with_capacity(algo.gpus.len());
        for (gpu, content) in algo.gpus.iter().enumerate() {
            first_blocks.push(blocks.len());
            for (number, block) in content.blocks.iter().enumerate() {
                let entry = NumberedBlock { gpu: gpu as u32, number: number as u32, block, first: steps.len() as u32 };
                block_of.extend(std::iter::repeat_n(blocks.len() as u32, block.steps.len()));
                blocks.push(entry);
                steps.extend(&block.steps);
            }
        }
        let unset = vec![NONE; steps.len()];
        let mut result = Self {
            source,
            blocks,
            steps,
            block_by_step: block_of,
            receiver: unset.clone(),
            sender: unset.clone(),
            awaited: unset,
        };
        result.connect()?;
        result.find_awaited(&first_blocks)?;
        Ok(result)
    }

    /// Returns the thread block of a step.
    pub(super) fn block(&self, step: u32) -> &NumberedBlock<'a> {
        &self.blocks[self.block_by_step[step as usize] as usize]
    }

    /// Returns the name of a step for messages, such as `step 3 (rrs) of thread block 2 of gpu 0`.
    pub(super) fn name(&self, step: u32) -> String {
        let block = self.block(step);
        let kind = self.steps[step as usize].kind.name();
        format!("step {} ({kind}) of thread block {} of gpu {}", step - block.first, block.number, block.gpu)
    }

    /// Creates an error about a step; the message follows the name of the step.
    pub(super) fn error(&self, step: u32, message: impl std::fmt::Display) -> FormatError {
        let offset = self.steps[step as usize].at;
        self.source.error(offset..offset + "<step".len(), format!("{} {message}", self.name(step)))
    }

    fn connect(&mut self) -> Result<(), FormatError> {
        let mut receiving: FxHashMap<(u32, u32, u32), usize> = FxHashMap::default();
        let mut sending: FxHashMap<(u32, u32, u32), usize> = FxHashMap::default();
        for (i, entry) in self.blocks.iter().enumerate() {
            let channel = entry.block.channel;
            let ends = [
                (
                    entry.block.send.map(|to| (channel, entry.gpu, to)),
                    &mut sending,
                    StepKind::sends as fn(StepKind) -> bool,
                    "sends to",
                ),
                (
                    entry.block.recv.map(|from| (channel, from, entry.gpu)),
                    &mut receiving,
                    StepKind::receives,
                    "receives from",
                ),
            ];
            for (connection, blocks, uses, verb) in ends {
                let Some(connection) = connection.filter(|_| entry.block.steps.iter().any(|step| uses(step.kind)))
                else {
                    continue;
                };
                if let Some(duplicate) = blocks.insert(connection, i) {
                    let (number, duplicate) = (entry.number, self.blocks[duplicate].number);
                    let peer = if connection.1 == entry.gpu { connection.2 } else { connection.1 };
                    let message = format!(
                        "thread block {number} of gpu {} {verb} gpu {peer} on channel {channel}, as thread block {duplicate} \
                         does; expected one thread block for a connection",
                        entry.gpu
                    );
                    return Err(self.source.error(entry.block.at..entry.block.at + "<tb".len(), message));
                }
            }
        }
        for i in 0..self.blocks.len() {
            let entry = self.blocks[i];
            if let Some(to) = entry.block.send {
                let receiver = receiving.get(&(entry.block.channel, entry.gpu, to)).map(|&block| self.blocks[block]);
                self.pair(entry, receiver, to)?;
            }
            if let Some(from) = entry.block.recv
                && !sending.contains_key(&(entry.block.channel, from, entry.gpu))
                && let Some(step) = entry.steps().find(|&step| self.steps[step as usize].kind.receives())
            {
                let channel = entry.block.channel;
                return Err(self
                    .error(step, format!("receives from gpu {from}, which sends nothing to it on channel {channel}")));
            }
        }
        Ok(())
    }

    /// Pairs the sends of a thread block with the receives of another.
    ///
    /// # Errors
    /// [`FormatError`] if their numbers differ or their chunks do not match.
    fn pair(&mut self, from: NumberedBlock<'a>, to: Option<NumberedBlock<'a>>, peer: u32) -> Result<(), FormatError> {
        let channel = from.block.channel;
        let mut receives = to.map_or(0..0, |to| to.steps());
        for send in from.steps().filter(|&step| self.steps[step as usize].kind.sends()).collect::<Vec<_>>() {
            let Some(receive) = receives.find(|&step| self.steps[step as usize].kind.receives()) else {
                return Err(
                    self.error(send, format!("sends to gpu {peer}, which does not receive it on channel {channel}"))
                );
            };
            let (sent, received) = (self.steps[send as usize].count, self.steps[receive as usize].count);
            if sent != received {
                let message = format!("receives {received} chunks where {} sends {sent}", self.name(send));
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
        let mut flag_step = vec![NONE; self.steps.len()];
        for entry in &self.blocks {
            let mut next = NONE;
            for step in entry.steps().rev() {
                let content = self.steps[step as usize];
                if content.sets_flag && content.kind != StepKind::Nothing {
                    next = step;
                }
                flag_step[step as usize] = next;
            }
        }
        for step in 0..self.steps.len() as u32 {
            let Some((block, number)) = self.steps[step as usize].waits_for else { continue };
            let waiting_block = self.block(step);
            let first = first_blocks[waiting_block.gpu as usize];
            let candidate = self.blocks.get(first + block as usize).filter(|entry| entry.gpu == waiting_block.gpu);
            let Some(target) = candidate.filter(|entry| (number as usize) < entry.block.steps.len()) else {
                return Err(
                    self.error(step, format!("waits for step {number} of thread block {block}, which does not exist"))
                );
            };
            let awaited = flag_step[(target.first + number) as usize];
            if awaited == NONE {
                let message =
                    format!("waits for step {number} of thread block {block}, which never signals completion (hasdep)");
                return Err(self.error(step, message));
            }
            self.awaited[step as usize] = awaited;
        }
        Ok(())
    }
}
