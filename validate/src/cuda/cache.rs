//! Compiled kernels on disk, found by what they were made from. Failing to keep one is no error: it is compiled again.

use std::path::{Path, PathBuf};

/// Where kernels are kept: `FABRICAST_CACHE`, or `fabricast` in the user's folder for caches, or in that for temporary files.
fn folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("FABRICAST_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("fabricast")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/fabricast")))
        .unwrap_or_else(|| std::env::temp_dir().join("fabricast"))
        .join("kernels")
}

/// The machine code that was kept for `key`.
pub(super) fn load(key: &str) -> Option<Vec<u8>> {
    load_from(&folder(), key)
}

/// Keeps machine code for `key`.
pub(super) fn store(key: &str, image: &[u8]) {
    store_in(&folder(), key, image);
}

/// Keeps a source that does not compile, and says where.
pub(super) fn keep(source: &str) -> PathBuf {
    let path = folder().join(format!("{}.failed.cu", name(source)));
    if write(&path, source.as_bytes()).is_some() {
        return path;
    }
    let path = std::env::temp_dir().join(format!("fabricast-{}.failed.cu", name(source)));
    // Where not even that works the path says where it would lie.
    let _ = write(&path, source.as_bytes());
    path
}

/// The key lies beside the code and is compared, so a name that two keys share costs a compilation, not a wrong kernel.
fn load_from(folder: &Path, key: &str) -> Option<Vec<u8>> {
    let path = folder.join(name(key));
    (std::fs::read(path.with_extension("cu")).ok()? == key.as_bytes())
        .then(|| std::fs::read(path.with_extension("cubin")).ok())
        .flatten()
}

fn store_in(folder: &Path, key: &str, image: &[u8]) {
    let path = folder.join(name(key));
    // The code before the key: whoever finds the key finds its code.
    if write(&path.with_extension("cubin"), image).is_some() {
        let _ = write(&path.with_extension("cu"), key.as_bytes());
    }
}

/// Writes a file at once or not at all, also where several processes write it.
fn write(path: &Path, bytes: &[u8]) -> Option<()> {
    std::fs::create_dir_all(path.parent()?).ok()?;
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    std::fs::write(&partial, bytes).ok()?;
    std::fs::rename(&partial, path).ok()
}

/// A name made of the content: FNV-1a of 128 bits (Fowler, Noll, Vo; constants of draft-eastlake-fnv).
fn name(content: &str) -> String {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = content.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_found_by_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        store_in(folder.path(), "source of one", b"code of one");
        assert_eq!(load_from(folder.path(), "source of one").unwrap(), b"code of one");
        assert_eq!(load_from(folder.path(), "source of two"), None);
        // A file of the same name with another key is not taken.
        let path = folder.path().join(name("source of one")).with_extension("cu");
        std::fs::write(path, "something else").unwrap();
        assert_eq!(load_from(folder.path(), "source of one"), None);
    }

    #[test]
    fn names_are_those_of_the_reference() {
        // FNV-1a-128 of the empty string and of "a", from the authors' test vectors.
        assert_eq!(name(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(name("a"), "d228cb696f1a8caf78912b704e4a8964");
    }
}
