//! Numbers of blocks, threads and words of a kernel, selected from measurements.

use super::{Alignment, Carrier, Devices, Kernel, KernelVariant, Tiles, WordCounts};

/// Maximum chunk size in bytes at which a one-sided schedule uses packets. Measured on 4 × H200 for all_reduce,
/// all_gather, reduce_scatter and all_to_all (validate/runs/2026-11-21-4xh200).
pub(super) const MAX_PACKET_CHUNK: u64 = 16 << 10;

/// Maximum chunk size in bytes at which a one-sided schedule uses lines. Measured as for [`MAX_PACKET_CHUNK`].
pub(super) const MAX_LINE_CHUNK: u64 = 512 << 10;

/// Maximum number of 16-byte vectors per block and message that share a phase (128 KiB). Of 32, 64, 128 and 512 KiB,
/// this was the fastest for two_shot of 16 to 256 MiB on 4 × H200 (validate/runs/2026-11-21-4xh200).
const PHASE_WORDS: u64 = 8192;

/// Number of blocks above which two blocks share a multiprocessor: the number of multiprocessors of the smallest
/// supported GPU.
const MAX_BLOCKS_ONE_PER_SM: u32 = 132;

/// Maximum number of blocks per rank if each rank has its own GPU: one per multiprocessor, with some multiprocessors
/// left for other kernels.
pub const MAX_BLOCKS: u32 = 128;

/// Distribution of a kernel's work over a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct GridShape {
    /// Threads per block; a multiple of 32, at least 64.
    pub threads: u32,
    /// Number of blocks that share a channel.
    pub split: u32,
    /// Number of words per thread and tile.
    pub unroll: u32,
    /// Number of tiles of a block that share a phase; 1 if tiles run one by one.
    #[serde(rename = "together")]
    pub tiles_per_phase: u32,
}

impl GridShape {
    /// Returns the code variant for this shape with `blocks` blocks per rank. Similar shapes share a variant.
    #[must_use]
    pub fn variant(self, blocks: u32, alignment: Alignment, devices: Devices) -> KernelVariant {
        let threads = if self.threads <= 256 { 256 } else { self.threads.next_power_of_two() };
        let tiles = if self.tiles_per_phase > 1 { Tiles::Grouped } else { Tiles::OneByOne };
        KernelVariant {
            threads,
            unroll: self.unroll,
            tiles,
            alignment,
            devices,
            resident: ResidentBlocks::for_blocks(blocks),
        }
    }
}

/// Number of blocks that a multiprocessor must be able to hold, which limits the registers per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResidentBlocks {
    /// One block per multiprocessor.
    One,
    /// Two blocks per multiprocessor; while one waits, the other runs.
    Two,
}

impl ResidentBlocks {
    fn for_blocks(blocks: u32) -> Self {
        if blocks > MAX_BLOCKS_ONE_PER_SM { Self::Two } else { Self::One }
    }
}

impl Kernel {
    /// Returns the shape for a GPU on which at most `max_blocks` blocks of a rank are co-resident.
    #[must_use]
    pub fn shape(&self, max_blocks: u32) -> GridShape {
        let WordCounts { channels, max_channel: words, max_round: largest } = self.word_counts();
        let one_by_one = self.carrier == Carrier::Flags && self.tiles == Tiles::OneByOne;
        // If tiles run one by one and there is enough work, two blocks per multiprocessor are used, so that one runs
        // while the other waits.
        let overlaps = one_by_one && self.flushes > 1 && max_blocks >= MAX_BLOCKS_ONE_PER_SM - 4;
        let doubled = overlaps && words * u64::from(channels) >= 2048 * u64::from(max_blocks);
        let max_split = u64::from((max_blocks * if doubled { 2 } else { 1 } / channels).max(1));
        // A small number of words is spread over many small blocks. Packets and lines get one thread per word until the
        // maximum number of threads is reached. Plain vectors get several words per thread once all blocks are full.
        let (threads, unroll) = match self.carrier {
            Carrier::Packets | Carrier::Lines if words <= 1024 => (128, 1),
            Carrier::Packets | Carrier::Lines if words <= 32 * 256 => (256, 1),
            Carrier::Packets | Carrier::Lines => (512, 1),
            Carrier::Flags if words <= 256 * max_split => (256, 1),
            Carrier::Flags if !one_by_one => (256, if words <= PHASE_WORDS * max_split { 2 } else { 4 }),
            Carrier::Flags if doubled => (256, if words > 1024 * max_split { 4 } else { 2 }),
            Carrier::Flags if words <= 512 * max_split => (256, 2),
            Carrier::Flags if words <= 1024 * max_split => (512, 2),
            Carrier::Flags => (512, 4),
        };
        let split = words.div_ceil(threads * unroll).clamp(1, max_split);
        let threads = largest.div_ceil(split).next_multiple_of(32).clamp(64, threads);
        let shape =
            GridShape { threads: threads as u32, split: split as u32, unroll: unroll as u32, tiles_per_phase: 1 };
        match self.tiles {
            Tiles::OneByOne => shape,
            Tiles::Grouped => {
                let tiles_per_block = self.tiles(shape).div_ceil(split);
                let max_tiles = PHASE_WORDS.div_ceil(u64::from(shape.threads) * unroll);
                GridShape { tiles_per_phase: tiles_per_block.min(max_tiles).max(1) as u32, ..shape }
            }
        }
    }
}
