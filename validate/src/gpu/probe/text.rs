//! Text output of `gpu probe`.

use std::fmt;

use super::{Found, PeerAccess, Probe, ProbedDevice, Remote};

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Some(version) => writeln!(f, "driver {version}, supports CUDA {}", self.driver_cuda)?,
            None => writeln!(f, "driver supports CUDA {}", self.driver_cuda)?,
        }
        for device in &self.devices {
            gpu(device, f)?;
        }
        if self.devices.len() > 1 {
            peers(self, f)?;
        }
        let libraries = &self.libraries;
        for (name, library) in [("NCCL", &libraries.nccl), ("NVSHMEM", &libraries.nvshmem), ("NVRTC", &libraries.nvrtc)]
        {
            if let Some(Found { version, path }) = library {
                writeln!(f, "{name} {}: {path}", version.as_deref().unwrap_or("(says no version)"))?;
            }
        }
        self.not_probed.iter().try_for_each(|line| writeln!(f, "not seen: {line}"))
    }
}

fn gpu(device: &ProbedDevice, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ProbedDevice { ordinal, name, sm_count, memory, compute_capability, copy_engines, .. } = device;
    let (major, minor) = (compute_capability / 10, compute_capability % 10);
    let gib = memory >> 30;
    writeln!(f, "GPU {ordinal}: {name}, sm {major}.{minor}, {sm_count} SMs, {gib} GiB, {copy_engines} copy engines")?;
    let pci = &device.pci;
    write!(f, "  PCIe {}", pci.address)?;
    if let (Some(generation), Some(width)) = (pci.max_generation, pci.max_width) {
        write!(f, ", generation {generation} × {width}")?;
    }
    if pci.numa >= 0 {
        write!(f, ", NUMA node {}", pci.numa)?;
    }
    writeln!(f)?;
    let up: Vec<_> = device.nvlinks.iter().filter(|link| link.active).collect();
    if !device.nvlinks.is_empty() {
        let to_switches = up.iter().filter(|link| link.to == Remote::Nvswitch).count();
        let to_gpus = up.iter().filter(|link| link.to == Remote::Gpu).count();
        let speed = up.iter().find_map(|link| link.speed_mbps).map(|mbps| f64::from(mbps) / 1e3);
        write!(f, "  NVLink: {} of {} up", up.len(), device.nvlinks.len())?;
        let ends = [(to_switches, "to switches"), (to_gpus, "to GPUs")];
        ends.iter().filter(|(count, _)| *count > 0).try_for_each(|(count, kind)| write!(f, ", {count} {kind}"))?;
        if let Some(speed) = speed {
            write!(f, ", {speed:.1} GB/s each way on the wire")?;
        }
        writeln!(f)?;
    }
    if device.mig == Some(true) {
        writeln!(f, "  cut into MIG instances")?;
    }
    Ok(())
}

/// Prints the peer access between GPUs as a matrix.
fn peers(probe: &Probe, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "peer access (row reads and writes column):")?;
    write!(f, "     ")?;
    probe.devices.iter().try_for_each(|device| write!(f, " {:>4}", device.ordinal))?;
    writeln!(f)?;
    for source in &probe.devices {
        write!(f, "{:>5}", source.ordinal)?;
        for target in &probe.devices {
            let word = match probe.pair(source.ordinal, target.ordinal).map(|pair| (pair.access, pair.native_atomics)) {
                None => "-",
                Some((PeerAccess::Direct, true)) => "NVL",
                Some((PeerAccess::Direct, false)) => "PCIe",
                Some((PeerAccess::Staged, _)) => "host",
            };
            write!(f, " {word:>4}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}
