//! A GPU and its attributes, as reported by the driver.
#![expect(unsafe_code, reason = "driver calls")]

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::{self, CUdevice_P2PAttribute_enum as PeerAttribute, CUdevice_attribute_enum as Raw};
use fabricast_topologies::Bytes;

use super::arch::Arch;
use super::error::{CudaError, check};

/// A GPU, identified by its ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    ordinal: usize,
    handle: sys::CUdevice,
}

/// Attribute of a device, as reported by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Number of streaming multiprocessors.
    Multiprocessors,
    /// Number of copy engines.
    CopyEngines,
    /// L2 cache size in bytes.
    L2Cache,
    /// Width of the memory bus in bits.
    MemoryBusWidth,
    /// Memory clock in kHz.
    MemoryClock,
    /// Multiprocessor clock in kHz.
    Clock,
    /// Largest shared memory of a block in bytes (opt-in limit).
    SharedMemoryPerBlock,
    /// Nearest NUMA node of the host, or −1.
    HostNumaNode,
    /// 1 if the GPU can access pageable host memory directly.
    PageableMemoryAccess,
    /// 1 if cooperative launches are supported.
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

/// Properties of a GPU's access to the memory of another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPath {
    /// Kind of access to the peer's memory.
    pub access: Access,
    /// The driver's performance rank of the path among this machine's paths: 0 is the fastest.
    pub performance_rank: i32,
    /// Support for native atomic operations on the peer's memory: present over NVLink, absent over PCIe.
    pub native_atomics: Atomics,
}

/// Kind of access to a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads, stores and copies go directly from GPU to GPU.
    Direct,
    /// Copies are staged in host memory; loads and stores are impossible.
    Staged,
}

/// Support for native atomic operations on a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// Atomic operations are supported natively.
    Native,
    /// Atomic operations are not supported natively.
    None,
}

impl CudaDevice {
    pub(super) fn get(ordinal: usize) -> Result<Self, CudaError> {
        let mut handle = 0;
        let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: the driver is initialized and writes one int.
        check(unsafe { sys::cuDeviceGet(&raw mut handle, number) }, "cuDeviceGet", Some(ordinal))?;
        Ok(Self { ordinal, handle })
    }

    /// Ordinal among the GPUs that this process sees.
    pub fn ordinal(self) -> usize {
        self.ordinal
    }

    pub(super) fn handle(self) -> sys::CUdevice {
        self.handle
    }

    /// Name of the GPU that the driver reports, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn name(self) -> Result<String, CudaError> {
        self.string("cuDeviceGetName", sys::cuDeviceGetName)
    }

    /// PCI bus address of the GPU in lower case, such as `0000:1b:00.0`.
    ///
    /// # Errors
    /// A driver call fails.
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
        // SAFETY: the driver writes at most the given number of bytes, one less than the buffer holds, so the last byte
        // stays 0.
        check(unsafe { function(text.as_mut_ptr(), ROOM as i32 - 1, self.handle) }, call, Some(self.ordinal))?;
        // SAFETY: the last byte is 0.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Value of an attribute, in the unit that the variant of [`Attribute`] states.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn attribute(self, kind: Attribute) -> Result<i32, CudaError> {
        self.raw_attribute(kind.raw())
    }

    fn raw_attribute(self, kind: Raw) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: the handle comes from the driver, which writes one int.
        let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, kind, self.handle) };
        check(result, "cuDeviceGetAttribute", Some(self.ordinal))?;
        Ok(value)
    }

    /// Architecture of the GPU, for compilation.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn arch(self) -> Result<Arch, CudaError> {
        let major = self.raw_attribute(Raw::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.raw_attribute(Raw::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Arch::new((major * 10 + minor).unsigned_abs()))
    }

    /// Total memory of the GPU in bytes.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn memory(self) -> Result<Bytes, CudaError> {
        let mut bytes = 0;
        // SAFETY: the handle comes from the driver, which writes one word.
        let result = unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, self.handle) };
        check(result, "cuDeviceTotalMem", Some(self.ordinal))?;
        Ok(Bytes(bytes as u64))
    }

    /// Properties of the access to the memory of `peer`, which must be another GPU.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn path_to(self, peer: Self) -> Result<PeerPath, CudaError> {
        let mut can = 0;
        // SAFETY: both handles come from the driver, which writes one int.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.handle, peer.handle) };
        check(result, "cuDeviceCanAccessPeer", Some(self.ordinal))?;
        let attribute = |kind| {
            let mut value = 0;
            // SAFETY: likewise.
            let result = unsafe { sys::cuDeviceGetP2PAttribute(&raw mut value, kind, self.handle, peer.handle) };
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
