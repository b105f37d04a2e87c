//! Nominal bandwidths and assumed latencies of the links that topology files describe.
//!
//! Bandwidths are nominal, as in presets: the rate after line coding and before the framing of transfers. NCCL assumes
//! less (20.6 GB/s for an NVLink 4 of 25 GB/s), to account for the framing; here the profile accounts for it. A machine
//! therefore has the same links whether it is read from a file or named by a preset, and lower bounds hold for every
//! transfer (copy engines reach 395 GB/s over 18 NVLinks that NCCL counts as 371 GB/s). Nominal rates of links between
//! sockets are far above the rates that DMA reaches, so NCCL's figures are used instead (2.30.7, `src/graph/topo.h`).
//!
//! The files state no latencies. Those below are assumptions, each with its source. To use measured values, export the
//! fabric as a spec and change them there.

use crate::{Bandwidth, Picos};

/// Latency of GPU to NVSwitch in one direction. Two hops add up to 0.50 µs from GPU to GPU: a flag that one H200 stores
/// and another polls arrives after 0.73 µs (measured, median of 36 pairs), of which about 0.2 µs are the polling reads.
pub(crate) const NVLINK_HOP: Picos = Picos(250_000);

/// Latency of GPU to GPU over a direct NVLink or xGMI. Equal to that through a switch, since nearly all of it is inside
/// the two GPUs.
pub(crate) const NVLINK_DIRECT: Picos = Picos(500_000);

/// Latency of one PCIe link with the switch or root port at its end (assumption). Published port-to-port latencies of
/// PCIe switches are 100–150 ns; round trips from a device to host memory are about 1 µs over two links.
pub(crate) const PCIE_HOP: Picos = Picos(250_000);

/// Latency between sockets (assumption): the difference between loads from remote and local memory, 60–140 ns by
/// vendor.
pub(crate) const SOCKET_HOP: Picos = Picos(120_000);

/// Bandwidth between the two Graces of a host in each direction: 150 GB/s (NVIDIA multi-node tuning guide, CLink).
pub(crate) const GRACE_TO_GRACE: Bandwidth = Bandwidth(150_000_000_000);

/// Bandwidth of NVLink-C2C of a Grace in each direction: 900 GB/s bidirectional (NVIDIA Grace, GH200 and GB200 data
/// sheets). Two GPUs of a GB200 or GB300 have half of it each; the table of GPU models states theirs.
pub(crate) const GRACE_C2C: Bandwidth = Bandwidth(450_000_000_000);

/// Latency of CPU to GPU over NVLink-C2C: a coherent load from the other side, minus the memory latency (assumption).
pub(crate) const C2C_HOP: Picos = Picos(200_000);

/// Bandwidth of one NVLink in each direction, by compute capability × 10: NVLink 1 (20 GB/s), 2 to 4 (25 GB/s; bridges
/// of GA102 14.06 GB/s), 5 (50 GB/s), from NVIDIA's data sheets of P100, V100, A100, A40, H100, B200.
pub(crate) fn nvlink_per_link(compute_capability: Option<u32>) -> Bandwidth {
    Bandwidth::from_gb_per_s(match compute_capability {
        Some(100..) => 50.0,
        Some(86) => 14.0625,
        Some(70..) => 25.0,
        Some(60..) => 20.0,
        _ => 25.0,
    })
}

/// Bandwidth of one xGMI link in each direction, by gfx number: 76.8 GB/s on MI350, 64 GB/s on MI300, 50 GB/s on MI200,
/// 46 GB/s on earlier ones (AMD's data sheets; RCCL assumes 48, 36 and 24 GB/s for the last three).
pub(crate) fn xgmi_per_link(gfx: Option<u32>) -> Bandwidth {
    Bandwidth::from_gb_per_s(match gfx {
        Some(950..=959) => 76.8,
        Some(940..=949) => 64.0,
        Some(910) => 50.0,
        _ => 46.0,
    })
}

/// Parses the gfx number of RCCL's `gcn` attribute, `942` or `gfx942`. `90a` is 910, as older versions of RCCL write
/// it.
pub(crate) fn gfx_number(gcn: &str) -> Option<u32> {
    match gcn.trim().trim_start_matches("gfx") {
        "90a" => Some(910),
        digits => digits.parse().ok(),
    }
}

