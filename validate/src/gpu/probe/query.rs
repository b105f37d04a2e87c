//! Queries of the driver, NVML and the kernel.

use super::libraries::{Choices, Libraries};
use super::{Cpu, NvLink, Pair, Pci, PciePath, PeerAccess, Probe, ProbedDevice, Remote, pci};
use crate::cuda::{self, Access, Atomics, Attribute, CudaError, Driver};
use crate::nvml::{self, Nvml, NvmlDevice};

/// Probes the GPUs of this machine.
///
/// # Errors
/// No driver, no GPU, or a failing driver call. A missing NVML or library is not an error: the probe records it.
pub fn probe(choices: &Choices<'_>) -> Result<Probe, CudaError> {
    let driver = Driver::load()?;
    let devices = driver.devices()?;
    let mut unknown = Vec::new();
    let nvml = Nvml::load().map_err(|error| unknown.push(format!("NVLink and PCIe links: {error}"))).ok();
    let addresses = devices.iter().map(|device| device.pci_address()).collect::<Result<Vec<_>, _>>()?;
    let managed: Vec<Option<NvmlDevice<'_>>> =
        addresses.iter().map(|address| nvml.as_ref().and_then(|nvml| nvml.device(address))).collect();
    let mut pairs = Vec::new();
    for (source, managed_source) in devices.iter().zip(&managed) {
        for (target, managed_target) in devices.iter().zip(&managed) {
            if source.ordinal() != target.ordinal() {
                let ancestor = managed_source.zip(*managed_target).and_then(|(a, b)| a.ancestor(b));
                pairs.push(pair(*source, *target, ancestor.map(pcie_path))?);
            }
        }
    }
    let look = |((device, address), managed): ((&cuda::CudaDevice, &String), &Option<NvmlDevice<'_>>)| {
        let peers = pairs
            .iter()
            .filter(|pair: &&Pair| pair.src == device.ordinal() && pair.access == PeerAccess::Direct)
            .map(|pair| pair.dst)
            .collect();
        query_device(*device, address, *managed, peers)
    };
    let devices_found = devices.iter().zip(&addresses).zip(&managed).map(look).collect::<Result<Vec<_>, _>>()?;
    let cpu: Cpu = pci::cpu();
    let libraries = Libraries::search(choices, &mut unknown);
    Ok(Probe {
        driver_cuda: driver.version().to_string(),
        driver: nvml.as_ref().and_then(Nvml::driver_version),
        devices: devices_found,
        pairs,
        cpu,
        libraries,
        not_probed: unknown,
    })
}

fn query_device(
    device: cuda::CudaDevice,
    address: &str,
    managed: Option<NvmlDevice<'_>>,
    peers: Vec<usize>,
) -> Result<ProbedDevice, CudaError> {
    let link = managed.map(NvmlDevice::pcie).unwrap_or_default();
    let pci_location = pci::location(address);
    let attribute_value = |attribute| device.attribute(attribute).map(i32::unsigned_abs);
    // The kernel's NUMA node takes precedence, because the driver does not always report it.
    let numa = match pci_location.numa {
        -1 => device.attribute(Attribute::HostNumaNode).unwrap_or(-1),
        node => node,
    };
    Ok(ProbedDevice {
        ordinal: device.ordinal(),
        name: device.name()?,
        compute_capability: device.arch()?.number(),
        sm_count: attribute_value(Attribute::Multiprocessors)?,
        memory: device.memory()?.0,
        memory_free: device.context()?.free_memory().ok().map(|bytes| bytes.0),
        memory_bandwidth: memory_bandwidth(device),
        copy_engines: attribute_value(Attribute::CopyEngines)?,
        peers,
        pci: Pci {
            numa,
            generation: link.generation,
            width: link.width,
            max_generation: link.max_generation,
            max_width: link.max_width,
            ..pci_location
        },
        nvlinks: managed.map(NvmlDevice::links).unwrap_or_default().into_iter().map(nvlink).collect(),
        mig: managed.and_then(NvmlDevice::mig),
    })
}

/// Memory bandwidth of a GPU in bytes per second: bus width × clock × 2 (double data rate). `None` if the driver does
/// not report both.
fn memory_bandwidth(device: cuda::CudaDevice) -> Option<u64> {
    let bits = u64::try_from(device.attribute(Attribute::MemoryBusWidth).ok()?).ok()?;
    let kilohertz = u64::try_from(device.attribute(Attribute::MemoryClock).ok()?).ok()?;
    Some(bits / 8 * kilohertz * 1000 * 2).filter(|&rate| rate > 0)
}

fn nvlink(state: nvml::LinkState) -> NvLink {
    NvLink {
        link: state.link,
        active: state.active,
        to: match state.remote {
            nvml::NvmlRemote::Gpu => Remote::Gpu,
            nvml::NvmlRemote::Switch => Remote::Nvswitch,
            nvml::NvmlRemote::Cpu => Remote::Cpu,
            nvml::NvmlRemote::Unknown => Remote::Unknown,
        },
        remote_pci: state.remote_pci,
        speed_mbps: state.speed_mbps,
        errors: state.errors,
    }
}

fn pcie_path(ancestor: nvml::Ancestor) -> PciePath {
    match ancestor {
        nvml::Ancestor::Board | nvml::Ancestor::Switch => PciePath::Pix,
        nvml::Ancestor::Switches => PciePath::Pxb,
        nvml::Ancestor::HostBridge => PciePath::Phb,
        nvml::Ancestor::NumaNode => PciePath::Node,
        nvml::Ancestor::System => PciePath::Sys,
    }
}

fn pair(source: cuda::CudaDevice, target: cuda::CudaDevice, pcie_path: Option<PciePath>) -> Result<Pair, CudaError> {
    let path = source.path_to(target)?;
    Ok(Pair {
        src: source.ordinal(),
        dst: target.ordinal(),
        access: match path.access {
            Access::Direct => PeerAccess::Direct,
            Access::Staged => PeerAccess::Staged,
        },
        native_atomics: path.native_atomics == Atomics::Native,
        performance_rank: path.performance_rank,
        pcie_path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_an_error_and_not_a_panic() {
        match probe(&Choices::default()) {
            Ok(probed) => assert!(!probed.devices.is_empty()),
            Err(error) => assert!(error.is_absence(), "{error}"),
        }
    }
}
