//! Predicts the choice of a library for each call on one fabric. All parts that do not depend on the size are computed
//! once.

use std::num::NonZeroU16;

use fabricast_sim::schedule::{Call, Collective, DataType, Protocol, ReduceOp};
use fabricast_topologies::route::{PeerAccess, Router};
use fabricast_topologies::{Bytes, Fabric, NodeId};

use super::nccl::graph::{NvlsUse, Uncovered};
use super::nccl::{
    Algo, Cells, Communicator, Function, NvlsSetting, Proto, Request, SYMMETRIC_THREADS, Settings, SymmetricKernel,
    Table, Version, kernel, kernel_on, p2p, pick, symmetric, working_channels,
};
use super::{Choice, Library, Offer, Unknown, mpi};
use crate::algorithm::Algorithm;
use crate::bound::InNetwork;
use crate::strategy::Strategy;

/// Registration of a caller's buffers with the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Registered {
    /// Not registered.
    #[default]
    Plain,
    /// Registered in symmetric windows.
    Symmetric,
}

/// Inputs of the decision other than the call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// NCCL settings.
    pub settings: Settings,
    /// Element type.
    pub dtype: DataType,
    /// Reduction operation.
    pub op: ReduceOp,
    /// Buffer registration.
    pub registered: Registered,
    /// Use of reduction and multicast in switches.
    pub in_network: InNetwork,
}

/// Threads per block of a send or receive (NCCL_MAX_NTHREADS).
const SEND_THREADS: u16 = 640;

/// Predictor for one library, fabric and placement.
#[derive(Clone, Debug)]
pub struct Chooser {
    library: Library,
    conditions: Conditions,
    nccl: Option<Result<Nccl, Uncovered>>,
}

#[derive(Clone, Debug)]
struct Nccl {
    version: Version,
    communicator: Communicator,
    table: Table,
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
        let nccl = match library {
            Library::OpenMpi(_) => None,
            Library::Nccl(version) => {
                let off = conditions.in_network == InNetwork::Off
                    || conditions.settings.nvls == NvlsSetting::Off
                    || router.options().p2p == PeerAccess::Off;
                let nvls = if off { NvlsUse::Off } else { NvlsUse::Allowed };
                Some(Communicator::of(fabric, router, placement, nvls).map(|communicator| {
                    let table = Table::new(&communicator, version, &conditions.settings);
                    Nccl { version, communicator, table }
                }))
            }
        };
        Self { library, conditions, nccl }
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> Library {
        self.library
    }

    /// NCCL's view of the fabric, if it is modelled.
    #[must_use]
    pub fn communicator(&self) -> Option<&Communicator> {
        self.nccl.as_ref().and_then(|nccl| nccl.as_ref().ok()).map(|nccl| &nccl.communicator)
    }

    /// NCCL's expected latency and bandwidth of each algorithm and protocol on the fabric, if it is modelled.
    #[must_use]
    pub fn table(&self) -> Option<&Table> {
        self.nccl.as_ref().and_then(|nccl| nccl.as_ref().ok()).map(|nccl| &nccl.table)
    }

