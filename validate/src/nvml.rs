//! NVML, NVIDIA's management library: link and bus properties that the CUDA driver does not report. All calls are
//! read-only; clocks and modes stay unchanged.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::shared_library::{LibraryError, LibrarySpec, SharedLibrary, Visibility};

const NVML: LibrarySpec = LibrarySpec {
    name: "NVML",
    files: &["libnvidia-ml.so.1"],
    wheel_folders: &[],
    advice: "it comes with the driver; inside of a container the utilities of the driver must be passed in",
};

type NvmlCode = c_int;
type NvmlHandle = *mut c_void;

/// Return code of a successful call: `NVML_SUCCESS`.
const SUCCESS: NvmlCode = 0;

/// Largest number of NVLinks of a GPU: `NVML_NVLINK_MAX_LINKS`.
const MAX_LINKS: c_uint = 18;

/// Reasons why NVML cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library is missing or lacks a function.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A call that is required for the use of NVML failed.
    #[error("{call} failed: {text}")]
    Call {
        /// Name of the NVML function that failed.
        call: &'static str,
        /// NVML's text for the error code.
        text: String,
    },
}

/// PCI address of a device: `nvmlPciInfo_t`, version 3.
#[repr(C)]
struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    address: [c_char; 32],
}

/// Query for a field, and its value: `nvmlFieldValue_t`.
#[repr(C)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    code: NvmlCode,
    value: u64,
}

/// NVML, loaded and initialized; shut down when dropped.
#[derive(Debug)]
pub struct Nvml {
    library: SharedLibrary,
}

/// Handle of a GPU in NVML.
#[derive(Clone, Copy, Debug)]
pub struct NvmlDevice<'a> {
    nvml: &'a Nvml,
    handle: NvmlHandle,
}

/// State of one NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Index of the link on the GPU, from 0.
    pub link: u32,
    /// True if the link is up, false if it is down.
    pub active: bool,
    /// Kind of device at the other end.
    pub remote: NvmlRemote,
    /// PCI address of the remote device, if the machine exposes it.
    pub remote_pci: Option<String>,
    /// Bandwidth of one direction in MB/s, in the driver's units. `None` if not reported.
    pub speed_mbps: Option<u32>,
    /// Number of replays and recoveries since the driver was loaded. A nonzero value indicates a link with errors.
    /// `None` if not reported.
    pub errors: Option<u64>,
}

/// Kind of device that an NVLink connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmlRemote {
    /// Another GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// A CPU.
    Cpu,
    /// Not reported by the driver.
    Unknown,
}

/// Closest common ancestor of two GPUs in the PCIe topology (`nvmlGpuTopologyLevel_t`), from the nearest to the
/// farthest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ancestor {
    /// A board that both GPUs share.
    Board,
    /// A single PCIe switch.
    Switch,
    /// Several PCIe switches, without a host bridge.
    Switches,
    /// The host bridge of a CPU.
    HostBridge,
    /// A NUMA node, across its host bridges.
    NumaNode,
    /// The system: the path crosses CPU sockets.
    System,
}

/// Current and maximum speed of a GPU's PCIe link. `None` if NVML does not report a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcieLink {
    /// Current generation. An idle GPU lowers its generation.
    pub generation: Option<u32>,
    /// Current number of lanes.
    pub width: Option<u32>,
    /// Highest generation that both device and slot support.
    pub max_generation: Option<u32>,
    /// Largest number of lanes that both device and slot support.
    pub max_width: Option<u32>,
}

impl Nvml {
    /// Loads and initializes NVML.
    ///
    /// # Errors
    /// The library is missing or fails to initialize.
    pub fn load() -> Result<Self, NvmlError> {
        let library = SharedLibrary::open(&NVML, None, Visibility::Local)?;
        // SAFETY: the types are those of nvml.h.
        unsafe {
            let init: unsafe extern "C" fn() -> NvmlCode = library.function("nvmlInit_v2")?;
            let code = init();
            if code != SUCCESS {
                let text: unsafe extern "C" fn(NvmlCode) -> *const c_char = library.function("nvmlErrorString")?;
                let text = CStr::from_ptr(text(code)).to_string_lossy().into_owned();
                return Err(NvmlError::Call { call: "nvmlInit", text });
            }
        }
        Ok(Self { library })
    }

