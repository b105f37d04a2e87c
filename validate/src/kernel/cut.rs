//! Where chunks lie in memory: whole elements, and vectors of 16 bytes wherever the call allows it.
//!
//! A schedule cuts the bytes of a call into exact fractions; memory has whole elements. Boundaries between chunks are rounded
//! down to 16 bytes from the start of the block (of a rank, in collectives that have blocks; of the whole buffer otherwise), so
//! that blocks are cut alike and chunks begin where vectors may. Boundaries of blocks are the caller's and are exact.

use fabricast_sim::schedule::{Collective, Header};
use fabricast_topologies::Bytes;

use super::KernelError;

/// Bytes of a vector; every element size divides it.
const VECTOR: u64 = 16;

/// The chunks of a call in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Byte offset of each chunk, and the bytes of the call at the end.
    starts: Vec<u64>,
}

impl Cut {
    /// The chunks of a schedule whose elements have `element` bytes.
    ///
    /// # Errors
    /// [`KernelError::Uneven`] where blocks or buffers are not whole elements.
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
            // Of an all_to_allv every segment is somebody's block.
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

    /// Byte offset of a chunk.
    pub(super) fn start(&self, chunk: u32) -> u64 {
        self.starts.get(chunk as usize).copied().unwrap_or(0)
    }

    /// Bytes of a chunk.
    pub(super) fn len(&self, chunk: u32) -> u64 {
        self.starts.get(chunk as usize + 1).map_or(0, |end| end - self.start(chunk))
    }
}

#[cfg(test)]
mod tests {
    use fabricast_planner::algorithm::{Algorithm, Shape, generator};
    use fabricast_sim::schedule::{BufferUse, Call, Protocol, Rank};

    use super::*;

    fn cut(collective: Collective, bytes: u64, ranks: u32, element: u64) -> Result<Cut, KernelError> {
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let algorithm = Algorithm::ALL.into_iter().find(|a| a.supports(collective)).unwrap();
        let shape = Shape { channels: 3, ..Shape::new(call, Protocol::Symmetric) };
        Cut::new(generator(algorithm, &shape).unwrap().header(), Bytes(element))
    }

    #[test]
    fn chunks_are_neighbours_and_end_with_the_call() {
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
    fn blocks_are_cut_alike() {
        let cut = cut(Collective::AllGather, 8 * 116, 8, 4).unwrap();
        let lens: Vec<u64> = (0..24).map(|chunk| cut.len(chunk)).collect();
        assert!(lens.chunks(3).all(|block| block == &lens[..3] && block.iter().sum::<u64>() == 116), "{lens:?}");
    }

    #[test]
    fn blocks_are_whole_elements() {
        assert!(matches!(cut(Collective::AllGather, 8 * 6, 8, 4), Err(KernelError::Uneven { blocks: 8, .. })));
    }
}
