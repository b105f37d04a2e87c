//! GPU memory with a known length, freed in its context when dropped.
#![expect(unsafe_code, reason = "driver calls")]

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use fabricast_topologies::Bytes;

use super::context::Context;
use super::error::CudaError;

/// Device address, valid in kernels. The memory of all GPUs and pinned host memory share one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address plus `offset` bytes.
    #[must_use]
    pub fn plus(self, offset: Bytes) -> Self {
        Self(self.0.wrapping_add(offset.0))
    }
}

/// Memory of a GPU. Other GPUs of this process can access it once their contexts have peer access
/// ([`Context::enable_peer_access`]).
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: DeviceAddress,
    length: Bytes,
    owner: Owner,
}

/// Owner that frees a [`DeviceMemory`].
#[derive(Debug)]
enum Owner {
    /// The driver, when the value is dropped.
    Driver,
    /// Another library; the reference keeps the memory allocated.
    External { _keeper: Arc<dyn Any + Send + Sync> },
}

impl DeviceMemory {
    /// Allocates uninitialized memory. A length of zero allocates one byte.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or a failing driver call.
    pub fn new(context: &Arc<Context>, length: Bytes) -> Result<Self, CudaError> {
        context.bind()?;
        let mut address = 0;
        // SAFETY: the context is current; the driver writes one word.
        let result = unsafe { sys::cuMemAlloc_v2(&raw mut address, length.0.max(1) as usize) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let free = context.free_memory().ok();
            return Err(CudaError::OutOfMemory { device: context.ordinal(), requested: length, free });
        }
        context.check(result, "cuMemAlloc")?;
        Ok(Self { context: Arc::clone(context), address: DeviceAddress(address), length, owner: Owner::Driver })
    }

    /// Wraps memory allocated by another library and accessible to the GPU of `context`: its own or a peer's. Dropping
    /// `keeper` frees the memory.
    pub(crate) fn from_external(
        context: &Arc<Context>,
        address: DeviceAddress,
        length: Bytes,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { context: Arc::clone(context), address, length, owner: Owner::External { _keeper: keeper } }
    }

    /// Start address of the memory, aligned to at least 256 bytes if the driver allocated it.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Length of the memory in bytes.
    pub fn length(&self) -> Bytes {
        self.length
    }

    /// Context in which the memory was allocated or for which it was wrapped.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The whole memory as a range.
    pub fn all(&self) -> DeviceSlice<'_> {
        DeviceSlice { context: &self.context, address: self.address, length: self.length }
    }

    /// The range of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the range exceeds the memory.
    pub fn part(&self, offset: Bytes, length: Bytes) -> Result<DeviceSlice<'_>, CudaError> {
        self.all().part(offset, length)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Driver) && self.context.bind_to_free().is_ok() {
            // SAFETY: allocated once, freed once; the driver waits for the work of this GPU. Work of peers on this
            // memory is awaited by the code that enqueued it: teams synchronize before their memory is dropped. An
            // error cannot be reported here.
            let _ = unsafe { sys::cuMemFree_v2(self.address.0) };
        }
    }
}

/// A range inside the memory of a GPU, with checked bounds.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a> {
    context: &'a Arc<Context>,
    address: DeviceAddress,
    length: Bytes,
}

impl<'a> DeviceSlice<'a> {
    /// Wraps the whole of a memory block that another library allocated on the GPU of `context`, and that lives at
    /// least as long as the borrow.
    pub(crate) fn from_external(context: &'a Arc<Context>, address: DeviceAddress, length: Bytes) -> Self {
        Self { context, address, length }
    }

    /// Start address of the range.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Length of the range in bytes.
    pub fn length(&self) -> Bytes {
        self.length
    }

    /// Context in which the memory of the range was allocated or for which it was wrapped.
    pub fn context(&self) -> &'a Arc<Context> {
        self.context
    }

    /// The subrange of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the subrange exceeds this range.
    pub fn part(&self, offset: Bytes, length: Bytes) -> Result<Self, CudaError> {
        match offset.0.checked_add(length.0) {
            Some(end) if end <= self.length.0 => {
                Ok(Self { context: self.context, address: self.address.plus(offset), length })
            }
            _ => Err(CudaError::Range { offset, length, size: self.length }),
        }
    }
}
