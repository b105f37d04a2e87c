//! Tests that inject faults into a benchmark without faults and compare the findings with the expected ones.

use fabricast_topologies::{FabricRequest, load};

use super::{Diagnosis, FaultKind, Severity, judge};
use crate::gpu::bench::{Bench, BenchPoint, Load, PointKind, tests::measured};
use crate::gpu::probe::{PciePath, PeerAccess};

/// Benchmark of `count` H200 GPUs without faults.
fn healthy_machine(count: usize) -> Bench {
    let mut points = Vec::new();
    let mut add = |kind, load, src, dst, gb_per_s: Option<f64>, time_us| {
        points.push(BenchPoint {
            kind,
            load,
            src,
            dst,
            blocks: None,
            threads: None,
            bytes: if gb_per_s.is_some() { 256 << 20 } else { 0 },
            time_us,
            fastest_us: time_us,
            slowest_us: time_us,
            gb_per_s,
        });
    };
    for src in 0..count {
        add(PointKind::PinnedToDevice, Load::Alone, None, Some(src), Some(55.2), 1216.0);
        add(PointKind::DeviceToPinned, Load::Alone, Some(src), None, Some(55.6), 1208.0);
        // Measured host rates of 4 and 8 × H200 while all GPUs copied.
        let concurrent_rates = [55.0, 53.0, 50.0, 41.1, 41.1, 30.0, 25.0, 22.9];
        let concurrent_rates = concurrent_rates.get(count - 1).copied();
        add(PointKind::PinnedToDevice, Load::AllGpus, None, Some(src), concurrent_rates, 1300.0);
        add(PointKind::DeviceToPinned, Load::AllGpus, Some(src), None, concurrent_rates, 1300.0);
        for dst in (0..count).filter(|&dst| dst != src) {
            add(PointKind::CopyEngine, Load::Alone, Some(src), Some(dst), Some(394.0 + src as f64 / 4.0), 681.0);
            add(
                PointKind::CopyEngine,
                Load::Shift((dst + count - src) % count),
                Some(src),
                Some(dst),
                Some(392.0),
                684.0,
            );
            add(PointKind::CopyEngine, Load::Bidirectional, Some(src), Some(dst), Some(384.2), 699.0);
            add(PointKind::Blocks, Load::Alone, Some(src), Some(dst), Some(365.0), 735.0);
            add(PointKind::Blocks, Load::Bidirectional, Some(src), Some(dst), Some(344.9), 778.0);
            add(PointKind::Blocks, Load::Shift((dst + count - src) % count), Some(src), Some(dst), Some(338.4), 793.0);
            let part = 1.0 / (count - 1) as f64;
            for (kind, incast, all_to_all) in [(PointKind::CopyEngine, 398.0, 371.0), (PointKind::Blocks, 376.0, 274.0)]
            {
                add(kind, Load::Incast, Some(src), Some(dst), Some(incast * part), 2000.0);
                add(kind, Load::AllToAll, Some(src), Some(dst), Some(all_to_all * part), 2000.0);
            }
            add(PointKind::Flag, Load::Alone, Some(src), Some(dst), None, 0.73 + dst as f64 / 200.0);
        }
    }
    measured(count, points)
}

/// Multiplies the rates of the selected pairs by `part`, for every engine and load.
fn slow(bench: &mut Bench, is_affected: impl Fn(usize, usize) -> bool, part: f64) {
    for point in &mut bench.points {
        if let (Some(src), Some(dst), Some(gb_per_s)) = (point.src, point.dst, point.gb_per_s)
            && is_affected(src, dst)
        {
            point.gb_per_s = Some(gb_per_s * part);
            point.time_us /= part;
        }
    }
}

fn diagnose_own_fabric(bench: &Bench) -> Diagnosis {
    judge(bench, None).unwrap()
}

fn preset(bench: &Bench, name: &str, gpus: u32) -> Diagnosis {
    let request = FabricRequest { gpus: Some(gpus), ..FabricRequest::new(name) };
    judge(bench, Some(&load(&request).unwrap())).unwrap()
}

fn faults(diagnosis: &Diagnosis) -> Vec<(FaultKind, &[usize])> {
    diagnosis.findings.iter().map(|finding| (finding.fault, &finding.gpus[..])).collect()
}

