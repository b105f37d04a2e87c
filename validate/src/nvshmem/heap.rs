//! Memory of the symmetric heap, which has the same heap offset on every element.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use fabricast_topologies::Bytes;

use super::element::Element;
use super::error::NvshmemError;
use crate::cuda::{DeviceAddress, DeviceMemory, DeviceSlice};

/// Memory that all elements allocated collectively. Elements must allocate and [free](Self::free) memory of equal sizes
/// in the same order. Memory that is dropped without being freed stays allocated until the process ends, because
/// freeing waits for the other elements.
#[derive(Debug)]
pub struct SymmetricMemory {
    element: Arc<Element>,
    start: *mut c_void,
    length: Bytes,
}

// SAFETY: an address on a GPU; the operations on it state their own thread requirements.
unsafe impl Send for SymmetricMemory {}
// SAFETY: all fields are immutable.
unsafe impl Sync for SymmetricMemory {}

impl SymmetricMemory {
    /// Allocates memory, collectively with all other elements.
    ///
    /// # Errors
    /// The heap is exhausted.
    pub fn new(element: &Arc<Element>, length: Bytes) -> Result<Self, NvshmemError> {
        element.context().bind()?;
        // SAFETY: the library is initialized.
        let start = unsafe { (element.nvshmem.functions.malloc)(length.0.max(1) as usize) };
        if start.is_null() {
            return Err(NvshmemError::OutOfMemory { rank: element.rank(), requested: length });
        }
        Ok(Self { element: Arc::clone(element), start, length })
    }

    /// Frees the memory, collectively with all other elements.
    pub fn free(self) {
        if self.element.context().bind().is_ok() {
            // SAFETY: allocated once, freed once: `self` ends here.
            unsafe { (self.element.nvshmem.functions.free)(self.start) };
        }
    }

    /// Address of this element's memory on its own GPU.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress(self.start as u64)
    }

    /// Length of one element's memory in bytes.
    #[must_use]
    pub fn length(&self) -> Bytes {
        self.length
    }

    /// Returns the whole memory of this element as a slice.
    #[must_use]
    pub fn all(&self) -> DeviceSlice<'_> {
        DeviceSlice::from_external(self.element.context(), self.address(), self.length)
    }

    /// Address by which this element accesses the memory of `peer` with loads and stores.
    ///
    /// # Errors
    /// There is no peer access.
    pub fn peer_address(&self, peer: usize) -> Result<DeviceAddress, NvshmemError> {
        let number = c_int::try_from(peer).unwrap_or(c_int::MAX);
        // SAFETY: the address lies in the heap.
        let address = unsafe { (self.element.nvshmem.functions.ptr)(self.start, number) };
        if address.is_null() {
            return Err(NvshmemError::NoAccess { rank: self.element.rank(), peer });
        }
        Ok(DeviceAddress(address as u64))
    }

    /// Returns this memory block on every element, in the order of the elements, with addresses that this element can
    /// access. The returned values keep the memory allocated.
    ///
    /// # Errors
    /// There is no access to the memory of a peer.
    pub fn on_all_elements(self: &Arc<Self>) -> Result<Vec<DeviceMemory>, NvshmemError> {
        let map_peer = |peer| {
            let address = if peer == self.element.rank() { self.address() } else { self.peer_address(peer)? };
            let keeper: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(self) as _;
            Ok(DeviceMemory::from_external(self.element.context(), address, self.length, keeper))
        };
        (0..self.element.size()).map(map_peer).collect()
    }
}
