//! Memory of a GPU, with its length, freed in its context when dropped.
#![expect(unsafe_code, reason = "driver calls")]

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use fabricast_topologies::Bytes;

use super::context::Context;
use super::error::CudaError;

/// An address that kernels take. One address space holds the memory of all GPUs and pinned memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `offset` further on.
    #[must_use]
    pub fn plus(self, offset: Bytes) -> Self {
        Self(self.0.wrapping_add(offset.0))
    }
}

/// Memory of a GPU. Other GPUs of this process reach it once their contexts [`reach`](Context::reach) this one's.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: DeviceAddress,
    length: Bytes,
    owner: Owner,
}

/// Who gives memory back.
#[derive(Debug)]
enum Owner {
    /// Dropping it does, by the driver.
    Driver,
    /// Something else, kept as long as the memory is.
    Elsewhere { _keeper: Arc<dyn Any + Send + Sync> },
}

impl DeviceMemory {
    /// Takes memory; its content is whatever lay there. No bytes are one byte.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or a failing call.
    pub fn new(context: &Arc<Context>, length: Bytes) -> Result<Self, CudaError> {
        context.bind()?;
        let mut address = 0;
        // SAFETY: the context is current; the driver writes one word.
        let result = unsafe { sys::cuMemAlloc_v2(&raw mut address, length.0.max(1) as usize) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let free = context.free_memory().ok();
            return Err(CudaError::OutOfMemory { device: context.ordinal(), asked: length, free });
        }
        context.check(result, "cuMemAlloc")?;
        Ok(Self { context: Arc::clone(context), address: DeviceAddress(address), length, owner: Owner::Driver })
    }

    /// Memory that another library took, as the GPU of `context` reaches it: its own, or a peer's. `keeper` gives it back.
    pub(crate) fn lent(
        context: &Arc<Context>,
        address: DeviceAddress,
        length: Bytes,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { context: Arc::clone(context), address, length, owner: Owner::Elsewhere { _keeper: keeper } }
    }

    /// Where it begins; at least 256-byte aligned.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// How long it is.
    pub fn length(&self) -> Bytes {
        self.length
    }

    /// Whose it is.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// All of it.
    pub fn all(&self) -> Part<'_> {
        Part { context: &self.context, address: self.address, length: self.length }
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn part(&self, offset: Bytes, length: Bytes) -> Result<Part<'_>, CudaError> {
        self.all().part(offset, length)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Driver) && self.context.bind_to_free().is_ok() {
            // SAFETY: taken once, freed once; the driver waits for the work of this GPU. Work of peers on it is waited for by
            // whoever enqueued it: teams meet before their memory goes. Nothing is left to tell an error to.
            let _ = unsafe { sys::cuMemFree_v2(self.address.0) };
        }
    }
}

/// A range inside of a memory of a GPU, known to lie there.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    context: &'a Arc<Context>,
    address: DeviceAddress,
    length: Bytes,
}

impl<'a> Part<'a> {
    /// All of a memory that another library allocated on the GPU of `context`, and that lives as long as the borrow.
    pub(crate) fn of_library(context: &'a Arc<Context>, address: DeviceAddress, length: Bytes) -> Self {
        Self { context, address, length }
    }

    /// Where it begins.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// How long it is.
    pub fn length(&self) -> Bytes {
        self.length
    }

    /// Whose it is.
    pub fn context(&self) -> &'a Arc<Context> {
        self.context
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn part(&self, offset: Bytes, length: Bytes) -> Result<Self, CudaError> {
        match offset.0.checked_add(length.0) {
            Some(end) if end <= self.length.0 => {
                Ok(Self { context: self.context, address: self.address.plus(offset), length })
            }
            _ => Err(CudaError::Range { offset, length, size: self.length }),
        }
    }
}
