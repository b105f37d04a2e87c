//! How many blocks, threads and words: the widths that measured best.

use super::{Alignment, Carrier, Devices, Kernel, Variant};

/// Largest chunk of a one-sided schedule that packets carry, in bytes.
pub(super) const LARGEST_OF_PACKETS: u64 = 32 << 10;

/// Largest chunk that lines carry.
pub(super) const LARGEST_OF_LINES: u64 = 256 << 10;

/// How a kernel is spread over a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct GridShape {
    /// Threads of a block; a multiple of 32, at least 64.
    pub threads: u32,
    /// Blocks that share a channel.
    pub split: u32,
    /// Words that a thread moves at once.
    pub unroll: u32,
}

impl GridShape {
    /// What code for it is compiled for: sizes of about the same shape share it.
    #[must_use]
    pub fn variant(self, alignment: Alignment, devices: Devices) -> Variant {
        let threads = if self.threads <= 256 { 256 } else { self.threads.next_power_of_two() };
        Variant { threads, unroll: self.unroll, alignment, devices }
    }
}

impl Kernel {
    /// The shape for a GPU on which at most `most_blocks` blocks of a rank run at once.
    #[must_use]
    pub fn shape(&self, most_blocks: u32) -> GridShape {
        let (channels, words, largest) = self.loads();
        // Words for which another block pays, the most blocks, the most threads, the most words of a thread.
        let (per_block, blocks, threads, unroll) = match self.carrier {
            Carrier::Packets => (256, 64, 512, 2),
            Carrier::Lines => (512, 64, 512, 2),
            Carrier::Flags => (512, 64, 512, 4),
        };
        let most_split = (blocks.min(most_blocks) / channels).max(1);
        let split = words.div_ceil(per_block).clamp(1, u64::from(most_split)) as u32;
        let per_split = largest.div_ceil(u64::from(split)).max(1);
        let threads = per_split.next_multiple_of(32).clamp(64, threads);
        let unroll = if per_split >= threads * unroll { unroll } else { per_split.div_ceil(threads).next_power_of_two() };
        GridShape { threads: threads as u32, split, unroll: unroll.max(1) as u32 }
    }
}
