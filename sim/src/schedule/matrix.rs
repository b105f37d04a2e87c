//! Traffic matrix of an all_to_allv: bytes from each rank to each rank.
//!
//! A schedule stores the matrix in its layout: one segment per block, by sender, then receiver, including empty blocks.
//! The block that rank s sends to rank d therefore has the same chunks in the input of s and in the output of d.

use std::sync::Arc;

use fabricast_topologies::{Bytes, SourceLocation, UnitError};

use super::Layout;

/// Bytes that one rank sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixBlock {
    /// Rank that sends the bytes.
    pub from: u32,
    /// Rank that receives the bytes.
    pub to: u32,
    /// Number of bytes, more than 0.
    pub bytes: Bytes,
}

/// Bytes that each rank sends to each rank, itself included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrafficMatrix {
    ranks: u32,
    /// Entries in bytes, by sender, then receiver.
    bytes: Arc<[u64]>,
}

/// Boundary condition of a grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boundary {
    /// The first and the last rank along a side are not neighbours.
    #[default]
    Open,
    /// The first and the last rank along a side are neighbours.
    Periodic,
}

/// Reasons why a matrix is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// The number of entries is not the square of the number of ranks.
    #[error("{entries} entries for {ranks} ranks; expected {ranks} × {ranks}")]
    Shape {
        /// Number of ranks of the matrix.
        ranks: u32,
        /// Number of entries given.
        entries: usize,
    },
    /// The number of ranks is not in 1 to [`TrafficMatrix::MAX_RANKS`].
    #[error("a matrix of {ranks} ranks; expected 1 to {}", TrafficMatrix::MAX_RANKS)]
    Ranks {
        /// Number of ranks requested.
        ranks: u64,
    },
    /// The total number of bytes exceeds that of a call.
    #[error("{bytes} bytes in all; expected at most {}", Bytes::MAX)]
    Bytes {
        /// Sum of all entries, in bytes.
        bytes: u128,
    },
    /// The text is not a matrix.
    #[error("{location}: {message}")]
    Text {
        /// Location in the text.
        location: SourceLocation,
        /// Content found and content expected.
        message: String,
    },
}

impl MatrixError {
    /// Returns the location of the error if the matrix was read from a text.
    #[must_use]
    pub fn location(&self) -> Option<&SourceLocation> {
        match self {
            Self::Text { location: place, .. } => Some(place),
            _ => None,
        }
    }
}

impl TrafficMatrix {
    /// Maximum number of ranks of a matrix, which has the square of this number as entries.
    pub const MAX_RANKS: u32 = 4096;

    /// Creates a matrix from its entries in row-major order, one row per sender.
    ///
    /// # Errors
    /// [`MatrixError`]: too many or no ranks, a wrong number of entries, or more than [`Bytes::MAX`] in total.
    pub fn new(ranks: u32, bytes: Vec<u64>) -> Result<Self, MatrixError> {
        if ranks == 0 || ranks > Self::MAX_RANKS {
            return Err(MatrixError::Ranks { ranks: ranks.into() });
        }
        if bytes.len() != (ranks as usize).pow(2) {
            return Err(MatrixError::Shape { ranks, entries: bytes.len() });
        }
        let total: u128 = bytes.iter().map(|&bytes| u128::from(bytes)).sum();
        if total > u128::from(Bytes::MAX.0) {
            return Err(MatrixError::Bytes { bytes: total });
        }
        Ok(Self { ranks, bytes: bytes.into() })
    }

    /// Creates a matrix of equal blocks with `total` bytes in all. If `total` does not divide evenly, some blocks are
    /// one byte larger.
    ///
    /// # Errors
    /// The errors of [`Self::new`].
    pub fn even(ranks: u32, total: Bytes) -> Result<Self, MatrixError> {
        if ranks == 0 || ranks > Self::MAX_RANKS {
            return Err(MatrixError::Ranks { ranks: ranks.into() });
        }
        let blocks = u64::from(ranks).pow(2);
        if total.0.is_multiple_of(blocks) {
            return Self::new(ranks, vec![total.0 / blocks; (ranks as usize).pow(2)]);
        }
        let ones = vec![1; (ranks as usize).pow(2)];
        Self::new(ranks, ones).map(|even| even.scaled(total))
    }

