//! Conversion of byte offsets of a text into lines and columns, without reading the text again for each lookup.

/// Number of bytes per block. The index stores the number of characters before each block.
const BLOCK: usize = 4096;

/// Index of a text that converts a byte offset into line and column. It is built in one pass; a lookup reads at most
/// two blocks of `BLOCK` bytes, however long the text or its lines are.
#[derive(Clone, Debug, Default)]
pub struct LineIndex {
    /// Byte offset of the start of each line.
    starts: Vec<usize>,
    /// Number of characters that begin before each multiple of [`BLOCK`].
    characters: Vec<usize>,
}

impl LineIndex {
    /// Builds the index of a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut index = Self { starts: vec![0], characters: Vec::with_capacity(text.len() / BLOCK + 1) };
        let mut before = 0;
        for (number, block) in text.as_bytes().chunks(BLOCK).enumerate() {
            index.characters.push(before);
            before += characters(block);
            let ends = block.iter().enumerate().filter(|&(_, &byte)| byte == b'\n');
            index.starts.extend(ends.map(|(at, _)| number * BLOCK + at + 1));
        }
        index.characters.push(before);
        index
    }

    /// Line and column of a byte offset, both from 1; columns count characters. `text` must be the indexed text.
    #[must_use]
    pub fn line_and_column(&self, text: &str, offset: usize) -> (u32, u32) {
        let line = self.starts.partition_point(|&start| start <= offset).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or(0);
        let column = self.characters_before(text, offset) - self.characters_before(text, start);
        (line as u32, 1 + column as u32)
    }

    fn characters_before(&self, text: &str, offset: usize) -> usize {
        let block = offset / BLOCK;
        let partial_block = text.as_bytes().get(block * BLOCK..offset).unwrap_or_default();
        self.characters.get(block).copied().unwrap_or(0) + characters(partial_block)
    }
}

/// Number of characters that begin in these bytes of UTF-8.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Origin, SourceLocation};

    proptest! {
        /// Compares indexed locations with [`SourceLocation::locate`], which counts from the start of the text.
        #[test]
        fn indexed_locations_match_counting_from_the_start(
            parts in prop::collection::vec(prop_oneof!["[a-zé€\u{10348}]{0,9}", Just("\n".to_owned()), Just("ü".repeat(3000))], 0..12),
            at in any::<prop::sample::Index>(),
        ) {
            let text = parts.concat();
            let index = LineIndex::new(&text);
            let at = at.index(text.len() + 3);
            let indexed = Origin::new("t", &text).with_line_index(&index).locate(at..at + 2);
            prop_assert_eq!(indexed, SourceLocation::locate("t", &text, at..at + 2));
        }
    }
}
