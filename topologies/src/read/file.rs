//! Reading of files as text or bytes, with a size limit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::limit::Limit;
use crate::error::{Error, Result, SourceLocation};

/// The path that names standard input.
const STANDARD_INPUT: &str = "-";

/// Number of bytes that are read at a time, before their size and contents are checked.
const BLOCK_BYTES: u64 = 1 << 20;

/// Returns true if the path can be read: an existing file, or standard input (`-`).
#[must_use]
pub fn can_be_read(path: &Path) -> bool {
    is_standard_input(path) || path.exists()
}

/// Reads the text of a file up to a limit, without a leading byte order mark; `-` is standard input. The contents of
/// pipes and devices, which can be read only once, are cached for further calls.
///
/// # Errors
/// [`Error::Unreadable`] if the file does not exist, exceeds the limit, or is not UTF-8 text.
pub fn read_text_file(path: &Path, limit: Limit) -> Result<String> {
    let bytes = read_limited(path, limit, Contents::Text)?;
    let refused = |reason: String| unreadable(path, reason);
    String::from_utf8(bytes)
        .map_err(|error| refused(format!("not UTF-8 text from byte {} on", error.utf8_error().valid_up_to())))
}

/// Reads the bytes of a binary file up to a limit; `-` is standard input.
///
/// # Errors
/// [`Error::Unreadable`] if the file does not exist or exceeds the limit.
pub fn read_binary_file(path: &Path, limit: Limit) -> Result<Vec<u8>> {
    read_limited(path, limit, Contents::Binary)
}

/// Expected contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    /// UTF-8 text without zero bytes.
    Text,
    /// Arbitrary bytes.
    Binary,
}

/// Contents of pipes and devices that have been read, by path.
static STREAMS: Mutex<BTreeMap<PathBuf, Arc<[u8]>>> = Mutex::new(BTreeMap::new());

fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == STANDARD_INPUT
}

fn unreadable(path: &Path, reason: String) -> Error {
    Error::Unreadable { location: SourceLocation::from_source(&path.display().to_string()), reason }
}

fn read_limited(path: &Path, limit: Limit, contents: Contents) -> Result<Vec<u8>> {
    let refused = |reason: String| unreadable(path, reason);
    let is_regular = std::fs::metadata(path).is_ok_and(|file| file.is_file());
    if is_regular && !is_standard_input(path) {
        let file = File::open(path).map_err(|error| refused(error.to_string()))?;
        return read(file, limit, contents).map_err(refused);
    }
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = streams.get(path) {
        return if known.len() as u64 > limit.bytes { Err(refused(limit.exceeded())) } else { Ok(known.to_vec()) };
    }
    let bytes = if is_standard_input(path) {
        read(std::io::stdin().lock(), limit, contents)
    } else {
        File::open(path).map_err(|error| error.to_string()).and_then(|file| read(file, limit, contents))
    };
    let bytes = bytes.map_err(refused)?;
    streams.insert(path.to_owned(), bytes.as_slice().into());
    Ok(bytes)
}

/// Reads a source block by block, so that oversized or binary input is rejected early. The length reported by the
/// system is not used, because pipes and devices have none.
fn read(mut source: impl Read, limit: Limit, contents: Contents) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let max_bytes = (limit.bytes + 1 - before as u64).min(BLOCK_BYTES);
        let count = source.by_ref().take(max_bytes).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if contents == Contents::Text {
            check_text(&mut bytes, before)?;
        }
        if bytes.len() as u64 > limit.bytes {
            return Err(limit.exceeded());
        }
        if (count as u64) < max_bytes {
            return Ok(bytes);
        }
    }
}

/// Returns an error if the bytes from `before` on cannot be UTF-8 text. Removes a byte order mark at the start.
fn check_text(bytes: &mut Vec<u8>, before: usize) -> Result<(), String> {
    if before == 0 {
        if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
            return Err("text in UTF-16, as its byte order mark says; expected UTF-8".to_owned());
        }
        if bytes.starts_with(&[0xef, 0xbb, 0xbf]) {
            bytes.drain(..3);
        }
    }
    match bytes.iter().skip(before).position(|&byte| byte == 0) {
        Some(at) => Err(format!("binary: byte {} is zero; expected text", before + at)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limit = Limit { kind: "a test", bytes: 3 << 20 };

    /// Endless source of one byte value; the second field counts the bytes read.
    struct Endless(u8, u64);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.fill(self.0);
            self.1 += buffer.len() as u64;
            Ok(buffer.len())
        }
    }

    #[test]
    fn endless_sources_are_read_to_one_byte_over_the_limit() {
        let mut text = Endless(b'x', 0);
        let error = read(&mut text, SMALL, Contents::Text).unwrap_err();
        assert_eq!(error, "larger than 3 MiB, the most that is read as a test");
        assert_eq!(text.1, SMALL.bytes + 1);
        // Binary contents are detected in the first block that is read.
        let mut zeros = Endless(0, 0);
        assert!(read(&mut zeros, SMALL, Contents::Text).unwrap_err().contains("byte 0 is zero"));
        assert!(zeros.1 <= BLOCK_BYTES);
    }

    #[test]
    fn byte_order_marks_are_stripped_or_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let text = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read_text_file(&path, SMALL).map_err(|error| error.to_string())
        };
        assert_eq!(text(b"\xef\xbb\xbfa = 1").unwrap(), "a = 1");
        for utf_16 in [&b"\xff\xfea\0"[..], b"\xfe\xff\0a"] {
            let error = text(utf_16).unwrap_err();
            assert!(error.contains("UTF-16") && error.contains(&path.display().to_string()), "{error}");
        }
        assert_eq!(text(&vec![b'a'; SMALL.bytes as usize]).unwrap().len() as u64, SMALL.bytes);
        assert!(text(&vec![b'a'; SMALL.bytes as usize + 1]).unwrap_err().contains("larger than 3 MiB"));
    }
}
