//! Plans that compare the pick with the library's own choice.

use fabricast_collectives::bound::InNetwork;
use fabricast_libraries::{BufferRegistration, Chooser, Conditions, Library, LibraryCapabilities};
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{Effort, Plan, PlanRequest, plan};
use fabricast_sim::LaunchMode;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{Launch, Processes, Profile};
use fabricast_sim::schedule::{BufferUse, Collective};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, load};

/// Any strategy without in-network reduction.
const UNRESTRICTED: Restriction = Restriction {
    algorithms: Vec::new(),
    protocols: Vec::new(),
    channels: Vec::new(),
    chunk: None,
    trees: None,
    in_network: InNetwork::Off,
    library: None,
};

fn plan_with_library(fabric: &str, library: &str, restriction: &Restriction, collectives: &[Collective]) -> Plan {
    let fabric = load(&FabricRequest::new(fabric)).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let library: Library = library.parse().unwrap();
    let conditions = Conditions { in_network: InNetwork::Off, ..Conditions::default() };
    let chooser = Chooser::new(library, &fabric, &router, fabric.gpus(), conditions);
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
        restriction,
        effort: Effort::Contenders,
    };
    plan(&request, Monitor::default()).unwrap()
}

#[test]
fn the_pick_is_no_worse_than_the_librarys_choice() {
    for (fabric, library) in [("hgx-h200", "nccl-2.28.9"), ("l40s-pcie", "nccl"), ("dgx-v100", "open_mpi-5.0")] {
        let plan = plan_with_library(fabric, library, &UNRESTRICTED, &[Collective::AllReduce, Collective::AllGather]);
        let with_default = plan.rows.iter().filter_map(|row| Some((row, row.library_default.as_ref()?)));
        assert!(with_default.clone().count() > 0, "{fabric}");
        for (row, default) in with_default {
            // Fewer channels may cost a percent.
            assert!(
                default.default_slowdown(&row.pick) > -0.011,
                "{fabric} {}: {default:?}, {:?}",
                row.bytes,
                row.pick
            );
        }
    }
}

#[test]
fn a_library_restricts_picks_to_what_it_runs() {
    let library = "nccl-2.28.9";
    let capabilities = LibraryCapabilities::new(library.parse().unwrap(), BufferRegistration::Plain);
    let restriction = Restriction { library: Some(capabilities), ..UNRESTRICTED };
    let plan = plan_with_library("hgx-h200", library, &restriction, &[Collective::AllReduce, Collective::AllToAll]);
    for row in &plan.rows {
        let pick = row.pick.strategy;
        assert!(capabilities.runs(pick.algorithm, pick.protocol, row.collective), "{pick}");
    }
    assert!(plan.library_unknown.is_empty());
}

/// The profile's default for LL, which is also NCCL's chunk of a ring.
#[test]
fn the_librarys_choice_competes_if_its_chunk_is_demanded() {
    let chunk = Some(Bytes(32 << 10));
    let restriction = Restriction { chunk, ..UNRESTRICTED };
    let plan = plan_with_library("hgx-h200", "nccl-2.28.9", &restriction, &[Collective::AllGather]);
    let defaults = plan.rows.iter().filter_map(|row| row.library_default.as_ref());
    let mut with_chunk = defaults.filter(|default| default.choice.strategy.chunk == chunk).peekable();
    assert!(with_chunk.peek().is_some());
    for default in with_chunk {
        assert!(restriction.allows(&default.timed.strategy, Collective::AllGather), "{default:?}");
    }
}

#[test]
fn unknown_choices_are_reported_once() {
    let plan = plan_with_library("dgx-v100", "nccl", &UNRESTRICTED, &[Collective::AllReduce, Collective::Broadcast]);
    assert!(plan.rows.iter().all(|row| row.library_default.is_none()));
    assert_eq!(plan.library_unknown.len(), 1, "{:?}", plan.library_unknown);
}
