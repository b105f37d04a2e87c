//! Chunks and loops are pipelined through chains and rings at the rate of the closed forms. Ranks are attached to one
//! switch: a path has two links, so its latency is twice a link's; its bandwidth is the port's.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::{Folding, LaunchMode, SimulationOptions, simulate};
use fabricast_topologies::fabric::{Figures, LinkSpec};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Bytes, Fabric, FabricBuilder, LinkKind, NodeKind, Picos};

/// Latency of a path, in picoseconds.
const LATENCY: f64 = 700_000.0;
/// Port bandwidth, in bytes per picosecond.
const BANDWIDTH: f64 = 0.4;

fn star(ranks: u32) -> Fabric {
    let mut builder = FabricBuilder::new("star");
    let host = builder.host("a");
    let switch = builder.node("sw", NodeKind::Nvswitch, host, Figures::None).unwrap();
    let link = LinkSpec::symmetric(LinkKind::Nvlink, Bandwidth(400_000_000_000), Picos(350_000));
    for rank in 0..ranks {
        let gpu = builder.node(&format!("gpu{rank}"), NodeKind::Gpu, host, Figures::None).unwrap();
        builder.link(gpu, switch, &link);
    }
    builder.finish()
}

/// Returns the simulated time in picoseconds.
fn time(algorithm: Algorithm, shape: &Shape, folding: Folding) -> f64 {
    let fabric = star(shape.call.ranks);
    let router = Router::new(&fabric, RouteOptions::default());
    let setting = Environment {
        fabric: &fabric,
        router: &router,
        placement: fabric.gpus(),
        profile: &Profile::ideal(),
        delays: &[],
    };
    let generator = generator(algorithm, shape).unwrap();
    let options = SimulationOptions { folding, ..SimulationOptions::default() };
    simulate(&*generator, setting, LaunchMode::default(), options, Watch::default()).unwrap().time.0 as f64
}

#[test]
fn chunks_are_pipelined_along_chains() {
    let (ranks, bytes) = (8u32, 1u64 << 20);
    for (chunks, collective) in [(4, Collective::Broadcast), (16, Collective::Broadcast), (16, Collective::Reduce)] {
        let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(3), buffers: BufferUse::InPlace };
        let shape = Shape { chunk: Some(Bytes(bytes / chunks)), ..Shape::new(call, Protocol::Simple) };
        let (n, k) = (f64::from(ranks), chunks as f64);
        let transfer = bytes as f64 / k / BANDWIDTH;
        let expected = (n - 1.0) * (LATENCY + transfer) + (k - 1.0) * transfer;
        let actual = time(Algorithm::Ring, &shape, Folding::Off);
        assert!((actual - expected).abs() < 100.0, "{chunks} chunks: {actual} ps, expected {expected}");
    }
}

#[test]
fn loops_of_a_ring_are_pipelined() {
    // A few loops are expanded one by one, and many loops step by step.
    for (ranks, loops) in [(8u32, 2u64), (4, 32)] {
        let bytes = 1u64 << 20;
        let call = Call {
            collective: Collective::AllReduce,
            bytes: Bytes(bytes),
            ranks,
            root: Rank(0),
            buffers: BufferUse::InPlace,
        };
        let chunk = bytes / loops / u64::from(ranks);
        let shape = Shape { chunk: Some(Bytes(chunk)), ..Shape::new(call, Protocol::Simple) };
        let steps = loops as f64 * 2.0 * (f64::from(ranks) - 1.0);
        let expected = steps * (LATENCY + chunk as f64 / BANDWIDTH);
        let actual = time(Algorithm::Ring, &shape, Folding::WhereProved);
        assert!((actual - expected).abs() < steps, "{loops} loops: {actual} ps, expected {expected}");
    }
}
