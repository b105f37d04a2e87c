//! Number of channels and chunk sizes of NVLS, which NCCL's settings can limit.

use fabricast_topologies::Bytes;

/// Maximum number of channels of a communicator (MAXCHANNELS, `src/include/device.h`).
pub const MAX_CHANNELS: u16 = 64;

/// Number of channels and maximum chunk sizes of NVLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvlsShape {
    /// Number of channels of NVLS and NVLSTree.
    pub channels: u16,
    /// Maximum chunk size of NVLS.
    pub chunk: Bytes,
    /// Maximum chunk size of NVLSTree.
    pub tree_chunk: Bytes,
}
