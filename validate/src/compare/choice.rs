//! Predicted choices of a library, for settings that a measurement does not force.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_libraries::Library;
use fabricast_libraries::rccl::RcclHosts;
use fabricast_search::candidates::Restriction;
use fabricast_sim::schedule::Protocol;

use crate::measured::manifest::{Measurement, RegistrationKind};
use crate::measured::{LibraryName, Row};
use crate::measured_strategy::library;

/// A row whose strategy is not fully forced by its measurement.
#[derive(Clone, Copy)]
pub struct ChoiceRequest<'a> {
    /// Measurement that contains the row.
    pub measurement: &'a Measurement,
    /// Row to be predicted.
    pub row: &'a Row,
}

/// A model of a library's choices. It returns one strategy if the choice is known, or several strategies, of which the
/// fastest is used.
pub trait LibraryChoice: Sync {
    /// Returns the strategies that the library may choose. Settings that the measurement states take precedence.
    fn restriction(&self, question: ChoiceRequest<'_>) -> Restriction;
}

/// Assumes that the library chooses as well as the prediction: the fastest predicted strategy among those that the
/// library can run.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastestPlanned;

/// Algorithms that NCCL runs (`ncclAlgo_t` in its src/include/nccl_common.h): ring, tree, NVLS variants and PAT.
/// Collectives without one of these algorithms are composed of sends and receives.
const NCCL_ALGORITHMS: [Algorithm; 6] =
    [Algorithm::Ring, Algorithm::Tree, Algorithm::Nvls, Algorithm::NvlsTree, Algorithm::Pat, Algorithm::Direct];

/// Protocols of NCCL's kernels.
const NCCL_PROTOCOLS: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

/// NCCL's symmetric kernels (src/device/symmetric): all-to-all exchange in one step or two.
const SYMMETRIC: [Algorithm; 2] = [Algorithm::OneShot, Algorithm::TwoShot];

/// Algorithms that RCCL runs. Collectives without one of these algorithms are composed of sends and receives.
const RCCL_ALGORITHMS: [Algorithm; 3] = [Algorithm::Ring, Algorithm::Tree, Algorithm::Direct];

/// Returns true for measurements of RCCL on hosts for which its choices cannot be predicted.
#[must_use]
pub fn has_unpredicted_rccl(measurement: &Measurement) -> bool {
    let fabric = &measurement.fabric;
    is_rccl(measurement) && RcclHosts::from_fabric(fabric, fabric.gpus()).is_err()
}

/// Returns true for measurements of RCCL.
fn is_rccl(measurement: &Measurement) -> bool {
    matches!(library(measurement), Some(Library::Rccl(_)))
}

impl LibraryChoice for FastestPlanned {
    fn restriction(&self, ChoiceRequest { measurement, .. }: ChoiceRequest<'_>) -> Restriction {
        let name = measurement.configuration.library.as_ref().map_or(LibraryName::Nccl, |library| library.name);
        // RCCL's choices cannot be predicted here. NCCL does not run on GPUs of other vendors.
        if is_rccl(measurement) {
            let (algorithms, protocols) = (RCCL_ALGORITHMS.to_vec(), NCCL_PROTOCOLS.to_vec());
            return Restriction { algorithms, protocols, ..Restriction::default() };
        }
        let (mut algorithms, mut protocols) = match name {
            LibraryName::Nccl => (NCCL_ALGORITHMS.to_vec(), NCCL_PROTOCOLS.to_vec()),
            LibraryName::Vllm | LibraryName::Sglang | LibraryName::Trtllm | LibraryName::Torch => {
                (SYMMETRIC.to_vec(), vec![Protocol::Symmetric])
            }
            // Messages of Open MPI have the costs of the protocol `simple`.
            LibraryName::OpenMpi => (Vec::new(), vec![Protocol::Simple]),
            LibraryName::Rccl | LibraryName::Nvshmem | LibraryName::Mscclpp | LibraryName::Fabricast => {
                (Vec::new(), Vec::new())
            }
        };
        if name == LibraryName::Nccl && measurement.configuration.registered == RegistrationKind::Symmetric {
            algorithms.extend(SYMMETRIC);
            protocols.push(Protocol::Symmetric);
        }
        let channels = if name == LibraryName::OpenMpi { vec![1] } else { Vec::new() };
        Restriction { algorithms, protocols, channels, ..Restriction::default() }
    }
}
