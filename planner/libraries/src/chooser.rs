//! Prediction of a library's choice for each call on one fabric. Everything that does not depend on the message size is
//! computed once.

use std::num::NonZeroU16;

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Call, Collective, DataType, Protocol, ReduceOp};
use fabricast_topologies::route::{PeerAccess, Router};
use fabricast_topologies::{Fabric, NodeId};

use super::nccl::graph::{NvlsUse, SearchNotModelled};
use super::nccl::{
    Algo, AlgoProto, Cells, CollNetSetting, Communicator, CostTable, Function, NcclVersion, NvlsSetting, Proto,
    Request, SYMMETRIC_THREADS, Settings, SymmetricKernel, bytes_per_peer, has_kernel, kernel,
    kernel_with_max_channels, p2p, pick, pick_symmetric, working_channels,
};
use super::rccl::RcclHosts;
use super::{Choice, Library, LibraryCapabilities, Unknown, mpi, rccl};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_collectives::capabilities::check_network_reduction;
use fabricast_collectives::strategy::Strategy;

/// Registration of a caller's buffers with the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BufferRegistration {
    /// The buffers are not registered.
    #[default]
    Plain,
    /// The buffers are registered in symmetric windows.
    Symmetric,
}

/// Inputs of a library's choice other than the call and the fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// NCCL settings (environment variables) in effect.
    pub settings: Settings,
    /// Element type of the buffers.
    pub dtype: DataType,
    /// Reduction operation of collectives that reduce.
    pub op: ReduceOp,
    /// Registration of the caller's buffers with the library.
    pub registered: BufferRegistration,
    /// Use of reduction and multicast in switches.
    pub in_network: InNetwork,
}

/// Threads per block of a send or receive (NCCL_MAX_NTHREADS).
const SEND_THREADS: u16 = 640;

/// Predictor of a library's choices for one fabric and placement of ranks.
#[derive(Clone, Debug)]
pub struct Chooser {
    library: Library,
    conditions: Conditions,
    rules: LibraryRules,
}

/// Library-specific data on which the choices depend, in addition to the call.
#[derive(Clone, Debug)]
enum LibraryRules {
    /// NCCL's communicator and table.
    Nccl(Result<Box<Nccl>, SearchNotModelled>),
    /// RCCL's hosts.
    Rccl(rccl::RcclVersion, Result<RcclHosts, rccl::HostsNotModelled>),
    /// Version of Open MPI.
    OpenMpi(mpi::OpenMpiVersion),
}

#[derive(Clone, Debug)]
struct Nccl {
    version: NcclVersion,
    communicator: Communicator,
    table: CostTable,
    collnet: CollNetUse,
}

/// Use of a network that reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollNetUse {
    Off,
    On,
}

impl CollNetUse {
    /// NCCL 2.30.7 `src/init.cc`: CollNet needs NCCL_COLLNET_ENABLE=1, a network plugin that reduces, and
    /// NCCL_COLLNET_NODE_THRESHOLD nodes.
    fn new(fabric: &Fabric, communicator: &Communicator, conditions: &Conditions) -> Self {
        let Conditions { settings, in_network, .. } = conditions;
        let has_nodes = communicator.nodes >= settings.collnet_nodes.unwrap_or(2);
        let is_on = settings.collnet == CollNetSetting::On
            && *in_network == InNetwork::Allowed
            && has_nodes
            && check_network_reduction(fabric).is_ok();
        if is_on { Self::On } else { Self::Off }
    }
}

impl Chooser {
    /// Creates the predictor of a library for ranks on the devices of `placement`.
    #[must_use]
    pub fn new(
        library: Library,
        fabric: &Fabric,
        router: &Router<'_>,
        placement: &[NodeId],
        conditions: Conditions,
    ) -> Self {
        let rules = match library {
            Library::OpenMpi(version) => LibraryRules::OpenMpi(version),
            Library::Rccl(version) => LibraryRules::Rccl(version, RcclHosts::from_fabric(fabric, placement)),
            Library::Nccl(version) => {
                let off = conditions.in_network == InNetwork::Off
                    || conditions.settings.nvls == NvlsSetting::Off
                    || router.options().p2p == PeerAccess::Off;
                let nvls = if off { NvlsUse::Off } else { NvlsUse::Allowed };
                LibraryRules::Nccl(Communicator::from_fabric(fabric, router, placement, nvls).map(|communicator| {
                    let table = CostTable::new(&communicator, version, &conditions.settings);
                    let collnet = CollNetUse::new(fabric, &communicator, &conditions);
                    Box::new(Nccl { version, communicator, table, collnet })
                }))
            }
        };
        Self { library, conditions, rules }
    }

