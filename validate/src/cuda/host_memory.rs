//! Pinned memory of the host, which every GPU of the process reaches under one address.
#![expect(unsafe_code, reason = "driver calls, and memory that a GPU may write meanwhile")]

use std::sync::Arc;

use cudarc::driver::sys;
use fabricast_topologies::Bytes;

use super::context::Context;
use super::error::CudaError;
use super::memory::DeviceAddress;

/// Pinned memory of the host. A GPU may write it at any time, so it is read and written by copying, never lent.
#[derive(Debug)]
pub struct HostMemory {
    context: Arc<Context>,
    start: *mut u8,
    address: DeviceAddress,
    length: Bytes,
}

// SAFETY: the memory may be used from any thread; every access copies through raw pointers.
unsafe impl Send for HostMemory {}
// SAFETY: as above. Concurrent writers see torn words, as with any memory that a device shares.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Takes pinned memory, mapped for all GPUs; zeros.
    ///
    /// # Errors
    /// A failing call.
    pub fn new(context: &Arc<Context>, length: Bytes) -> Result<Self, CudaError> {
        context.bind()?;
        let size = length.0.max(1) as usize;
        let mut start = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; the driver writes one pointer.
        context.check(unsafe { sys::cuMemHostAlloc(&raw mut start, size, flags) }, "cuMemHostAlloc")?;
        let mut memory = Self { context: Arc::clone(context), start: start.cast(), address: DeviceAddress(0), length };
        let mut address = 0;
        // SAFETY: the pointer is the one just taken.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, start, 0) };
        context.check(result, "cuMemHostGetDevicePointer")?;
        memory.address = DeviceAddress(address);
        // SAFETY: `size` bytes were taken, and nobody else knows of them yet.
        unsafe { std::ptr::write_bytes(memory.start, 0, size) };
        Ok(memory)
    }

    /// Where kernels and copies find it.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// How long it is.
    pub fn length(&self) -> Bytes {
        self.length
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }

    fn check(&self, offset: Bytes, length: usize) -> Result<*mut u8, CudaError> {
        let length = Bytes(length as u64);
        match offset.0.checked_add(length.0) {
            // SAFETY: the range lies inside of the memory.
            Some(end) if end <= self.length.0 => Ok(unsafe { self.start.add(offset.0 as usize) }),
            _ => Err(CudaError::Range { offset, length, size: self.length }),
        }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), CudaError> {
        let to = self.check(offset, bytes.len())?;
        // SAFETY: the range was checked; Rust's memory and the driver's do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), CudaError> {
        let from = self.check(offset, bytes.len())?;
        // SAFETY: the range was checked; Rust's memory and the driver's do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Stores a word that GPUs see without a copy: a signal to a kernel that polls it.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn store(&self, offset: Bytes, word: u32) -> Result<(), CudaError> {
        let to = self.check(Bytes(offset.0 & !3), 4)?.cast::<u32>();
        // SAFETY: the range was checked, and the memory is page-aligned, so the word is aligned.
        unsafe { to.write_volatile(word) };
        Ok(())
    }

    /// Loads a word that a GPU may have stored meanwhile.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn load(&self, offset: Bytes) -> Result<u32, CudaError> {
        let from = self.check(Bytes(offset.0 & !3), 4)?.cast::<u32>();
        // SAFETY: as in `store`.
        Ok(unsafe { from.read_volatile() })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: taken once, freed once. Nothing is left to tell an error to.
            let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}
