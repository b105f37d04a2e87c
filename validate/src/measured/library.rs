//! Measured library and its version, such as `nccl-2.28.9` or `vllm-0.24.0`.

use std::fmt;
use std::str::FromStr;

use fabricast_sim::schedule::UnknownName;

/// Measured library, with its version if known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeasuredLibrary {
    /// Name of the library.
    pub name: LibraryName,
    /// Version as stated by the log or manifest; empty if unknown.
    pub version: String,
}

/// Name of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LibraryName {
    /// NVIDIA's NCCL.
    Nccl,
    /// AMD's RCCL.
    Rccl,
    /// NVIDIA's NVSHMEM.
    Nvshmem,
    /// Microsoft's MSCCL++.
    Mscclpp,
    /// Open MPI.
    OpenMpi,
    /// vLLM's custom all_reduce.
    Vllm,
    /// SGLang's custom all_reduce.
    Sglang,
    /// TensorRT-LLM's custom all_reduce.
    Trtllm,
    /// PyTorch's symmetric memory.
    Torch,
    /// Schedules executed by `gpu run`. Their rows state the complete strategy.
    Fabricast,
}

const NAMES: [(LibraryName, &str); 10] = [
    (LibraryName::Nccl, "nccl"),
    (LibraryName::Rccl, "rccl"),
    (LibraryName::Nvshmem, "nvshmem"),
    (LibraryName::Mscclpp, "mscclpp"),
    (LibraryName::OpenMpi, "openmpi"),
    (LibraryName::Vllm, "vllm"),
    (LibraryName::Sglang, "sglang"),
    (LibraryName::Trtllm, "trtllm"),
    (LibraryName::Torch, "torch"),
    (LibraryName::Fabricast, "fabricast"),
];

impl LibraryName {
    /// The name as written in manifests, such as `nccl`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }
}

impl MeasuredLibrary {
    /// Creates an NCCL library from the version code that NCCL and nccl-tests print: 22809 is 2.28.9. Codes before 2.9
    /// have one digit less for the minor version: 2708 is 2.7.8 (`NCCL_VERSION` in nccl.h).
    #[must_use]
    pub fn from_nccl_code(code: u32) -> Self {
        let (major, minor) =
            if code < 10_000 { (code / 1000, code / 100 % 10) } else { (code / 10_000, code / 100 % 100) };
        Self { name: LibraryName::Nccl, version: format!("{major}.{minor}.{}", code % 100) }
    }
}

impl FromStr for MeasuredLibrary {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let (name, version) = match text.split_once('-') {
            // A dash without a following version is an error.
            Some((_, "")) => return Err(UnknownName::new("library", text, &NAMES.map(|row| row.1))),
            Some(parts) => parts,
            None => (text, ""),
        };
        let lower = name.to_ascii_lowercase();
        let entry = NAMES.iter().find(|row| row.1 == lower);
        let name = entry.map(|row| row.0).ok_or_else(|| UnknownName::new("library", name, &NAMES.map(|row| row.1)))?;
        Ok(Self { name, version: version.to_owned() })
    }
}

impl fmt::Display for MeasuredLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dash = if self.version.is_empty() { "" } else { "-" };
        f.pad(&format!("{}{dash}{}", self.name.name(), self.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names() {
        assert_eq!(MeasuredLibrary::from_nccl_code(22_809).to_string(), "nccl-2.28.9");
        assert_eq!(MeasuredLibrary::from_nccl_code(2708).to_string(), "nccl-2.7.8");
        assert_eq!("trtllm-1.3.0rc20".parse::<MeasuredLibrary>().unwrap().version, "1.3.0rc20");
        assert_eq!("nccl".parse::<MeasuredLibrary>().unwrap().to_string(), "nccl");
        assert!("nccl-".parse::<MeasuredLibrary>().is_err());
        let error = "ncl-2.28".parse::<MeasuredLibrary>().unwrap_err().to_string();
        assert!(error.contains("did you mean nccl"), "{error}");
    }
}
