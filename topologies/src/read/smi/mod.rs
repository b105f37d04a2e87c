//! Reader of the matrix of `nvidia-smi topo -m`: relations between GPUs and NICs, from which a fabric is reconstructed.
//!
//! The matrix states the proximity of devices, but neither the devices between them nor any rates. The reconstruction
//! follows these rules:
//!
//! - **NVLink.** GPUs are on an NVSwitch if every two are joined by equally many NVLinks, and these are 18 for each
//!   pair or add up to more than the 18 NVLinks of a GPU. A GPU without NVLinks does not affect the others. Otherwise
//!   links are direct.
//! - **Grace.** GPUs whose memory is a NUMA node are attached to their CPU by NVLink-C2C.
//! - **PCIe.** `PIX` is a common switch, `PXB` are switches below a common one, and all other pairs are joined through
//!   the CPU of the NUMA node (both `PHB` and `NODE`). NVLink hides the PCIe relation of two GPUs: a GPU that shares a
//!   switch with no NIC is attached directly to its CPU.
//! - **Sockets.** One per NUMA node, each joined to every other. If the matrix states no affinity, devices that are
//!   `SYS` apart are on different sockets.
//!
//! Bandwidths follow from the generation of the GPUs. It is that of the model that the user names, or that the text
//! around the matrix names (the table of `nvidia-smi`, `nvidia-smi -L`, an environment dump); otherwise it is inferred
//! from the number of NVLinks. Each assumption becomes a warning of the fabric.
//!
//! The matrix may be anywhere in a text: below the table of `nvidia-smi`, in a fenced block, with terminal colours.

mod domains;
mod listing;
mod matrix;
mod rebuild;

pub(super) use matrix::{blank_escapes, is_matrix_line};

use crate::error::{Origin, Result};
use crate::fabric::Fabric;
use crate::gpus::GpuModel;

/// Reads a matrix.
///
/// # Errors
/// [`Error::Syntax`](crate::Error::Syntax) if there is no matrix, its header is missing, or a row is too short;
/// [`Error::Invalid`](crate::Error::Invalid) for unknown cells and contradicting halves; each with line and column.
pub fn parse(text: &str, source: &str) -> Result<Fabric> {
    parse_with_gpu(text, source, None)
}

/// Variant of [`parse`] with a GPU model for texts that do not state it.
///
/// # Errors
/// The errors of [`parse`], and [`Error::Request`](crate::Error::Request) if the text states another model.
pub fn parse_with_gpu(text: &str, source: &str, gpu: Option<&'static GpuModel>) -> Result<Fabric> {
    let clean = blank_escapes(text);
    let origin = Origin::new(source, &clean);
    let matrix = matrix::read(origin)?;
    rebuild::fabric(origin, &matrix, &listing::Listing::read(&clean), gpu)
}

#[cfg(test)]
mod tests;