/// Multiplies the rates of the selected points by `part`.
fn slow_points(bench: &mut Bench, is_affected: impl Fn(&BenchPoint) -> bool, part: f64) {
    for point in bench.points.iter_mut().filter(|point| is_affected(point)) {
        point.gb_per_s = point.gb_per_s.map(|gb_per_s| gb_per_s * part);
        point.time_us /= part;
    }
}

/// Benchmark without faults of GPUs without NVLink: two GPUs below each of two CPUs, on PCIe, with the given kind of
/// peer access.
fn healthy_pcie_machine(access: PeerAccess) -> Bench {
    let mut bench = healthy_machine(4);
    for device in &mut bench.probe.devices {
        device.name = "NVIDIA L40S".into();
        device.nvlinks.clear();
        device.pci.numa = i32::from(device.ordinal >= 2);
    }
    for pair in &mut bench.probe.pairs {
        pair.access = access;
        pair.pcie_path = Some(if (pair.src < 2) == (pair.dst < 2) { PciePath::Phb } else { PciePath::Sys });
    }
    slow(&mut bench, |_, _| true, 40.0 / 395.0);
    if access == PeerAccess::Staged {
        bench.points.retain(|point| !matches!(point.kind, PointKind::Blocks | PointKind::Flag));
    }
    bench
}

#[test]
fn sound_machine_has_no_findings() {
    for count in [1, 2, 4, 8] {
        let diagnosis = diagnose_own_fabric(&healthy_machine(count));
        assert_eq!(faults(&diagnosis), [], "{diagnosis}");
        assert!(diagnosis.is_healthy());
    }
    let diagnosis = preset(&healthy_machine(8), "hgx-h200", 8);
    assert_eq!(faults(&diagnosis), [], "{diagnosis}");
    assert!(diagnosis.to_string().contains("56 pairs over NVL: 394–396 GB/s, expected 395"), "{diagnosis}");
}

#[test]
fn gpu_with_slow_links_is_reported_once() {
    let mut bench = healthy_machine(8);
    slow(&mut bench, |src, dst| src == 3 || dst == 3, 0.5);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowLink, &[3][..])], "{diagnosis}");
    let text = diagnosis.to_string();
    assert!(text.contains("GPU 3, to and from every other: 197 GB/s of an expected 395"), "{text}");
    assert!(text.contains("the rate of 9 of 18 NVLinks"), "{text}");
    assert!(!diagnosis.is_healthy());
}

#[test]
fn slow_direction_and_slow_pair_are_distinguished() {
    let mut bench = healthy_machine(4);
    slow(&mut bench, |src, _| src == 2, 0.8);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowLink, &[2][..])]);
    assert!(diagnosis.to_string().contains("GPU 2, sending to every other"), "{diagnosis}");
    let mut bench = healthy_machine(4);
    slow(&mut bench, |src, dst| (src, dst) == (0, 1), 0.8);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowLink, &[0, 1][..])]);
    assert!(diagnosis.to_string().contains("from GPU 0 to GPU 1: 315 GB/s"), "{diagnosis}");
}

#[test]
fn rates_within_tolerance_are_sound() {
    let mut bench = healthy_machine(4);
    slow(&mut bench, |src, _| src == 2, 0.92);
    assert!(diagnose_own_fabric(&bench).is_healthy());
}

#[test]
fn nvlink_at_pcie_speed_is_reported_as_fallback() {
    let mut bench = healthy_machine(4);
    slow(&mut bench, |_, _| true, 0.12);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::PcieFallback, &[0, 1, 2, 3][..])], "{diagnosis}");
    assert!(diagnosis.to_string().contains("systemctl status nvidia-fabricmanager"), "{diagnosis}");
}

#[test]
fn missing_links_explain_rates_below_preset() {
    let mut bench = healthy_machine(4);
    bench.probe.devices[1].nvlinks.iter_mut().take(6).for_each(|link| link.active = false);
    slow(&mut bench, |src, dst| src == 1 || dst == 1, 12.0 / 18.0);
    let diagnosis = preset(&bench, "hgx-h200", 4);
    assert_eq!(
        faults(&diagnosis),
        [(FaultKind::MissingLinks, &[1][..]), (FaultKind::SlowLink, &[1][..])],
        "{diagnosis}"
    );
    assert!(diagnosis.to_string().contains("GPU 1 has 12 of its 18 NVLinks"), "{diagnosis}");
    // Compared with its own fabric, all rates are as expected, but the missing links are still reported.
    assert_eq!(faults(&diagnose_own_fabric(&bench)), [(FaultKind::MissingLinks, &[1][..])]);
}

