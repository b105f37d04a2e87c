//! Pinned host memory, which every GPU of the process can access at one address.
#![expect(unsafe_code, reason = "driver calls, and memory that a GPU may write meanwhile")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys;
use fabricast_topologies::Bytes;

use super::context::Context;
use super::error::CudaError;
use super::memory::DeviceAddress;

/// Size in bytes of the words that the host accesses atomically.
const WORD: usize = 4;

/// Pinned host memory. A GPU may write the memory at any time, so the host accesses it only by atomic words and never
/// as a slice.
#[derive(Debug)]
pub struct HostMemory {
    context: Arc<Context>,
    start: *mut AtomicU32,
    address: DeviceAddress,
    length: Bytes,
}

// SAFETY: the memory may be used and freed from any thread.
unsafe impl Send for HostMemory {}
// SAFETY: threads and GPUs that share the memory access it only by atomic words of one size.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates pinned memory, mapped for all GPUs and filled with zeros.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn new(context: &Arc<Context>, length: Bytes) -> Result<Self, CudaError> {
        context.bind()?;
        let words = (length.0 as usize).div_ceil(WORD).max(1);
        let mut start = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; the driver writes one pointer.
        context.check(unsafe { sys::cuMemHostAlloc(&raw mut start, words * WORD, flags) }, "cuMemHostAlloc")?;
        let mut memory = Self { context: Arc::clone(context), start: start.cast(), address: DeviceAddress(0), length };
        let mut address = 0;
        // SAFETY: the pointer was just allocated.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, start, 0) };
        context.check(result, "cuMemHostGetDevicePointer")?;
        memory.address = DeviceAddress(address);
        // SAFETY: that many words were allocated, and nothing else refers to them yet.
        unsafe { std::ptr::write_bytes(memory.start, 0, words) };
        Ok(memory)
    }

    /// Address of the memory for kernels and copies.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Length of the memory in bytes.
    pub fn length(&self) -> Bytes {
        self.length
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.cast()
    }

    /// All words of the memory, including the last one if `length` covers only a part of it.
    fn words(&self) -> Words<'_> {
        let words = (self.length.0 as usize).div_ceil(WORD).max(1);
        // SAFETY: that many words were allocated; they are aligned to pages, initialized, live as long as `self`, and
        // the host accesses them only atomically.
        Words { words: unsafe { std::slice::from_raw_parts(self.start, words) }, length: self.length }
    }

    /// Copies `bytes` into the memory, starting at `offset`. A concurrent reader on a GPU or thread may see some words
    /// earlier than others, but never a partly written word.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the range exceeds the memory.
    pub fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<(), CudaError> {
        self.words().write(offset, bytes)
    }

    /// Copies from the memory, starting at `offset`, into all of `bytes`.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the range exceeds the memory.
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.words().read(offset, bytes)
    }

    /// Stores the word that contains the byte at `offset`, such as a signal to a polling kernel. GPUs see the word
    /// without a copy.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the word exceeds the memory.
    pub fn store(&self, offset: Bytes, word: u32) -> Result<(), CudaError> {
        self.words().word(offset).map(|slot| slot.store(word, Ordering::Release))
    }

    /// Loads the word that contains the byte at `offset`, which a GPU may have stored.
    ///
    /// # Errors
    /// [`CudaError::Range`] if the word exceeds the memory.
    pub fn load(&self, offset: Bytes) -> Result<u32, CudaError> {
        self.words().word(offset).map(|slot| slot.load(Ordering::Acquire))
    }
}

/// Access by bytes to words that may change at any time.
struct Words<'a> {
    words: &'a [AtomicU32],
    length: Bytes,
}

impl Words<'_> {
    fn range(&self, offset: Bytes, length: usize) -> Result<std::ops::Range<usize>, CudaError> {
        let length = Bytes(length as u64);
        match offset.0.checked_add(length.0) {
            Some(end) if end <= self.length.0 => Ok(offset.0 as usize..end as usize),
            _ => Err(CudaError::Range { offset, length, size: self.length }),
        }
    }

    /// The word that contains the byte at `offset`.
    fn word(&self, offset: Bytes) -> Result<&AtomicU32, CudaError> {
        let range = self.range(Bytes(offset.0 & !(WORD as u64 - 1)), WORD)?;
        self.words.get(range.start / WORD).ok_or(CudaError::Range { offset, length: Bytes(4), size: self.length })
    }

    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), CudaError> {
        let range = self.range(offset, bytes.len())?;
        self.each(range, |word, of_word, of_bytes| {
            let value = word.load(Ordering::Acquire).to_ne_bytes();
            if let (Some(to), Some(from)) = (bytes.get_mut(of_bytes), value.get(of_word)) {
                to.copy_from_slice(from);
            }
        });
        Ok(())
    }

    fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), CudaError> {
        let range = self.range(offset, bytes.len())?;
        self.each(range, |word, of_word, of_bytes| {
            // Bytes of the word outside the range are written back, so a concurrent store to the same word may be lost.
            let mut value = word.load(Ordering::Relaxed).to_ne_bytes();
            if let (Some(from), Some(to)) = (bytes.get(of_bytes), value.get_mut(of_word)) {
                to.copy_from_slice(from);
            }
            word.store(u32::from_ne_bytes(value), Ordering::Release);
        });
        Ok(())
    }

    /// Calls `with` for every word that overlaps the range, with two byte ranges: the one within the word and the one
    /// within the range.
    fn each(
        &self,
        range: std::ops::Range<usize>,
        mut with: impl FnMut(&AtomicU32, std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        if range.is_empty() {
            return;
        }
        let first = range.start / WORD;
        for (number, word) in (first..).zip(self.words.get(first..range.end.div_ceil(WORD)).unwrap_or_default()) {
            let (from, to) = (range.start.max(number * WORD), range.end.min((number + 1) * WORD));
            with(word, from - number * WORD..to - number * WORD, from - range.start..to - range.start);
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: allocated once, freed once. An error cannot be reported here.
            let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_and_written_at_any_offset() {
        let memory: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0x5555_5555)).collect();
        let words = Words { words: &memory, length: Bytes(14) };
        let mut expected = [0x55_u8; 14];
        for offset in 0..=14_u64 {
            for length in 0..=(14 - offset as usize) {
                let bytes: Vec<u8> = (0..length as u8).map(|byte| byte ^ offset as u8).collect();
                words.write(Bytes(offset), &bytes).unwrap();
                expected[offset as usize..offset as usize + length].copy_from_slice(&bytes);
                let (mut all, mut part) = ([0; 14], vec![0; length]);
                words.read(Bytes(0), &mut all).unwrap();
                words.read(Bytes(offset), &mut part).unwrap();
                assert_eq!((all, part), (expected, bytes), "{length} bytes at {offset}");
            }
        }
        assert!(words.write(Bytes(14), &[1]).is_err() && words.read(Bytes(u64::MAX), &mut [0, 0]).is_err());
        assert!(words.word(Bytes(8)).is_ok() && words.word(Bytes(12)).is_err());
    }
}