    /// Creates the halo exchange of stencil codes on a Cartesian grid: `face` bytes to the next and to the previous
    /// rank along each side, with ranks numbered along the first side first. Along a side of one rank there are no
    /// neighbours; along a periodic side of two ranks, both faces are sent to the same rank.
    ///
    /// # Errors
    /// The errors of [`Self::new`] for the product of the sides as number of ranks.
    pub fn halo(sides: &[u32], boundary: Boundary, face: Bytes) -> Result<Self, MatrixError> {
        let product = sides.iter().fold(1u64, |product, &side| product.saturating_mul(side.into()));
        let ranks = u32::try_from(product).ok().filter(|ranks| (1..=Self::MAX_RANKS).contains(ranks));
        let ranks = ranks.ok_or(MatrixError::Ranks { ranks: product })?;
        let mut bytes = vec![0u64; (ranks as usize).pow(2)];
        let mut stride = 1;
        for &side in sides.iter().filter(|&&side| side > 1) {
            for rank in 0..ranks {
                let coordinate = rank / stride % side;
                let line = rank - coordinate * stride;
                let next = (coordinate + 1 < side || boundary == Boundary::Periodic).then_some((coordinate + 1) % side);
                let previous =
                    (coordinate > 0 || boundary == Boundary::Periodic).then_some((coordinate + side - 1) % side);
                for to in [next, previous].into_iter().flatten().map(|coordinate| line + coordinate * stride) {
                    if let Some(entry) = bytes.get_mut((rank * ranks + to) as usize) {
                        *entry = entry.saturating_add(face.0);
                    }
                }
            }
            stride *= side;
        }
        Self::new(ranks, bytes)
    }

    /// Reads the matrix from a layout with one segment per block; `None` if the number of segments differs.
    #[must_use]
    pub fn from_layout(ranks: u32, layout: &Layout) -> Option<Self> {
        Self::new(ranks, layout.segments().iter().map(|segment| segment.bytes.0).collect()).ok()
    }