#[test]
fn missing_peer_access_is_reported() {
    let mut bench = healthy_machine(4);
    for pair in &mut bench.probe.pairs {
        pair.access = PeerAccess::Staged;
    }
    slow(&mut bench, |_, _| true, 0.06);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::NoPeerAccess, &[0, 1, 2, 3][..])], "{diagnosis}");
    assert!(diagnosis.to_string().contains("nvidia-smi topo -p2p rw"), "{diagnosis}");
    bench.probe.devices[2].mig = Some(true);
    assert!(diagnose_own_fabric(&bench).to_string().contains("GPU 2: cut into MIG instances"));
}

#[test]
fn staged_peers_are_a_fault_below_one_cpu_and_a_note_between_sockets() {
    assert_eq!(faults(&diagnose_own_fabric(&healthy_pcie_machine(PeerAccess::Direct))), []);
    let mut bench = healthy_pcie_machine(PeerAccess::Staged);
    let diagnosis = diagnose_own_fabric(&bench);
    let result: Vec<_> = diagnosis.findings.iter().map(|finding| (finding.severity, finding.fault)).collect();
    assert_eq!(
        result,
        [(Severity::Fault, FaultKind::NoPeerAccess), (Severity::Note, FaultKind::NoPeerAccess)],
        "{diagnosis}"
    );
    assert!(diagnosis.to_string().contains("every pair over PHB: no peer access"), "{diagnosis}");
    assert!(diagnosis.to_string().contains("note: every pair over SYS"), "{diagnosis}");
    // If only the pairs between sockets are staged, there is no fault.
    for pair in bench.probe.pairs.iter_mut().filter(|pair| pair.pcie_path == Some(PciePath::Phb)) {
        pair.access = PeerAccess::Direct;
    }
    let of_direct = healthy_pcie_machine(PeerAccess::Direct).points.into_iter().filter(|point| {
        matches!(point.kind, PointKind::Blocks | PointKind::Flag)
            && point.src.zip(point.dst).is_some_and(|(src, dst)| (src < 2) == (dst < 2))
    });
    bench.points.extend(of_direct);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis).len(), 1, "{diagnosis}");
    assert!(diagnosis.is_healthy(), "{diagnosis}");
    // The driver grants no peer access to GeForce GPUs, and users cannot change this, so it is not a fault.
    let mut bench = healthy_pcie_machine(PeerAccess::Staged);
    bench.probe.devices.iter_mut().for_each(|device| device.name = "NVIDIA GeForce RTX 4090".into());
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::NoPeerAccess, &[0, 1, 2, 3][..])], "{diagnosis}");
    assert!(diagnosis.is_healthy(), "{diagnosis}");
}

#[test]
fn slow_thread_blocks_are_found_despite_fast_copy_engines() {
    let mut bench = healthy_machine(4);
    slow_points(&mut bench, |point| point.kind == PointKind::Blocks && point.src == Some(2), 0.1);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowBlocks, &[2][..])], "{diagnosis}");
    assert!(
        diagnosis.to_string().contains("GPU 2, sending to every other: thread blocks send 36 GB/s of an expected 36")
    );
    // Thread blocks reach a smaller fraction of the nominal rate over PCIe. A fifth of this rate is a fault there as
    // well.
    let mut bench = healthy_pcie_machine(PeerAccess::Direct);
    slow_points(&mut bench, |point| point.kind == PointKind::Blocks, 0.2);
    assert_eq!(faults(&diagnose_own_fabric(&bench))[0].0, FaultKind::SlowBlocks);
}

