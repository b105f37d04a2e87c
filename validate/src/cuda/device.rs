//! A GPU and what the driver says of it.
#![expect(unsafe_code, reason = "driver calls")]

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_P2PAttribute_enum as PeerAttribute, CUdevice_attribute_enum as Raw};
use fabricast_topologies::Bytes;

use super::compile::Arch;
use super::context::Context;
use super::error::{CudaError, check};

/// A GPU, by its ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    ordinal: usize,
    handle: sys::CUdevice,
}

/// A figure that the driver tells about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Streaming multiprocessors.
    Multiprocessors,
    /// Copy engines.
    CopyEngines,
    /// Bytes of L2 cache.
    L2Cache,
    /// Width of the memory bus in bits.
    MemoryBusWidth,
    /// Clock of the memory in kHz.
    MemoryClock,
    /// Clock of the multiprocessors in kHz.
    Clock,
    /// Bytes of shared memory that a block can be given.
    SharedMemoryPerBlock,
    /// The NUMA node of the host that it is nearest to, or −1.
    HostNumaNode,
    /// 1 where it reads pageable memory of the host directly.
    PageableMemoryAccess,
    /// 1 where cooperative launches work.
    CooperativeLaunch,
}

impl Attribute {
    fn raw(self) -> Raw {
        match self {
            Self::Multiprocessors => Raw::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            Self::CopyEngines => Raw::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT,
            Self::L2Cache => Raw::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
            Self::MemoryBusWidth => Raw::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
            Self::MemoryClock => Raw::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
            Self::Clock => Raw::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
            Self::SharedMemoryPerBlock => Raw::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            Self::HostNumaNode => Raw::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
            Self::PageableMemoryAccess => Raw::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
            Self::CooperativeLaunch => Raw::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH,
        }
    }
}

/// What one GPU can do with another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPath {
    /// Whether it can read and write it.
    pub access: Access,
    /// The driver's rank of the way among this machine's ways: 0 is the fastest.
    pub performance_rank: i32,
    /// Whether atomic operations work over it, which they do over NVLink and not over PCIe.
    pub native_atomics: Atomics,
}

/// Whether peer access is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads, stores and copies go from GPU to GPU.
    Direct,
    /// Copies rest in the host's memory; loads and stores are impossible.
    Staged,
}

/// Whether atomic operations work on a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// They do.
    Native,
    /// They do not.
    None,
}

impl Device {
    pub(super) fn get(ordinal: usize) -> Result<Self, CudaError> {
        let mut handle = 0;
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: the driver is initialised and writes one int.
        check(unsafe { sys::cuDeviceGet(&raw mut handle, number) }, "cuDeviceGet", Some(ordinal))?;
        Ok(Self { ordinal, handle })
    }

    /// Its number among the GPUs that this process sees.
    pub fn ordinal(self) -> usize {
        self.ordinal
    }

    pub(super) fn handle(self) -> sys::CUdevice {
        self.handle
    }

    /// Its primary context, taken until the last owner drops it.
    ///
    /// # Errors
    /// A failing call.
    pub fn context(self) -> Result<Arc<Context>, CudaError> {
        Context::retain(self).map(Arc::new)
    }

    /// Its name.
    ///
    /// # Errors
    /// A failing call.
    pub fn name(self) -> Result<String, CudaError> {
        self.string("cuDeviceGetName", sys::cuDeviceGetName)
    }

    /// Its address on the PCIe bus, as `0000:1b:00.0`.
    ///
    /// # Errors
    /// A failing call.
    pub fn pci_address(self) -> Result<String, CudaError> {
        self.string("cuDeviceGetPCIBusId", sys::cuDeviceGetPCIBusId).map(|text| text.to_lowercase())
    }

    fn string(
        self,
        call: &'static str,
        function: unsafe fn(*mut c_char, i32, sys::CUdevice) -> sys::CUresult,
    ) -> Result<String, CudaError> {
        const ROOM: usize = 256;
        let mut text = [0 as c_char; ROOM];
        // SAFETY: the driver writes at most the given number of bytes, less than the buffer has, which so ends with 0.
        check(unsafe { function(text.as_mut_ptr(), ROOM as i32 - 1, self.handle) }, call, Some(self.ordinal))?;
        // SAFETY: the last byte is 0.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// One figure.
    ///
    /// # Errors
    /// A failing call.
    pub fn attribute(self, which: Attribute) -> Result<i32, CudaError> {
        self.raw_attribute(which.raw())
    }

    fn raw_attribute(self, which: Raw) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: the handle comes from the driver, which writes one int.
        let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, self.handle) };
        check(result, "cuDeviceGetAttribute", Some(self.ordinal))?;
        Ok(value)
    }

    /// What it is compiled for.
    ///
    /// # Errors
    /// A failing call.
    pub fn arch(self) -> Result<Arch, CudaError> {
        let major = self.raw_attribute(Raw::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.raw_attribute(Raw::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Arch::new((major * 10 + minor).unsigned_abs()))
    }

    /// Its memory.
    ///
    /// # Errors
    /// A failing call.
    pub fn memory(self) -> Result<Bytes, CudaError> {
        let mut bytes = 0;
        // SAFETY: the handle comes from the driver, which writes one word.
        let result = unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, self.handle) };
        check(result, "cuDeviceTotalMem", Some(self.ordinal))?;
        Ok(Bytes(bytes as u64))
    }

    /// How it reaches the memory of `other`; of another GPU, since a GPU's way to itself has no attributes.
    ///
    /// # Errors
    /// A failing call.
    pub fn path_to(self, other: Self) -> Result<PeerPath, CudaError> {
        let mut can = 0;
        // SAFETY: both handles come from the driver, which writes one int.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.handle, other.handle) };
        check(result, "cuDeviceCanAccessPeer", Some(self.ordinal))?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: likewise.
            let result = unsafe { sys::cuDeviceGetP2PAttribute(&raw mut value, which, self.handle, other.handle) };
            check(result, "cuDeviceGetP2PAttribute", Some(self.ordinal)).map(|()| value)
        };
        let performance_rank = attribute(PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?;
        let atomics = attribute(PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)?;
        Ok(PeerPath {
            access: if can == 1 { Access::Direct } else { Access::Staged },
            performance_rank,
            native_atomics: if atomics == 1 { Atomics::Native } else { Atomics::None },
        })
    }
}
