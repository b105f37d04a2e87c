//! Conversion of flags to inputs of the library crates: fabric, routes, ranks, profile.

use std::path::Path;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_libraries::nccl::Settings;
use fabricast_libraries::{Chooser, Conditions, Library, LibraryCapabilities};
use fabricast_search::candidates::{PlacedRanks, Restriction};
use fabricast_sim::flows::{self, Flow};
use fabricast_sim::profile::{self, MeasuredNetwork, Profile, Software};
use fabricast_sim::{LaunchMode, lower::Environment};
use fabricast_topologies::read::Limit;
use fabricast_topologies::route::{BufferLocation, GpuDirect, PeerAccess, RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, NodeId, Picos, partition};
use rustc_hash::FxHashMap;

use crate::args::{
    Buffers, CallArgs, ClusterArgs, CostArgs, FabricArgs, Launch, LibraryArgs, LibraryChoice, Processes, StrategyArgs,
    WhatIfArgs,
};
use crate::failure::Failure;
use crate::output::Output;

/// Loads a fabric from the flags, with failed and slow links, and reports its warnings.
///
/// # Errors
/// [`Failure`]: the fabric, a failed link or a slow link is unknown or invalid, or the fabric `auto` cannot be
/// detected.
pub fn fabric(name: &str, size: &ClusterArgs, what_if: &WhatIfArgs, output: &Output) -> Result<Fabric, Failure> {
    let request = FabricRequest {
        fabric: name.to_owned(),
        nodes: size.nodes,
        gpus: size.gpus,
        network: size.network.clone(),
        gpu: size.gpu_model.clone(),
        drives: None,
    };
    let loaded = if name == "auto" { detect_fabric(&request)? } else { fabricast_topologies::load(&request)? };
    let mut fabric = partition::apply(loaded, &size.mig)?;
    let total = fabric.gpus().len();
    for failed in &what_if.fail {
        fabric = fabric.with_failed(failed)?;
    }
    let remaining = fabric.gpus().len();
    if remaining < total {
        output.warn(&format!("{remaining} of {total} GPUs remain, and ranks are numbered over those"));
    }
    for slow in &what_if.slow {
        let (link, factor) = slow_link(slow)?;
        fabric = fabric.with_slowed(link, factor)?;
    }
    for warning in fabric.warnings() {
        output.warn(warning);
    }
    Ok(fabric)
}

/// Detects the fabric of this machine, which needs its GPUs.
fn detect_fabric(request: &FabricRequest) -> Result<Fabric, Failure> {
    let probe = fabricast_validate::gpu::probe(&fabricast_validate::gpu::Choices::default())?;
    Ok(fabricast_topologies::expand(&probe.fabric()?, request)?)
}

/// Reports the sources of fabric and profile parameters, if verbose.
pub fn sources(fabric: &Fabric, profile: &Profile, output: &Output) {
    for source in fabric.sources() {
        output.detail(&format!("fabric {}: {source}", fabric.name()));
    }
    for source in &profile.sources {
        output.detail(&format!("profile {}: {source}", profile.name));
    }
}

/// Parses `LINK=FACTOR`, with 0 < factor ≤ 1.
fn slow_link(text: &str) -> Result<(&str, f64), Failure> {
    let (link, factor) = text.rsplit_once('=').unwrap_or((text, ""));
    match factor.parse::<f64>() {
        Ok(part) if part > 0.0 && part <= 1.0 => Ok((link, part)),
        _ => Err(Failure::input(format!(
            "--slow {text}: expected LINK=FACTOR with a factor over 0 and at most 1, as in gpu0-nvswitch0=0.5"
        ))),
    }
}

/// Routing options by the flags: peer-to-peer access, GPUDirect RDMA and ECMP.
pub fn route_options(size: &ClusterArgs) -> RouteOptions {
    RouteOptions {
        p2p: if size.no_p2p { PeerAccess::Off } else { PeerAccess::Allowed },
        gdr: if size.no_gdr { GpuDirect::Off } else { GpuDirect::Allowed },
        ecmp: size.ecmp,
        ..RouteOptions::default()
    }
}

