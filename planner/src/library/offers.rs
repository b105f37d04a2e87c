//! What libraries can run, whatever they would choose: `--library` restricts picks to it.

use fabricast_sim::schedule::{Collective, Protocol};

use super::nccl::{Algo, Cells, Function, Proto, Version};
use super::{Library, Registered, mpi};
use crate::algorithm::Algorithm;

/// What a library can run for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The library.
    pub library: Library,
    /// How the caller's buffers are known to it.
    pub registered: Registered,
    /// The cells of NCCL's tables on the fabric at hand, where that is known.
    pub cells: Cells,
}

impl Offer {
    /// Of a library, on whatever fabric.
    #[must_use]
    pub fn new(library: Library, registered: Registered) -> Self {
        Self { library, registered, cells: Cells::ALL }
    }

    /// The same where only these cells of NCCL's tables are taken.
    #[must_use]
    pub fn on(self, cells: Cells) -> Self {
        Self { cells, ..self }
    }

    /// Whether the library runs an algorithm over a protocol for a collective.
    #[must_use]
    pub fn runs(self, algorithm: Algorithm, protocol: Protocol, collective: Collective) -> bool {
        match self.library {
            Library::Nccl(version) => {
                let direct = algorithm == Algorithm::Direct;
                let kernel = direct && matches!(collective, Collective::AllGather | Collective::ReduceScatter);
                // Of windows only: without them these are rings.
                let fits = !kernel || matches!(protocol, Protocol::Symmetric | Protocol::CopyEngine);
                fits && nccl(algorithm, collective)
                    && nccl_protocol(version, algorithm, protocol, self.registered)
                    && self.has_cell(algorithm, protocol, collective)
            }
            Library::OpenMpi(_) => protocol == mpi::PROTOCOL && open_mpi(algorithm, collective),
        }
    }

    /// Kernels with a cell in the tables need it to be taken there; sends and kernels on windows have none.
    fn has_cell(self, algorithm: Algorithm, protocol: Protocol, collective: Collective) -> bool {
        match (Function::of(collective), Algo::of(algorithm), Proto::of(protocol)) {
            (Some(function), Some(algo), Some(proto)) => self.cells.has(function, algo, proto),
            _ => true,
        }
    }

    /// The most channels that it divides a message among; `None`: as many as are tried.
    #[must_use]
    pub fn most_channels(self) -> Option<u16> {
        match self.library {
            Library::Nccl(_) => None,
            Library::OpenMpi(_) => Some(1),
        }
    }
}

/// NCCL's kernels (`src/device/generate.py`, 2.30.7): collectives of rings, trees, NVLS and PAT; sends and receives;
/// kernels on symmetric windows.
fn nccl(algorithm: Algorithm, collective: Collective) -> bool {
    use Collective::{
        AllGather, AllReduce, AllToAll, AllToAllV, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
    };
    match algorithm {
        Algorithm::Ring => matches!(collective, AllReduce | AllGather | ReduceScatter | Broadcast | Reduce),
        Algorithm::Tree | Algorithm::NvlsTree | Algorithm::OneShot | Algorithm::TwoShot => collective == AllReduce,
        Algorithm::Nvls => matches!(collective, AllReduce | AllGather | ReduceScatter),
        Algorithm::Pat => matches!(collective, AllGather | ReduceScatter),
        Algorithm::Direct => {
            matches!(collective, AllToAll | AllToAllV | Gather | Scatter | SendRecv | AllGather | ReduceScatter)
        }
        _ => false,
    }
}

/// Symmetric kernels and copy engines need windows; sends are LL or Simple.
fn nccl_protocol(version: Version, algorithm: Algorithm, protocol: Protocol, registered: Registered) -> bool {
    let windows = registered == Registered::Symmetric && version.has_window_kernels();
    match (algorithm, protocol) {
        (Algorithm::OneShot | Algorithm::TwoShot, Protocol::Symmetric) => windows,
        (Algorithm::OneShot | Algorithm::TwoShot, _) => false,
        (Algorithm::Direct, Protocol::Symmetric) => windows,
        (Algorithm::Direct, Protocol::CopyEngine) => windows && version.has_copy_engines(),
        (Algorithm::Direct, protocol) => matches!(protocol, Protocol::Ll | Protocol::Simple),
        (Algorithm::Ring | Algorithm::Tree, protocol) => {
            matches!(protocol, Protocol::Ll | Protocol::Ll128 | Protocol::Simple)
        }
        (_, protocol) => protocol == Protocol::Simple,
    }
}

/// The algorithms of Open MPI's base (`ompi/mca/coll/base`, 4.1 and 5.0) that there are schedules of.
fn open_mpi(algorithm: Algorithm, collective: Collective) -> bool {
    mpi::algorithms(collective).contains(&algorithm)
}
