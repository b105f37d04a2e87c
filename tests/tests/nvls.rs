//! Tests of reduction and multicast in switches: closed forms, traffic on links, folding, and rejected cases.

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::{FabricCapabilities, NoMulticast};
use fabricast_sim::Folding;
use fabricast_sim::SimulateError;
use fabricast_sim::lower::{LowerError, Resource};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, load, read};
use proptest::prelude::*;

use crate::generators::Case;
use crate::testbed::Testbed;

/// Returns `ranks` GPUs on one switch with multicast and reduction, with links of one byte per picosecond and 300 ns.
fn combining_switch(ranks: u32) -> Fabric {
    let mut text = "name = \"combining\"\n[[node]]\nid = \"sw\"\nkind = \"nvswitch\"\nmulticast = true\n".to_owned();
    for rank in 0..ranks {
        text += &format!("[[node]]\nid = \"gpu{rank}\"\nkind = \"gpu\"\n[[link]]\na = \"gpu{rank}\"\nb = \"sw\"\n");
        text += "kind = \"nvlink\"\nbandwidth = \"1000 GB/s\"\nlatency = \"300 ns\"\n";
    }
    read::spec::parse(&text, "combining.toml").unwrap().build_nodes().unwrap()
}

fn hosts(preset: &str, nodes: u32) -> Fabric {
    load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::new(preset) }).unwrap()
}

fn case(algorithm: Algorithm, collective: Collective, ranks: u32, per_team: u32, bytes: u64, channels: u16) -> Case {
    let call = Call { collective, bytes: Bytes(bytes), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
    let shape = Shape { channels, ranks_per_team: per_team, ..Shape::new(call, Protocol::Simple) };
    Case { algorithm, shape }
}

fn capabilities(fabric: &Fabric, in_network: InNetwork) -> FabricCapabilities {
    FabricCapabilities::new(fabric, &Testbed::ideal(fabric.clone()).router(), fabric.gpus(), 8, in_network)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A load of 1/n of the bytes from every rank takes L + bytes/B, and so does a store to every rank.
    #[test]
    fn nvls_ports_carry_the_bytes_once_per_direction(ranks in 2u32..20, kib in 1u64..2000, channels in 1u16..5) {
        // Every part has whole bytes, and a link carries one byte per picosecond.
        let bytes = kib * 1024 * u64::from(ranks) * u64::from(channels);
        let testbed = Testbed::ideal(combining_switch(ranks));
        let step = 600_000 + bytes;
        for (collective, steps, sent_per_rank) in [
            (Collective::AllReduce, 2, bytes + bytes / u64::from(ranks)),
            (Collective::ReduceScatter, 1, bytes),
            (Collective::AllGather, 1, bytes / u64::from(ranks)),
        ] {
            let case = case(Algorithm::Nvls, collective, ranks, ranks, bytes, channels);
            let timeline = testbed.run(&*case.generator(), Folding::Off).unwrap();
            let folded = testbed.run(&*case.generator(), Folding::WhereProved).unwrap();
            prop_assert_eq!(timeline.time, folded.time);
            // Shares of a port are whole rates, whose rounding down costs a picosecond or two.
            let excess = timeline.time.0.checked_sub(steps * step);
            prop_assert!(excess.is_some_and(|excess| excess <= 4 * steps), "{collective}: {:?}", timeline.time);
            let uplink = testbed.fabric.outgoing_links(testbed.fabric.gpus()[0])[0];
            let used = timeline.utilization.iter().find(|used| used.resource == Resource::Link(uplink)).unwrap();
            prop_assert!((used.bytes - sent_per_rank as f64).abs() < 1.0, "{collective}: {}", used.bytes);
        }
    }

    /// With many loops, the loads of one overlap the stores of another: (1 + 1/n)·bytes/B plus a start-up time.
    #[test]
    fn nvls_loops_overlap_loads_and_stores(ranks in 2u32..17, loops in 8u64..40) {
        let chunk = 1 << 20;
        let bytes = chunk * loops * u64::from(ranks);
        let mut case = case(Algorithm::Nvls, Collective::AllReduce, ranks, ranks, bytes, 1);
        case.shape.chunk = Some(Bytes(chunk));
        let time = Testbed::ideal(combining_switch(ranks)).run(&*case.generator(), Folding::WhereProved).unwrap().time;
        let min_time = bytes + bytes / u64::from(ranks);
        prop_assert!(time.0 >= min_time);
        let startup = 3 * (600_000 + chunk * u64::from(ranks));
        prop_assert!(time.0 <= min_time + startup + loops * 600_000, "{time:?} for {min_time}");
    }
}

#[test]
fn nvls_trees_between_domains_fold() {
    let testbed = Testbed::ideal(hosts("hgx-h200", 4));
    let tree = case(Algorithm::NvlsTree, Collective::AllReduce, 32, 8, 1 << 24, 2);
    let (unfolded, folded) = (Folding::Off, Folding::WhereProved);
    let [unfolded, folded] = [unfolded, folded].map(|folding| testbed.run(&*tree.generator(), folding).unwrap());
    assert_eq!(unfolded.time, folded.time);
    assert!(folded.fold_factor.is_some_and(|factor| factor >= 8.0), "{:?}", folded.fold_factor);
    // The depth is two steps within domains, and two up and two down between them.
    assert!(unfolded.time > Picos::from_us(4.0 * 2.0));
}

#[test]
fn multicast_requires_switches_that_support_it() {
    let h200 = hosts("hgx-h200", 1);
    assert_eq!(capabilities(&h200, InNetwork::Allowed).multicast, Ok(8));
    assert_eq!(capabilities(&h200, InNetwork::Off).multicast, Err(NoMulticast::SwitchedOff));
    assert_eq!(capabilities(&hosts("hgx-h200", 3), InNetwork::Allowed).multicast, Ok(8));
    assert_eq!(capabilities(&hosts("gb200-nvl72", 18), InNetwork::Allowed).multicast, Ok(72));
    assert_eq!(
        capabilities(&hosts("dgx-a100", 1), InNetwork::Allowed).multicast,
        Err(NoMulticast::NoInNetworkOperations)
    );
    assert_eq!(capabilities(&hosts("l40s-pcie", 1), InNetwork::Allowed).multicast, Err(NoMulticast::NoSwitch));

    let a100 = Testbed::ideal(hosts("dgx-a100", 1));
    let result = a100.run(&*case(Algorithm::Nvls, Collective::AllReduce, 8, 8, 1024, 1).generator(), Folding::Off);
    assert!(matches!(result, Err(SimulateError::Lower(LowerError::NoMulticast { .. }))), "{result:?}");
}