#[test]
fn slow_concurrent_transfers_are_found() {
    let slowed = |is_affected: fn(&BenchPoint) -> bool, part| {
        let mut bench = healthy_machine(4);
        slow_points(&mut bench, is_affected, part);
        diagnose_own_fabric(&bench)
    };
    let diagnosis = slowed(|point| point.load == Load::Bidirectional, 0.2);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowUnderLoad, &[0, 1, 2, 3][..])], "{diagnosis}");
    assert!(diagnosis.to_string().contains("while the other way sends too"), "{diagnosis}");
    let diagnosis = slowed(|point| point.kind == PointKind::Blocks && point.load == Load::Shift(1), 0.5);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowUnderLoad, &[0, 1, 2, 3][..])], "{diagnosis}");
    let diagnosis = slowed(|point| point.load == Load::Incast && point.dst == Some(1), 0.5);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowUnderLoad, &[1][..])], "{diagnosis}");
    let diagnosis = slowed(|point| point.load == Load::AllToAll && point.src == Some(3), 0.3);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowUnderLoad, &[3][..])], "{diagnosis}");
    // Over PCIe, the two directions may halve each other's rate without a fault.
    let mut bench = healthy_pcie_machine(PeerAccess::Staged);
    bench.probe.pairs.iter_mut().for_each(|pair| pair.pcie_path = Some(PciePath::Sys));
    slow_points(&mut bench, |point| point.load == Load::Bidirectional, 0.5);
    assert!(!faults(&diagnose_own_fabric(&bench)).iter().any(|(fault, _)| *fault == FaultKind::SlowUnderLoad));
}

#[test]
fn concurrent_host_rates_are_judged_by_shared_links() {
    let mut bench = healthy_machine(4);
    slow_points(&mut bench, |point| point.load == Load::AllGpus, 0.02);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowUnderLoad, &[0, 1, 2, 3][..])], "{diagnosis}");
    assert!(diagnosis.to_string().contains("while all GPUs copy: 0.8 GB/s of an expected 40.0"), "{diagnosis}");
    // Four GPUs below one switch each get a quarter of the switch's link.
    let mut bench = healthy_machine(4);
    slow_points(&mut bench, |point| point.load == Load::AllGpus, 13.5 / 41.1);
    assert_eq!(faults(&diagnose_own_fabric(&bench)).len(), 1);
    bench.probe.devices.iter_mut().for_each(|device| device.pci.bridges = vec!["0000:10:00.0".into()]);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [], "{diagnosis}");
    assert!(diagnosis.to_string().contains("while all GPUs copy 13.5, expected 13.7"), "{diagnosis}");
}

#[test]
fn missing_host_measurements_are_reported() {
    let mut bench = healthy_machine(4);
    bench.points.retain(|point| !matches!(point.kind, PointKind::PinnedToDevice | PointKind::DeviceToPinned));
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::NotMeasured, &[0, 1, 2, 3][..])], "{diagnosis}");
    let mut bench = healthy_machine(4);
    bench.points.retain(|point| point.kind != PointKind::DeviceToPinned || point.src != Some(2));
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::NotMeasured, &[2][..])], "{diagnosis}");
    assert!(diagnosis.to_string().contains("not measured: copies from the GPU"), "{diagnosis}");
    let mut bench = healthy_machine(1);
    bench.points.clear();
    assert_eq!(faults(&diagnose_own_fabric(&bench)), [(FaultKind::NotMeasured, &[0][..])]);
}

#[test]
fn uniformly_slow_flags_are_found() {
    let mut bench = healthy_machine(4);
    for point in bench.points.iter_mut().filter(|point| point.kind == PointKind::Flag) {
        point.time_us *= 20.0;
    }
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowFlag, &[0, 1, 2, 3][..])], "{diagnosis}");
    assert!(diagnosis.to_string().contains("expected 0.70"), "{diagnosis}");
    // Slow flags do not hide slow concurrent transfers.
    slow_points(&mut bench, |point| point.load == Load::Bidirectional, 0.2);
    let result: Vec<FaultKind> = diagnose_own_fabric(&bench).findings.iter().map(|finding| finding.fault).collect();
    assert_eq!(result, [FaultKind::SlowFlag, FaultKind::SlowUnderLoad]);
}

#[test]
fn fabric_of_another_machine_is_detected() {
    // Cases: another number of GPUs, other GPUs, no NVLink, and links with half the measured rate.
    let cases = [("hgx-h200", 8), ("dgx-a100", 4), ("l40s-pcie", 4), ("dgx-v100", 4)];
    for (name, gpus) in cases {
        let diagnosis = preset(&healthy_machine(4), name, gpus);
        assert!(
            diagnosis.findings.iter().all(|finding| finding.fault == FaultKind::WrongTopology),
            "{name}: {diagnosis}"
        );
        assert_eq!(diagnosis.fabric, diagnose_own_fabric(&healthy_machine(4)).fabric, "{name}");
        assert!(!diagnosis.is_healthy(), "{name}");
    }
    // A fabric with equal GPUs and slower links.
    let fabric = load(&FabricRequest { gpus: Some(4), ..FabricRequest::new("hgx-h200") }).unwrap();
    let diagnosis = judge(&healthy_machine(4), Some(&fabric.with_slowed("gpu0-nvswitch0", 0.5).unwrap())).unwrap();
    assert_eq!(diagnosis.findings[0].fault, FaultKind::WrongTopology);
    assert!(diagnosis.to_string().contains("gives them 225 GB/s, the machine's links 450"), "{diagnosis}");
}

