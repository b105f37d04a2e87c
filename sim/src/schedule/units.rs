//! Chunks in units of equal size. Other tools divide buffers into equal chunks. If the segments of a layout have chunks
//! of different sizes, each chunk is a whole number of units; the unit is the greatest common divisor of all sizes.

use super::file_format::WriteError;
use super::{Buffer, ChunkRef, Collective, Schedule};

/// Maximum number of units of a call that is written to a file.
const MAX_UNITS: u64 = 1 << 20;

/// Positions of a schedule's chunks, in units.
pub(super) struct Units {
    /// Start of each chunk of the call, followed by the end of the last one.
    starts: Vec<u32>,
    /// Size of a rank's scratch, in units.
    pub(super) scratch: u32,
}

/// Part of a buffer, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnitRange {
    pub(super) buffer: Buffer,
    pub(super) start: u32,
    pub(super) count: u32,
}

impl Units {
    /// Computes the units of a schedule's chunks.
    ///
    /// # Errors
    /// [`WriteError::UnequalChunks`] if the chunk sizes have no common unit or the blocks of ranks are unequal.
    pub(super) fn new(schedule: &Schedule) -> Result<Self, WriteError> {
        let header = schedule.header();
        let unequal = |reason: String| WriteError::UnequalChunks { reason };
        if header.call.bytes.0 == 0 {
            return Err(unequal("there are no bytes to cut".to_owned()));
        }
        let segments = header.layout.segments();
        // Sizes as fractions with one common denominator, and their greatest common divisor.
        let mut denominator = 1u128;
        for segment in segments {
            let parts = u128::from(segment.parts);
            denominator = denominator / gcd(denominator, parts) * parts;
            if denominator > 1 << 64 || segment.bytes.0 == 0 {
                return Err(unequal(format!(
                    "{} bytes in {} parts next to other segments",
                    segment.bytes.0, segment.parts
                )));
            }
        }
        let size = |segment: &super::Segment| u128::from(segment.bytes.0) * (denominator / u128::from(segment.parts));
        let unit = segments.iter().map(size).fold(0, gcd).max(1);
        let total: u128 = segments.iter().map(|segment| u128::from(segment.parts) * (size(segment) / unit)).sum();
        if total == 0 || total > u128::from(MAX_UNITS) {
            return Err(unequal(format!(
                "they would have to be cut into {total} pieces; expected at most {MAX_UNITS}"
            )));
        }
        let mut starts = Vec::with_capacity(header.layout.chunks() as usize + 1);
        let mut next = 0u32;
        for segment in segments {
            let units = (size(segment) / unit) as u32;
            for _ in 0..segment.parts {
                starts.push(next);
                next += units;
            }
        }
        starts.push(next);
        let mut units = Self { starts, scratch: 0 };
        units.scratch = units
            .scratch_start(header.scratch_chunks)
            .ok_or_else(|| unequal(format!("{} scratch chunks are more than can be counted", header.scratch_chunks)))?;
        units.check_blocks(schedule)?;
        Ok(units)
    }

    /// Returns the number of units of the call.
    pub(super) fn total(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Converts a span of chunks to units; `None` if the chunks do not exist.
    pub(super) fn unit_range(&self, chunk: ChunkRef, span: u32) -> Option<UnitRange> {
        let (from, to) = (self.start(chunk)?, self.start(ChunkRef { index: chunk.index.checked_add(span)?, ..chunk })?);
        Some(UnitRange { buffer: chunk.buffer, start: from, count: to.checked_sub(from)? })
    }

    fn start(&self, chunk: ChunkRef) -> Option<u32> {
        match chunk.buffer {
            Buffer::Input | Buffer::Output => self.starts.get(chunk.index as usize).copied(),
            Buffer::Scratch => self.scratch_start(chunk.index),
        }
    }

    /// Returns the start of a scratch slot in units. The sizes of scratch slots repeat those of the call's chunks.
    fn scratch_start(&self, slot: u32) -> Option<u32> {
        let chunks = self.starts.len() as u32 - 1;
        let start = self.starts.get((slot % chunks) as usize)?;
        (slot / chunks).checked_mul(self.total())?.checked_add(*start)
    }

    /// Checks that all blocks have the same chunks, because files number the chunks of a block from its start.
    ///
    /// # Errors
    /// [`WriteError::UnequalChunks`] otherwise.
    fn check_blocks(&self, schedule: &Schedule) -> Result<(), WriteError> {
        let call = schedule.header().call;
        match call.collective {
            Collective::AllGather
            | Collective::Gather
            | Collective::ReduceScatter
            | Collective::Scatter
            | Collective::AllToAll => {}
            _ => return Ok(()),
        }
        let (chunks, ranks) = (self.starts.len() as u32 - 1, call.ranks);
        let even = chunks.is_multiple_of(ranks)
            && self.total().is_multiple_of(ranks)
            && (0..ranks)
                .all(|rank| self.starts.get((chunks / ranks * rank) as usize) == Some(&(self.total() / ranks * rank)));
        if even {
            return Ok(());
        }
        Err(WriteError::UnequalChunks { reason: format!("the blocks of {ranks} ranks are not equal") })
    }
}

/// Returns the greatest common divisor; gcd(a, 0) = a.
pub(crate) fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
