//! Conversion of a probe to a fabric. The probe is written as an NCCL topology file and read by the reader of such
//! files, so that a machine has the same links regardless of the tool that described it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use fabricast_topologies::fabric::{Figures, GpuFigures};
use fabricast_topologies::{Bandwidth, Bytes, Error, Fabric, FabricBuilder, NodeId};

use super::{Probe, ProbedDevice, Remote};

/// PCI class of a GPU; `BRIDGE` and `NVSWITCH` are the classes of a PCIe bridge and of an NVSwitch.
const GPU: &str = "0x030200";
const BRIDGE: &str = "0x060400";
const NVSWITCH: &str = "0x068000";

impl Probe {
    /// Returns the probe as text of an NCCL topology file.
    pub fn nccl_xml(&self) -> String {
        let mut nodes: BTreeMap<i32, Vec<&ProbedDevice>> = BTreeMap::new();
        for device in &self.devices {
            nodes.entry(device.pci.numa).or_default().push(device);
        }
        let mut text = String::from("<system version=\"1\">\n");
        for (numa, devices) in nodes {
            let super::Cpu { arch, vendor, family, model, .. } = &self.cpu;
            let number = |number: u32| if number == 0 { String::new() } else { number.to_string() };
            let make = attributes([
                ("arch", arch),
                ("vendor", vendor),
                ("familyid", &number(*family)),
                ("modelid", &number(*model)),
            ]);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  <cpu numaid=\"{numa}\"{make}>");
            write_devices(&devices, 0, &mut text);
            text.push_str("  </cpu>\n");
        }
        text.push_str("</system>\n");
        text
    }

    /// Returns the probe as a fabric named `auto`.
    ///
    /// # Errors
    /// The probe does not yield a valid fabric, for example because two GPUs have one address.
    pub fn fabric(&self) -> Result<Fabric, Error> {
        let mut builder = FabricBuilder::reopen(fabricast_topologies::read_text(&self.nccl_xml(), "auto")?);
        builder.add_source(format!("this machine, as its driver and its kernel describe it: {}", self.machine()));
        for device in &self.devices {
            if let Some(node) = builder.find(&format!("gpu{}", device.ordinal)) {
                let figures = figures(device, builder.get(node).figures.clone());
                builder.set_figures(node, Figures::Gpu(Arc::new(figures)));
            }
        }
        Ok(builder.finish())
    }
}

/// Figures of a GPU: those that the driver reports, completed by those of the GPU model with its PCI ID.
fn figures(device: &ProbedDevice, known: Figures) -> GpuFigures {
    let known = if let Figures::Gpu(figures) = known { (*figures).clone() } else { GpuFigures::default() };
    GpuFigures {
        model: known.model.or_else(|| Some(device.name.clone())),
        compute_capability: Some(device.compute_capability),
        sm_count: Some(device.sm_count),
        memory: Some(Bytes(device.memory)),
        memory_bandwidth: device.memory_bandwidth.map(Bandwidth).or(known.memory_bandwidth),
        copy_engines: Some(device.copy_engines),
        ..known
    }
}

/// Writes the devices that share the `depth` outermost bridges. Devices below a further common bridge are nested in an
/// element for it; the other devices are written directly.
fn write_devices(devices: &[&ProbedDevice], depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth + 2);
    let mut groups: BTreeMap<Option<&str>, Vec<&ProbedDevice>> = BTreeMap::new();
    for &device in devices {
        let bridge = device.pci.bridges.iter().rev().nth(depth);
        groups.entry(bridge.map(String::as_str)).or_default().push(device);
    }
    for (bridge, group) in groups {
        let Some(bridge) = bridge else {
            group.iter().for_each(|device| gpu(device, &indent, text));
            continue;
        };
        // The uplink of a switch is assumed to equal the link of the GPUs below it.
        let link = group.first().map(|device| link(device)).unwrap_or_default();
        let _ = writeln!(text, "{indent}<pci busid=\"{bridge}\" class=\"{BRIDGE}\"{link}>");
        write_devices(&group, depth + 1, text);
        let _ = writeln!(text, "{indent}</pci>");
    }
}

/// Attributes of a PCIe link in a topology file: the highest rate and width that both device and slot support. NCCL
/// assumes 16 lanes if the width is absent.
fn link(device: &ProbedDevice) -> String {
    let rate = match device.pci.max_generation {
        Some(1) => "2.5 GT/s PCIe",
        Some(2) => "5.0 GT/s PCIe",
        Some(3) => "8.0 GT/s PCIe",
        Some(4) => "16.0 GT/s PCIe",
        Some(5) => "32.0 GT/s PCIe",
        Some(6) => "64.0 GT/s PCIe",
        _ => "",
    };
    let lanes = device.pci.max_width.map(|lanes| lanes.to_string()).unwrap_or_default();
    attributes([("link_speed", rate), ("link_width", &lanes)])
}

/// Formats attributes of a topology file, each preceded by a space. Attributes without a value are omitted.
fn attributes<const N: usize>(attributes: [(&str, &str); N]) -> String {
    let present = attributes.into_iter().filter(|(_, value)| !value.is_empty());
    present.map(|(name, value)| format!(" {name}=\"{}\"", escaped(value))).collect()
}