    /// NCCL settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.conditions.settings
    }

    /// Algorithms and protocols that the library can run on the fabric.
    #[must_use]
    pub fn offer(&self) -> Offer {
        let cells = self.table().map_or(Cells::ALL, Cells::of);
        Offer::new(self.library, self.conditions.registered).on(cells)
    }

    /// Predicts the library's choice for a call.
    ///
    /// # Errors
    /// Returns [`Unknown`] with the reason if the choice cannot be predicted.
    pub fn choose(&self, call: &Call) -> Result<Choice, Unknown> {
        if call.ranks <= 1 {
            return Err(Unknown::Alone { library: self.library });
        }
        match (&self.nccl, self.library) {
            (None, Library::OpenMpi(version)) => mpi::choose(version, call).map_err(|unknown| unknown.of(self.library)),
            // NCCL has no barrier.
            (_, library) if call.collective == Collective::Barrier => {
                Err(Unknown::NotModelled { library, collective: call.collective })
            }
            (Some(Ok(nccl)), _) => self.nccl(nccl, call),
            (Some(Err(reason)), library) => Err(Unknown::Fabric { library, reason: *reason }),
            (None, library) => Err(Unknown::NotModelled { library, collective: call.collective }),
        }
    }

    fn nccl(&self, nccl: &Nccl, call: &Call) -> Result<Choice, Unknown> {
        let Some(function) = Function::of(call.collective) else { return Ok(self.sends(nccl, call)) };
        let Conditions { settings, dtype, op, registered, .. } = &self.conditions;
        let request = Request { function, bytes: call.bytes, dtype: *dtype, op: *op };
        let windows = *registered == Registered::Symmetric && nccl.version.has_window_kernels();
        let found = windows.then(|| symmetric(&nccl.communicator, settings, &request)).flatten();
        if let Some(found) = found {
            let name = found.kernel.name(function);
            let algorithm = match found.kernel {
                SymmetricKernel::OneShot => Algorithm::OneShot,
                SymmetricKernel::TwoShot => Algorithm::TwoShot,
                SymmetricKernel::Ll | SymmetricKernel::Plain => Algorithm::Direct,
                _ => return Err(Unknown::NoSchedule { library: self.library, name }),
            };
            let strategy = Strategy {
                algorithm,
                protocol: Protocol::Symmetric,
                channels: found.blocks,
                threads: Some(SYMMETRIC_THREADS),
                chunk: None,
            };
            return Ok(Choice { strategy, name, most_channels: found.blocks, expected: Some(found.time) });
        }
        let channels = nccl.communicator.channels(settings);
        let found = pick(&nccl.communicator, channels, nccl.version, &nccl.table, &request);
        let found = found.ok_or(Unknown::NoWay { library: self.library })?;
        let way = (found.algo, found.proto);
        let name = format!("{} {}", found.algo, found.proto);
        let algorithm =
            found.algo.ours().ok_or_else(|| Unknown::NoSchedule { library: self.library, name: name.clone() })?;
        let kernel = kernel(&nccl.communicator, nccl.version, settings, &nccl.table, &request, way);
        let strategy = Strategy {
            algorithm,
            protocol: found.proto.ours(),
            channels: kernel.channels,
            threads: Some(kernel.threads),
            chunk: Some(kernel.chunk),
        };
        Ok(Choice { strategy, name, most_channels: kernel.most_channels, expected: Some(found.time) })
    }

    /// NCCL's channels, threads and chunk for a call whose algorithm and protocol are given, with a maximum number of
    /// channels if a tuner sets one. `None` if they are not known, or if there is no schedule of the algorithm.
    #[must_use]
    pub fn forced(&self, call: &Call, way: (Algo, Proto), channels: Option<NonZeroU16>) -> Option<Strategy> {
        let nccl = self.nccl.as_ref()?.as_ref().ok()?;
        let Conditions { settings, dtype, op, .. } = &self.conditions;
        let request = Request { function: Function::of(call.collective)?, bytes: call.bytes, dtype: *dtype, op: *op };
        let most = channels.map(NonZeroU16::get);
        let kernel = kernel_on(&nccl.communicator, nccl.version, settings, &nccl.table, &request, way, most);
        Some(Strategy {
            algorithm: way.0.ours()?,
            protocol: way.1.ours(),
            channels: kernel.channels,
            threads: Some(kernel.threads),
            chunk: Some(kernel.chunk),
        })
    }

    /// Returns true if a call can use as many channels as a strategy has. NCCL uses no more channels than the call
    /// fills, and no more than its search found. Also true if NCCL's limit is not known.
    #[must_use]
    pub fn reaches(&self, call: &Call, strategy: &Strategy) -> bool {
        let Some(Ok(nccl)) = &self.nccl else { return true };
        let way = (Function::of(call.collective), Algo::of(strategy.algorithm), Proto::of(strategy.protocol));
        let (Some(function), Some(algo), Some(proto)) = way else { return true };
        let Conditions { settings, dtype, op, .. } = &self.conditions;
        let request = Request { function, bytes: call.bytes, dtype: *dtype, op: *op };
        let most = match algo {
            Algo::Nvls | Algo::NvlsTree => nccl.communicator.nvls(nccl.version, settings).channels,
            _ => nccl.communicator.channels(settings),
        };
        let channels = strategy.channels;
        channels <= most && working_channels(&nccl.communicator, nccl.version, &request, proto, channels) == channels
    }

    /// NCCL's choice for sends and receives, with all peers concurrent.
    fn sends(&self, nccl: &Nccl, call: &Call) -> Choice {
        let ranks = u64::from(call.ranks.max(1));
        let (bytes, peers) = match call.collective {
            Collective::SendRecv => (call.bytes.0, 1),
            _ => (call.bytes.0.div_ceil(ranks), call.ranks.saturating_sub(1).max(1)),
        };
        let found = p2p(&nccl.communicator, nccl.version, &self.conditions.settings, Bytes(bytes), peers);
        let strategy = Strategy {
            algorithm: Algorithm::Direct,
            protocol: found.proto.ours(),
            channels: found.channels,
            threads: Some(SEND_THREADS),
            chunk: Some(found.chunk),
        };
        let name = format!("SendRecv {}", found.proto);
        Choice { strategy, name, most_channels: found.channels, expected: None }
    }
}
