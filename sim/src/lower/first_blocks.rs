//! Lowering of concurrent schedules by their first blocks, if all blocks are equal.

use fabricast_topologies::route::{BufferLocation, Ecmp};

use super::channels::{RepresentativeBlock, multiply_shared_traffic};
use super::{LowerError, Lowered, ScheduleInstance, lower};
use crate::schedule::StoredPrograms;

/// Lowers schedules that share a fabric. If the blocks of every schedule are equal, only first blocks are lowered, and
/// the number of blocks that each represents is returned too; otherwise everything is lowered, with `None`. The
/// channels' own capacities ([`Resource::Lane`](super::Resource)) are then listed for first blocks only; the traffic of
/// every other capacity includes all blocks.
///
/// # Errors
/// [`LowerError`], as [`lower`].
pub fn lower_first_blocks(parties: &[ScheduleInstance<'_>]) -> Result<(Lowered, Option<u64>), LowerError> {
    match FirstBlocks::find(parties) {
        Some(ones) => Ok((ones.lower(parties)?, Some(ones.blocks()))),
        None => Ok((lower(parties)?, None)),
    }
}

/// First blocks of several schedules.
struct FirstBlocks<'a> {
    /// First block of each distinct schedule.
    blocks: Vec<RepresentativeBlock<'a>>,
    /// Index of each party's schedule in `blocks`.
    party_blocks: Vec<usize>,
}

impl<'a> FirstBlocks<'a> {
    /// Finds the first blocks of all parties; `None` if a schedule's blocks differ, or schedules have different numbers
    /// of blocks: the capacities that first blocks share would then not be shared in equal proportion.
    fn find(parties: &[ScheduleInstance<'a>]) -> Option<Self> {
        let mut blocks = Self { blocks: Vec::new(), party_blocks: Vec::with_capacity(parties.len()) };
        let mut firsts: Vec<&ScheduleInstance<'a>> = Vec::new();
        for party in parties {
            let is_same_schedule = |first: &&ScheduleInstance<'a>| std::ptr::addr_eq(first.generator, party.generator);
            let number = firsts.iter().position(is_same_schedule).unwrap_or(firsts.len());
            if number == firsts.len() {
                blocks.blocks.push(find_representative_block(party)?);
                firsts.push(party);
            }
            blocks.party_blocks.push(number);
        }
        blocks.blocks.windows(2).all(|pair| pair[0].blocks() == pair[1].blocks()).then_some(blocks)
    }

    /// Returns the number of blocks that each first block represents.
    fn blocks(&self) -> u64 {
        self.blocks.first().map_or(1, RepresentativeBlock::blocks)
    }

    /// Lowers the parties with one block each and multiplies their shared traffic.
    fn lower(&self, parties: &[ScheduleInstance<'a>]) -> Result<Lowered, LowerError> {
        let generators: Vec<StoredPrograms<'_>> = self.blocks.iter().map(RepresentativeBlock::schedule).collect();
        let replace_generator = |(&number, party): (&usize, &ScheduleInstance<'a>)| {
            generators.get(number).map(|generator| ScheduleInstance { generator, setting: party.setting })
        };
        let firsts: Vec<ScheduleInstance<'_>> =
            self.party_blocks.iter().zip(parties).filter_map(replace_generator).collect();
        let mut lowered = lower(&firsts)?;
        multiply_shared_traffic(self.blocks(), &mut lowered);
        Ok(lowered)
    }
}

/// Returns the block that represents all blocks of a schedule; `None` unless they are equal and use the same routes.
pub(crate) fn find_representative_block<'a>(party: &ScheduleInstance<'a>) -> Option<RepresentativeBlock<'a>> {
    let options = party.setting.router.options();
    // Hashed ECMP selects routes per channel, and managed memory migrates on first touch, which depends on the channel.
    let by_channel = matches!(options.ecmp, Ecmp::Hashed { .. }) || options.buffers == BufferLocation::Managed;
    if by_channel { None } else { RepresentativeBlock::find(party.generator) }
}
