//! Tests of the costs of a profile and completion times: parts add up, and times change continuously with costs and
//! grow with bytes.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::breakdown::breakdown;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::{LaunchMode, SimulateError, SimulationOptions, Timeline, simulate};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, load};
use fabricast_validate::calibrate::{Cost, FitParameter};
use proptest::prelude::*;
use proptest::sample::select;

/// Ring on one host.
#[derive(Clone, Copy, Debug)]
struct Ring {
    gpus: u32,
    collective: Collective,
    protocol: Protocol,
    channels: u16,
    bytes: u64,
}

fn rings() -> impl Strategy<Value = Ring> {
    let collectives = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
    let protocols = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];
    (
        select(vec![2u32, 4, 8]),
        select(collectives.to_vec()),
        select(protocols.to_vec()),
        1u16..=24,
        3u32..24,
        0.5f64..1.0,
    )
        .prop_map(|(gpus, collective, protocol, channels, power, part)| Ring {
            gpus,
            collective,
            protocol,
            channels,
            bytes: ((1u64 << power) as f64 * part) as u64 + 1,
        })
}

fn host(gpus: u32) -> Fabric {
    load(&FabricRequest { gpus: Some(gpus), ..FabricRequest::new("hgx-h200") }).unwrap()
}

/// Number of warps of the largest block.
const WARPS: u64 = 20;

fn shipped() -> Profile {
    Profile::named("nccl-2.28-h200").unwrap()
}

impl Ring {
    fn mode(self) -> LaunchMode {
        LaunchMode { gpus_per_host: self.gpus, ..LaunchMode::default() }
    }

    /// Simulates the ring with the chunk size of the shipped profile, whatever the profile.
    fn run(self, fabric: &Fabric, profile: &Profile) -> Result<Timeline, SimulateError> {
        let call = Call {
            collective: self.collective,
            bytes: Bytes(self.bytes),
            ranks: self.gpus,
            root: Rank(0),
            buffers: BufferUse::OutOfPlace,
        };
        let chunk = shipped().protocol(self.protocol).chunk;
        let shape = Shape { channels: self.channels, chunk, ..Shape::new(call, self.protocol) };
        let schedule = generator(Algorithm::Ring, &shape).unwrap();
        let router = Router::new(fabric, RouteOptions::default());
        let setting = Environment { fabric, router: &router, placement: fabric.gpus(), profile, delays: &[] };
        simulate(&*schedule, setting, self.mode(), SimulationOptions::default(), Watch::default())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The parts of a time add up to it, within the error of finite differences of 1 % in both directions. Between
    /// shorter and longer costs, the maximum of several chains may grow by 1/99 more than its own share, or fall short
    /// by 1/100 of its costs. A block's time is counted to 1/32,256 at both ends, and every cost of a step is rounded
    /// to half a picosecond at both ends (per warp for costs of warps). Differences are multiplied by fifty. A longer cost
    /// can shorten a run, because a block that waits longer does the work of `reload` meanwhile; such parts count as 0, and
    /// the sum exceeds the time by what they would take from it.
    #[test]
    fn parts_of_a_breakdown_add_up_to_the_time(ring in rings()) {
        let (fabric, profile) = (host(ring.gpus), shipped());
        let timeline = ring.run(&fabric, &profile).unwrap();
        let mut times = Vec::new();
        let result = breakdown(&profile, ring.protocol, ring.mode(), |profile| {
            let timeline = ring.run(&fabric, profile);
            times.extend(timeline.as_ref().ok().map(|timeline| timeline.time.0));
            timeline
        });
        let result = result.unwrap();
        // The first run is that of the profile itself.
        let shortened: u64 = times[1..].windows(2).map(|pair| 50 * pair[0].saturating_sub(pair[1])).sum();
        let sum: Picos = result.parts.iter().map(|part| part.time).sum::<Picos>() + result.unexplained;
        let steps = timeline.operations.div_ceil(u64::from(ring.gpus) * u64::from(ring.channels));
        let tolerance = result.time.0 / 99 + 2 * 50 * result.time.0 / 32_256 + 50 * WARPS * result.parts.len() as u64 * steps;
        prop_assert!(sum >= result.time && sum.0 - result.time.0 <= tolerance + shortened, "{sum} {tolerance} {:?}", result);
        prop_assert!(result.unexplained.0 <= tolerance, "{tolerance} {result:?}");
        let names: std::collections::BTreeSet<&String> = result.parts.iter().map(|part| &part.name).collect();
        prop_assert_eq!(names.len(), result.parts.len());
    }

    /// A cost that is longer by one thousandth changes a time by at most three thousandths.
    #[test]
    fn times_change_continuously_with_costs(ring in rings(), cost in select(Cost::all().to_vec()), links in any::<bool>()) {
        let (fabric, profile) = (host(ring.gpus), shipped());
        let parameter = if links { FitParameter::Nvlink } else { FitParameter::Protocol(ring.protocol, cost) };
        prop_assume!(parameter.applies(&profile));
        let mut changed = profile.clone();
        parameter.set(&mut changed, parameter.get(&profile) * 1.001);
        let times = [&profile, &changed].map(|profile| ring.run(&fabric, profile).unwrap().time.0 as f64);
        // Costs are stored to a picosecond and `settle_half` to a byte; a run charges them some hundred times.
        prop_assert!((times[1] - times[0]).abs() <= 0.003 * times[0] + 50_000.0, "{} {times:?}", parameter.name());
    }

    /// Time does not decrease with bytes, for the same channels, threads and chunks. A block's time is counted in parts
    /// of the bytes on the wire, with an error of up to 1/32,256 at 1 TB/s.
    #[test]
    fn time_does_not_decrease_with_bytes(ring in rings(), more in 1.0f64..3.0) {
        let (fabric, profile) = (host(ring.gpus), shipped());
        let larger = Ring { bytes: (ring.bytes as f64 * more) as u64 + 1, ..ring };
        let [less, more] = [ring, larger].map(|ring| ring.run(&fabric, &profile).unwrap().time);
        prop_assert!(less.0 <= more.0 + more.0 / 32_256, "{less} {more} {larger:?}");
    }
}
