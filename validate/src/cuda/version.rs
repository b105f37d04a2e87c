//! CUDA versions.

use std::fmt;

/// CUDA version of a driver or library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// Major version, such as 12 of CUDA 12.8.
    pub major: u32,
    /// Minor version, such as 8 of CUDA 12.8.
    pub minor: u32,
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
