//! A file as text, or one sentence why not.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Place, Result};

/// Largest file that is read; the largest topology known has less than one.
const MOST: u64 = 64 << 20;

/// The text of a file of at most 64 MiB.
///
/// # Errors
/// [`Error::Unreadable`] where the file does not exist, is larger, or is not text in UTF-8.
pub fn text_of_file(path: &Path) -> Result<String> {
    text_up_to(path, MOST)
}

/// The text of a file of at most so many bytes.
///
/// # Errors
/// As [`text_of_file`].
pub fn text_up_to(path: &Path, most: u64) -> Result<String> {
    let name = path.display().to_string();
    let unreadable = |reason: String| Error::Unreadable { place: Place::of_source(&name), reason };
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut bytes = Vec::new();
    // The length that the system tells is not asked: pipes and devices have none.
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() as u64 > most {
        return Err(unreadable(format!("larger than {} MiB", most >> 20)));
    }
    if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
        return Err(unreadable(format!("binary: byte {at} is zero; expected text")));
    }
    String::from_utf8(bytes)
        .map_err(|error| unreadable(format!("not UTF-8 text from byte {} on", error.utf8_error().valid_up_to())))
}
