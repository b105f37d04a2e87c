//! From flags to what the crates want: the fabric, its routes, the ranks, the profile.

use std::path::Path;

use fabricast_planner::bound::InNetwork;
use fabricast_planner::library::nccl::Settings;
use fabricast_planner::library::{Chooser, Conditions, Library, Offer};
use fabricast_planner::strategy::Restriction;
use fabricast_sim::flows::{self, Flow};
use fabricast_sim::profile::{self, MeasuredNetwork, Profile, Software};
use fabricast_sim::{LaunchMode, lower::Setting};
use fabricast_topologies::read::Limit;
use fabricast_topologies::route::{BufferPlace, GpuDirect, PeerAccess, RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, NodeId, Picos, partition};
use rustc_hash::FxHashMap;

use crate::args::{
    Buffers, CallArgs, ClusterArgs, CostArgs, FabricArgs, Launch, LibraryArgs, LibraryChoice, Processes, StrategyArgs,
    WhatIfArgs,
};
use crate::failure::Failure;
use crate::output::Output;

/// Loads a fabric as the flags say, failures and slow links included, and passes its warnings on.
pub fn fabric(name: &str, size: &ClusterArgs, what_if: &WhatIfArgs, output: &Output) -> Result<Fabric, Failure> {
    let request = FabricRequest {
        fabric: name.to_owned(),
        nodes: size.nodes,
        gpus: size.gpus,
        network: size.network.clone(),
        gpu: size.gpu_model.clone(),
    };
    let whole = if name == "auto" { auto(&request)? } else { fabricast_topologies::load(&request)? };
    let mut fabric = partition::apply(whole, &size.mig)?;
    let whole = fabric.gpus().len();
    for failed in &what_if.fail {
        fabric = fabric.without(failed)?;
    }
    let left = fabric.gpus().len();
    if left < whole {
        output.warn(&format!("{left} of {whole} GPUs are left, and ranks are numbered over those"));
    }
    for slow in &what_if.slow {
        let (link, factor) = slow_link(slow)?;
        fabric = fabric.slowed(link, factor)?;
    }
    for warning in fabric.warnings() {
        output.warn(warning);
    }
    Ok(fabric)
}

/// The fabric of this machine: needs its GPUs.
fn auto(request: &FabricRequest) -> Result<Fabric, Failure> {
    let found = fabricast_validate::gpu::probe(&fabricast_validate::gpu::Choices::default())?;
    Ok(fabricast_topologies::expand(&found.fabric()?, request)?)
}

/// Says where the figures come from, if details are wanted.
pub fn sources(fabric: &Fabric, profile: &Profile, output: &Output) {
    for source in fabric.sources() {
        output.detail(&format!("fabric {}: {source}", fabric.name()));
    }
    for source in &profile.sources {
        output.detail(&format!("profile {}: {source}", profile.name));
    }
}

/// `LINK=FACTOR`, with a factor over 0 and at most 1.
fn slow_link(text: &str) -> Result<(&str, f64), Failure> {
    let (link, factor) = text.rsplit_once('=').unwrap_or((text, ""));
    match factor.parse::<f64>() {
        Ok(part) if part > 0.0 && part <= 1.0 => Ok((link, part)),
        _ => Err(Failure::input(format!(
            "--slow {text}: expected LINK=FACTOR with a factor over 0 and at most 1, as in gpu0-nvswitch0=0.5"
        ))),
    }
}

/// How traffic may travel.
pub fn route_options(size: &ClusterArgs) -> RouteOptions {
    RouteOptions {
        p2p: if size.no_p2p { PeerAccess::Off } else { PeerAccess::Allowed },
        gdr: if size.no_gdr { GpuDirect::Off } else { GpuDirect::Allowed },
        ecmp: size.ecmp,
        ..RouteOptions::default()
    }
}

