//! Memory of the symmetric heap: at the same place on every element.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use fabricast_topologies::Bytes;

use super::element::Element;
use super::error::NvshmemError;
use crate::cuda::{DeviceAddress, DeviceMemory, Part};

/// Memory that every element took together. All of them must take and [free](Self::free) as much in the same order;
/// dropping it leaves it to the end of the process, since freeing waits for the others.
#[derive(Debug)]
pub struct SymmetricMemory {
    element: Arc<Element>,
    start: *mut c_void,
    length: Bytes,
}

// SAFETY: an address on a GPU; what is done with it says for itself which threads may.
unsafe impl Send for SymmetricMemory {}
// SAFETY: nothing of it changes.
unsafe impl Sync for SymmetricMemory {}

impl SymmetricMemory {
    /// Takes memory, together with all other elements.
    ///
    /// # Errors
    /// The heap is full.
    pub fn new(element: &Arc<Element>, length: Bytes) -> Result<Self, NvshmemError> {
        element.context().bind()?;
        // SAFETY: the library is initialised.
        let start = unsafe { (element.nvshmem.functions.malloc)(length.0.max(1) as usize) };
        if start.is_null() {
            return Err(NvshmemError::OutOfMemory { rank: element.rank(), asked: length });
        }
        Ok(Self { element: Arc::clone(element), start, length })
    }

    /// Gives it back, together with all other elements.
    pub fn free(self) {
        if self.element.context().bind().is_ok() {
            // SAFETY: taken once, freed once: `self` ends here.
            unsafe { (self.element.nvshmem.functions.free)(self.start) };
        }
    }

    /// Where it begins on this element.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress(self.start as u64)
    }

    /// How long it is.
    #[must_use]
    pub fn length(&self) -> Bytes {
        self.length
    }

    /// All of this element's.
    #[must_use]
    pub fn all(&self) -> Part<'_> {
        Part::of_library(self.element.context(), self.address(), self.length)
    }

    /// Where this element reaches that of `peer` with loads and stores.
    ///
    /// # Errors
    /// It does not.
    pub fn of_peer(&self, peer: usize) -> Result<DeviceAddress, NvshmemError> {
        let number = c_int::try_from(peer).unwrap_or(c_int::MAX);
        // SAFETY: the address is one of the heap.
        let found = unsafe { (self.element.nvshmem.functions.ptr)(self.start, number) };
        if found.is_null() {
            return Err(NvshmemError::NoAccess { rank: self.element.rank(), peer });
        }
        Ok(DeviceAddress(found as u64))
    }

    /// The memory of every element, as this one reaches it; what is handed out keeps it.
    ///
    /// # Errors
    /// A peer that it does not reach.
    pub fn everywhere(self: &Arc<Self>) -> Result<Vec<DeviceMemory>, NvshmemError> {
        let one = |peer| {
            let address = if peer == self.element.rank() { self.address() } else { self.of_peer(peer)? };
            let keeper: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(self) as _;
            Ok(DeviceMemory::lent(self.element.context(), address, self.length, keeper))
        };
        (0..self.element.size()).map(one).collect()
    }
}
