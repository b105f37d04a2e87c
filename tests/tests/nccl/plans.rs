//! Plans that compare the pick with the library's own choice.

use fabricast_planner::bound::InNetwork;
use fabricast_planner::library::{Chooser, Conditions, Library, Offer, Registered};
use fabricast_planner::plan::{Effort, Plan, PlanRequest, Watcher, plan};
use fabricast_planner::strategy::Restriction;
use fabricast_sim::LaunchMode;
use fabricast_sim::profile::{Launch, Processes, Profile};
use fabricast_sim::schedule::{BufferUse, Collective};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, load};

fn planned(fabric: &str, library: &str, restricted: bool, collectives: &[Collective]) -> Plan {
    let fabric = load(&FabricRequest::of(fabric)).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let library: Library = library.parse().unwrap();
    let conditions = Conditions { in_network: InNetwork::Off, ..Conditions::default() };
    let chooser = Chooser::new(library, &fabric, &router, fabric.gpus(), conditions);
    let restriction = Restriction {
        in_network: InNetwork::Off,
        library: restricted.then_some(Offer::new(library, Registered::Plain)),
        ..Restriction::default()
    };
    let request = PlanRequest {
        matrix: None,
        library: Some(&chooser),
        fabric: &fabric,
        router: &router,
        placement: fabric.gpus(),
        profile: &Profile::for_fabric(&fabric).unwrap(),
        ranks_per_node: 8,
        mode: LaunchMode { launch: Launch::Graph, processes: Processes::PerGpu, gpus_per_host: 8 },
        buffers: BufferUse::OutOfPlace,
        root: 0,
        collectives,
        sizes: &[Bytes(1 << 10), Bytes(1 << 16), Bytes(1 << 22), Bytes(1 << 27)],
        restriction: &restriction,
        effort: Effort::Contenders,
    };
    plan(&request, Watcher::default()).unwrap()
}

#[test]
fn the_pick_is_no_worse_than_the_librarys_choice() {
    for (fabric, library) in [("hgx-h200", "nccl-2.28.9"), ("l40s-pcie", "nccl"), ("dgx-v100", "open_mpi-5.0")] {
        let found = planned(fabric, library, false, &[Collective::AllReduce, Collective::AllGather]);
        let known = found.rows.iter().filter_map(|row| Some((row, row.library_default.as_ref()?)));
        assert!(known.clone().count() > 0, "{fabric}");
        for (row, default) in known {
            // Fewer channels may cost a percent.
            assert!(default.regret(&row.pick) > -0.011, "{fabric} {}: {default:?}, {:?}", row.bytes, row.pick);
        }
    }
}

#[test]
fn a_library_restricts_picks_to_what_it_runs() {
    let found = planned("hgx-h200", "nccl-2.28.9", true, &[Collective::AllReduce, Collective::AllToAll]);
    let library = found.library.unwrap();
    for row in &found.rows {
        let pick = row.pick.strategy;
        let offer = Offer::new(library, Registered::Plain);
        assert!(offer.runs(pick.algorithm, pick.protocol, row.collective), "{pick}");
    }
    assert!(found.library_unknown.is_empty());
}

#[test]
fn unknown_choices_are_reported_once() {
    let found = planned("dgx-v100", "nccl", false, &[Collective::AllReduce, Collective::Broadcast]);
    assert!(found.rows.iter().all(|row| row.library_default.is_none()));
    assert_eq!(found.library_unknown.len(), 1, "{:?}", found.library_unknown);
}