#[test]
fn slow_host_link_reports_missing_lanes() {
    let mut bench = healthy_machine(4);
    for point in bench.points.iter_mut().filter(|point| point.src == Some(1) || point.dst == Some(1)) {
        if matches!(point.kind, PointKind::PinnedToDevice | PointKind::DeviceToPinned) {
            point.gb_per_s = Some(27.0);
        }
    }
    bench.probe.devices[1].pci.width = Some(8);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowHostLink, &[1][..])], "{diagnosis}");
    assert!(diagnosis.to_string().contains("GPU 1 runs 8 of its 16 PCIe lanes"), "{diagnosis}");
}

#[test]
fn numa_distance_is_distinguished_from_slow_link() {
    let mut bench = healthy_machine(4);
    for device in &mut bench.probe.devices {
        device.pci.numa = i32::from(device.ordinal >= 3);
    }
    for pair in bench.probe.pairs.iter_mut().filter(|pair| (pair.src >= 3) != (pair.dst >= 3)) {
        pair.pcie_path = Some(PciePath::Sys);
    }
    for point in bench.points.iter_mut().filter(|point| point.kind == PointKind::PinnedToDevice && point.dst == Some(3))
    {
        point.gb_per_s = Some(40.0);
    }
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::NumaDistance, &[3][..])], "{diagnosis}");
    assert!(diagnosis.to_string().contains("numactl"), "{diagnosis}");
}

#[test]
fn slow_flag_of_a_pair_and_slow_shift_are_found() {
    let mut bench = healthy_machine(4);
    for point in bench.points.iter_mut().filter(|point| point.kind == PointKind::Flag) {
        if (point.src, point.dst) == (Some(1), Some(2)) || (point.src, point.dst) == (Some(2), Some(1)) {
            point.time_us = 2.5;
        }
    }
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::SlowFlag, &[1, 2][..])], "{diagnosis}");
    let mut bench = healthy_machine(4);
    slow_points(&mut bench, |point| point.kind == PointKind::CopyEngine && point.load == Load::Shift(2), 0.5);
    assert_eq!(faults(&diagnose_own_fabric(&bench))[0].0, FaultKind::SlowUnderLoad);
}

#[test]
fn unmeasured_pair_is_reported() {
    let mut bench = healthy_machine(2);
    bench.points.retain(|point| point.kind != PointKind::CopyEngine || point.src != Some(0));
    assert_eq!(faults(&diagnose_own_fabric(&bench)), [(FaultKind::NotMeasured, &[0, 1][..])]);
    for (kind, load, expected) in [
        (PointKind::Blocks, Load::Alone, "from GPU 1 to GPU 0: not measured: thread blocks"),
        (PointKind::Flag, Load::Alone, "from GPU 1 to GPU 0: not measured: flags"),
        (PointKind::CopyEngine, Load::Bidirectional, "from GPU 1 to GPU 0: not measured: copies both ways"),
    ] {
        let mut bench = healthy_machine(4);
        bench.points.retain(|point| (point.kind, point.load, point.src, point.dst) != (kind, load, Some(1), Some(0)));
        let diagnosis = diagnose_own_fabric(&bench);
        assert_eq!(faults(&diagnosis), [(FaultKind::NotMeasured, &[1, 0][..])], "{diagnosis}");
        assert!(diagnosis.to_string().contains(expected), "{diagnosis}");
    }
}

#[test]
fn links_with_errors_yield_a_note() {
    let mut bench = healthy_machine(2);
    bench.probe.devices[0].nvlinks[4].errors = Some(70_000);
    let diagnosis = diagnose_own_fabric(&bench);
    assert_eq!(faults(&diagnosis), [(FaultKind::LinkErrors, &[0][..])]);
    assert!(diagnosis.is_healthy());
}
