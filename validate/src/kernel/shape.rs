//! How many blocks, threads and words: the widths that measured best.

use super::{Alignment, Carrier, Devices, Kernel, Tiles, Variant};

/// Largest chunk of a one-sided schedule that packets carry, in bytes: measured on 4 × H200, all_reduce, all_gather,
/// reduce_scatter and all_to_all (validate/runs/2026-11-21-4xh200).
pub(super) const LARGEST_OF_PACKETS: u64 = 16 << 10;

/// Largest chunk that lines carry, likewise.
pub(super) const LARGEST_OF_LINES: u64 = 512 << 10;

/// Vectors of a block and message that are in a phase together at most: 128 KiB. Of 32, 64, 128 and 512 KiB the fastest, two_shot
/// of 16 to 256 MiB on 4 × H200 (validate/runs/2026-11-21-4xh200).
const PHASE_WORDS: u64 = 8192;

/// Blocks from which on two share a multiprocessor: those of the smallest GPU that anybody runs this on count.
const BLOCKS_ALONE: u32 = 132;

/// How a kernel is spread over a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct GridShape {
    /// Threads of a block; a multiple of 32, at least 64.
    pub threads: u32,
    /// Blocks that share a channel.
    pub split: u32,
    /// Words that a thread moves at once.
    pub unroll: u32,
    /// Tiles of a block that are in a phase together; 1 where tiles go one by one.
    pub together: u32,
}

impl GridShape {
    /// What code for it is compiled for, where a rank has so many blocks: sizes of about the same shape share it.
    #[must_use]
    pub fn variant(self, blocks: u32, alignment: Alignment, devices: Devices) -> Variant {
        let threads = if self.threads <= 256 { 256 } else { self.threads.next_power_of_two() };
        let tiles = if self.together > 1 { Tiles::Together } else { Tiles::OneByOne };
        Variant { threads, unroll: self.unroll, tiles, alignment, devices, resident: Resident::of(blocks) }
    }
}

/// How many blocks a multiprocessor must hold, which limits the registers of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resident {
    /// One.
    One,
    /// Two, which overlap each other's waiting.
    Two,
}

impl Resident {
    fn of(blocks: u32) -> Self {
        if blocks > BLOCKS_ALONE { Self::Two } else { Self::One }
    }
}

impl Kernel {
    /// The shape for a GPU on which at most `most_blocks` blocks of a rank run at once.
    #[must_use]
    pub fn shape(&self, most_blocks: u32) -> GridShape {
        let (channels, words, largest) = self.loads();
        let apart = self.carrier == Carrier::Flags && self.tiles == Tiles::OneByOne;
        // Where tiles go one by one, two blocks on a multiprocessor fill each other's gaps, once there is enough to do.
        let overlaps = apart && self.flushes > 1 && most_blocks >= BLOCKS_ALONE - 4;
        let doubled = overlaps && words * u64::from(channels) >= 2048 * u64::from(most_blocks);
        let most_split = u64::from((most_blocks * if doubled { 2 } else { 1 } / channels).max(1));
        // Few words are spread over many small blocks; what tells of its own arrival gets a thread for every word as long as
        // there are threads; plain vectors take several words a thread once all blocks are full.
        let (threads, unroll) = match self.carrier {
            Carrier::Packets | Carrier::Lines if words <= 1024 => (128, 1),
            Carrier::Packets | Carrier::Lines if words <= 32 * 256 => (256, 1),
            Carrier::Packets | Carrier::Lines => (512, 1),
            Carrier::Flags if words <= 256 * most_split => (256, 1),
            Carrier::Flags if !apart => (256, if words <= PHASE_WORDS * most_split { 2 } else { 4 }),
            Carrier::Flags if doubled => (256, if words > 1024 * most_split { 4 } else { 2 }),
            Carrier::Flags if words <= 512 * most_split => (256, 2),
            Carrier::Flags if words <= 1024 * most_split => (512, 2),
            Carrier::Flags => (512, 4),
        };
        let split = words.div_ceil(threads * unroll).clamp(1, most_split);
        let threads = largest.div_ceil(split).next_multiple_of(32).clamp(64, threads);
        let shape = GridShape { threads: threads as u32, split: split as u32, unroll: unroll as u32, together: 1 };
        match self.tiles {
            Tiles::OneByOne => shape,
            Tiles::Together => {
                let of_block = self.tiles(shape).div_ceil(split);
                let most = PHASE_WORDS.div_ceil(u64::from(shape.threads) * unroll);
                GridShape { together: of_block.min(most).max(1) as u32, ..shape }
            }
        }
    }
}