/// How the traffic of calls may travel, and where their buffers lie.
pub fn call_options(flags: &FabricArgs, fabric: &Fabric) -> Result<RouteOptions, Failure> {
    let buffers = match &flags.buffers {
        Buffers::Place(place) => *place,
        Buffers::Peer(name) => {
            let failed = |why: String| Failure::input(format!("--buffers peer={name}: {why}"));
            let peer = fabric.device(name).map_err(|error| failed(error.to_string()))?;
            if !fabric.node(peer).kind.is_rank() {
                return Err(failed(format!("{name} has no memory for buffers: expected a GPU")));
            }
            BufferPlace::Peer(peer)
        }
    };
    let options = RouteOptions { buffers, ..route_options(&flags.size) };
    if buffers != BufferPlace::Device {
        let router = Router::new(fabric, options);
        for &gpu in fabric.gpus() {
            router.place_of_buffers(gpu)?;
        }
    }
    Ok(options)
}

/// The device of each rank: the GPUs of a fabric in order, so many ranks on each. At least one.
pub fn ranks(fabric: &Fabric, per_gpu: u32) -> Result<Vec<NodeId>, Failure> {
    match fabric.gpus() {
        [] => Err(Failure::input(format!("fabric `{}` has no GPUs in use, so there are no ranks", fabric.name()))),
        gpus => Ok(gpus.iter().flat_map(|&gpu| std::iter::repeat_n(gpu, per_gpu as usize)).collect()),
    }
}

/// The profile that the flags name, or the best match.
pub fn profile(flags: &CostArgs, fabric: &Fabric) -> Result<Profile, Failure> {
    profile_for(Software::Nccl, flags, fabric)
}

/// The profile of kernels made of schedules: the one that the flags name, or the best match.
pub fn kernels_profile(flags: &CostArgs, fabric: &Fabric) -> Result<Profile, Failure> {
    profile_for(Software::Kernels, flags, fabric)
}

/// The same where a library may be named: an MPI's messages cost what its own profile says.
pub fn profile_of(library: &LibraryArgs, flags: &CostArgs, fabric: &Fabric) -> Result<Profile, Failure> {
    let software = match library.library {
        Some(LibraryChoice::One(Library::OpenMpi(_))) => Software::Mpi,
        _ => Software::Nccl,
    };
    profile_for(software, flags, fabric)
}

fn profile_for(software: Software, flags: &CostArgs, fabric: &Fabric) -> Result<Profile, Failure> {
    match &flags.profile {
        Some(name) => named_profile(name),
        None => Ok(Profile::nearest(fabric, software)?),
    }
}

/// A profile by its name, or from a file.
pub fn named_profile(name: &str) -> Result<Profile, Failure> {
    // What looks like a path was meant as one; so was a file, whatever it is called.
    let path = Path::new(name);
    if Profile::names().all(|known| known != name)
        && (fabricast_topologies::read::can_be_read(path) || name.contains(['/', '\\']))
    {
        return Ok(Profile::parse(&fabricast_topologies::read::text_of_file(path, Limit::PROFILE)?, name)?);
    }
    Ok(Profile::named(name)?)
}

/// Whether switches may reduce and multicast.
pub fn in_network(flags: &StrategyArgs) -> InNetwork {
    if flags.no_nvls { InNetwork::Off } else { InNetwork::Allowed }
}

/// What the flags restrict a choice to.
pub fn restriction(flags: &StrategyArgs) -> Restriction {
    Restriction {
        in_network: in_network(flags),
        algorithms: flags.algorithm.clone(),
        protocols: flags.protocol.clone(),
        channels: flags.channels.clone(),
        chunk: flags.chunk,
        library: None,
    }
}

/// The library whose own choices are shown: the one named, or that of the profile, or NCCL for `ideal`.
pub fn library(flags: &LibraryArgs, profile: &Profile) -> Option<Library> {
    match flags.library {
        Some(LibraryChoice::None) => None,
        Some(LibraryChoice::One(library)) => Some(library),
        None => Some(profile.library.parse().unwrap_or(Library::NEWEST_NCCL)),
    }
}