    /// Version of the driver, such as `580.159.04`.
    pub fn driver_version(&self) -> Option<String> {
        type Get = unsafe extern "C" fn(*mut c_char, c_uint) -> NvmlCode;
        const ROOM: usize = 96;
        let mut text = [0 as c_char; ROOM];
        // SAFETY: the type is that of nvml.h; NVML writes at most the given number of bytes, one less than the buffer
        // holds.
        let code = unsafe {
            self.library.function::<Get>("nvmlSystemGetDriverVersion").ok()?(text.as_mut_ptr(), ROOM as c_uint - 1)
        };
        (code == SUCCESS).then(|| c_text(&text))
    }

    /// Returns the GPU at a PCI address. `None` if NVML does not know it.
    pub fn device(&self, pci: &str) -> Option<NvmlDevice<'_>> {
        type Get = unsafe extern "C" fn(*const c_char, *mut NvmlHandle) -> NvmlCode;
        let address = CString::new(pci).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the type is that of nvml.h; the address is zero-terminated.
        let code = unsafe {
            self.library.function::<Get>("nvmlDeviceGetHandleByPciBusId_v2").ok()?(address.as_ptr(), &raw mut handle)
        };
        (code == SUCCESS).then_some(NvmlDevice { nvml: self, handle })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the type is that of nvml.h; initialized once, shut down once.
        unsafe {
            if let Ok(shutdown) = self.library.function::<unsafe extern "C" fn() -> NvmlCode>("nvmlShutdown") {
                shutdown();
            }
        }
    }
}

