//! What libraries can run, whatever they would choose: `--library` restricts picks to it.

use fabricast_sim::schedule::{Collective, Protocol};

use super::Library;
use crate::algorithm::Algorithm;

/// NCCL's kernels (`src/device/generate.py`, 2.30.7): collectives of rings, trees, NVLS and PAT; sends and receives.
pub(super) fn nccl(algorithm: Algorithm, collective: Collective) -> bool {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv};
    match algorithm {
        Algorithm::Ring => matches!(collective, AllReduce | AllGather | ReduceScatter | Broadcast | Reduce),
        Algorithm::Tree | Algorithm::NvlsTree | Algorithm::OneShot | Algorithm::TwoShot => collective == AllReduce,
        Algorithm::Nvls => matches!(collective, AllReduce | AllGather | ReduceScatter),
        Algorithm::Pat => matches!(collective, AllGather | ReduceScatter),
        Algorithm::Direct => {
            matches!(collective, AllToAll | Gather | Scatter | SendRecv | AllGather | ReduceScatter)
        }
        _ => false,
    }
}

/// The algorithms of Open MPI's base (`ompi/mca/coll/base`, 4.1 and 5.0) that there are schedules of.
pub(super) fn open_mpi(algorithm: Algorithm, collective: Collective) -> bool {
    super::mpi::algorithms(collective).iter().any(|known| known.ours() == Some(algorithm))
}

impl Library {
    /// Whether it moves bytes so.
    #[must_use]
    pub fn offers_protocol(self, algorithm: Algorithm, protocol: Protocol) -> bool {
        match self {
            Self::Nccl(_) => match (algorithm, protocol) {
                // Kernels on symmetric windows write at once or in two shots; so do copy engines.
                (Algorithm::OneShot | Algorithm::TwoShot, _) => protocol == Protocol::Symmetric,
                (Algorithm::Direct, protocol) => protocol != Protocol::Ll128,
                (Algorithm::Ring | Algorithm::Tree, protocol) => {
                    matches!(protocol, Protocol::Ll | Protocol::Ll128 | Protocol::Simple)
                }
                _ => protocol == Protocol::Simple,
            },
            Self::OpenMpi(_) => protocol == super::mpi::PROTOCOL,
        }
    }
}
