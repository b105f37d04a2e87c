//! NVML, NVIDIA's management library: what the driver knows of links and buses and the CUDA driver does not tell.
//! Everything here only reads; clocks and modes stay as they are.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::shared_library::{LibraryError, SharedLibrary, Visibility, Wanted};

const NVML: Wanted = Wanted {
    name: "NVML",
    files: &["libnvidia-ml.so.1"],
    wheel_folders: &[],
    advice: "it comes with the driver; inside of a container the utilities of the driver must be passed in",
};

type Code = c_int;
type Handle = *mut c_void;

/// `NVML_SUCCESS`, and `NVML_ERROR_NOT_SUPPORTED`: the device has no such thing.
const SUCCESS: Code = 0;

/// `NVML_NVLINK_MAX_LINKS`.
const MOST_LINKS: c_uint = 18;

/// Why NVML says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// It is not there.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A call that must work failed.
    #[error("{call} failed: {text}")]
    Call {
        /// NVML's function.
        call: &'static str,
        /// Its text for the code.
        text: String,
    },
}

/// `nvmlPciInfo_t`, version 3.
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

/// `nvmlFieldValue_t`.
#[repr(C)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    code: Code,
    value: u64,
}

/// NVML, loaded and initialised; shut down when dropped.
#[derive(Debug)]
pub struct Nvml {
    library: SharedLibrary,
}

/// A GPU, as NVML knows it.
#[derive(Clone, Copy, Debug)]
pub struct NvmlDevice<'a> {
    nvml: &'a Nvml,
    handle: Handle,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Its number.
    pub link: u32,
    /// Whether it is up.
    pub active: bool,
    /// What is at its other end.
    pub remote: Remote,
    /// PCI address of that, where the machine shows it.
    pub remote_pci: Option<String>,
    /// What one direction carries, in MB/s as the driver counts; absent where it does not say.
    pub speed_mbps: Option<u32>,
    /// Replays and recoveries since the driver was loaded: a link with errors. Absent where it does not say.
    pub errors: Option<u64>,
}

/// What an NVLink leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// Another GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// A CPU.
    Cpu,
    /// The driver does not say.
    Unknown,
}

/// What two GPUs share on their way over PCIe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ancestor {
    /// They sit on one board.
    Board,
    /// One PCIe switch.
    Switch,
    /// Several PCIe switches, none of them a CPU's.
    Switches,
    /// A CPU's host bridge.
    HostBridge,
    /// A NUMA node.
    NumaNode,
    /// The machine: the way leads between CPUs.
    System,
}

/// A PCIe link: what it runs at and what it could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcieLink {
    /// Generation now; a GPU at rest lowers it.
    pub generation: Option<u32>,
    /// Lanes now.
    pub width: Option<u32>,
    /// The best generation that device and slot can.
    pub max_generation: Option<u32>,
    /// The most lanes that device and slot can.
    pub max_width: Option<u32>,
}

impl Nvml {
    /// Loads and initialises it.
    ///
    /// # Errors
    /// It is missing or does not start.
    pub fn load() -> Result<Self, NvmlError> {
        let library = SharedLibrary::open(&NVML, None, Visibility::Local)?;
        // SAFETY: the types are those of nvml.h.
        unsafe {
            let init: unsafe extern "C" fn() -> Code = library.function("nvmlInit_v2")?;
            let code = init();
            if code != SUCCESS {
                let text: unsafe extern "C" fn(Code) -> *const c_char = library.function("nvmlErrorString")?;
                let text = CStr::from_ptr(text(code)).to_string_lossy().into_owned();
                return Err(NvmlError::Call { call: "nvmlInit", text });
            }
        }
        Ok(Self { library })
    }

    /// The driver's version: `580.159.04`.
    pub fn driver_version(&self) -> Option<String> {
        type Get = unsafe extern "C" fn(*mut c_char, c_uint) -> Code;
        const ROOM: usize = 96;
        let mut text = [0 as c_char; ROOM];
        // SAFETY: the type is that of nvml.h; NVML writes at most as many bytes as said, one less than there are.
        let code = unsafe {
            self.library.function::<Get>("nvmlSystemGetDriverVersion").ok()?(text.as_mut_ptr(), ROOM as c_uint - 1)
        };
        (code == SUCCESS).then(|| text_of(&text))
    }

    /// The GPU at a PCI address.
    pub fn device(&self, pci: &str) -> Option<NvmlDevice<'_>> {
        type Get = unsafe extern "C" fn(*const c_char, *mut Handle) -> Code;
        let address = CString::new(pci).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the type is that of nvml.h; the address ends with a zero.
        let code = unsafe {
            self.library.function::<Get>("nvmlDeviceGetHandleByPciBusId_v2").ok()?(address.as_ptr(), &raw mut handle)
        };
        (code == SUCCESS).then_some(NvmlDevice { nvml: self, handle })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the type is that of nvml.h; initialised once, shut down once.
        unsafe {
            if let Ok(shutdown) = self.library.function::<unsafe extern "C" fn() -> Code>("nvmlShutdown") {
                shutdown();
            }
        }
    }
}

