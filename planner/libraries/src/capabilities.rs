//! Algorithms and protocols that a library supports. `--library` restricts candidate strategies to them, even if the
//! library would never choose them by default.

use fabricast_sim::schedule::{Collective, Protocol};

use super::nccl::{Algo, Cells, Function, NcclVersion, Proto};
use super::{BufferRegistration, Library, mpi};
use fabricast_collectives::algorithm::Algorithm;

/// Algorithms and protocols that a library can run for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LibraryCapabilities {
    /// Library whose capabilities these are.
    pub library: Library,
    /// Registration state of the caller's buffers.
    pub registered: BufferRegistration,
    /// Available cells of NCCL's tables (function, algorithm, protocol) on the fabric; all cells if the fabric is not
    /// known.
    pub cells: Cells,
}

impl LibraryCapabilities {
    /// Creates the capabilities of a library on any fabric.
    #[must_use]
    pub fn new(library: Library, registered: BufferRegistration) -> Self {
        Self { library, registered, cells: Cells::ALL }
    }

    /// Returns these capabilities restricted to the given cells of NCCL's tables.
    #[must_use]
    pub fn with_cells(self, cells: Cells) -> Self {
        Self { cells, ..self }
    }

    /// Returns true if the library can run an algorithm over a protocol for a collective.
    #[must_use]
    pub fn runs(self, algorithm: Algorithm, protocol: Protocol, collective: Collective) -> bool {
        match self.library {
            Library::Nccl(version) => {
                let direct = algorithm == Algorithm::Direct;
                let kernel = direct && matches!(collective, Collective::AllGather | Collective::ReduceScatter);
                // Direct kernels exist for registered windows only; without windows these collectives use rings.
                let fits = !kernel || matches!(protocol, Protocol::Symmetric | Protocol::CopyEngine);
                fits && nccl(algorithm, collective)
                    && nccl_protocol(version, algorithm, protocol, self.registered)
                    && self.has_cell(algorithm, protocol, collective)
            }
            Library::Rccl(_) => rccl(algorithm, protocol, collective),
            Library::OpenMpi(_) => protocol == mpi::PROTOCOL && open_mpi(algorithm, collective),
        }
    }

    /// Returns true if the cell of an algorithm, protocol and collective is available. Sends and window kernels have no
    /// cell and are always available.
    fn has_cell(self, algorithm: Algorithm, protocol: Protocol, collective: Collective) -> bool {
        match (Function::from_collective(collective), Algo::from_algorithm(algorithm), Proto::from_protocol(protocol)) {
            (Some(function), Some(algo), Some(proto)) => self.cells.has(function, algo, proto),
            _ => true,
        }
    }

    /// Maximum number of channels over which a message is divided; `None` for no limit.
    #[must_use]
    pub fn max_channels(self) -> Option<u16> {
        match self.library {
            Library::Nccl(_) | Library::Rccl(_) => None,
            Library::OpenMpi(_) => Some(1),
        }
    }
}

/// NCCL's kernels (`src/device/generate.py`, 2.30.7): collectives with rings, trees, NVLS and PAT; sends and receives;
/// kernels on symmetric windows.
fn nccl(algorithm: Algorithm, collective: Collective) -> bool {
    use Collective::{AllGather, AllReduce, AllToAll, AllToAllV, Gather, ReduceScatter, Scatter, SendRecv};
    match algorithm {
        Algorithm::Ring => runs_rings(collective),
        Algorithm::Tree | Algorithm::NvlsTree | Algorithm::CollnetChain | Algorithm::OneShot | Algorithm::TwoShot => {
            collective == AllReduce
        }
        Algorithm::Nvls => matches!(collective, AllReduce | AllGather | ReduceScatter),
        Algorithm::Pat => matches!(collective, AllGather | ReduceScatter),
        Algorithm::Direct => {
            matches!(collective, AllToAll | AllToAllV | Gather | Scatter | SendRecv | AllGather | ReduceScatter)
        }
        _ => false,
    }
}

/// Returns true if NCCL and RCCL have ring kernels for a collective.
fn runs_rings(collective: Collective) -> bool {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    matches!(collective, AllReduce | AllGather | ReduceScatter | Broadcast | Reduce)
}

/// RCCL's kernels (`src/device/generate.py`, 2.21.5): rings and trees with LL, LL128 and Simple; sends, of which small
/// all_gather calls are also composed (`src/rccl_wrap.cc`, 2.27.7); MSCCL's all-pairs all_reduce, which `two_shot` over
/// peers' buffers represents.
fn rccl(algorithm: Algorithm, protocol: Protocol, collective: Collective) -> bool {
    use Collective::{AllGather, AllReduce, AllToAll, AllToAllV, Gather, Scatter, SendRecv};
    let is_fifo = matches!(protocol, Protocol::Ll | Protocol::Ll128 | Protocol::Simple);
    match algorithm {
        Algorithm::Ring => is_fifo && runs_rings(collective),
        Algorithm::Tree => is_fifo && collective == AllReduce,
        Algorithm::TwoShot => protocol == Protocol::Symmetric && collective == AllReduce,
        Algorithm::Direct => {
            matches!(protocol, Protocol::Ll | Protocol::Simple)
                && matches!(collective, AllGather | AllToAll | AllToAllV | Gather | Scatter | SendRecv)
        }
        _ => false,
    }
}

/// Returns true if NCCL has a kernel of the algorithm with this protocol. Symmetric kernels and copy engines need
/// windows; sends use LL or Simple.
fn nccl_protocol(
    version: NcclVersion,
    algorithm: Algorithm,
    protocol: Protocol,
    registered: BufferRegistration,
) -> bool {
    let windows = registered == BufferRegistration::Symmetric && version.has_window_kernels();
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

/// Algorithms of Open MPI's `base` component (`ompi/mca/coll/base`, 4.1 and 5.0) that have schedules in this crate.
fn open_mpi(algorithm: Algorithm, collective: Collective) -> bool {
    mpi::algorithms(collective).contains(&algorithm)
}
