//! Disk cache of compiled kernels, keyed by the compiler input. A failed write is not an error, because the kernel is
//! then compiled again.
//!
//! An entry is one file with a header (lengths, and a digest of the contents), the key, and the machine code. A
//! truncated or modified entry, or one with another key, is ignored. The cache folder is used only if no other user can
//! write to it; otherwise nothing is cached.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use fabricast_study::key::Fingerprint;

/// Magic number of an entry. Its last digit identifies the layout of the file.
const MAGIC: &[u8; 16] = b"fabricast-cubin2";

/// Cache folder: `kernels` below `FABRICAST_CACHE`, or below `fabricast` in the user's cache folder. `None` if the
/// environment names no absolute path.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    set("FABRICAST_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("fabricast")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/fabricast")))
        .map(|folder| folder.join("kernels"))
}

/// Returns the cached machine code for `key`, or `None` without a valid entry.
pub(super) fn load(key: &str) -> Option<Vec<u8>> {
    load_from(&folder()?, key)
}

/// Caches machine code for `key`.
pub(super) fn store(key: &str, image: &[u8]) {
    if let Some(folder) = folder() {
        store_in(&folder, key, image);
    }
}

/// Saves a source that does not compile, and returns its path.
pub(super) fn save_failed_source(source: &str) -> Option<PathBuf> {
    let path = folder()?.join(format!("{}.failed.cu", file_name(source)));
    write(&path, source.as_bytes()).map(|()| path)
}

fn load_from(folder: &Path, key: &str) -> Option<Vec<u8>> {
    is_private(folder)
        .then(|| std::fs::read(folder.join(file_name(key)).with_extension("kernel")).ok())
        .flatten()
        .and_then(|entry| {
            let rest = entry.strip_prefix(MAGIC)?;
            let (lengths, rest) = rest.split_first_chunk::<16>()?;
            let (sum, rest) = rest.split_first_chunk::<16>()?;
            let [key_length, image_length] =
                [0, 8].map(|offset| u64::from_le_bytes(std::array::from_fn(|byte| lengths[offset + byte])));
            let (stored_key, image) = rest.split_at_checked(usize::try_from(key_length).ok()?)?;
            let is_intact =
                image.len() as u64 == image_length && digest(&[stored_key, image]) == u128::from_le_bytes(*sum);
            (is_intact && stored_key == key.as_bytes()).then(|| image.to_vec())
        })
}

fn store_in(folder: &Path, key: &str, image: &[u8]) {
    let key_bytes = key.as_bytes();
    let lengths = [key_bytes.len() as u64, image.len() as u64].map(u64::to_le_bytes).concat();
    let sum = digest(&[key_bytes, image]).to_le_bytes();
    let entry = [MAGIC.as_slice(), lengths.as_slice(), sum.as_slice(), key_bytes, image].concat();
    let _ = write(&folder.join(file_name(key)).with_extension("kernel"), &entry);
}

/// Writes a file into a private folder. The bytes are first written to a temporary file that no other process writes,
/// which is then renamed, so that readers see the complete file or no file.
fn write(path: &Path, bytes: &[u8]) -> Option<()> {
    let folder = path.parent()?;
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder).ok()?;
    if !is_private(folder) {
        return None;
    }
    let (partial, mut file) = create_partial(path)?;
    let renamed = file.write_all(bytes).and_then(|()| std::fs::rename(&partial, path));
    if renamed.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    renamed.ok()
}