    /// Reads comma-separated values: one line per sender, one size per receiver, with or without a unit. Blank lines
    /// and lines that begin with `#` are ignored. `source` names the text in errors.
    ///
    /// # Errors
    /// [`MatrixError`]; invalid sizes and lines of unequal length come with line and column.
    pub fn parse(text: &str, source: &str) -> Result<Self, MatrixError> {
        let error = |offset: usize, field: &str, message: String| MatrixError::Text {
            location: SourceLocation::locate(source, text, offset..offset + field.len()),
            message,
        };
        let mut bytes: Vec<u64> = Vec::new();
        let (mut width, mut rows) = (0usize, 0usize);
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let (content, offset) = (line.trim(), start + line.len() - line.trim_start().len());
            start += line.len();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let mut field_start = offset;
            let mut columns = 0;
            for field in content.split(',') {
                let size = field.trim();
                let position = field_start + field.len() - field.trim_start().len();
                let parsed = size.parse::<Bytes>();
                bytes.push(parsed.map_err(|unit_error: UnitError| error(position, size, unit_error.to_string()))?.0);
                field_start += field.len() + 1;
                columns += 1;
            }
            rows += 1;
            if rows == 1 {
                width = columns;
            }
            if columns != width || width > Self::MAX_RANKS as usize {
                let expected = if rows == 1 { format!("1 to {}", Self::MAX_RANKS) } else { format!("{width}") };
                return Err(error(
                    offset,
                    content,
                    format!("{columns} columns; expected {expected}, one for each rank"),
                ));
            }
            if rows > width {
                let message = format!("more rows than columns; expected {width} of each, one for each rank");
                return Err(error(offset, content, message));
            }
        }
        if rows != width || rows == 0 {
            let message =
                format!("{rows} rows of {width} columns; expected as many rows as columns, one for each rank");
            return Err(error(text.len(), "", message));
        }
        Self::new(width as u32, bytes)
    }

    /// Returns the matrix scaled to `total` bytes, with block boundaries rounded down; an empty matrix stays empty.
    #[must_use]
    pub fn scaled(&self, total: Bytes) -> Self {
        let old_total = u128::from(self.total().0.max(1));
        let scale = |bytes: u64| (u128::from(bytes) * u128::from(total.0) / old_total) as u64;
        let mut end = 0;
        let scaled = self.bytes.iter().map(|block| {
            let start = scale(end);
            end += block;
            scale(end) - start
        });
        Self { ranks: self.ranks, bytes: scaled.collect() }
    }

    /// Returns the number of ranks of the matrix.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the number of bytes that one rank sends to another; 0 for ranks that do not exist.
    #[must_use]
    pub fn get(&self, from: u32, to: u32) -> Bytes {
        if from >= self.ranks || to >= self.ranks {
            return Bytes(0);
        }
        Bytes(self.bytes.get((from * self.ranks + to) as usize).copied().unwrap_or(0))
    }

    /// Returns the non-empty blocks, by sender, then receiver.
    pub fn blocks(&self) -> impl Iterator<Item = MatrixBlock> + '_ {
        let ranks = self.ranks as usize;
        let filled = self.bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        filled.map(move |(i, &bytes)| MatrixBlock {
            from: (i / ranks) as u32,
            to: (i % ranks) as u32,
            bytes: Bytes(bytes),
        })
    }

    /// Returns the number of bytes of all blocks, which is the size of the call.
    #[must_use]
    pub fn total(&self) -> Bytes {
        Bytes(self.bytes.iter().sum())
    }

    /// Returns the number of bytes sent between different ranks.
    #[must_use]
    pub fn bytes_between_ranks(&self) -> Bytes {
        Bytes(self.blocks().filter(|block| block.from != block.to).map(|block| block.bytes.0).sum())
    }

    /// Returns the size as in nccl-tests: the largest send or receive buffer of any rank. With equal blocks it equals
    /// the size of the all_to_all.
    #[must_use]
    pub fn size(&self) -> Bytes {
        let mut sent = vec![0u64; self.ranks as usize];
        let mut received = sent.clone();
        for MatrixBlock { from, to, bytes } in self.blocks() {
            for (sums, rank) in [(&mut sent, from), (&mut received, to)] {
                if let Some(sum) = sums.get_mut(rank as usize) {
                    *sum += bytes.0;
                }
            }
        }
        Bytes(sent.into_iter().chain(received).max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        TrafficMatrix::parse(text, "m.csv").unwrap_err().to_string()
    }

    #[test]
    fn text_is_read_row_by_row() {
        let matrix = TrafficMatrix::parse("# skewed\n0, 1KiB\n\n 2MB ,3\n", "m.csv").unwrap();
        assert_eq!((matrix.get(0, 1), matrix.get(1, 0), matrix.get(1, 1)), (Bytes(1024), Bytes(2_000_000), Bytes(3)));
        assert_eq!(matrix.total(), Bytes(2_001_027));
        assert_eq!(matrix.bytes_between_ranks(), Bytes(2_001_024));
        assert_eq!(matrix.size(), Bytes(2_000_003));
        assert_eq!(matrix.get(2, 0), Bytes(0));
    }

    #[test]
    fn errors_name_line_and_column() {
        for (text, message) in [
            ("", "m.csv:1:1: 0 rows of 0 columns"),
            ("1,2\n3,x\n", "m.csv:2:3: `x` is not"),
            ("1,2\n3,\n", "m.csv:2:3: `` is not"),
            ("1,2\n  3\n", "m.csv:2:3: 1 columns; expected 2"),
            ("1,2\n3,4\n5,6\n", "m.csv:3:1: more rows than columns"),
            ("1,2\n", "m.csv:2:1: 1 rows of 2 columns"),
            ("1PiB,1\n0,0\n", "bytes in all; expected at most"),
            ("-1", "m.csv:1:1: `-1` is not"),
        ] {
            assert!(error(text).contains(message), "{text:?}: {}", error(text));
        }
    }

    #[test]
    fn halo_exchanges_link_grid_neighbours() {
        let pairs = |sides: &[u32], boundary| {
            let matrix = TrafficMatrix::halo(sides, boundary, Bytes(5)).unwrap();
            matrix.blocks().map(|block| (block.from, block.to, block.bytes.0)).collect::<Vec<_>>()
        };
        assert_eq!(pairs(&[3], Boundary::Open), [(0, 1, 5), (1, 0, 5), (1, 2, 5), (2, 1, 5)]);
        assert_eq!(pairs(&[2], Boundary::Periodic), [(0, 1, 10), (1, 0, 10)]);
        assert_eq!(pairs(&[1, 1], Boundary::Periodic), []);
        let torus = TrafficMatrix::halo(&[4, 3, 3], Boundary::Periodic, Bytes(7)).unwrap();
        assert_eq!(torus.size(), Bytes(6 * 7));
        assert_eq!(
            (torus.get(0, 3), torus.get(0, 8), torus.get(0, 24), torus.get(0, 5)),
            (Bytes(7), Bytes(7), Bytes(7), Bytes(0))
        );
        assert!(TrafficMatrix::halo(&[u32::MAX, u32::MAX], Boundary::Open, Bytes(1)).is_err());
        assert!(TrafficMatrix::halo(&[4, 0], Boundary::Open, Bytes(1)).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "[0-9a-zKMB,# \n.-]{0,60}") {
            let _ = TrafficMatrix::parse(&text, "any");
        }

        #[test]
        fn scaled_total_is_exact(ranks in 1u32..6, entries in prop::collection::vec(0u64..9, 36), total in 0u64..1000) {
            let entries: Vec<u64> = entries.into_iter().take((ranks * ranks) as usize).collect();
            let matrix = TrafficMatrix::new(ranks, entries).unwrap();
            let scaled = matrix.scaled(Bytes(total));
            let expected = if matrix.total() == Bytes(0) { 0 } else { total };
            prop_assert_eq!(scaled.total(), Bytes(expected));
            prop_assert!(scaled.blocks().all(|block| matrix.get(block.from, block.to) > Bytes(0)));
            prop_assert_eq!(matrix.scaled(matrix.total()), matrix);
        }
    }
}
