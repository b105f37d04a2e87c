//! Several schedules, of which only the first blocks are lowered where all blocks are alike.

use fabricast_topologies::route::{BufferPlace, Ecmp};

use super::channels::{OneBlock, counted_for_all};
use super::{LowerError, Lowered, Party, lower};
use crate::schedule::Written;

/// Lowers schedules that share a fabric, all of them by their first blocks if those stand for the others, with how many each stands for
/// then; otherwise whole, with `None`. Of the channels' own capacities ([`Resource::Lane`](super::Resource)) those of first blocks are
/// listed; what passes through every other is what all blocks put there.
///
/// # Errors
/// [`LowerError`], as [`lower`].
pub fn lower_first_blocks(parties: &[Party<'_>]) -> Result<(Lowered, Option<u64>), LowerError> {
    match OneBlocks::of(parties) {
        Some(ones) => Ok((ones.lowered(parties)?, Some(ones.blocks()))),
        None => Ok((lower(parties)?, None)),
    }
}

/// The first blocks of several schedules.
struct OneBlocks<'a> {
    /// Of each schedule once.
    ones: Vec<OneBlock<'a>>,
    /// Which of them each party has.
    of_party: Vec<usize>,
}

impl<'a> OneBlocks<'a> {
    /// `None` where one has none, or another number of them, so that what the first blocks share is not shared as often.
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

    /// How many blocks each stands for.
    fn blocks(&self) -> u64 {
        self.ones.first().map_or(1, OneBlock::blocks)
    }

    /// The same parties with one block each.
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

/// The block that stands for all of a schedule's, where they are alike and take the same ways.
pub(crate) fn one_block<'a>(party: &Party<'a>) -> Option<OneBlock<'a>> {
    let options = party.setting.router.options();
    // Ways by hash are chosen channel by channel, and what is in managed memory moves when it is first touched.
    let by_channel = matches!(options.ecmp, Ecmp::Hashed { .. }) || options.buffers == BufferPlace::Managed;
    if by_channel { None } else { OneBlock::of(party.generator) }
}
