//! Which GPUs and which driver this machine has.
#![expect(unsafe_code, reason = "cudarc's presence check and raw driver calls are unsafe functions")]

use std::fmt;

use cudarc::driver::{CudaContext, DriverError, result, sys};
use serde::Serialize;

/// What `gpu probe` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// CUDA version that the driver supports, as `13.0`.
    pub driver_cuda: String,
    /// The GPUs, by ordinal.
    pub devices: Vec<Device>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its ordinal.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability × 10.
    pub compute_capability: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Ordinals of the GPUs whose memory it can read and write.
    pub peers: Vec<usize>,
}

/// Why nothing was found.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no driver library.
    #[error("no NVIDIA driver on this machine: libcuda.so.1 cannot be loaded")]
    NoDriver,
    /// There is a driver and no GPU.
    #[error("the NVIDIA driver finds no GPU on this machine")]
    NoDevice,
    /// A call failed.
    #[error("{call} failed{}: {code}", .device.map(|d| format!(" on GPU {d}")).unwrap_or_default())]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The GPU, where one was concerned.
        device: Option<usize>,
        /// The driver's code and its text.
        code: String,
    },
}

fn driver_error(call: &'static str, device: Option<usize>) -> impl FnOnce(DriverError) -> ProbeError {
    move |error| {
        if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE {
            return ProbeError::NoDevice;
        }
        let text = |text: Result<&std::ffi::CStr, DriverError>| {
            text.map_or_else(|_| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned())
        };
        let code = format!("{} ({})", text(error.error_name()), text(error.error_string()));
        ProbeError::Driver { call, device, code }
    }
}

/// Looks at the GPUs of this machine.
///
/// # Errors
/// [`ProbeError`]: no driver, no GPU, or a failing call.
pub fn probe() -> Result<Probe, ProbeError> {
    // SAFETY: only tries to open the library and returns whether it could.
    if !unsafe { sys::is_culib_present() } {
        return Err(ProbeError::NoDriver);
    }
    result::init().map_err(driver_error("cuInit", None))?;
    let mut version = 0;
    // SAFETY: the driver is initialised and writes one int.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(driver_error("cuDriverGetVersion", None))?;
    let count = CudaContext::device_count().map_err(driver_error("cuDeviceGetCount", None))?;
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 {
        return Err(ProbeError::NoDevice);
    }
    let devices = (0..count).map(|ordinal| device(ordinal, count)).collect::<Result<_, _>>()?;
    Ok(Probe { driver_cuda: format!("{}.{}", version / 1000, version % 1000 / 10), devices })
}

fn device(ordinal: usize, count: usize) -> Result<Device, ProbeError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let fails = |call| driver_error(call, Some(ordinal));
    let handle = result::device::get(ordinal as i32).map_err(fails("cuDeviceGet"))?;
    let attribute = |which| {
        // SAFETY: `handle` comes from the driver.
        unsafe { result::device::get_attribute(handle, which) }.map_err(fails("cuDeviceGetAttribute"))
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let mut peers = Vec::new();
    for other in (0..count).filter(|&other| other != ordinal) {
        let peer = result::device::get(other as i32).map_err(fails("cuDeviceGet"))?;
        let mut can = 0;
        // SAFETY: both handles come from the driver, which writes one int.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, handle, peer) }
            .result()
            .map_err(fails("cuDeviceCanAccessPeer"))?;
        if can == 1 {
            peers.push(other);
        }
    }
    Ok(Device {
        ordinal,
        name: result::device::get_name(handle).map_err(fails("cuDeviceGetName"))?,
        compute_capability: (major * 10 + minor).unsigned_abs(),
        sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs(),
        // SAFETY: `handle` comes from the driver.
        memory: unsafe { result::device::total_mem(handle) }.map_err(fails("cuDeviceTotalMem"))? as u64,
        peers,
    })
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "driver supports CUDA {}", self.driver_cuda)?;
        for device in &self.devices {
            let Device { ordinal, name, sm_count, memory, peers, compute_capability } = device;
            let (major, minor) = (compute_capability / 10, compute_capability % 10);
            let gib = memory >> 30;
            writeln!(f, "GPU {ordinal}: {name}, sm {major}.{minor}, {sm_count} SMs, {gib} GiB, peers {peers:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_an_error_and_not_a_panic() {
        match probe() {
            Ok(found) => assert!(!found.devices.is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
