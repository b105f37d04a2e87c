//! Loading of the CUDA driver library. Every function that this crate calls is resolved before the first call.
//!
//! cudarc resolves a function when it is called, and panics if the function is missing. Resolving all functions at the
//! start turns an outdated driver into an error.
#![expect(unsafe_code, reason = "a C library is loaded and called")]

use cudarc::driver::sys;

use super::device::CudaDevice;
use super::error::{CudaError, check};
use super::version::CudaVersion;

/// Every driver function that this crate calls. All are resolved before the first call. A test checks the list against
/// the sources.
pub const SYMBOLS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuLaunchCooperativeKernel",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamBatchMemOp_v2",
    "cuStreamBeginCapture_v2",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
];

/// The loaded and initialized driver. Driver calls require a value of this type.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: CudaVersion,
    devices: usize,
}

impl Driver {
    /// Loads the driver library and initializes it.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoDevice`], a missing function, or a failing driver call.
    pub fn load() -> Result<Self, CudaError> {
        // SAFETY: only tries to open the library and returns true on success.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        // SAFETY: the library can be opened, so this does not panic; the symbols are looked up and not called.
        let library = unsafe { sys::culib() };
        for symbol in SYMBOLS {
            // SAFETY: the address is not used.
            if unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err() {
                let library = "libcuda.so.1".to_owned();
                return Err(CudaError::Symbol { library, symbol, needs: "a driver of CUDA 12.8 or later, 570" });
            }
        }
        // SAFETY: the flag must be 0.
        check(unsafe { sys::cuInit(0) }, "cuInit", None)?;
        let mut version = 0;
        // SAFETY: the driver is initialized and writes one int.
        check(unsafe { sys::cuDriverGetVersion(&raw mut version) }, "cuDriverGetVersion", None)?;
        let mut count = 0;
        // SAFETY: likewise.
        check(unsafe { sys::cuDeviceGetCount(&raw mut count) }, "cuDeviceGetCount", None)?;
        let devices = usize::try_from(count).unwrap_or(0);
        if devices == 0 {
            return Err(CudaError::NoDevice);
        }
        let version = version.unsigned_abs();
        Ok(Self { version: CudaVersion { major: version / 1000, minor: version % 1000 / 10 }, devices })
    }

    /// Highest CUDA version that the driver supports.
    pub fn version(self) -> CudaVersion {
        self.version
    }

    /// Number of visible GPUs; at least one.
    pub fn device_count(self) -> usize {
        self.devices
    }

    /// Returns the GPU with this ordinal.
    ///
    /// # Errors
    /// [`CudaError::NoSuchDevice`], or a failing driver call.
    pub fn device(self, ordinal: usize) -> Result<CudaDevice, CudaError> {
        if ordinal >= self.devices {
            return Err(CudaError::NoSuchDevice { ordinal, count: self.devices });
        }
        CudaDevice::get(ordinal)
    }

    /// Returns all visible GPUs, in the order of their ordinals.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn devices(self) -> Result<Vec<CudaDevice>, CudaError> {
        (0..self.devices).map(CudaDevice::get).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Driver functions that the sources of this folder call: the names that follow `sys::`.
    fn called() -> std::collections::BTreeSet<String> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
        let mut names = std::collections::BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            for piece in text.split("sys::cu").skip(1) {
                let name: String = piece.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                if name.chars().next().is_some_and(char::is_uppercase) {
                    names.insert(format!("cu{name}"));
                }
            }
        }
        names
    }

    #[test]
    fn every_called_driver_function_is_resolved_at_load() {
        let listed: std::collections::BTreeSet<_> = SYMBOLS.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(called(), listed);
    }

    #[test]
    fn no_called_function_revokes_state_that_owners_of_a_primary_context_share() {
        for function in ["cuCtxDisablePeerAccess", "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxSetFlags_v2"] {
            assert!(!called().contains(function), "{function}");
        }
    }

    #[test]
    fn a_missing_driver_is_an_error_and_not_a_panic() {
        match Driver::load() {
            Ok(driver) => assert!(driver.device_count() > 0),
            Err(error) => assert!(error.is_absence(), "{error}"),
        }
    }
}