impl NvmlDevice<'_> {
    /// A number by a getter of a device alone; `None` where the device or the version has none.
    fn number(self, symbol: &'static str) -> Option<u32> {
        type Get = unsafe extern "C" fn(Handle, *mut c_uint) -> Code;
        let mut value = 0;
        // SAFETY: every caller names a function of this type in nvml.h; one number is written.
        let code = unsafe { self.nvml.library.function::<Get>(symbol).ok()?(self.handle, &raw mut value) };
        (code == SUCCESS).then_some(value)
    }

    /// A number of one of its NVLinks.
    fn of_link(self, symbol: &'static str, link: c_uint) -> Option<u32> {
        type Get = unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> Code;
        let mut value = 0;
        // SAFETY: every caller names a function of this type in nvml.h; one number is written.
        let code = unsafe { self.nvml.library.function::<Get>(symbol).ok()?(self.handle, link, &raw mut value) };
        (code == SUCCESS).then_some(value)
    }

    /// Its PCIe link.
    pub fn pcie(self) -> PcieLink {
        PcieLink {
            generation: self.number("nvmlDeviceGetCurrPcieLinkGeneration"),
            width: self.number("nvmlDeviceGetCurrPcieLinkWidth"),
            max_generation: self.number("nvmlDeviceGetMaxPcieLinkGeneration"),
            max_width: self.number("nvmlDeviceGetMaxPcieLinkWidth"),
        }
    }

    /// Whether it is cut into MIG instances; `None` where it cannot be.
    pub fn mig(self) -> Option<bool> {
        type Get = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> Code;
        let (mut current, mut pending) = (0, 0);
        // SAFETY: the type is that of nvml.h; two numbers are written.
        let code = unsafe {
            let get = self.nvml.library.function::<Get>("nvmlDeviceGetMigMode").ok()?;
            get(self.handle, &raw mut current, &raw mut pending)
        };
        (code == SUCCESS).then_some(current == 1)
    }

    /// Its NVLinks, those that are down included.
    pub fn links(self) -> Vec<LinkState> {
        (0..MOST_LINKS)
            .filter_map(|link| {
                let state = self.of_link("nvmlDeviceGetNvLinkState", link)?;
                Some(LinkState {
                    link,
                    active: state == 1,
                    // nvmlIntNvLinkDeviceType_t.
                    remote: match self.of_link("nvmlDeviceGetNvLinkRemoteDeviceType", link) {
                        Some(0) => Remote::Gpu,
                        Some(1) => Remote::Cpu,
                        Some(2) => Remote::Switch,
                        _ => Remote::Unknown,
                    },
                    remote_pci: self.remote_pci(link),
                    speed_mbps: self.link_speed(link),
                    errors: self.link_errors(link),
                })
            })
            .collect()
    }

    fn remote_pci(self, link: c_uint) -> Option<String> {
        type Get = unsafe extern "C" fn(Handle, c_uint, *mut PciInfo) -> Code;
        let mut info =
            PciInfo { legacy: [0; 16], domain: 0, bus: 0, device: 0, device_id: 0, subsystem_id: 0, address: [0; 32] };
        // SAFETY: the type is that of nvml.h; the struct is written whole.
        let code = unsafe {
            let get = self.nvml.library.function::<Get>("nvmlDeviceGetNvLinkRemotePciInfo_v2").ok()?;
            get(self.handle, link, &raw mut info)
        };
        // Inside of a virtual machine the domain is all ones: the address is hidden.
        let hidden = info.domain >= 0xFFFF;
        (code == SUCCESS && !hidden).then(|| {
            let text = text_of(&info.address).to_lowercase();
            // NVML writes eight digits of the domain, everyone else four.
            text.strip_prefix("0000").filter(|rest| rest.len() == 12).map_or(text.clone(), str::to_owned)
        })
    }

    fn link_speed(self, link: c_uint) -> Option<u32> {
        type Get = unsafe extern "C" fn(Handle, c_int, *mut FieldValue) -> Code;
        /// `NVML_FI_DEV_NVLINK_GET_SPEED`: MB/s of the link named by the scope.
        const SPEED: c_uint = 164;
        let mut field = FieldValue { field: SPEED, scope: link, timestamp: 0, latency: 0, kind: 0, code: 0, value: 0 };
        // SAFETY: the type is that of nvml.h; one value is read and written.
        let code = unsafe {
            let get = self.nvml.library.function::<Get>("nvmlDeviceGetFieldValues").ok()?;
            get(self.handle, 1, &raw mut field)
        };
        // The number lies in the low half of the union.
        let speed = (field.value & u64::from(u32::MAX)) as u32;
        (code == SUCCESS && field.code == SUCCESS && speed > 0).then_some(speed)
    }

    fn link_errors(self, link: c_uint) -> Option<u64> {
        type Get = unsafe extern "C" fn(Handle, c_uint, c_uint, *mut u64) -> Code;
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

    /// What it shares with another GPU on the way over PCIe.
    pub fn ancestor(self, other: Self) -> Option<Ancestor> {
        type Get = unsafe extern "C" fn(Handle, Handle, *mut c_uint) -> Code;
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

fn text_of(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_lie_as_in_the_header() {
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