    /// NCCL's data; `None` for other libraries and for fabrics on which NCCL's topology search is not modelled.
    fn nccl(&self) -> Option<&Nccl> {
        match &self.rules {
            LibraryRules::Nccl(nccl) => nccl.as_deref().ok(),
            LibraryRules::Rccl(..) | LibraryRules::OpenMpi(_) => None,
        }
    }

    /// Library whose choices are predicted.
    #[must_use]
    pub fn library(&self) -> Library {
        self.library
    }

    /// NCCL's view of the fabric; `None` for other libraries and for fabrics on which NCCL's topology search is not
    /// modelled.
    #[must_use]
    pub fn communicator(&self) -> Option<&Communicator> {
        self.nccl().map(|nccl| &nccl.communicator)
    }

    /// NCCL's estimated latency and bandwidth of each algorithm and protocol on the fabric; `None` for other libraries
    /// and for fabrics on which NCCL's topology search is not modelled.
    #[must_use]
    pub fn table(&self) -> Option<&CostTable> {
        self.nccl().map(|nccl| &nccl.table)
    }

    /// Version of NCCL; `None` for other libraries and for fabrics on which NCCL's topology search is not modelled.
    pub(crate) fn nccl_version(&self) -> Option<NcclVersion> {
        self.nccl().map(|nccl| nccl.version)
    }

