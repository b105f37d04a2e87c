//! Record of the files that fabricast wrote, which distinguishes them from the user's files in later runs.
//!
//! Each line contains the digests of a file's content and of its path. The record is in the user's state folder
//! (`FABRICAST_STATE`, `XDG_STATE_HOME/fabricast` or `HOME/.local/state/fabricast`), never next to the results. The
//! content digest identifies a file that was moved or copied; the path digest identifies a file that was edited. The
//! record may be deleted at any time; files that it lacks are treated as the user's and are not replaced, except for
//! JSON results, which their format identifies.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use fabricast_study::key::Fingerprint;
use serde::Deserialize;

/// Size of the record, in bytes, above which its older half is dropped: about 16,000 files.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// Length of a line in bytes: two digests of 32 hexadecimal digits, a blank and the newline.
const LINE: usize = 66;

/// 128-bit FNV-1a hash. It detects accidental changes and is not cryptographic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(u128);

impl Digest {
    /// Digest of bytes in several parts.
    pub fn from_parts(parts: &[&[u8]]) -> Self {
        let mut fingerprint = Fingerprint::new();
        parts.iter().for_each(|part| fingerprint.hash_bytes(part));
        Self(fingerprint.key().0)
    }

    /// Digest of a file's content.
    fn from_file(path: &Path) -> std::io::Result<Self> {
        let (mut file, mut fingerprint, mut buffer) = (File::open(path)?, Fingerprint::new(), vec![0_u8; 1 << 16]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Self(fingerprint.key().0)),
                count => fingerprint.hash_bytes(buffer.get(..count).unwrap_or_default()),
            }
        }
    }

    /// Digest of a full path.
    fn from_path(path: &Path) -> Self {
        Self::from_parts(&[path.as_os_str().as_encoded_bytes()])
    }
}

/// Digests of the content and the path of a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDigests {
    content: Digest,
    path: Digest,
}

impl FileDigests {
    /// Creates the entry of a file with a canonical path.
    pub fn new(path: &Path, content: Digest) -> Self {
        Self { content, path: Digest::from_path(path) }
    }
}

/// Origin of an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Equal, byte for byte, to a file that fabricast wrote; or empty, or an unrecorded JSON result of fabricast.
    Command,
    /// Written by fabricast at this path, and changed since.
    Changed,
    /// Not recorded as a file of fabricast.
    Unknown,
}

/// Returns the origin of an existing file with a canonical path. Unreadable files have unknown origin.
pub fn origin(path: &Path) -> Origin {
    find_origin(path, &read())
}

fn find_origin(path: &Path, record: &[FileDigests]) -> Origin {
    if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        return Origin::Command;
    }
    let Ok(content) = Digest::from_file(path) else { return Origin::Unknown };
    if record.iter().any(|entry| entry.content == content) {
        return Origin::Command;
    }
    let path_digest = Digest::from_path(path);
    if record.iter().any(|entry| entry.path == path_digest) {
        return Origin::Changed;
    }
    // Results from other machines are not in the record, but their format identifies them.
    if is_result(path) { Origin::Command } else { Origin::Unknown }
}

/// Adds files to the record. Errors are ignored; the files are then unknown in later runs.
pub fn add(entries: &[FileDigests]) {
    if let Some(path) = record_path() {
        let _ = append(&path, entries);
    }
}

/// Path of the record, if a state folder is defined.
fn record_path() -> Option<PathBuf> {
    let env_path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    env_path("FABRICAST_STATE")
        .or_else(|| env_path("XDG_STATE_HOME").map(|folder| folder.join("fabricast")))
        .or_else(|| env_path("HOME").map(|home| home.join(".local/state/fabricast")))
        .map(|folder| folder.join("written"))
}

fn read() -> Vec<FileDigests> {
    record_path().and_then(|path| std::fs::read(path).ok()).map(|bytes| parse(&bytes)).unwrap_or_default()
}

/// Parses the entries of a record; invalid lines are skipped.
fn parse(bytes: &[u8]) -> Vec<FileDigests> {
    let digest = |text: &str| u128::from_str_radix(text, 16).ok().map(Digest);
    let entry = |line: &[u8]| {
        let (content, path) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        Some(FileDigests { content: digest(content)?, path: digest(path)? })
    };
    bytes.split(|&byte| byte == b'\n').filter_map(entry).collect()
}