impl NvmlDevice<'_> {
    /// Calls a getter whose only input is the device. `None` if the device or the NVML version does not support it.
    fn number(self, symbol: &'static str) -> Option<u32> {
        type Get = unsafe extern "C" fn(NvmlHandle, *mut c_uint) -> NvmlCode;
        let mut value = 0;
        // SAFETY: every caller names a function of this type in nvml.h; one number is written.
        let code = unsafe { self.nvml.library.function::<Get>(symbol).ok()?(self.handle, &raw mut value) };
        (code == SUCCESS).then_some(value)
    }

    /// Calls a getter for one NVLink of the device. `None` if the device or the NVML version does not support it.
    fn link_number(self, symbol: &'static str, link: c_uint) -> Option<u32> {
        type Get = unsafe extern "C" fn(NvmlHandle, c_uint, *mut c_uint) -> NvmlCode;
        let mut value = 0;
        // SAFETY: every caller names a function of this type in nvml.h; one number is written.
        let code = unsafe { self.nvml.library.function::<Get>(symbol).ok()?(self.handle, link, &raw mut value) };
        (code == SUCCESS).then_some(value)
    }

    /// Generation and width of the GPU's PCIe link.
    pub fn pcie(self) -> PcieLink {
        PcieLink {
            generation: self.number("nvmlDeviceGetCurrPcieLinkGeneration"),
            width: self.number("nvmlDeviceGetCurrPcieLinkWidth"),
            max_generation: self.number("nvmlDeviceGetMaxPcieLinkGeneration"),
            max_width: self.number("nvmlDeviceGetMaxPcieLinkWidth"),
        }
    }

    /// True if the GPU is partitioned into MIG instances. `None` if it does not support MIG.
    pub fn mig(self) -> Option<bool> {
        type Get = unsafe extern "C" fn(NvmlHandle, *mut c_uint, *mut c_uint) -> NvmlCode;
        let (mut current, mut pending) = (0, 0);
        // SAFETY: the type is that of nvml.h; two numbers are written.
        let code = unsafe {
            let get = self.nvml.library.function::<Get>("nvmlDeviceGetMigMode").ok()?;
            get(self.handle, &raw mut current, &raw mut pending)
        };
        (code == SUCCESS).then_some(current == 1)
    }

    /// All NVLinks of the GPU, including those that are down.
    pub fn links(self) -> Vec<LinkState> {
        (0..MAX_LINKS)
            .filter_map(|link| {
                let state = self.link_number("nvmlDeviceGetNvLinkState", link)?;
                Some(LinkState {
                    link,
                    active: state == 1,
                    // nvmlIntNvLinkDeviceType_t.
                    remote: match self.link_number("nvmlDeviceGetNvLinkRemoteDeviceType", link) {
                        Some(0) => NvmlRemote::Gpu,
                        Some(1) => NvmlRemote::Cpu,
                        Some(2) => NvmlRemote::Switch,
                        _ => NvmlRemote::Unknown,
                    },
                    remote_pci: self.remote_pci(link),
                    speed_mbps: self.link_speed(link),
                    errors: self.link_errors(link),
                })
            })
            .collect()
    }

    fn remote_pci(self, link: c_uint) -> Option<String> {
        type Get = unsafe extern "C" fn(NvmlHandle, c_uint, *mut PciInfo) -> NvmlCode;
        let mut info =
            PciInfo { legacy: [0; 16], domain: 0, bus: 0, device: 0, device_id: 0, subsystem_id: 0, address: [0; 32] };
        // SAFETY: the type is that of nvml.h; the struct has the layout that NVML writes.
        let code = unsafe {
            let get = self.nvml.library.function::<Get>("nvmlDeviceGetNvLinkRemotePciInfo_v2").ok()?;
            get(self.handle, link, &raw mut info)
        };
        // A PCI domain of all ones indicates that a virtual machine hides the address.
        let hidden = info.domain >= 0xFFFF;
        (code == SUCCESS && !hidden).then(|| {
            let text = c_text(&info.address).to_lowercase();
            // NVML writes eight hexadecimal digits for the domain; other tools write four.
            text.strip_prefix("0000").filter(|rest| rest.len() == 12).map_or(text.clone(), str::to_owned)
        })
    }

    fn link_speed(self, link: c_uint) -> Option<u32> {
        type Get = unsafe extern "C" fn(NvmlHandle, c_int, *mut FieldValue) -> NvmlCode;
        /// Identifier of the field with a link's speed in MB/s: `NVML_FI_DEV_NVLINK_GET_SPEED`. The field's `scope` is
        /// the link.
        const SPEED: c_uint = 164;
        let mut field = FieldValue { field: SPEED, scope: link, timestamp: 0, latency: 0, kind: 0, code: 0, value: 0 };
        // SAFETY: the type is that of nvml.h; one value is read and written.
        let code = unsafe {
            let get = self.nvml.library.function::<Get>("nvmlDeviceGetFieldValues").ok()?;
            get(self.handle, 1, &raw mut field)
        };
        // The value is an unsigned int, the low half of the union.
        let speed = (field.value & u64::from(u32::MAX)) as u32;
        (code == SUCCESS && field.code == SUCCESS && speed > 0).then_some(speed)
    }

    fn link_errors(self, link: c_uint) -> Option<u64> {
        type Get = unsafe extern "C" fn(NvmlHandle, c_uint, c_uint, *mut u64) -> NvmlCode;
        // NVML_NVLINK_ERROR_DL_REPLAY and NVML_NVLINK_ERROR_DL_RECOVERY.
        let count = |counter: c_uint| {
            let mut value = 0;
            // SAFETY: the type is that of nvml.h; one number is written.
            let code = unsafe {
                let get = self.nvml.library.function::<Get>("nvmlDeviceGetNvLinkErrorCounter").ok()?;
                get(self.handle, link, counter, &raw mut value)
            };
            (code == SUCCESS).then_some(value)
        };
        match (count(0), count(1)) {
            (None, None) => None,
            (replays, recoveries) => Some(replays.unwrap_or(0) + recoveries.unwrap_or(0)),
        }
    }

    /// Closest common ancestor with another GPU in the PCIe topology. `None` if NVML does not report it.
    pub fn ancestor(self, other: Self) -> Option<Ancestor> {
        type Get = unsafe extern "C" fn(NvmlHandle, NvmlHandle, *mut c_uint) -> NvmlCode;
        let mut level = 0;
        // SAFETY: the type is that of nvml.h; one number is written.
        let code = unsafe {
            let get = self.nvml.library.function::<Get>("nvmlDeviceGetTopologyCommonAncestor").ok()?;
            get(self.handle, other.handle, &raw mut level)
        };
        // nvmlGpuTopologyLevel_t.
        (code == SUCCESS).then_some(match level {
            0 => Ancestor::Board,
            10 => Ancestor::Switch,
            20 => Ancestor::Switches,
            30 => Ancestor::HostBridge,
            40 => Ancestor::NumaNode,
            _ => Ancestor::System,
        })
    }
}

fn c_text(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn struct_sizes_match_nvml_header() {
        assert_eq!(size_of::<PciInfo>(), 68);
        assert_eq!(size_of::<FieldValue>(), 40);
    }

    #[test]
    fn a_missing_library_is_an_error_and_not_a_panic() {
        if let Err(error) = Nvml::load() {
            assert!(!error.to_string().is_empty());
        }
    }
}