/// Creates a temporary file next to `path`. Process and thread ids do not make the name unique, because processes in
/// containers or on other hosts may have equal ids, so an existing file is never opened.
fn create_partial(path: &Path) -> Option<(PathBuf, File)> {
    for number in 0..u32::MAX {
        let partial = path.with_extension(format!("{}-{number}.partial", std::process::id()));
        match File::create_new(&partial) {
            Ok(file) => return Some((partial, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
    }
    None
}

/// Returns true if the folder belongs to the effective user and no other user can write to it. This is required because
/// the cached code is executed.
#[cfg(unix)]
#[allow(unsafe_code, reason = "declares a function of C")]
fn is_private(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    unsafe extern "C" {
        safe fn geteuid() -> u32;
    }
    // The folder itself is examined, not the target of a symbolic link.
    std::fs::symlink_metadata(folder)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == geteuid() && metadata.mode() & 0o022 == 0)
}

/// Returns true if the folder exists. Permissions are not examined on this platform.
#[cfg(not(unix))]
fn is_private(folder: &Path) -> bool {
    folder.is_dir()
}

fn digest(parts: &[&[u8]]) -> u128 {
    let mut print = Fingerprint::new();
    parts.iter().for_each(|part| print.hash_bytes(part));
    print.key().0
}

/// File name derived from the content: 128-bit FNV-1a (Fowler, Noll, Vo; constants of draft-eastlake-fnv).
fn file_name(content: &str) -> String {
    format!("{:032x}", digest(&[content.as_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a private temporary folder.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn cached_code_is_found_only_by_its_key() {
        let folder = folder();
        store_in(folder.path(), "source of one", b"code of one");
        assert_eq!(load_from(folder.path(), "source of one").unwrap(), b"code of one");
        assert_eq!(load_from(folder.path(), "source of two"), None);
        // An entry under the file name of another key is ignored.
        let path_of = |key: &str| folder.path().join(file_name(key)).with_extension("kernel");
        std::fs::copy(path_of("source of one"), path_of("source of two")).unwrap();
        assert_eq!(load_from(folder.path(), "source of two"), None);
    }

    #[test]
    fn truncated_or_modified_entries_are_ignored() {
        let folder = folder();
        store_in(folder.path(), "a key", b"machine code");
        let path = folder.path().join(file_name("a key")).with_extension("kernel");
        let entry = std::fs::read(&path).unwrap();
        for length in 0..entry.len() {
            std::fs::write(&path, &entry[..length]).unwrap();
            assert_eq!(load_from(folder.path(), "a key"), None, "cut after {length}");
            let mut changed = entry.clone();
            changed[length] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            assert_eq!(load_from(folder.path(), "a key"), None, "changed at {length}");
        }
        std::fs::write(&path, [&entry[..], b"x"].concat()).unwrap();
        assert_eq!(load_from(folder.path(), "a key"), None);
    }

    #[test]
    fn concurrent_writes_of_a_file_all_succeed_and_stay_whole() {
        let folder = folder();
        let path = folder.path().join("kernel.failed.cu");
        std::thread::scope(|scope| {
            for number in 0..8_u8 {
                let path = &path;
                scope.spawn(move || {
                    let content = vec![number; 1 << 16];
                    for _ in 0..50 {
                        assert_eq!(write(path, &content), Some(()));
                        let found = std::fs::read(path).unwrap();
                        assert!(found.len() == content.len() && found.iter().all(|byte| *byte == found[0]));
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn folder_writable_by_others_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let folder = folder();
        store_in(folder.path(), "a key", b"code");
        for mode in [0o777, 0o770, 0o720] {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(load_from(folder.path(), "a key"), None, "{mode:o}");
            store_in(folder.path(), "another", b"code");
        }
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(load_from(folder.path(), "a key").is_some() && load_from(folder.path(), "another").is_none());
        // A folder created by the cache is private.
        let created = folder.path().join("made/kernels");
        store_in(&created, "a key", b"code");
        assert_eq!(std::fs::metadata(&created).unwrap().permissions().mode() & 0o777, 0o700);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&created, &link).unwrap();
        assert_eq!(load_from(&link, "a key"), None);
    }

    #[test]
    fn names_match_fnv_test_vectors() {
        // FNV-1a-128 of the empty string and of "a", from the authors' test vectors.
        assert_eq!(file_name(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(file_name("a"), "d228cb696f1a8caf78912b704e4a8964");
    }
}
