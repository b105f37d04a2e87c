//! Errors of the CUDA driver layer. A failed call names the function, the device and the driver's code.
#![expect(unsafe_code, reason = "the driver's texts for its codes come as C strings")]

use std::ffi::CStr;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use fabricast_topologies::Bytes;

/// Error of the CUDA driver layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver library cannot be loaded.
    #[error("no NVIDIA driver on this machine: libcuda.so.1 cannot be loaded")]
    NoDriver,
    /// The driver finds no GPU.
    #[error("the NVIDIA driver finds no GPU on this machine")]
    NoDevice,
    /// A library lacks a required function.
    #[error("{library} has no function {symbol}: another version is needed ({needs})")]
    Symbol {
        /// Name of the library.
        library: String,
        /// Name of the function.
        symbol: &'static str,
        /// First version of the library that has the function.
        needs: &'static str,
    },
    /// The requested device does not exist.
    #[error("there is no GPU {ordinal}: this machine has {count}")]
    NoSuchDevice {
        /// Ordinal that was requested, from 0.
        ordinal: usize,
        /// Number of visible GPUs.
        count: usize,
    },
    /// A driver call failed.
    #[error("{call} failed{}: {name} ({code}): {text}", .device.map(|d| format!(" on GPU {d}")).unwrap_or_default())]
    Call {
        /// Driver function that failed.
        call: &'static str,
        /// Ordinal of the GPU of the call, if any.
        device: Option<usize>,
        /// Error code of the driver.
        code: u32,
        /// Name of the error code, such as `CUDA_ERROR_INVALID_VALUE`.
        name: String,
        /// The driver's text for the error code.
        text: String,
    },
    /// GPU memory is exhausted.
    #[error("GPU {device} has no {} bytes of memory left{}", .requested.0, .free.map(|f| format!(" ({} free)", f.0)).unwrap_or_default())]
    OutOfMemory {
        /// Ordinal of the GPU.
        device: usize,
        /// Number of bytes requested.
        requested: Bytes,
        /// Free bytes, if the driver still reports them.
        free: Option<Bytes>,
    },
    /// One GPU cannot access another's memory.
    #[error("GPU {from} cannot reach the memory of GPU {to}: there is no peer access between them")]
    NoPeerAccess {
        /// Ordinal of the accessing GPU.
        from: usize,
        /// Ordinal of the GPU that owns the memory.
        to: usize,
    },
    /// A range exceeds its buffer.
    #[error("{} bytes at {} lie outside of a buffer of {} bytes", .length.0, .offset.0, .size.0)]
    Range {
        /// Offset of the range from the start of the buffer.
        offset: Bytes,
        /// Length of the range.
        length: Bytes,
        /// Size of the buffer.
        size: Bytes,
    },
    /// Source and destination of a copy differ in length.
    #[error("cannot copy {} bytes into {} bytes", .from.0, .to.0)]
    LengthMismatch {
        /// Bytes of the source.
        from: Bytes,
        /// Bytes of the destination.
        to: Bytes,
    },
    /// A wait exceeded its time limit.
    #[error("no progress for {} s; still waiting: {}", .limit.as_secs_f64(), .waiting.join(", "))]
    Hang {
        /// Time limit of the wait.
        limit: Duration,
        /// Descriptions of the waiting operations: rank, stream, operation.
        waiting: Vec<String>,
    },
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The thread of another GPU failed, so this thread stopped waiting for it.
    #[error("stopped because the thread of another GPU failed")]
    Abandoned,
    /// A name contains a zero byte.
    #[error("the name `{0}` cannot be passed to the driver")]
    Name(String),
}

impl CudaError {
    /// Returns true if a GPU or its driver is missing, so that commands end with exit code 3.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoDriver | Self::NoDevice | Self::NoSuchDevice { .. })
    }
}

/// Converts the result code of a driver call into a `Result`.
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

type ErrorTextFn = unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult;

fn text(code: CUresult, lookup: ErrorTextFn) -> String {
    let mut text = std::ptr::null();
    // SAFETY: both functions only write one pointer to a string that is never freed; their existence was checked when
    // the driver was loaded.
    let known = unsafe { lookup(code, &raw mut text) };
    if known != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("code {}", code as u32);
    }
    // SAFETY: the driver's string is zero-terminated and lives as long as the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