/// The library that picks are restricted to: the one named, or that of a profile of messages, which knows no other.
pub fn restricting_library(flags: &LibraryArgs, profile: &Profile) -> Option<Offer> {
    let own = profile.messages.and_then(|_| profile.library.parse().ok());
    let library = match flags.library {
        Some(LibraryChoice::One(library)) => Some(library),
        Some(LibraryChoice::None) | None => own,
    };
    library.map(|library| Offer::new(library, flags.registered.into()))
}

/// What the library would choose on a fabric.
pub fn chooser(
    library: Library,
    router: &Router<'_>,
    placement: &[NodeId],
    flags: &LibraryArgs,
    call: &CallArgs,
    strategy: &StrategyArgs,
) -> Chooser {
    // What the network's plugin sets by itself.
    let plugin = MeasuredNetwork::of(router.fabric()).ok().flatten().and_then(|network| network.settings);
    let set = plugin.and_then(|words| Settings::parse(&words).ok()).map(|(settings, _)| settings);
    let conditions = Conditions {
        settings: set.unwrap_or_default(),
        dtype: call.dtype.unwrap_or_default(),
        op: call.op,
        registered: flags.registered.into(),
        in_network: in_network(strategy),
    };
    Chooser::new(library, router.fabric(), router, placement, conditions)
}

/// How calls are launched.
pub fn launch_mode(flags: &CostArgs, fabric: &Fabric, placement: &[NodeId]) -> LaunchMode {
    LaunchMode {
        launch: match flags.launch {
            Launch::Graph => profile::Launch::Graph,
            Launch::Stream => profile::Launch::Stream,
        },
        processes: match flags.processes {
            Processes::PerGpu => profile::Processes::PerGpu,
            Processes::Single => profile::Processes::Single,
        },
        gpus_per_host: fabric.most_on_a_host(placement),
    }
}

/// How much later than the others each rank starts: `gpu5=20us` for all ranks of a device.
pub fn delays(stragglers: &[String], fabric: &Fabric, placement: &[NodeId]) -> Result<Vec<Picos>, Failure> {
    let mut delays = vec![Picos::ZERO; placement.len()];
    let mut ranks: FxHashMap<NodeId, Vec<usize>> = FxHashMap::default();
    if !stragglers.is_empty() {
        for (rank, &device) in placement.iter().enumerate() {
            ranks.entry(device).or_default().push(rank);
        }
    }
    for text in stragglers {
        let (name, time) = text.rsplit_once('=').unwrap_or((text, ""));
        let time: Picos = time.parse().map_err(|error| {
            Failure::input(format!("--straggler {text}: expected GPU=TIME, as in gpu5=20us: {error}"))
        })?;
        let device = fabric.device(name).map_err(|error| Failure::input(format!("--straggler {text}: {error}")))?;
        let late = ranks.get(&device).ok_or_else(|| {
            Failure::input(format!("--straggler {text}: {name} is not a rank: expected one of the fabric's GPUs"))
        })?;
        for &rank in late {
            if let Some(delay) = delays.get_mut(rank) {
                *delay = time;
            }
        }
    }
    Ok(delays)
}

/// Reads a flow file.
pub fn flows(path: &Path, fabric: &Fabric) -> Result<Vec<Flow>, Failure> {
    let name = path.display().to_string();
    let text = fabricast_topologies::read::text_of_file(path, Limit::FLOWS)?;
    flows::parse(&text, &name, fabric).map_err(|error| Failure::at(error.to_string(), None, Some(&error.place)))
}

/// What shares the fabric with a run: the flows of a file, or nothing.
pub fn background(path: Option<&Path>, fabric: &Fabric) -> Result<Vec<Flow>, Failure> {
    path.map_or(Ok(Vec::new()), |path| flows(path, fabric))
}

/// Ties what a simulation needs together.
pub fn setting<'a>(
    fabric: &'a Fabric,
    router: &'a Router<'a>,
    placement: &'a [NodeId],
    profile: &'a Profile,
    delays: &'a [Picos],
) -> Setting<'a> {
    Setting { fabric, router, placement, profile, delays }
}
