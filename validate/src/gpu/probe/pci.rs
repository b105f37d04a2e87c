//! PCIe tree and CPU model, read from the Linux kernel's files. If a file is absent, the value that it would state is
//! absent.

use std::path::Path;

use super::{Cpu, Pci};

/// Reads the location of a device on the PCIe bus from sysfs. Generation and width of the link remain unset.
pub(super) fn location(address: &str) -> Pci {
    let folder = Path::new("/sys/bus/pci/devices").join(address);
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).map(|text| text.trim().to_owned()).unwrap_or_default();
    let chain = std::fs::canonicalize(&folder).map(|path| path.display().to_string()).unwrap_or_default();
    Pci {
        address: address.to_owned(),
        bridges: bridges(&chain),
        ids: ["vendor", "device", "subsystem_vendor", "subsystem_device"].map(read),
        numa: read("numa_node").parse().unwrap_or(-1),
        ..Pci::default()
    }
}

/// Bridges above a device, the nearest first, from its sysfs path `…/pci0000:15/0000:15:01.0/0000:16:00.0/…`. A PCIe
/// switch appears as two bridges, its upstream and its downstream port. The upstream port represents the switch, as in
/// NCCL's topology files (`src/graph/xml.cc`). The root port of the CPU is not included.
fn bridges(chain: &str) -> Vec<String> {
    let mut addresses: Vec<&str> = chain.split('/').filter(|part| is_address(part)).collect();
    // The last address is the device itself. The others form pairs of ports; an unpaired port at the end is the root
    // port of the CPU.
    addresses.pop();
    addresses.reverse();
    addresses.chunks_exact(2).map(|ports| ports.last().copied().unwrap_or_default().to_owned()).collect()
}

/// Returns true for a PCI address such as `0000:16:00.0`.
fn is_address(part: &str) -> bool {
    let bytes = part.as_bytes();
    bytes.len() == 12 && bytes.get(4) == Some(&b':') && bytes.get(7) == Some(&b':') && bytes.get(10) == Some(&b'.')
}

/// Reads the CPU model of the machine from `/proc/cpuinfo`.
pub(super) fn cpu() -> Cpu {
    let arch = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "powerpc64" => "ppc64",
        other => other,
    };
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    Cpu {
        arch: arch.to_owned(),
        vendor: field("vendor_id"),
        family: field("cpu family").parse().unwrap_or(0),
        model: field("model").parse().unwrap_or(0),
        name: field("model name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_port_represents_switch() {
        // Path on an 8 × H100 host: root port, upstream and downstream port of a switch, GPU.
        let chain = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
        assert_eq!(bridges(chain), ["0000:16:00.0"]);
        // The GPU is behind two PCIe switches in series.
        let chain =
            "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0";
        assert_eq!(bridges(chain), ["0000:18:00.0", "0000:16:00.0"]);
        // The GPU is directly below the CPU, with its root port and, as in a virtual machine, without.
        assert_eq!(bridges("/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0"), Vec::<String>::new());
        assert_eq!(bridges("/sys/devices/pci0000:00/0000:00:06.0"), Vec::<String>::new());
        assert_eq!(bridges(""), Vec::<String>::new());
    }
}
