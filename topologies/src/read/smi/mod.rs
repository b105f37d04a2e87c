//! The matrix of `nvidia-smi topo -m`: relations between GPUs and NICs, from which a fabric is rebuilt.
//!
//! The matrix says how far apart devices are, not what stands between them, nor how fast anything is. What is rebuilt:
//!
//! - **NVLink.** GPUs that reach each other over NVLink, each over the same count and over more links in all than any GPU
//!   has (or 18), are on an NVSwitch; one without NVLinks leaves the others theirs. Otherwise links are direct.
//! - **Grace.** GPUs whose memory is a NUMA node hang on their CPU by NVLink-C2C.
//! - **PCIe.** `PIX` is a common switch, `PXB` switches below a common one, everything else goes through the CPU of the
//!   NUMA node (`PHB` and `NODE` alike). NVLink hides what PCIe is between two GPUs: a GPU that shares a switch with no
//!   NIC is put straight on its CPU.
//! - **Sockets.** One per NUMA node, each joined to every other; where the matrix gives no affinity, devices that are `SYS`
//!   apart are on different ones.
//!
//! Bandwidths follow from the GPU's generation: of the model that the user names, or the text around the matrix (the table
//! of `nvidia-smi`, `nvidia-smi -L`, an environment dump), or else of what the number of NVLinks leaves possible. Each
//! assumption becomes a warning of the fabric.
//!
//! The matrix may stand anywhere in a text: below the table of `nvidia-smi`, in a fence, with terminal colours.

mod domains;
mod listing;
mod matrix;
mod rebuild;

pub(super) use matrix::{belongs_to_matrix, without_escapes};

use crate::error::{Origin, Result};
use crate::fabric::Fabric;
use crate::gpus::GpuModel;

/// Reads a matrix.
///
/// # Errors
/// [`Error::Syntax`](crate::Error::Syntax) where there is no matrix, its header is missing, or a row is too short;
/// [`Error::Invalid`](crate::Error::Invalid) for unknown cells and two halves that contradict each other; each with line
/// and column.
pub fn parse(text: &str, source: &str) -> Result<Fabric> {
    parse_as(text, source, None)
}

/// Reads a matrix whose GPUs are of a model, where the text around it does not say.
///
/// # Errors
/// As [`parse`], and [`Error::Request`](crate::Error::Request) where the text says another model.
pub fn parse_as(text: &str, source: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric> {
    let clean = without_escapes(text);
    let origin = Origin::new(source, &clean);
    let matrix = matrix::read(origin)?;
    rebuild::fabric(origin, &matrix, &listing::Listing::read(&clean), gpu)
}

#[cfg(test)]
mod tests;
