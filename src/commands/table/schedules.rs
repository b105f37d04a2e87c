//! Schedules of a plan's strategies, generated for the plan's fabric.

use fabricast_collectives::algorithm::{self, Shape};
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::candidates::{PlacedRanks, Restriction};
use fabricast_search::export::schedules;
use fabricast_search::export::{DroppedStrategy, SavedPlan};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::format::Format;
use fabricast_sim::schedule::{BufferUse, Call, Rank, Schedule};
use fabricast_topologies::Fabric;
use fabricast_topologies::route::Router;

use crate::args::{LibraryArgs, LibraryChoice, TableArgs, WhatIfArgs};
use crate::commands::verified;
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;

/// Generates the schedule files of a plan and passes name and text of each to `stage_file`. Also returns the entries
/// that the format cannot represent. The fabric is that of the flags, else that of the plan.
///
/// # Errors
/// [`Failure`]: the plan states no fabric, its number of ranks differs from the fabric's, or a schedule is wrong.
pub fn files<K: Send>(
    plan: &SavedPlan,
    format: Format,
    args: &TableArgs,
    output: &Output,
    stage_file: impl Fn(&str, &str) -> Result<K, Failure> + Sync,
) -> Result<(Vec<K>, Vec<DroppedStrategy>), Failure> {
    let mut size = args.size.clone();
    let name = match (&args.fabric, &plan.request) {
        (Some(name), _) => name.clone(),
        (None, Some(request)) => {
            size.nodes = size.nodes.or(request.nodes);
            size.gpus = size.gpus.or(request.gpus);
            request.fabric.clone()
        }
        (None, None) => {
            return Err(Failure::input_with_help(
                "the plan does not state its fabric, which schedules need",
                "name it with --fabric, --nodes and --network, as for the plan",
            ));
        }
    };
    let fabric = setup::fabric(&name, &size, &WhatIfArgs::default(), output)?;
    let placement = setup::ranks(&fabric, 1)?;
    if placement.len() as u32 != plan.ranks {
        return Err(Failure::input(format!("{name} has {} ranks, the plan {}", placement.len(), plan.ranks)));
    }
    let profile = profile(plan, args, &fabric)?;
    let router = Router::new(&fabric, setup::route_options(&size));
    let ranks_per_node = fabric.max_devices_per_host(&placement);
    let in_network = if args.no_nvls { InNetwork::Off } else { InNetwork::Allowed };
    let restriction =
        Restriction { algorithms: plan.algorithms(), trees: plan.trees, in_network, ..Restriction::default() };
    let capabilities = restriction.capabilities(&PlacedRanks {
        fabric: &fabric,
        router: &router,
        placement: &placement,
        root: plan.root,
        ranks_per_node,
    });
    let buffers = if plan.in_place { BufferUse::InPlace } else { BufferUse::OutOfPlace };
    let generate = |collective, bytes, strategy: Strategy| {
        let call = Call { collective, bytes, ranks: plan.ranks, root: Rank(plan.root), buffers };
        let shape = Shape {
            grid: fabric.host_grid().to_vec(),
            ..strategy.shape(call, &profile, ranks_per_node, &capabilities)
        };
        let generator = algorithm::generator(strategy.algorithm, &shape).map_err(|error| error.to_string());
        let built =
            generator.and_then(|generator| Schedule::build(generator.as_ref()).map_err(|error| error.to_string()));
        if let Ok(schedule) = &built {
            verified::check(schedule, &args.verify)?;
        }
        Ok(built)
    };
    if args.verify.no_verify {
        output.warn(&format!("schedules are {}", verified::NOT_VERIFIED));
    }
    schedules::write(plan, format, generate, stage_file)
}

/// Profile that the flags name, otherwise that of the plan: its requested profile, or the one that best matches the
/// fabric.
fn profile(plan: &SavedPlan, args: &TableArgs, fabric: &Fabric) -> Result<Profile, Failure> {
    if args.costs.profile.is_some() {
        return setup::profile(&args.costs, fabric);
    }
    if let Some(name) = plan.request.as_ref().and_then(|request| request.profile.as_deref()) {
        return setup::named_profile(name);
    }
    let flags = LibraryArgs { library: plan.library.map(LibraryChoice::One), ..args.library.clone() };
    let nearest = setup::library_profile(&flags, &args.costs, fabric)?;
    if nearest.name == plan.profile {
        return Ok(nearest);
    }
    setup::named_profile(&plan.profile).map_err(|_| {
        Failure::input_with_help(
            format!("the plan was made with the profile `{}`, and does not give its path", plan.profile),
            "name it with --profile, as for the plan",
        )
    })
}
