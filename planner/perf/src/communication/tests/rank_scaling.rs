//! Comparison of times extrapolated from scaled-down groups with simulations of all ranks.

use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, NodeId, load};

use super::super::calls::CallWithStrategy;
use super::super::simulated::SimulatedCosts;
use super::{extrapolated_time, slowest};
use crate::step::tests::{rails, with_machine};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_workload::job::{Degrees, Dimension, Layout};

/// Returns the relative error of the extrapolated time for one group with messages of `kib` KiB per rank.
fn error(
    simulated: &SimulatedCosts<'_>,
    group: &[NodeId],
    (algorithm, collective, protocol, kib): (Algorithm, Collective, Protocol, u64),
) -> f64 {
    let strategy = Strategy::new(algorithm, protocol, 8);
    let call = CallWithStrategy { collective, bytes: Bytes(kib * 1024 * group.len() as u64), strategy };
    let groups = [group.to_vec()];
    let extrapolated = extrapolated_time(simulated, &groups, call).unwrap();
    let expected = slowest(simulated, &groups, call);
    extrapolated.0 as f64 / expected.0 as f64 - 1.0
}

/// Checks rings and trees on rails and on an oversubscribed fat tree, with all GPUs of the hosts and with one GPU per
/// host.
#[test]
fn extrapolated_rings_and_trees_are_within_1_3_percent() {
    let mut errors = Vec::new();
    let narrow = Some("fat_tree,nics_per_node=8,nic=400Gb/s,oversubscription=4".parse().unwrap());
    let narrow = FabricRequest { nodes: Some(96), network: narrow, ..FabricRequest::new("hgx-h100") };
    for (fabric, stride) in [(rails(96), 1), (load(&narrow).unwrap(), 1), (rails(640), 8)] {
        let group: Vec<NodeId> = fabric.gpus().iter().copied().step_by(stride).collect();
        for call in [
            (Algorithm::Ring, Collective::AllGather, Protocol::Ll128, 16),
            (Algorithm::Ring, Collective::ReduceScatter, Protocol::Simple, 1024),
            (Algorithm::Ring, Collective::AllReduce, Protocol::Simple, 128),
            (Algorithm::Tree, Collective::AllReduce, Protocol::Simple, 256),
            (Algorithm::Tree, Collective::AllReduce, Protocol::Ll128, 256),
        ] {
            let error = with_machine(&fabric, |machine| error(machine.simulated, &group, call));
            errors.push((error, format!("{}, every {stride}, {call:?}: {error:+.4}", fabric.name())));
        }
    }
    assert!(errors.iter().all(|(error, _)| error.abs() < 0.013), "{errors:#?}");
}

/// PAT with one GPU per host is extrapolated on rails. It is not extrapolated on a torus, where distant partners share
/// links that near partners do not.
#[test]
fn extrapolated_pat_is_within_4_5_percent() {
    let error = |fabric: &Fabric, kib: u64| {
        let group: Vec<NodeId> = fabric.gpus().iter().copied().step_by(8).collect();
        let groups = [group];
        with_machine(fabric, |machine| {
            let (algorithm, protocol) = (Algorithm::Pat, Protocol::Simple);
            let strategy = Strategy::new(algorithm, protocol, 16);
            let (collective, bytes) = (Collective::ReduceScatter, Bytes(kib * 1024 * groups[0].len() as u64));
            let call = CallWithStrategy { collective, bytes, strategy };
            let extrapolated = extrapolated_time(machine.simulated, &groups, call)?;
            let expected = slowest(machine.simulated, &groups, call);
            Some(extrapolated.0 as f64 / expected.0 as f64 - 1.0)
        })
    };
    let (even, uneven) = (rails(512), rails(600));
    for (fabric, kib, tolerance) in
        [(&even, 16, 0.01), (&even, 256, 0.01), (&even, 2048, 0.01), (&uneven, 64, 0.01), (&uneven, 1024, 0.045)]
    {
        let error = error(fabric, kib).unwrap();
        assert!(error.abs() < tolerance, "{kib}: {error:+.4}");
    }
    assert_eq!(error(&even, 1), None);
    let torus = Some("torus,nic=400Gb/s".parse().unwrap());
    let torus = load(&FabricRequest { nodes: Some(512), network: torus, ..FabricRequest::new("hgx-h100") }).unwrap();
    assert_eq!(error(&torus, 1024), None);
}

/// Groups that share links are extrapolated on machines with a partly filled last domain or with periodic rank counts
/// per domain. Rings that share links only at full scale are not extrapolated.
#[test]
fn extrapolated_concurrent_rings_are_within_1_percent() {
    for (preset, nodes, network, tensor, is_extrapolated) in [
        ("hgx-h100", 160, "dragonfly,nic=400Gb/s", 8, false),
        ("hgx-h100", 192, "dragonfly,nic=400Gb/s", 8, true),
        ("hgx-h100", 160, "torus,nic=400Gb/s", 8, true),
        ("gb200-nvl72", 400, "", 8, true),
        ("gb200-nvl72", 700, "", 16, true),
    ] {
        let network = (!network.is_empty()).then(|| network.parse().unwrap());
        let fabric = load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new(preset) }).unwrap();
        let data = fabric.gpus().len() as u32 / tensor;
        let layout = Layout { degrees: Degrees { tensor, data, ..Degrees::default() } };
        with_machine(&fabric, |machine| {
            for (collective, protocol) in
                [(Collective::AllGather, Protocol::Simple), (Collective::AllReduce, Protocol::Ll128)]
            {
                let groups =
                    machine.simulated.placement().concurrent_groups(&layout.groups(Dimension::Data), collective);
                let strategy = Strategy::new(Algorithm::Ring, protocol, 8);
                let bytes = Bytes((1 << 20) * groups[0].len() as u64);
                let call = CallWithStrategy { collective, bytes, strategy };
                let extrapolated = extrapolated_time(machine.simulated, &groups, call);
                assert_eq!(extrapolated.is_some(), is_extrapolated, "{preset} x {nodes}");
                if let Some(extrapolated) = extrapolated {
                    let expected = slowest(machine.simulated, &groups, call);
                    let error = extrapolated.0 as f64 / expected.0 as f64 - 1.0;
                    assert!(error.abs() < 0.01, "{preset} x {nodes}, {collective}: {error:+.4}");
                }
            }
        });
    }
}