    /// NCCL settings (environment variables) with which choices are predicted.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.conditions.settings
    }

    /// Inputs of the library's choice other than the call and the fabric.
    #[must_use]
    pub fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// Algorithms and protocols that the library can run on the fabric.
    #[must_use]
    pub fn capabilities(&self) -> LibraryCapabilities {
        let cells = self.table().map_or(Cells::ALL, Cells::from_table);
        LibraryCapabilities::new(self.library, self.conditions.registered).with_cells(cells)
    }

    /// Predicts the library's choice for a call.
    ///
    /// # Errors
    /// Returns [`Unknown`] with the reason if the choice cannot be predicted.
    pub fn choose(&self, call: &Call) -> Result<Choice, Unknown> {
        self.choose_for_elements(call, self.conditions.dtype, self.conditions.op)
    }

    /// Predicts the library's choice for a call whose element type and reduction operation differ from those of the
    /// conditions.
    ///
    /// # Errors
    /// Returns [`Unknown`] with the reason if the choice cannot be predicted.
    pub fn choose_for_elements(&self, call: &Call, dtype: DataType, op: ReduceOp) -> Result<Choice, Unknown> {
        if call.ranks <= 1 {
            return Err(Unknown::SingleRank { library: self.library });
        }
        let library = self.library;
        match &self.rules {
            LibraryRules::OpenMpi(version) => {
                mpi::choose(*version, call).map_err(|unknown| unknown.to_unknown(library))
            }
            // NCCL and RCCL have no barrier.
            _ if call.collective == Collective::Barrier => {
                Err(Unknown::NotModelled { library, collective: call.collective })
            }
            LibraryRules::Nccl(Ok(nccl)) => self.choose_nccl(nccl, call, dtype, op),
            LibraryRules::Nccl(Err(reason)) => Err(Unknown::Fabric { library, reason: *reason }),
            LibraryRules::Rccl(version, Ok(hosts)) => {
                let pick = rccl::choose(*hosts, *version, &self.conditions.settings, call, dtype, op);
                let pick = pick.ok_or(Unknown::NothingAllowed { library })?;
                let max_channels = pick.strategy.channels;
                Ok(Choice { strategy: pick.strategy, name: pick.name, max_channels, expected: pick.expected })
            }
            LibraryRules::Rccl(_, Err(reason)) => Err(Unknown::Hosts { library, reason: *reason }),
        }
    }

    fn choose_nccl(&self, nccl: &Nccl, call: &Call, dtype: DataType, op: ReduceOp) -> Result<Choice, Unknown> {
        let Some(function) = Function::from_collective(call.collective) else { return Ok(self.choose_p2p(nccl, call)) };
        let Conditions { settings, registered, .. } = &self.conditions;
        let request = Request { function, bytes: call.bytes, dtype, op };
        let windows = *registered == BufferRegistration::Symmetric && nccl.version.has_window_kernels();
        let selected = windows.then(|| pick_symmetric(&nccl.communicator, settings, &request)).flatten();
        if let Some(selected) = selected {
            let name = selected.kernel.name(function);
            let algorithm = match selected.kernel {
                SymmetricKernel::OneShot => Algorithm::OneShot,
                SymmetricKernel::TwoShot => Algorithm::TwoShot,
                SymmetricKernel::Ll | SymmetricKernel::Plain => Algorithm::Direct,
                _ => return Err(Unknown::NoSchedule { library: self.library, name }),
            };
            let strategy = Strategy {
                threads: Some(SYMMETRIC_THREADS),
                ..Strategy::new(algorithm, Protocol::Symmetric, selected.blocks)
            };
            return Ok(Choice { strategy, name, max_channels: selected.blocks, expected: Some(selected.time) });
        }
        if let Some(choice) = self.choose_collnet(nccl, call, &request) {
            return choice;
        }
        let channels = nccl.communicator.channels(settings);
        let selected = pick(&nccl.communicator, channels, nccl.version, &nccl.table, &request);
        let selected = selected.ok_or(Unknown::NothingAllowed { library: self.library })?;
        let algo_and_proto = AlgoProto { algo: selected.algo, proto: selected.proto };
        let name = format!("{} {}", selected.algo, selected.proto);
        let algorithm = selected
            .algo
            .to_algorithm()
            .ok_or_else(|| Unknown::NoSchedule { library: self.library, name: name.clone() })?;
        let kernel = kernel(&nccl.communicator, nccl.version, settings, &nccl.table, &request, algo_and_proto);
        let strategy = Strategy {
            threads: Some(kernel.threads),
            chunk: Some(kernel.chunk),
            ..Strategy::new(algorithm, selected.proto.to_protocol(), kernel.channels)
        };
        Ok(Choice { strategy, name, max_channels: kernel.max_channels, expected: Some(selected.time) })
    }

    /// Predicts NCCL's choice with a network that reduces; `None` if the settings exclude every algorithm that uses the
    /// network. NCCL's estimates of these algorithms are not modelled, so the choice is known if a single one is allowed.
    fn choose_collnet(&self, nccl: &Nccl, call: &Call, request: &Request) -> Option<Result<Choice, Unknown>> {
        if nccl.collnet == CollNetUse::Off || nccl.communicator.nodes < 2 {
            return None;
        }
        let settings = &self.conditions.settings;
        let uses_network = |algo: Algo| algo.is_collnet() || algo == Algo::Nvls;
        let is_allowed = |algo: Algo| {
            let mut protos = Proto::ALL.into_iter().filter(|&proto| proto == Proto::Simple || !uses_network(algo));
            protos.any(|proto| {
                has_kernel(request.function, algo, proto) && settings.allows(request.function, algo, proto)
            })
        };
        let allowed: Vec<Algo> = Algo::ALL.into_iter().filter(|&algo| is_allowed(algo)).collect();
        if !allowed.iter().any(|&algo| uses_network(algo)) {
            return None;
        }
        let &[algo] = allowed.as_slice() else { return Some(Err(Unknown::CollNet { library: self.library })) };
        let name = format!("{algo} {}", Proto::Simple);
        let no_schedule = || Unknown::NoSchedule { library: self.library, name: name.clone() };
        let known = call.collective == Collective::AllReduce;
        let strategy = self
            .predict_strategy(call, AlgoProto { algo, proto: Proto::Simple }, None)
            .filter(|_| known)
            .ok_or_else(no_schedule);
        Some(strategy.map(|strategy| {
            let max_channels = strategy.channels;
            Choice { strategy, name: name.clone(), max_channels, expected: None }
        }))
    }

    /// Predicts NCCL's channels, threads and chunk size for a call with a given algorithm and protocol. `max_channels`
    /// is the maximum number of channels that a tuner sets, if any. Returns `None` if NCCL's parameters cannot be
    /// predicted or fabricast has no schedule of the algorithm.
    #[must_use]
    pub fn predict_strategy(
        &self,
        call: &Call,
        algo_and_proto: AlgoProto,
        channels: Option<NonZeroU16>,
    ) -> Option<Strategy> {
        let nccl = self.nccl()?;
        let Conditions { settings, dtype, op, .. } = &self.conditions;
        let request = Request {
            function: Function::from_collective(call.collective)?,
            bytes: call.bytes,
            dtype: *dtype,
            op: *op,
        };
        let max_channels = channels.map(NonZeroU16::get);
        let kernel = kernel_with_max_channels(
            &nccl.communicator,
            nccl.version,
            settings,
            &nccl.table,
            &request,
            algo_and_proto,
            max_channels,
        );
        Some(Strategy {
            threads: Some(kernel.threads),
            chunk: Some(kernel.chunk),
            ..Strategy::new(algo_and_proto.algo.to_algorithm()?, algo_and_proto.proto.to_protocol(), kernel.channels)
        })
    }

    /// Returns a strategy with the chunk size with which the library runs it. Unchanged if it states a chunk size, if the
    /// library cannot run it, or if that of the profile is equal.
    #[must_use]
    pub fn with_chunk(&self, call: &Call, strategy: Strategy, profile: &Profile) -> Strategy {
        let runs = self.capabilities().runs(strategy.algorithm, strategy.protocol, call.collective);
        let default = strategy.default_chunk(call.collective, profile);
        if strategy.chunk.is_some() || default.is_none() || !runs || !self.can_use_channels(call, &strategy) {
            return strategy;
        }
        let chunk = || {
            let algo = Algo::from_algorithm(strategy.algorithm)?;
            let algo_and_proto = AlgoProto { algo, proto: Proto::from_protocol(strategy.protocol)? };
            self.predict_strategy(call, algo_and_proto, NonZeroU16::new(strategy.channels))?.chunk
        };
        Strategy { chunk: chunk().filter(|&chunk| Some(chunk) != default), ..strategy }
    }

    /// Returns true if a call can use as many channels as a strategy has. NCCL uses no more channels than the message
    /// size gives work to, and no more than its topology search found. Returns true if NCCL's limit is not known.
    #[must_use]
    pub fn can_use_channels(&self, call: &Call, strategy: &Strategy) -> bool {
        let Some(nccl) = self.nccl() else { return true };
        let cell = (
            Function::from_collective(call.collective),
            Algo::from_algorithm(strategy.algorithm),
            Proto::from_protocol(strategy.protocol),
        );
        let (Some(function), Some(algo), Some(proto)) = cell else { return true };
        let Conditions { settings, dtype, op, .. } = &self.conditions;
        let request = Request { function, bytes: call.bytes, dtype: *dtype, op: *op };
        let max_channels = match algo {
            Algo::Nvls | Algo::NvlsTree => nccl.communicator.nvls_shape(nccl.version, settings).channels,
            _ => nccl.communicator.channels(settings),
        };
        let channels = strategy.channels;
        channels <= max_channels
            && working_channels(&nccl.communicator, nccl.version, &request, proto, channels) == channels
    }

    /// NCCL's choice for sends and receives, where each rank communicates with all peers concurrently.
    fn choose_p2p(&self, nccl: &Nccl, call: &Call) -> Choice {
        let (bytes, peers) = bytes_per_peer(call);
        let send = p2p(&nccl.communicator, nccl.version, &self.conditions.settings, bytes, peers);
        let strategy = Strategy {
            threads: Some(SEND_THREADS),
            chunk: Some(send.chunk),
            ..Strategy::new(Algorithm::Direct, send.proto.to_protocol(), send.channels)
        };
        let name = format!("SendRecv {}", send.proto);
        Choice { strategy, name, max_channels: send.channels, expected: None }
    }
}
