//! Division of a call's bytes into chunks.

use fabricast_topologies::Bytes;
use serde::{Deserialize, Serialize};

/// Contiguous part of the buffer, divided into equal chunks. A chunk need not be a whole number of bytes: the simulator
/// uses the exact fraction, so that equal chunks have equal times; on GPUs, chunk boundaries are rounded down to whole
/// elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Number of bytes in the segment.
    pub bytes: Bytes,
    /// Number of equal chunks in the segment; at least 1.
    pub parts: u32,
}

/// Exact size of a chunk: `numerator / denominator` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkSize {
    /// Number of bytes in the chunk's segment.
    pub numerator: u64,
    /// Number of chunks in the chunk's segment; never 0.
    pub denominator: u32,
}

/// Chunks of a call: segments in buffer order, with chunks numbered consecutively across segments. Scratch slot `s` has
/// the size of chunk `s mod chunks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    segments: Vec<Segment>,
    /// First chunk of each segment, followed by the number of chunks.
    starts: Vec<u32>,
    /// First chunk of each uniform range: adjacent segments with chunks of equal size.
    #[serde(rename = "stretches")]
    uniform_range_starts: Vec<u32>,
}

impl Segment {
    /// Returns true if the chunks of both segments have the same size.
    fn has_equal_chunk_size(self, other: Self) -> bool {
        u128::from(self.bytes.0) * u128::from(other.parts) == u128::from(other.bytes.0) * u128::from(self.parts)
    }
}

impl Layout {
    /// Creates one segment divided into `parts` equal chunks (at least one).
    #[must_use]
    pub fn equal(bytes: Bytes, parts: u32) -> Self {
        Self::new(vec![Segment { bytes, parts }])
    }

    /// Creates a layout of consecutive segments. Segments without parts are dropped.
    #[must_use]
    pub fn new(segments: Vec<Segment>) -> Self {
        let segments: Vec<Segment> = segments.into_iter().filter(|s| s.parts > 0).collect();
        let mut starts = Vec::with_capacity(segments.len() + 1);
        let mut uniform_range_starts = Vec::new();
        let mut next = 0u32;
        let mut previous: Option<Segment> = None;
        for segment in &segments {
            starts.push(next);
            if previous.replace(*segment).is_none_or(|previous| !previous.has_equal_chunk_size(*segment)) {
                uniform_range_starts.push(next);
            }
            next = next.saturating_add(segment.parts);
        }
        starts.push(next);
        Self { segments, starts, uniform_range_starts }
    }

    /// Returns the layout scaled from `from` to `to` bytes; segment boundaries are rounded down.
    #[must_use]
    pub fn scaled(&self, from: Bytes, to: Bytes) -> Self {
        let scale = |bytes: u64| (u128::from(bytes) * u128::from(to.0) / u128::from(from.0.max(1))) as u64;
        let mut end = 0;
        let segments = self.segments.iter().map(|segment| {
            let start = scale(end);
            end += segment.bytes.0;
            Segment { bytes: Bytes(scale(end) - start), parts: segment.parts }
        });
        Self::new(segments.collect())
    }

    /// Returns the segments, in buffer order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the number of chunks of all segments.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the total number of bytes of all chunks.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.segments.iter().map(|s| s.bytes.0).sum())
    }

    /// Returns the exact size of a chunk, or of the chunk that determines the size of a scratch slot; zero for an empty
    /// layout.
    #[must_use]
    pub fn size(&self, chunk: u32) -> ChunkSize {
        let chunks = self.chunks();
        if chunks == 0 {
            return ChunkSize { numerator: 0, denominator: 1 };
        }
        let segment = self.segments[self.segment_index(chunk % chunks)];
        ChunkSize { numerator: segment.bytes.0, denominator: segment.parts }
    }

    /// Returns the index of the segment that contains a chunk, which must exist.
    #[must_use]
    pub fn segment_index(&self, chunk: u32) -> usize {
        if self.segments.len() == 1 { 0 } else { self.starts.partition_point(|&start| start <= chunk) - 1 }
    }

    /// Returns true if all chunks have the same size, regardless of the number of segments.
    #[must_use]
    pub fn is_even(&self) -> bool {
        self.uniform_range_starts.len() <= 1
    }

    /// Returns the index of the uniform range (chunks of equal size) that contains a chunk, which must exist. Adjacent
    /// ranges differ in chunk size.
    #[must_use]
    pub fn uniform_range_index(&self, chunk: u32) -> usize {
        if self.is_even() { 0 } else { self.uniform_range_starts.partition_point(|&start| start <= chunk) - 1 }
    }

    /// Returns the first chunk of the next uniform range; `None` for the last range.
    #[must_use]
    pub fn next_uniform_range(&self, range: usize) -> Option<u32> {
        self.uniform_range_starts.get(range + 1).copied()
    }

    /// Returns the first chunk of a segment, or the number of chunks if the segment does not exist.
    #[must_use]
    pub fn segment_start(&self, segment: usize) -> u32 {
        self.starts.get(segment).or(self.starts.last()).copied().unwrap_or(0)
    }

    /// Returns the byte offset of the start of a chunk, or of the end of the layout for `chunk == chunks()`. Boundaries
    /// inside a segment are rounded down to whole elements of `element` bytes.
    #[must_use]
    pub fn offset(&self, chunk: u32, element: Bytes) -> Bytes {
        let element = element.0.max(1);
        let mut preceding = 0u64;
        for (segment, &start) in self.segments.iter().zip(&self.starts) {
            if chunk < start + segment.parts {
                let elements = u128::from(segment.bytes.0 / element);
                let part = elements * u128::from(chunk - start) / u128::from(segment.parts);
                return Bytes(preceding + part as u64 * element);
            }
            preceding += segment.bytes.0;
        }
        Bytes(preceding)
    }
}
