//! Kernel arguments.

use std::ffi::c_void;

use super::memory::DeviceAddress;

/// Storage of each argument in bytes: the largest alignment of a kernel parameter.
const SLOT: usize = 16;

/// Kernel arguments, in order. Each argument is stored at a multiple of 16 bytes, so that the driver can read it in
/// place.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    slots: Vec<u128>,
    starts: Vec<usize>,
}

impl Arguments {
    /// Creates an empty list of arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pointer to memory that the GPU can access.
    #[must_use]
    pub fn pointer(self, address: DeviceAddress) -> Self {
        self.bytes(&address.0.to_ne_bytes())
    }

    /// Adds a 32-bit integer.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Adds a 64-bit integer.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Adds a struct or array, with the byte layout of the kernel's parameter.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.starts.push(self.slots.len());
        for chunk in bytes.chunks(SLOT) {
            let mut slot = [0; SLOT];
            slot.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.slots.push(u128::from_ne_bytes(slot));
        }
        if bytes.is_empty() {
            self.slots.push(0);
        }
        self
    }

    /// Address of each argument, in the form `cuLaunchKernel` expects. Valid until the arguments are changed or
    /// dropped.
    pub(super) fn pointers(&self) -> Vec<*mut c_void> {
        let pointer_to = |&start: &usize| self.slots.get(start).map_or(std::ptr::null(), std::ptr::from_ref);
        self.starts.iter().map(pointer_to).map(|slot| slot.cast_mut().cast()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_start_at_multiples_of_sixteen_bytes() {
        let arguments = Arguments::new().u32(7).bytes(&[1; 40]).pointer(DeviceAddress(0x1234));
        let starts = arguments.pointers();
        assert_eq!(starts.len(), 3);
        let first = starts[0] as usize;
        assert_eq!(starts[1] as usize - first, 16);
        assert_eq!(starts[2] as usize - first, 64);
        assert_eq!(arguments.slots[0], 7);
        assert_eq!(arguments.slots[4], 0x1234);
    }
}
