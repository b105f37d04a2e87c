//! Packed trees of hosts that are alike: one root per class has trees, and those of others are their images.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::packing::Forests;
use fabricast_sim::certify;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Schedule, Symmetry};
use fabricast_sim::timeline::Folding;
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_sim::{LaunchMode, SimulationOptions, simulate};
use fabricast_topologies::Bytes;
use fabricast_topologies::route::{RouteOptions, Router};

use crate::generators::{ChunkOrder, is_symmetric};
use crate::tree_packing::{call, hosts, packer};

/// Each host of 8 H100 receives all blocks of others, a NIC as many as there are other hosts, at 50 GB/s, or NVLink, at
/// 450 GB/s, moves all blocks but those of NICs.
#[test]
fn trees_of_rails_reach_the_closed_form_of_their_optimum() {
    for nodes in [2, 3, 16, 40] {
        let fabric = hosts("hgx-h100", nodes, "rail");
        let router = Router::new(&fabric, RouteOptions::default());
        let Forests { spread, proof, .. } =
            packer(&fabric, &router, None).unwrap().forests(Collective::AllGather).unwrap();
        let (edges, ranks) = (f64::from(8 * nodes - 1), f64::from(8 * nodes));
        let over_nics = f64::from(nodes - 1).max(edges / 10.0);
        let optimum = (over_nics / 50e9).max((edges - over_nics) / 450e9) / ranks;
        let proof = proof.unwrap();
        assert!((proof.lower.value() / optimum - 1.0).abs() < 1e-9, "{nodes}: {} {optimum}", proof.lower.value());
        assert!((1.0..1.01).contains(&(proof.upper.value() / optimum)), "{nodes}: {}", proof.upper.value() / optimum);
        let spread = spread.unwrap();
        assert_eq!(spread.symmetry.rotation_count(), 8 * nodes);
        assert!(spread.trees.iter().all(|tree| tree.root == 0));
    }
}

/// Schedules have the symmetry of their trees, move all data, have a certificate, and take the same time if every
/// operation is simulated.
#[test]
fn schedules_of_images_are_correct() {
    let collectives = [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce, Collective::AllToAll];
    for (preset, nodes, network) in [("hgx-h100", 3, "rail"), ("hgx-h100", 4, "fat_tree,radix=4")] {
        let fabric = hosts(preset, nodes, network);
        let router = Router::new(&fabric, RouteOptions::default());
        let packer = packer(&fabric, &router, None).unwrap();
        for (collective, buffers) in collectives
            .into_iter()
            .flat_map(|collective| [(collective, BufferUse::OutOfPlace), (collective, BufferUse::InPlace)])
        {
            let call = Call { buffers, ..call(collective, 3 << 20, &fabric) };
            let forests = packer.forests(collective).unwrap();
            let channels = forests.channels;
            let shape = Shape {
                forests: Some(forests),
                channels,
                chunk: Some(Bytes(64 << 10)),
                ..Shape::new(call, Protocol::Simple)
            };
            let generator = generator(Algorithm::TreePacking, &shape).unwrap();
            let schedule = Schedule::build(&*generator).unwrap();
            verify(&schedule, &VerifyOptions::default()).unwrap();
            let Symmetry::Rotations(digits) = generator.symmetry() else {
                panic!("{preset} {collective}: no symmetry");
            };
            for digit in digits {
                is_symmetric(&schedule, digit, ChunkOrder::Same).unwrap();
            }
            certify::check(&schedule, &fabric, &router, fabric.gpus()).unwrap();
            let profile = Profile::ideal();
            let setting = Environment {
                fabric: &fabric,
                router: &router,
                placement: fabric.gpus(),
                profile: &profile,
                delays: &[],
            };
            let time = |folding: Folding| {
                let options = SimulationOptions { folding, ..SimulationOptions::default() };
                simulate(&*generator, setting, LaunchMode::default(), options, Watch::default()).unwrap().time
            };
            assert_eq!(time(Folding::WhereProved), time(Folding::Off), "{preset} {collective} {buffers:?}");
        }
    }
}
