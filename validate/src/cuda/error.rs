//! What can go wrong with the driver: each failure names the call, the device and the driver's code.
#![expect(unsafe_code, reason = "the driver's texts for its codes come as C strings")]

use std::ffi::CStr;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use fabricast_topologies::Bytes;

/// Why the driver did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver library.
    #[error("no NVIDIA driver on this machine: libcuda.so.1 cannot be loaded")]
    NoDriver,
    /// There is a driver and no GPU.
    #[error("the NVIDIA driver finds no GPU on this machine")]
    NoDevice,
    /// The library is there and lacks a function.
    #[error("{library} has no function {symbol}: another version is needed ({needs})")]
    Symbol {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
        /// Which version has it.
        needs: &'static str,
    },
    /// A device that does not exist was asked for.
    #[error("there is no GPU {ordinal}: this machine has {count}")]
    NoSuchDevice {
        /// The ordinal asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A call failed.
    #[error("{call} failed{}: {name} ({code}): {text}", .device.map(|d| format!(" on GPU {d}")).unwrap_or_default())]
    Call {
        /// The driver's function.
        call: &'static str,
        /// The GPU, where one was concerned.
        device: Option<usize>,
        /// The driver's code.
        code: u32,
        /// The code's name.
        name: String,
        /// The driver's text for it.
        text: String,
    },
    /// Memory ran out.
    #[error("GPU {device} has no {} bytes of memory left{}", .asked.0, .free.map(|f| format!(" ({} free)", f.0)).unwrap_or_default())]
    OutOfMemory {
        /// The GPU.
        device: usize,
        /// What was asked for.
        asked: Bytes,
        /// What was free, where the driver still tells.
        free: Option<Bytes>,
    },
    /// One GPU cannot reach another's memory.
    #[error("GPU {from} cannot reach the memory of GPU {to}: there is no peer access between them")]
    NoPeerAccess {
        /// The GPU that would read and write.
        from: usize,
        /// The GPU whose memory it is.
        to: usize,
    },
    /// A range lies outside of its memory.
    #[error("{} bytes at {} lie outside of a buffer of {} bytes", .length.0, .offset.0, .size.0)]
    Range {
        /// Where it begins.
        offset: Bytes,
        /// How long it is.
        length: Bytes,
        /// How large the buffer is.
        size: Bytes,
    },
    /// Two ranges that are to be copied differ in length.
    #[error("cannot copy {} bytes into {} bytes", .from.0, .to.0)]
    Lengths {
        /// Bytes of the source.
        from: Bytes,
        /// Bytes of the destination.
        to: Bytes,
    },
    /// Something still waited when its time was over.
    #[error("nothing moved for {} s; still waiting: {}", .limit.as_secs_f64(), .waiting.join(", "))]
    Hang {
        /// The time that was given.
        limit: Duration,
        /// Who was waiting, in words: rank, stream, operation.
        waiting: Vec<String>,
    },
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Another GPU's thread failed, so this one had nobody left to wait for.
    #[error("given up because another GPU's thread failed")]
    Abandoned,
    /// A name holds a zero byte.
    #[error("the name `{0}` cannot be passed to the driver")]
    Name(String),
}

impl CudaError {
    /// Whether a GPU or its driver is missing, which ends a command with exit code 3.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoDriver | Self::NoDevice | Self::NoSuchDevice { .. })
    }
}

/// The result of a driver call as a `Result`.
pub(super) fn check(result: CUresult, call: &'static str, device: Option<usize>) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(CudaError::NoDevice),
        code => {
            let name = text(code, sys::cuGetErrorName);
            let text = text(code, sys::cuGetErrorString);
            Err(CudaError::Call { call, device, code: code as u32, name, text })
        }
    }
}

type TextOf = unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult;

fn text(code: CUresult, of: TextOf) -> String {
    let mut text = std::ptr::null();
    // SAFETY: both functions only write one pointer to a string that is never freed; whether they exist was checked
    // when the driver was loaded.
    let known = unsafe { of(code, &raw mut text) };
    if known != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("code {}", code as u32);
    }
    // SAFETY: the driver's string ends with a zero and lives as long as the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