/// Bandwidth of one PCIe lane after line coding (8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, 242B/256B flits at 64
/// GT/s), from a text like `16.0 GT/s PCIe`; `None` if the text names no known rate.
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

/// Bandwidth of a PCIe 3.0 lane (8 GT/s) in each direction; NCCL's fallback for a `link_speed` that it does not know.
pub(crate) const PCIE_3_LANE: Bandwidth = Bandwidth(984_615_385);
/// Bandwidth of a PCIe 4.0 lane (16 GT/s) in each direction.
pub(crate) const PCIE_4_LANE: Bandwidth = Bandwidth(1_969_230_769);
/// Bandwidth of a PCIe 5.0 lane (32 GT/s) in each direction.
pub(crate) const PCIE_5_LANE: Bandwidth = Bandwidth(3_938_461_538);
/// Bandwidth of a PCIe 6.0 lane (64 GT/s) in each direction.
pub(crate) const PCIE_6_LANE: Bandwidth = Bandwidth(7_562_500_000);

/// Bandwidth of a PCIe link with `width` lanes in each direction.
pub(crate) fn pcie(width: u16, lane: Bandwidth) -> Bandwidth {
    Bandwidth(u64::from(width) * lane.0)
}

/// Bandwidth between sockets in each direction, by the attributes of a `<cpu>`; `None` (unlimited) for CPUs that NCCL
/// does not know.
pub(crate) fn socket_bandwidth(arch: &str, vendor: &str, family: u32, model: u32) -> Option<Bandwidth> {
    let gb_per_s = match (arch, vendor) {
        ("ppc64", _) => 32.0,
        ("arm64", _) => 6.0,
        ("x86_64", "AuthenticAMD") => 16.0,
        ("x86_64", "GenuineIntel") => match (family, model) {
            (6, 0xCF..) => 40.0,
            (6, 0x8F..) => 22.0,
            (6, 0x55..) => 10.0,
            _ => 6.0,
        },
        // Both vendor strings are Zhaoxin's; family 7, model 0x5B is its YongFeng.
        ("x86_64", "CentaurHauls" | "  Shanghai  ") => match (family, model) {
            (7, 0x5B) => 9.0,
            _ => 6.0,
        },
        _ => return None,
    };
    Some(Bandwidth::from_gb_per_s(gb_per_s))
}

/// Line rate in Mb/s of a NIC whose file states none, 0 or −1: 10 Gb/s, as NCCL assumes.
pub(crate) const NET_DEFAULT_MBPS: u64 = 10_000;

/// Generation of those Broadcom PCIe switches that appear as two levels although all their ports run at full rate. NCCL
/// treats each as one switch, and so does this reader; otherwise neighbouring devices would appear further apart than
/// they are. `id` joins vendor, device, subsystem vendor and subsystem device to 64 bits; the low 12 bits are ignored.
/// `level` is 0 for the upper switch and 1 for those below. Two levels with the same generation are one switch.
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
    fn hardware_names_map_to_nominal_rates() {
        assert_eq!(nvlink_per_link(Some(90)).0 * 18, 450_000_000_000);
        assert_eq!(nvlink_per_link(Some(103)).0 * 18, 900_000_000_000);
        assert_eq!(nvlink_per_link(Some(80)).0 * 12, 300_000_000_000);
        for (speed, gb_per_s) in [
            ("2.5 GT/s", 4.0),
            ("8.0 GT/s PCIe", 15.754),
            ("16 GT/s", 31.508),
            ("32.0 GT/s PCIe", 63.015),
            ("64 GT/s", 121.0),
        ] {
            assert!((pcie(16, pcie_lane(speed).unwrap()).gb_per_s() - gb_per_s).abs() < 0.001, "{speed}");
        }
        for wrong in ["", "16", "16 GB/s", "Unknown", "17 GT/s", "NaN GT/s"] {
            assert_eq!(pcie_lane(wrong), None, "{wrong}");
        }
        let intel = |model| socket_bandwidth("x86_64", "GenuineIntel", 6, model).unwrap().gb_per_s();
        assert_eq!([0x4f, 0x55, 0x8f, 0xcf].map(intel), [6.0, 10.0, 22.0, 40.0]);
        assert_eq!(socket_bandwidth("riscv", "x", 0, 0), None);
        assert_eq!((gfx_number("gfx942"), gfx_number("906"), gfx_number("gfx90a")), (Some(942), Some(906), Some(910)));
    }
}
