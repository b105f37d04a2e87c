//! Parameters of a profile that a hardware benchmark determines directly, without collectives: PCIe efficiency and
//! copy-engine costs. Costs of thread blocks depend on the library and are fitted to measured collectives.

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::route::{PathClass, RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Error, NodeKind, Picos};

use crate::gpu::bench::{Bench, Load, PointKind};
use crate::gpu::probe::vertex;

/// Parameter of a profile as determined by a benchmark, with the range of the measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkFigure {
    /// Key of the parameter in a profile file, such as `links.pcie`.
    pub name: &'static str,
    /// Median of the measurements, in `unit`.
    pub value: f64,
    /// Smallest measurement, in `unit`.
    pub low: f64,
    /// Largest measurement, in `unit`.
    pub high: f64,
    /// Unit: `us`, or empty for a fraction.
    pub unit: &'static str,
}

/// Sets the parameters of `profile` that `bench` determines and returns them; all others are unchanged. The result is
/// empty if the benchmark has neither a host link nor a copy over NVLink.
///
/// # Errors
/// No fabric can be made from the benchmark's probe, or a pair of its GPUs has no path.
pub fn apply_benchmark(profile: &mut Profile, bench: &Bench) -> Result<Vec<BenchmarkFigure>, Error> {
    let fabric = bench.probe.fabric()?;
    let router = Router::new(&fabric, RouteOptions::default());
    let mut figures = Vec::new();

    let hosts = bench.probe.devices.iter().flat_map(|device| {
        let gpu = Some(device.ordinal);
        let target = vertex(&fabric, device.ordinal);
        let cpus = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Cpu);
        let nominal =
            cpus.filter_map(|(cpu, _)| router.path(cpu, target?).ok()?.bandwidth).max().map(Bandwidth::gb_per_s);
        let rates = [(PointKind::PinnedToDevice, None, gpu), (PointKind::DeviceToPinned, gpu, None)]
            .map(|(kind, src, dst)| bench.rate(kind, Load::Alone, src, dst));
        rates.into_iter().flatten().filter_map(move |rate| Some(rate / nominal?)).collect::<Vec<_>>()
    });
    figures.extend(median_figure("links.pcie", "", hosts.collect()));
    if let Some(pcie) = figures.last() {
        profile.links.pcie = pcie.value;
    }

    let (mut parts, mut steps) = (Vec::new(), Vec::new());
    for pair in &bench.probe.pairs {
        let (Some(from), Some(target)) = (vertex(&fabric, pair.src), vertex(&fabric, pair.dst)) else { continue };
        let path = router.path(from, target)?;
        let (src, dst) = (Some(pair.src), Some(pair.dst));
        if !matches!(path.class, PathClass::Nvl | PathClass::Nvb) {
            continue;
        }
        if let (Some(rate), Some(nominal)) = (bench.rate(PointKind::CopyEngine, Load::Alone, src, dst), path.bandwidth)
        {
            parts.push(rate / nominal.gb_per_s());
        }
        let copies = bench
            .points_under_load(PointKind::CopyEngine, Load::Alone)
            .filter(|point| (point.src, point.dst) == (src, dst));
        // The transfer time of the smallest copy is negligible, so its time without the path latency is the cost of a
        // step.
        let copies: Vec<_> = copies.collect();
        if let Some(smallest) = copies.iter().min_by_key(|point| point.bytes).filter(|_| copies.len() > 1) {
            steps.push((smallest.time_us - path.latency.us()).max(0.0));
        }
    }
    // The efficiency is relative to the NVLink efficiency, which the simulation applies as well.
    let nvlink_efficiency = profile.links.nvlink;
    let wire = median_figure(
        "protocol.copy_engine.wire_efficiency",
        "",
        parts.iter().map(|part| part / nvlink_efficiency).collect(),
    );
    let step = median_figure("protocol.copy_engine.step", "us", steps);
    let costs = profile.protocols.get_mut(Protocol::CopyEngine as usize);
    if let Some(costs) = costs {
        if let Some(wire) = &wire {
            costs.wire_efficiency = wire.value;
        }
        if let Some(step) = &step {
            costs.step = Picos::from_us(step.value);
        }
    }
    figures.extend(wire);
    figures.extend(step);
    // A benchmark that determines no parameter is not listed as a source of the profile.
    if !figures.is_empty() {
        profile.sources.push(format!("gpu bench on {}, {}", bench.machine, bench.date));
    }
    Ok(figures)
}

/// Returns the median, minimum and maximum of measured values; fractions are limited to 1. `None` if there are no
/// values.
fn median_figure(name: &'static str, unit: &'static str, figures: Vec<f64>) -> Option<BenchmarkFigure> {
    let cap = |figure: f64| if unit.is_empty() { figure.min(1.0) } else { figure };
    let mut sorted: Vec<f64> = figures.into_iter().map(cap).filter(|figure| figure.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let value = sorted.get(sorted.len() / 2).copied()?;
    Some(BenchmarkFigure { name, value, low: sorted.first().copied()?, high: sorted.last().copied()?, unit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::bench::BenchPoint;
    use crate::gpu::bench::tests::measured;

    #[test]
    fn benchmark_figures_are_recovered() {
        let point = |kind, src, dst, bytes: u64, time_us: f64| BenchPoint {
            kind,
            load: Load::Alone,
            src,
            dst,
            blocks: None,
            threads: None,
            bytes,
            time_us,
            fastest_us: time_us,
            slowest_us: time_us,
            gb_per_s: Some(bytes as f64 / time_us / 1e3),
        };
        let copies = |src, dst| {
            // Test data: 360 GB/s of nominal 450 GB/s; 2.3 µs per small copy, of which 0.5 µs are path latency.
            [
                point(PointKind::CopyEngine, src, dst, 16, 2.3),
                point(PointKind::CopyEngine, src, dst, 360_000_000, 1000.0),
            ]
        };
        let mut points = vec![point(PointKind::PinnedToDevice, None, Some(0), 50_400_000, 1000.0)];
        points.extend(copies(Some(0), Some(1)).into_iter().chain(copies(Some(1), Some(0))));
        let bench = measured(2, points);
        let mut profile = Profile::ideal();
        let empty = Bench { points: Vec::new(), ..bench.clone() };
        assert_eq!(apply_benchmark(&mut profile, &empty).unwrap(), []);
        assert_eq!(profile, Profile::ideal());
        profile.links.nvlink = 0.9;
        let figures = apply_benchmark(&mut profile, &bench).unwrap();
        assert_eq!(
            figures.iter().map(|figure| figure.name).collect::<Vec<_>>(),
            ["links.pcie", "protocol.copy_engine.wire_efficiency", "protocol.copy_engine.step"]
        );
        let copy_engine = profile.protocol(Protocol::CopyEngine);
        // The nominal rate of PCIe 5.0 × 16 is 63.0 GB/s.
        assert!((profile.links.pcie - 0.8).abs() < 1e-3, "{}", profile.links.pcie);
        assert!((copy_engine.wire_efficiency - 0.8 / 0.9).abs() < 1e-9, "{}", copy_engine.wire_efficiency);
        assert_eq!(copy_engine.step, Picos::from_us(1.8));
    }
}