/// Routing options of calls, including the location of their buffers.
///
/// # Errors
/// [`Failure`]: the peer named by `--buffers` is unknown or not a GPU, or a GPU has no device for buffers in that
/// location.
pub fn call_options(flags: &FabricArgs, fabric: &Fabric) -> Result<RouteOptions, Failure> {
    let buffers = match &flags.buffers {
        Buffers::Place(location) => *location,
        Buffers::Peer(name) => {
            let failed = |reason: String| Failure::input(format!("--buffers peer={name}: {reason}"));
            let peer = fabric.device(name).map_err(|error| failed(error.to_string()))?;
            if !fabric.node(peer).kind.is_rank() {
                return Err(failed(format!("{name} has no memory for buffers: expected a GPU")));
            }
            BufferLocation::Peer(peer)
        }
    };
    let options = RouteOptions { buffers, ..route_options(&flags.size) };
    if buffers != BufferLocation::Device {
        let router = Router::new(fabric, options);
        for &gpu in fabric.gpus() {
            router.buffer_device(gpu)?;
        }
    }
    Ok(options)
}

/// Returns the device of each rank: the GPUs of a fabric in order, each `per_gpu` times. There is at least one rank.
///
/// # Errors
/// [`Failure`]: the fabric has no GPUs in use.
pub fn ranks(fabric: &Fabric, per_gpu: u32) -> Result<Vec<NodeId>, Failure> {
    match fabric.gpus() {
        [] => Err(Failure::input(format!("fabric `{}` has no GPUs in use, so there are no ranks", fabric.name()))),
        gpus => Ok(gpus.iter().flat_map(|&gpu| std::iter::repeat_n(gpu, per_gpu as usize)).collect()),
    }
}

/// Returns the first GPUs of the fabric, one for each rank of a schedule.
///
/// # Errors
/// [`Failure`]: the fabric has fewer GPUs in use than the schedule has ranks.
pub fn schedule_ranks(gpus: &[NodeId], ranks: u32) -> Result<&[NodeId], Failure> {
    gpus.get(..ranks as usize).ok_or_else(|| {
        Failure::input(format!("the schedule has {ranks} ranks and the fabric has {} GPUs in use", gpus.len()))
    })
}

/// Returns the profile named by the flags, otherwise the NCCL profile that best matches the fabric.
///
/// # Errors
/// [`Failure`]: the named profile is unknown or invalid, or no profile matches the fabric.
pub fn profile(flags: &CostArgs, fabric: &Fabric) -> Result<Profile, Failure> {
    profile_for(Software::Nccl, flags, fabric)
}

/// Returns the profile for generated kernels: named by the flags, otherwise the best match for the fabric.
///
/// # Errors
/// As for [`profile()`].
pub fn kernels_profile(flags: &CostArgs, fabric: &Fabric) -> Result<Profile, Failure> {
    profile_for(Software::Kernels, flags, fabric)
}

