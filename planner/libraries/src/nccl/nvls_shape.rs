//! Channels and chunk sizes that settings limit.

use fabricast_topologies::Bytes;

/// Maximum number of channels of a communicator (MAXCHANNELS, `src/include/device.h`).
pub const MAX_CHANNELS: u16 = 64;

/// Channels and chunk sizes of NVLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvlsShape {
    /// Number of channels.
    pub channels: u16,
    /// Maximum chunk.
    pub chunk: Bytes,
    /// Maximum chunk of NVLSTree.
    pub tree_chunk: Bytes,
}
