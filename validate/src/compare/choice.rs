//! What a library chooses by itself where a measurement does not say.

use fabricast_planner::algorithm::Algorithm;
use fabricast_planner::library::Library;
use fabricast_planner::strategy::Restriction;
use fabricast_sim::schedule::Protocol;

use crate::measured::manifest::{Measurement, Registered};
use crate::measured::{LibraryName, Row};

/// A row whose strategy a measurement leaves open, in whole or in part.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The measurement.
    pub measurement: &'a Measurement,
    /// The row.
    pub row: &'a Row,
}

/// What a library may choose from, as far as is known: one strategy where its choice is known, several otherwise, of
/// which the fastest is taken.
pub trait LibraryChoice: Sync {
    /// What the choice is restricted to. What the measurement itself says goes before it.
    fn narrow(&self, question: Question<'_>) -> Restriction;
}

/// The plan's pick among what the library can run: a library is taken to choose as well as the prediction would.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlansPick;

/// What NCCL runs (`ncclAlgo_t` in its src/include/nccl_common.h): ring, tree, the three of NVLS and PAT; collectives
/// without an algorithm of their own are pairs of sends and receives.
const OF_NCCL: [Algorithm; 6] =
    [Algorithm::Ring, Algorithm::Tree, Algorithm::Nvls, Algorithm::NvlsTree, Algorithm::Pat, Algorithm::Direct];

/// Protocols of its kernels.
const PROTOCOLS_OF_NCCL: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

/// Its symmetric kernels (src/device/symmetric): all to all, in one step or two.
const SYMMETRIC: [Algorithm; 2] = [Algorithm::OneShot, Algorithm::TwoShot];

/// Returns true for measurements of RCCL, whose choices and kernels are not modelled: those that name it, and those on other
/// makers' GPUs than NVIDIA's that name no library which runs there.
#[must_use]
pub fn is_rccl(measurement: &Measurement) -> bool {
    let fabric = &measurement.fabric;
    match measurement.configuration.library.as_ref().map(|library| library.name) {
        Some(LibraryName::Rccl) => true,
        None | Some(LibraryName::Nccl) => !Library::NEWEST_NCCL.runs_on(fabric, fabric.gpus()),
        Some(_) => false,
    }
}

impl LibraryChoice for PlansPick {
    fn narrow(&self, Question { measurement, .. }: Question<'_>) -> Restriction {
        let name = measurement.configuration.library.as_ref().map_or(LibraryName::Nccl, |library| library.name);
        // Of RCCL nothing is modelled, and NCCL does not run on other makers' GPUs: what is left is the fastest of our own
        // schedules.
        if is_rccl(measurement) {
            return Restriction::default();
        }
        let (mut algorithms, mut protocols) = match name {
            LibraryName::Nccl => (OF_NCCL.to_vec(), PROTOCOLS_OF_NCCL.to_vec()),
            LibraryName::Vllm | LibraryName::Sglang | LibraryName::Trtllm | LibraryName::Torch => {
                (SYMMETRIC.to_vec(), vec![Protocol::Symmetric])
            }
            // Its messages.
            LibraryName::OpenMpi => (Vec::new(), vec![Protocol::Simple]),
            LibraryName::Rccl | LibraryName::Nvshmem | LibraryName::Mscclpp | LibraryName::Fabricast => {
                (Vec::new(), Vec::new())
            }
        };
        if name == LibraryName::Nccl && measurement.configuration.registered == Registered::Symmetric {
            algorithms.extend(SYMMETRIC);
            protocols.push(Protocol::Symmetric);
        }
        let channels = if name == LibraryName::OpenMpi { vec![1] } else { Vec::new() };
        Restriction { algorithms, protocols, channels, ..Restriction::default() }
    }
}
