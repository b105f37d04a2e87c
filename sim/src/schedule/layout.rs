//! How the bytes of a call are cut into chunks.

use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

/// A stretch of the buffer cut into equal parts. Parts need not be whole bytes: the simulator uses the exact fraction,
/// so that equal parts take equal time; an executor rounds part boundaries down to whole elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Bytes of the whole stretch.
    pub bytes: Bytes,
    /// How many equal chunks it is cut into; at least 1.
    pub parts: u32,
}

/// The exact size of a chunk: `numerator / denominator` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkSize {
    /// Bytes of the segment.
    pub numerator: u64,
    /// Parts of the segment; never 0.
    pub denominator: u32,
}

/// The chunks of a call: segments in buffer order, chunks numbered through. Scratch slot `s` is as large as chunk
/// `s mod chunks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    segments: Vec<Segment>,
    /// First chunk of each segment, and the number of chunks at the end.
    starts: Vec<u32>,
    /// First chunk of each stretch: neighbouring segments whose chunks are equally large.
    stretches: Vec<u32>,
}

impl Segment {
    /// True if the chunks of both segments are equally large.
    fn has_chunks_as_large_as(self, other: Self) -> bool {
        u128::from(self.bytes.0) * u128::from(other.parts) == u128::from(other.bytes.0) * u128::from(self.parts)
    }
}

impl Layout {
    /// One segment cut into `parts` equal chunks (at least one).
    #[must_use]
    pub fn equal(bytes: Bytes, parts: u32) -> Self {
        Self::new(vec![Segment { bytes, parts }])
    }

    /// Segments one after the other. Segments with no parts are left out.
    #[must_use]
    pub fn new(segments: Vec<Segment>) -> Self {
        let segments: Vec<Segment> = segments.into_iter().filter(|s| s.parts > 0).collect();
        let mut starts = Vec::with_capacity(segments.len() + 1);
        let mut stretches = Vec::new();
        let mut next = 0u32;
        let mut before: Option<Segment> = None;
        for segment in &segments {
            starts.push(next);
            if before.replace(*segment).is_none_or(|before| !before.has_chunks_as_large_as(*segment)) {
                stretches.push(next);
            }
            next = next.saturating_add(segment.parts);
        }
        starts.push(next);
        Self { segments, starts, stretches }
    }

    /// The same cut of `to` bytes instead of `from`; each boundary between segments is rounded down.
    #[must_use]
    pub fn scaled(&self, from: Bytes, to: Bytes) -> Self {
        let scale = |bytes: u64| (u128::from(bytes) * u128::from(to.0) / u128::from(from.0.max(1))) as u64;
        let mut before = 0;
        let segments = self.segments.iter().map(|segment| {
            let start = scale(before);
            before += segment.bytes.0;
            Segment { bytes: Bytes(scale(before) - start), parts: segment.parts }
        });
        Self::new(segments.collect())
    }

    /// The segments.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Bytes of all chunks together.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.segments.iter().map(|s| s.bytes.0).sum())
    }

    /// Exact size of a chunk (of a scratch slot, by the chunk it repeats); zero for an empty layout.
    #[must_use]
    pub fn size(&self, chunk: u32) -> ChunkSize {
        let chunks = self.chunks();
        if chunks == 0 {
            return ChunkSize { numerator: 0, denominator: 1 };
        }
        let segment = self.segments[self.segment_of(chunk % chunks)];
        ChunkSize { numerator: segment.bytes.0, denominator: segment.parts }
    }

    /// Index of the segment that holds a chunk (which must exist).
    #[must_use]
    pub fn segment_of(&self, chunk: u32) -> usize {
        if self.segments.len() == 1 { 0 } else { self.starts.partition_point(|&start| start <= chunk) - 1 }
    }

    /// True if all chunks are equally large, however many segments they are listed in.
    #[must_use]
    pub fn is_even(&self) -> bool {
        self.stretches.len() <= 1
    }

    /// Number of the stretch of equally large chunks that holds a chunk (which must exist). Consecutive stretches differ
    /// in the size of their chunks.
    #[must_use]
    pub fn stretch_of(&self, chunk: u32) -> usize {
        if self.is_even() { 0 } else { self.stretches.partition_point(|&start| start <= chunk) - 1 }
    }

    /// First chunk of the stretch after this one; `None` for the last.
    #[must_use]
    pub fn next_stretch(&self, stretch: usize) -> Option<u32> {
        self.stretches.get(stretch + 1).copied()
    }

    /// The first chunk of a segment; the number of chunks for segments that do not exist.
    #[must_use]
    pub fn start_of(&self, segment: usize) -> u32 {
        self.starts.get(segment).or(self.starts.last()).copied().unwrap_or(0)
    }

    /// Byte offset of the start of a chunk, or of the end for `chunk == chunks()`, with boundaries inside a segment
    /// rounded down to whole elements of `element` bytes.
    #[must_use]
    pub fn offset(&self, chunk: u32, element: Bytes) -> Bytes {
        let element = element.0.max(1);
        let mut before = 0u64;
        for (segment, &start) in self.segments.iter().zip(&self.starts) {
            if chunk < start + segment.parts {
                let elements = u128::from(segment.bytes.0 / element);
                let part = elements * u128::from(chunk - start) / u128::from(segment.parts);
                return Bytes(before + part as u64 * element);
            }
            before += segment.bytes.0;
        }
        Bytes(before)
    }
}