/// Escapes an attribute value, because kernel strings may contain special characters of XML.
fn escaped(value: &str) -> String {
    value.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn gpu(device: &ProbedDevice, indent: &str, text: &mut String) {
    let [vendor, id, board_vendor, board] = &device.pci.ids;
    let ids = attributes([
        ("vendor", vendor),
        ("device", id),
        ("subsystem_vendor", board_vendor),
        ("subsystem_device", board),
    ]);
    let link = link(device);
    let _ = writeln!(text, "{indent}<pci busid=\"{}\" class=\"{GPU}\"{ids}{link}>", device.pci.address);
    let ProbedDevice { ordinal, compute_capability, .. } = device;
    let _ =
        writeln!(text, "{indent}  <gpu dev=\"{ordinal}\" sm=\"{compute_capability}\" rank=\"{ordinal}\" gdr=\"1\">");
    for ((class, target), count) in nvlinks(device) {
        let _ = writeln!(text, "{indent}    <nvlink target=\"{target}\" count=\"{count}\" tclass=\"{class}\"/>");
    }
    let _ = writeln!(text, "{indent}  </gpu>\n{indent}</pci>");
}

/// Number of active NVLinks of a GPU, by PCI class and address of the remote device. All NVSwitches are counted as one
/// device, as in NCCL.
fn nvlinks(device: &ProbedDevice) -> BTreeMap<(&'static str, String), usize> {
    let mut counts = BTreeMap::new();
    for link in device.nvlinks.iter().filter(|link| link.active) {
        let peer = match (link.to, &link.remote_pci) {
            (Remote::Gpu, Some(address)) => (GPU, address.clone()),
            // A hidden remote device is assumed to be a switch, because a peer GPU would belong to this machine.
            (Remote::Nvswitch | Remote::Unknown, _) => (NVSWITCH, "fffffff:ff:ff.0".to_owned()),
            (Remote::Gpu, None) | (Remote::Cpu, _) => continue,
        };
        *counts.entry(peer).or_insert(0) += 1;
    }
    counts
}

/// Device of a fabric that represents the GPU with this CUDA ordinal. The fabric must describe this machine, so that
/// ranks equal ordinals.
pub fn vertex(fabric: &Fabric, ordinal: usize) -> Option<NodeId> {
    fabric.gpus().get(ordinal).copied()
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine;
    use super::super::{Cpu, Pci};
    use fabricast_topologies::route::{RouteOptions, Router};
    use fabricast_topologies::write;

    #[test]
    fn nvlinks_and_buses_yield_a_fabric() {
        let probe = machine(4);
        let fabric = probe.fabric().unwrap();
        assert_eq!(fabric.gpus().len(), 4);
        let router = Router::new(&fabric, RouteOptions::default());
        let path = router.path(fabric.gpus()[0], fabric.gpus()[3]).unwrap();
        assert_eq!(path.class.name(), "NVL");
        assert_eq!(path.bandwidth.unwrap().gb_per_s(), 450.0);
        // The written spec can be read again and states its origin.
        let text = write::spec::write(&fabric).unwrap();
        let reread = fabricast_topologies::read_text(&text, "auto.toml").unwrap();
        assert_eq!(reread.link_count(), fabric.link_count());
        assert!(text.contains("4 × NVIDIA H200, driver 580.1"), "{text}");
    }

    #[test]
    fn hidden_properties_are_omitted() {
        let mut probe = machine(4);
        probe.cpu = Cpu::default();
        for device in &mut probe.devices {
            device.pci = Pci { address: device.pci.address.clone(), numa: -1, ..Pci::default() };
        }
        let text = probe.nccl_xml();
        assert!(!text.contains("=\"\"") && !text.contains("vendor") && !text.contains("link_"), "{text}");
        let fabric = probe.fabric().unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let path = router.path(fabric.gpus()[0], fabric.gpus()[3]).unwrap();
        assert_eq!((path.class.name(), path.bandwidth.unwrap().gb_per_s()), ("NVL", 450.0));
        let reread = fabricast_topologies::read_text(&write::spec::write(&fabric).unwrap(), "auto.toml").unwrap();
        assert_eq!(reread.gpus().len(), 4);
        // One of the four IDs is missing, and the vendor contains special characters of XML.
        let mut probe = machine(2);
        probe.cpu.vendor = "A&B \"<".into();
        probe.devices[1].pci.ids[2].clear();
        assert_eq!(probe.fabric().unwrap().gpus().len(), 2);
    }

    #[test]
    fn links_that_are_down_are_ignored() {
        let mut probe = machine(2);
        probe.devices[1].nvlinks.iter_mut().take(6).for_each(|link| link.active = false);
        let fabric = probe.fabric().unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let path = router.path(fabric.gpus()[0], fabric.gpus()[1]).unwrap();
        assert_eq!(path.bandwidth.unwrap().gb_per_s(), 300.0);
    }

    #[test]
    fn gpus_behind_switches_share_them() {
        let mut probe = machine(3);
        for (device, bridges) in probe.devices.iter_mut().zip([&["s0"][..], &["s0"], &[]]) {
            device.nvlinks.clear();
            device.pci.bridges = bridges.iter().map(|&bridge| bridge.to_owned()).collect();
        }
        let fabric = probe.fabric().unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let class = |a: usize, b: usize| router.path(fabric.gpus()[a], fabric.gpus()[b]).unwrap().class.name();
        assert_eq!((class(0, 1), class(0, 2)), ("PIX", "PHB"));
    }
}
