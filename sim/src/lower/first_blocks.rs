//! Lowering of concurrent schedules by their first blocks, if all blocks are equal.

use fabricast_topologies::route::{BufferPlace, Ecmp};

use super::channels::{OneBlock, counted_for_all};
use super::{LowerError, Lowered, Party, lower};
use crate::schedule::Written;

/// Lowers schedules that share a fabric. If the blocks of every schedule are equal, only first blocks are lowered, and
/// the number of blocks that each represents is returned too; otherwise everything is lowered, with `None`. The
/// channels' own capacities ([`Resource::Lane`](super::Resource)) are then listed for first blocks only; the traffic of
/// every other capacity includes all blocks.
///
/// # Errors
/// [`LowerError`], as [`lower`].
pub fn lower_first_blocks(parties: &[Party<'_>]) -> Result<(Lowered, Option<u64>), LowerError> {
    match OneBlocks::of(parties) {
        Some(ones) => Ok((ones.lowered(parties)?, Some(ones.blocks()))),
        None => Ok((lower(parties)?, None)),
    }
}

/// First blocks of several schedules.
struct OneBlocks<'a> {
    /// One entry per distinct schedule.
    ones: Vec<OneBlock<'a>>,
    /// Index of each party's schedule in `ones`.
    of_party: Vec<usize>,
}

impl<'a> OneBlocks<'a> {
    /// Returns `None` if a schedule's blocks differ, or schedules have different numbers of blocks: the capacities that
    /// first blocks share would then not be shared in equal proportion.
    fn of(parties: &[Party<'a>]) -> Option<Self> {
        let mut found = Self { ones: Vec::new(), of_party: Vec::with_capacity(parties.len()) };
        let mut firsts: Vec<&Party<'a>> = Vec::new();
        for party in parties {
            let is_it = |first: &&Party<'a>| std::ptr::addr_eq(first.generator, party.generator);
            let number = firsts.iter().position(is_it).unwrap_or(firsts.len());
            if number == firsts.len() {
                found.ones.push(one_block(party)?);
                firsts.push(party);
            }
            found.of_party.push(number);
        }
        found.ones.windows(2).all(|pair| pair[0].blocks() == pair[1].blocks()).then_some(found)
    }

    /// Number of blocks that each first block represents.
    fn blocks(&self) -> u64 {
        self.ones.first().map_or(1, OneBlock::blocks)
    }

    /// Lowers the parties with one block each and multiplies their shared traffic.
    fn lowered(&self, parties: &[Party<'a>]) -> Result<Lowered, LowerError> {
        let written: Vec<Written<'_>> = self.ones.iter().map(OneBlock::written).collect();
        let one = |(&number, party): (&usize, &Party<'a>)| {
            written.get(number).map(|generator| Party { generator, setting: party.setting })
        };
        let firsts: Vec<Party<'_>> = self.of_party.iter().zip(parties).filter_map(one).collect();
        let mut lowered = lower(&firsts)?;
        counted_for_all(self.blocks(), &mut lowered);
        Ok(lowered)
    }
}

/// Returns the block that represents all blocks of a schedule, if they are equal and use the same routes.
pub(crate) fn one_block<'a>(party: &Party<'a>) -> Option<OneBlock<'a>> {
    let options = party.setting.router.options();
    // Hashed ECMP selects routes per channel, and managed memory migrates on first touch, which depends on the channel.
    let by_channel = matches!(options.ecmp, Ecmp::Hashed { .. }) || options.buffers == BufferPlace::Managed;
    if by_channel { None } else { OneBlock::of(party.generator) }
}