fn append(path: &Path, entries: &[FileDigests]) -> std::io::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        private_folder(folder)?;
    }
    drop_older_half(path)?;
    let lines: String =
        entries.iter().map(|entry| format!("{:032x} {:032x}\n", entry.content.0, entry.path.0)).collect();
    // The lines are written by a single append, so that lines of concurrent processes are not mixed.
    std::fs::OpenOptions::new().append(true).create(true).open(path)?.write_all(lines.as_bytes())
}

/// Drops the older half of a large record.
fn drop_older_half(path: &Path) -> std::io::Result<()> {
    if !std::fs::metadata(path).is_ok_and(|record| record.len() > MAX_RECORD_BYTES) {
        return Ok(());
    }
    let bytes = std::fs::read(path)?;
    let from = bytes.len() / LINE / 2 * LINE;
    let partial = path.with_extension(std::process::id().to_string());
    std::fs::write(&partial, bytes.get(from..).unwrap_or_default())?;
    std::fs::rename(partial, path)
}

/// Creates a folder that only its owner can read.
fn private_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Identifying keys of JSON results.
#[derive(Deserialize)]
struct ResultHeader {
    format: Option<FormatTag>,
    fabricast_gpu_run: Option<u32>,
}

/// Number or name of a format.
#[derive(Deserialize)]
#[serde(untagged)]
enum FormatTag {
    Number(u32),
    Name(String),
}

/// Returns true if a file is a JSON result: an object with the format key of fabricast's results.
fn is_result(path: &Path) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
    let mut first = [0_u8];
    if file.read(&mut first).ok() != Some(1) || first != *b"{" {
        return false;
    }
    let text = std::io::Cursor::new(first).chain(std::io::BufReader::new(file));
    serde_json::from_reader(text).is_ok_and(|header: ResultHeader| match (header.format, header.fabricast_gpu_run) {
        (Some(FormatTag::Number(number)), _) | (_, Some(number)) => number > 0,
        (Some(FormatTag::Name(name)), None) => name.starts_with("fabricast"),
        (None, None) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_identified_by_content_and_edited_files_by_path() {
        let folder = tempfile::tempdir().unwrap();
        let (record, file) = (folder.path().join("state/written"), folder.path().join("plan.txt"));
        std::fs::write(&file, "a plan\n").unwrap();
        let read_record = || parse(&std::fs::read(&record).unwrap_or_default());
        assert_eq!(find_origin(&file, &read_record()), Origin::Unknown);
        append(&record, &[FileDigests::new(&file, Digest::from_parts(&[b"a pl", b"an\n"]))]).unwrap();
        assert_eq!(find_origin(&file, &read_record()), Origin::Command);
        // A copy has the same content.
        let copy = folder.path().join("copy.txt");
        std::fs::copy(&file, &copy).unwrap();
        assert_eq!(find_origin(&copy, &read_record()), Origin::Command);
        std::fs::write(&file, "a plan, edited\n").unwrap();
        assert_eq!(find_origin(&file, &read_record()), Origin::Changed);
        std::fs::write(&copy, "a plan, edited\n").unwrap();
        assert_eq!(find_origin(&copy, &read_record()), Origin::Unknown);
        std::fs::write(&copy, "").unwrap();
        assert_eq!(find_origin(&copy, &read_record()), Origin::Command);
    }

    #[test]
    fn unedited_results_are_recognized_by_format() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("r.json");
        for (text, expected) in [
            ("{\"format\": 7, \"jobs\": []}", Origin::Command),
            ("{\"format\": \"fabricast-bench\"}", Origin::Command),
            ("{\"fabricast_gpu_run\": 2, \"rows\": [{}]}", Origin::Command),
            ("{\"format\": \"png\"}", Origin::Unknown),
            ("{\"jobs\": []}", Origin::Unknown),
            ("{\"format\": 7, \"jobs\": [", Origin::Unknown),
            ("[{\"format\": 7}]", Origin::Unknown),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(find_origin(&file, &[]), expected, "{text}");
            let edited = [FileDigests::new(&file, Digest::from_parts(&[b"{\"format\": 7}"]))];
            assert_eq!(find_origin(&file, &edited), Origin::Changed, "{text}");
        }
    }

    #[test]
    fn large_record_drops_its_older_half() {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("written");
        let entries: Vec<FileDigests> =
            (0..20_000_u128).map(|number| FileDigests { content: Digest(number), path: Digest(number) }).collect();
        append(&record, &entries).unwrap();
        let last = FileDigests { content: Digest(u128::MAX), path: Digest(1) };
        append(&record, &[last]).unwrap();
        let retained = parse(&std::fs::read(&record).unwrap());
        assert_eq!((retained.len(), retained[0], retained[10_000]), (10_001, entries[10_000], last));
    }
}
