//! Structures with which NVSHMEM's host library is initialized (nvshmem_uniqueid.h, nvshmem_types.h).

use std::ffi::{c_int, c_void};
use std::fmt;

/// ID with which the processes find each other: `nvshmemx_uniqueid_t`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct NvshmemUniqueId {
    version: c_int,
    content: [u8; 124],
}

impl fmt::Debug for NvshmemUniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

/// Version number of a structure: 1 in the upper 16 bits, the size of the structure in the lower 16 bits.
const fn version<T>() -> c_int {
    (1 << 16) + size_of::<T>() as c_int
}

impl NvshmemUniqueId {
    /// Empty ID, which the library fills.
    pub(super) fn new() -> Self {
        Self { version: version::<Self>(), content: [0; 124] }
    }

    /// Bytes of the ID, for transfer to other processes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.version.to_ne_bytes().into_iter().chain(self.content).collect()
    }

    /// Reads an ID from the bytes that another process sent. `None` unless there are exactly 128 bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, content) = bytes.split_first_chunk::<4>()?;
        Some(Self { version: c_int::from_ne_bytes(*version), content: content.try_into().ok()? })
    }
}

/// Arguments of an initialization by ID: `nvshmemx_uniqueid_args_t`.
#[repr(C)]
struct UniqueIdArguments {
    version: c_int,
    id: *const NvshmemUniqueId,
    rank: c_int,
    size: c_int,
}

/// Arguments of an initialization: `nvshmemx_init_args_t`.
#[repr(C)]
struct InitArguments {
    version: c_int,
    unique_id: UniqueIdArguments,
    content: [u8; 96],
}

/// Attributes of an initialization: `nvshmemx_init_attr_t`.
#[repr(C)]
pub(super) struct InitAttributes {
    version: c_int,
    mpi_communicator: *mut c_void,
    arguments: InitArguments,
}

impl InitAttributes {
    /// Default attributes: `NVSHMEMX_INIT_ATTR_INITIALIZER`.
    pub(super) fn new() -> Self {
        const INVALID: c_int = -1;
        let unique_id = UniqueIdArguments {
            version: version::<UniqueIdArguments>(),
            id: std::ptr::null(),
            rank: INVALID,
            size: INVALID,
        };
        let arguments = InitArguments { version: version::<InitArguments>(), unique_id, content: [0; 96] };
        Self { version: version::<Self>(), mpi_communicator: std::ptr::null_mut(), arguments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structure_sizes_match_nvshmem_headers() {
        // Sizes that are asserted in nvshmem_uniqueid.h and nvshmem_types.h 3.4.5.
        assert_eq!(size_of::<NvshmemUniqueId>(), 128);
        assert_eq!(size_of::<UniqueIdArguments>(), 24);
        assert_eq!(size_of::<InitArguments>(), 128);
        assert_eq!(size_of::<InitAttributes>(), 144);
        assert_eq!(version::<NvshmemUniqueId>(), 0x1_0080);
    }

    #[test]
    fn unique_id_round_trips_through_bytes() {
        let id = NvshmemUniqueId { version: version::<NvshmemUniqueId>(), content: std::array::from_fn(|i| i as u8) };
        assert_eq!(NvshmemUniqueId::from_bytes(&id.bytes()), Some(id));
        assert_eq!(NvshmemUniqueId::from_bytes(&[0; 127]), None);
        assert_eq!(NvshmemUniqueId::from_bytes(&[]), None);
    }
}
