//! What the words of topology files mean in GB/s and ns.
//!
//! Bandwidths of links are nominal, as in the presets: what the wire carries after its line code, before the framing of
//! transfers. NCCL gives the same words less (20.6 GB/s for an NVLink 4 of 25), to allow for that framing; here the
//! profile does, so that a machine has the same links whether it is read from a file or named by a preset, and a bound
//! is one that no copy beats (copy engines reach 395 GB/s over 18 NVLinks that NCCL counts as 371). Between sockets,
//! where no nominal rate says what DMA reaches, NCCL's figures stand (2.30.7, `src/graph/topo.h`).
//!
//! The files say nothing of latencies. Those here are assumptions, each with its ground; whoever has measured better
//! exports the fabric as a spec and changes them there.

use crate::{Bandwidth, Picos};

/// GPU to NVSwitch, one way. Two of them make 0.50 µs from GPU to GPU: a flag that one H200 stores and another polls
/// arrives after 0.73 µs (measured, median of 36 pairs), of which some 0.2 µs are the reads that wait for it.
pub(crate) const NVLINK_HOP: Picos = Picos(250_000);

/// GPU to GPU over a direct NVLink or xGMI: as through a switch, since nearly all of it is spent in the two GPUs.
pub(crate) const NVLINK_DIRECT: Picos = Picos(500_000);

/// One PCIe link with the switch or root port at its end. Published port-to-port figures of PCIe switches are
/// 100–150 ns, round trips from a device to host memory about 1 µs over two links (assumption).
pub(crate) const PCIE_HOP: Picos = Picos(250_000);

/// From socket to socket: what a load from remote memory takes longer than one from local memory, 60–140 ns by vendor
/// (assumption).
pub(crate) const SOCKET_HOP: Picos = Picos(120_000);

/// Between the two Graces of a host: 150 GB/s each way (NVIDIA multi-node tuning guide, CLink).
pub(crate) const GRACE_TO_GRACE: Bandwidth = Bandwidth(150_000_000_000);

/// NVLink-C2C of a Grace, each direction: 900 GB/s both ways (NVIDIA Grace, GH200 and GB200 data sheets). Two GPUs of a
/// GB200 or GB300 have half of it each; models state their own in the table of GPUs.
pub(crate) const GRACE_C2C: Bandwidth = Bandwidth(450_000_000_000);

/// CPU to GPU over NVLink-C2C: a coherent load from the other side, less its memory (assumption).
pub(crate) const C2C_HOP: Picos = Picos(200_000);

/// NVLink bandwidth of one link, each direction, by compute capability × 10: NVLink 1 (20 GB/s), 2 to 4 (25 GB/s; the
/// bridges of GA102 14.06 GB/s), 5 (50 GB/s), from NVIDIA's data sheets of P100, V100, A100, A40, H100, B200.
pub(crate) fn nvlink_per_link(compute_capability: Option<u32>) -> Bandwidth {
    Bandwidth::from_gbps(match compute_capability {
        Some(100..) => 50.0,
        Some(86) => 14.0625,
        Some(70..) => 25.0,
        Some(60..) => 20.0,
        _ => 25.0,
    })
}

/// xGMI bandwidth of one link, each direction, by gfx number: 76.8 GB/s on MI350, 64 GB/s on MI300, 50 GB/s on MI200,
/// 46 GB/s before (AMD's data sheets; RCCL counts 48, 36 and 24 of the last three).
pub(crate) fn xgmi_per_link(gfx: Option<u32>) -> Bandwidth {
    Bandwidth::from_gbps(match gfx {
        Some(950..=959) => 76.8,
        Some(940..=949) => 64.0,
        Some(910) => 50.0,
        _ => 46.0,
    })
}

/// The gfx number of RCCL's `gcn` attribute, `942` or `gfx942`. `90a` is 910, as older versions of RCCL write it.
pub(crate) fn gfx_number(gcn: &str) -> Option<u32> {
    match gcn.trim().trim_start_matches("gfx") {
        "90a" => Some(910),
        digits => digits.parse().ok(),
    }
}

/// Rate of one PCIe lane after its line code (8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, 242B/256B flits at 64 GT/s),
/// from a text like `16.0 GT/s PCIe`; `None` where the text names no known rate.
pub(crate) fn pcie_lane(link_speed: &str) -> Option<Bandwidth> {
    let (number, unit) = link_speed.trim().split_once(' ')?;
    if !unit.trim_start().starts_with("GT/s") {
        return None;
    }
    match number.parse::<f64>().ok()? {
        2.5 => Some(Bandwidth(250_000_000)),
        5.0 => Some(Bandwidth(500_000_000)),
        8.0 => Some(PCIE_3_LANE),
        16.0 => Some(PCIE_4_LANE),
        32.0 => Some(PCIE_5_LANE),
        64.0 => Some(PCIE_6_LANE),
        _ => None,
    }
}