/// Variant of [`profile()`] for commands with `--library`. The default for Open MPI is the best match among MPI
/// profiles.
///
/// # Errors
/// A library that does not run on the fabric's GPUs, and errors of the profile.
pub fn library_profile(library: &LibraryArgs, flags: &CostArgs, fabric: &Fabric) -> Result<Profile, Failure> {
    if let Some(LibraryChoice::One(named)) = library.library
        && !named.runs_on(fabric, fabric.gpus())
    {
        let own = Library::from_vendor(fabric, fabric.gpus());
        return Err(Failure::input(format!(
            "--library {named}: it does not run on the GPUs of fabric `{}`: expected {own}, or none",
            fabric.name()
        )));
    }
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

/// Returns a profile by name, or from a file.
///
/// # Errors
/// [`Failure`]: no profile has this name, or the file cannot be read or is not a valid profile.
pub fn named_profile(name: &str) -> Result<Profile, Failure> {
    // A name with a separator is a path, and so is any readable file.
    let path = Path::new(name);
    if Profile::names().all(|known| known != name)
        && (fabricast_topologies::read::can_be_read(path) || name.contains(['/', '\\']))
    {
        return Ok(Profile::parse(&fabricast_topologies::read::read_text_file(path, Limit::PROFILE)?, name)?);
    }
    Ok(Profile::named(name)?)
}

/// In-network reduction and multicast: off with `--no-nvls`, otherwise allowed.
pub fn in_network(flags: &StrategyArgs) -> InNetwork {
    if flags.no_nvls { InNetwork::Off } else { InNetwork::Allowed }
}

/// Checks that trees are named together with the algorithm that has them.
///
/// # Errors
/// [`Failure`]: `--trees` without `--algorithm tree_packing`.
pub fn check_trees(flags: &StrategyArgs) -> Result<(), Failure> {
    match flags.trees {
        Some(_) if !flags.algorithm.contains(&Algorithm::TreePacking) => Err(Failure::input_with_help(
            format!("--trees names trees of {}, which --algorithm does not name", Algorithm::TreePacking),
            format!("add --algorithm {}", Algorithm::TreePacking),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Restriction of the considered strategies by the flags.
pub fn restriction(flags: &StrategyArgs) -> Restriction {
    Restriction {
        in_network: in_network(flags),
        algorithms: flags.algorithm.clone(),
        protocols: flags.protocol.clone(),
        channels: flags.channels.clone(),
        chunk: flags.chunk,
        library: None,
        trees: flags.trees,
    }
}

/// Ranks of calls on the devices of a fabric, as many on each host as it has devices among them.
pub fn placed_ranks<'a>(
    fabric: &'a Fabric,
    router: &'a Router<'a>,
    placement: &'a [NodeId],
    root: u32,
) -> PlacedRanks<'a> {
    PlacedRanks { fabric, router, placement, root, ranks_per_node: fabric.max_devices_per_host(placement) }
}

/// Library whose default choices are shown: the one that the flags name, otherwise the profile's, otherwise NCCL (for
/// the profile `ideal`).
pub fn library(flags: &LibraryArgs, profile: &Profile) -> Option<Library> {
    match flags.library {
        Some(LibraryChoice::None) => None,
        Some(LibraryChoice::One(library)) => Some(library),
        None => Some(profile.library.parse().unwrap_or(Library::NEWEST_NCCL)),
    }
}

/// Library to which candidates are restricted: the one that the flags name, or that of an MPI profile, whose costs are
/// valid for this library only. `None` for no restriction.
pub fn restricting_library(flags: &LibraryArgs, profile: &Profile) -> Option<LibraryCapabilities> {
    let profile_library = profile.messages.and_then(|_| profile.library.parse().ok());
    let library = match flags.library {
        Some(LibraryChoice::One(library)) => Some(library),
        Some(LibraryChoice::None) | None => profile_library,
    };
    library.map(|library| LibraryCapabilities::new(library, flags.registered.into()))
}

/// Creates the predictor of a library's default choices on a fabric.
pub fn chooser(
    library: Library,
    router: &Router<'_>,
    placement: &[NodeId],
    flags: &LibraryArgs,
    call: &CallArgs,
    strategy: &StrategyArgs,
) -> Chooser {
    // NCCL settings that the machine's network plugin makes.
    let plugin = MeasuredNetwork::for_machine(router.fabric()).ok().flatten().and_then(|network| network.settings);
    let plugin_settings = plugin.and_then(|text| Settings::parse(&text).ok()).map(|(settings, _)| settings);
    let conditions = Conditions {
        settings: plugin_settings.unwrap_or_default(),
        dtype: call.dtype.unwrap_or_default(),
        op: call.op,
        registered: flags.registered.into(),
        in_network: in_network(strategy),
    };
    Chooser::new(library, router.fabric(), router, placement, conditions)
}

/// Launch mode, process layout and number of GPUs per host of calls.
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
        gpus_per_host: fabric.max_devices_per_host(placement),
    }
}

/// Start delay of each rank: `gpu5=20us` applies to all ranks of the device.
///
/// # Errors
/// [`Failure`]: a text is not `GPU=TIME`, or names a device that is unknown or has no rank.
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
        let device_ranks = ranks.get(&device).ok_or_else(|| {
            Failure::input(format!("--straggler {text}: {name} is not a rank: expected one of the fabric's GPUs"))
        })?;
        for &rank in device_ranks {
            if let Some(delay) = delays.get_mut(rank) {
                *delay = time;
            }
        }
    }
    Ok(delays)
}

/// Reads timed flows from a CSV file.
///
/// # Errors
/// [`Failure`]: the file cannot be read, or a line is invalid or names an unknown device.
pub fn flows(path: &Path, fabric: &Fabric) -> Result<Vec<Flow>, Failure> {
    let name = path.display().to_string();
    let text = fabricast_topologies::read::read_text_file(path, Limit::FLOWS)?;
    flows::parse(&text, &name, fabric)
        .map_err(|error| Failure::input_at(error.to_string(), None, Some(&error.location)))
}

/// Reads background flows from a file; returns none without a file.
///
/// # Errors
/// As for [`flows()`].
pub fn background(path: Option<&Path>, fabric: &Fabric) -> Result<Vec<Flow>, Failure> {
    path.map_or(Ok(Vec::new()), |path| flows(path, fabric))
}

/// Combines the inputs of a simulation that are common to all its runs.
pub fn environment<'a>(
    fabric: &'a Fabric,
    router: &'a Router<'a>,
    placement: &'a [NodeId],
    profile: &'a Profile,
    delays: &'a [Picos],
) -> Environment<'a> {
    Environment { fabric, router, placement, profile, delays }
}
