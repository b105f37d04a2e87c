//! The matrix of `nvidia-smi topo -m`: relations between GPUs and NICs, from which a fabric is rebuilt.
//!
//! The matrix says how far apart devices are, not what stands between them, nor how fast anything is. What is rebuilt:
//!
//! - **NVLink.** Where all pairs have the same count and it cannot be a mesh (more links in all than any GPU has, or
//!   18), an NVSwitch with that many links to each GPU; otherwise direct links.
//! - **PCIe.** `PIX` is a common switch, `PXB` switches below a common one, everything else goes through the CPU of the
//!   NUMA node (`PHB` and `NODE` alike). NVLink hides what PCIe is between two GPUs: a GPU that shares a switch with no
//!   NIC is put straight on its CPU.
//! - **Sockets.** One per NUMA node, each joined to every other.
//!
//! Bandwidths follow from the GPU's generation, told by its name (where the table of plain `nvidia-smi` stands above)
//! or by the number of its NVLinks. Each assumption becomes a warning of the fabric.
//!
//! The matrix may stand anywhere in a text: below the table of `nvidia-smi`, in a fence, with terminal colours.

mod listing;
mod matrix;
mod rebuild;

pub(super) use matrix::{belongs_to_matrix, without_escapes};

use crate::error::{Origin, Result};
use crate::fabric::Fabric;

/// Reads a matrix.
///
/// # Errors
/// [`Error::Syntax`](crate::Error::Syntax) where there is no matrix, its header is missing, or a row is too short;
/// [`Error::Invalid`](crate::Error::Invalid) for unknown cells and two halves that contradict each other; each with line
/// and column.
pub fn parse(text: &str, source: &str) -> Result<Fabric> {
    let clean = without_escapes(text);
    let origin = Origin::new(source, &clean);
    let matrix = matrix::read(origin)?;
    rebuild::fabric(origin, &matrix, &listing::read(&clean))
}

#[cfg(test)]
mod tests;
