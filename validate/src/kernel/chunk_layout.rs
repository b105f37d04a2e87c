//! Byte ranges of chunks: whole elements, aligned to vectors of 16 bytes if the call permits it.
//!
//! A schedule divides the bytes of a call into exact fractions, but chunks must consist of whole elements. Chunk
//! boundaries are rounded down to multiples of 16 bytes from the start of the block (a rank's block for collectives
//! with blocks, otherwise the whole buffer). All blocks therefore have equal chunk offsets, and chunks begin at vector
//! boundaries. The caller sets the block boundaries, so they are not rounded.

use fabricast_sim::schedule::{Collective, Header};
use fabricast_topologies::Bytes;

use super::KernelError;

/// Size in bytes of the vector that a thread loads or stores in one instruction. It is a multiple of every element
/// size.
const VECTOR: u64 = 16;

/// Byte ranges of the chunks of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkLayout {
    /// Byte offset of each chunk, in ascending order, followed by the total bytes of the call.
    starts: Vec<u64>,
}

impl ChunkLayout {
    /// Divides the bytes of a call into the chunks of its schedule. `element`: size of an element in bytes.
    ///
    /// # Errors
    /// [`KernelError::Uneven`] if blocks or buffers are not whole elements.
    pub(super) fn new(header: &Header, element: Bytes) -> Result<Self, KernelError> {
        let (layout, ranks) = (&header.layout, u64::from(header.call.ranks.max(1)));
        let total = layout.bytes().0;
        let chunks = layout.chunks() as usize;
        let blocks = match header.call.collective {
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Gather
            | Collective::Scatter => ranks,
            _ => 1,
        };
        if !total.is_multiple_of(blocks * element.0.max(1)) {
            return Err(KernelError::Uneven { bytes: Bytes(total), blocks, element });
        }
        let mut exact = Vec::with_capacity(chunks + 1);
        let mut before = 0u64;
        let mut anchors = vec![0u64];
        for segment in layout.segments() {
            let part = |k: u32| u128::from(segment.bytes.0) * u128::from(k) / u128::from(segment.parts.max(1));
            exact.extend((0..segment.parts).map(|k| before + part(k) as u64));
            before += segment.bytes.0;
            // In an all_to_allv, every segment is the block of a rank.
            if header.call.collective == Collective::AllToAllV {
                if !segment.bytes.0.is_multiple_of(element.0.max(1)) {
                    return Err(KernelError::Uneven { bytes: segment.bytes, blocks: 1, element });
                }
                anchors.push(before);
            }
        }
        exact.push(total);
        if header.call.collective != Collective::AllToAllV {
            anchors.extend((1..=blocks).map(|block| total / blocks * block));
        }
        let rounded = exact.iter().map(|&offset| {
            let anchor = anchors[anchors.partition_point(|&anchor| anchor <= offset) - 1];
            anchor + (offset - anchor) / VECTOR * VECTOR
        });
        Ok(Self { starts: rounded.collect() })
    }

    /// Byte offset of a chunk within the call. 0 for a chunk that does not exist.
    pub(super) fn start(&self, chunk: u32) -> u64 {
        self.starts.get(chunk as usize).copied().unwrap_or(0)
    }

    /// Length of a chunk in bytes. 0 for a chunk that does not exist.
    pub(super) fn len(&self, chunk: u32) -> u64 {
        self.starts.get(chunk as usize + 1).map_or(0, |end| end - self.start(chunk))
    }
}

#[cfg(test)]
mod tests {
    use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
    use fabricast_sim::schedule::{BufferUse, Call, Protocol, Rank};

    use super::*;

    fn cut(collective: Collective, bytes: u64, ranks: u32, element: u64) -> Result<ChunkLayout, KernelError> {
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let algorithm = Algorithm::ALL.into_iter().find(|a| a.supports(collective)).unwrap();
        let shape = Shape { channels: 3, ..Shape::new(call, Protocol::Symmetric) };
        ChunkLayout::new(generator(algorithm, &shape).unwrap().header(), Bytes(element))
    }

    #[test]
    fn chunks_are_contiguous_and_cover_the_call() {
        for (collective, bytes, ranks) in [
            (Collective::AllReduce, 1000, 8),
            (Collective::AllReduce, 4, 8),
            (Collective::AllGather, 8 * 36, 8),
            (Collective::AllToAll, 7 * 52, 7),
        ] {
            let cut = cut(collective, bytes, ranks, 4).unwrap();
            assert!(cut.starts.is_sorted());
            assert_eq!((cut.starts[0], *cut.starts.last().unwrap()), (0, bytes));
        }
    }

    #[test]
    fn all_blocks_have_equal_chunks() {
        let cut = cut(Collective::AllGather, 8 * 116, 8, 4).unwrap();
        let lens: Vec<u64> = (0..24).map(|chunk| cut.len(chunk)).collect();
        assert!(lens.chunks(3).all(|block| block == &lens[..3] && block.iter().sum::<u64>() == 116), "{lens:?}");
    }

    #[test]
    fn blocks_must_be_whole_elements() {
        assert!(matches!(cut(Collective::AllGather, 8 * 6, 8, 4), Err(KernelError::Uneven { blocks: 8, .. })));
    }
}