/// A lane of 8 GT/s; what NCCL takes where it does not understand the text.
pub(crate) const PCIE_3_LANE: Bandwidth = Bandwidth(984_615_385);
/// A lane of 16 GT/s.
pub(crate) const PCIE_4_LANE: Bandwidth = Bandwidth(1_969_230_769);
/// A lane of 32 GT/s.
pub(crate) const PCIE_5_LANE: Bandwidth = Bandwidth(3_938_461_538);
/// A lane of 64 GT/s.
pub(crate) const PCIE_6_LANE: Bandwidth = Bandwidth(7_562_500_000);

/// Bandwidth of a PCIe link of so many lanes.
pub(crate) fn pcie(width: u16, lane: Bandwidth) -> Bandwidth {
    Bandwidth(u64::from(width) * lane.0)
}

/// Between sockets, each direction, by what a `<cpu>` says of itself; `None` (no limit) for CPUs that NCCL does not know.
pub(crate) fn between_sockets(arch: &str, vendor: &str, family: u32, model: u32) -> Option<Bandwidth> {
    let gbps = match (arch, vendor) {
        ("ppc64", _) => 32.0,
        ("arm64", _) => 6.0,
        ("x86_64", "AuthenticAMD") => 16.0,
        ("x86_64", "GenuineIntel") => match (family, model) {
            (6, 0xCF..) => 40.0,
            (6, 0x8F..) => 22.0,
            (6, 0x55..) => 10.0,
            _ => 6.0,
        },
        // Both names are Zhaoxin's; 7/0x5B is its YongFeng.
        ("x86_64", "CentaurHauls" | "  Shanghai  ") => match (family, model) {
            (7, 0x5B) => 9.0,
            _ => 6.0,
        },
        _ => return None,
    };
    Some(Bandwidth::from_gbps(gbps))
}

/// Line rate of a NIC whose file gives none, or 0, or −1: 10 Gb/s, as NCCL assumes.
pub(crate) const NET_DEFAULT_MBPS: u64 = 10_000;

/// Device ids of Broadcom's PCIe switches that show themselves as two levels although all their ports run at full rate.
/// NCCL sees each as one switch, and so do we: otherwise neighbours would look further apart than they are.
/// Vendor, device, subsystem vendor and subsystem device joined to 64 bits, low 12 bits cut; `level` is 0 for the upper
/// switch and 1 for those below. The same number for both means one switch.
pub(crate) fn broadcom_generation(id: u64, level: u64) -> Option<u8> {
    match id & 0xffff_ffff_ffff_f000 {
        0x1000_c010_1000_a000 => Some(4),
        gen5 if gen5 == (0x1000_c030_1000_0000 | (level * 0x1000)) => Some(5),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_nominal_rates() {
        assert_eq!(nvlink_per_link(Some(90)).0 * 18, 450_000_000_000);
        assert_eq!(nvlink_per_link(Some(103)).0 * 18, 900_000_000_000);
        assert_eq!(nvlink_per_link(Some(80)).0 * 12, 300_000_000_000);
        for (speed, gbps) in [
            ("2.5 GT/s", 4.0),
            ("8.0 GT/s PCIe", 15.754),
            ("16 GT/s", 31.508),
            ("32.0 GT/s PCIe", 63.015),
            ("64 GT/s", 121.0),
        ] {
            assert!((pcie(16, pcie_lane(speed).unwrap()).gbps() - gbps).abs() < 0.001, "{speed}");
        }
        for wrong in ["", "16", "16 GB/s", "Unknown", "17 GT/s", "NaN GT/s"] {
            assert_eq!(pcie_lane(wrong), None, "{wrong}");
        }
        let intel = |model| between_sockets("x86_64", "GenuineIntel", 6, model).unwrap().gbps();
        assert_eq!([0x4f, 0x55, 0x8f, 0xcf].map(intel), [6.0, 10.0, 22.0, 40.0]);
        assert_eq!(between_sockets("riscv", "x", 0, 0), None);
        assert_eq!((gfx_number("gfx942"), gfx_number("906"), gfx_number("gfx90a")), (Some(942), Some(906), Some(910)));
    }
}
