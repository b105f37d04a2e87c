//! Collectives, sizes and all_to_allv matrix of a request. The matrix is read from a file or generated from a grid.

use fabricast_sim::schedule::{Collective, MatrixError, Protocol, TrafficMatrix};
use fabricast_topologies::Bytes;
use fabricast_topologies::read::Limit;

use crate::args::{CallArgs, CollectiveChoice, StrategyArgs};
use crate::failure::Failure;

/// Calls that the flags request.
pub struct CallRequest {
    /// Collectives, in the order of the documentation.
    pub collectives: Vec<Collective>,
    /// Bytes from each sender to each receiver of an all_to_allv.
    pub matrix: Option<TrafficMatrix>,
    /// Message sizes of the calls, in bytes.
    pub sizes: Vec<Bytes>,
}

/// Returns the requested collectives, in the order of the documentation. `all` selects those with arbitrary sizes.
///
/// # Errors
/// [`Failure`]: no collective is named, or the command does not accept `dispatch` and `combine`.
pub fn collectives(call: &CallArgs) -> Result<Vec<Collective>, Failure> {
    match call.collective {
        Some(CollectiveChoice::One(collective)) => Ok(vec![collective]),
        Some(CollectiveChoice::Halo) => Ok(vec![Collective::AllToAllV]),
        Some(CollectiveChoice::Exchange(operation)) => Err(Failure::input_with_help(
            format!("{} is not a collective of this command", operation.name()),
            "`simulate --collective dispatch --tokens 4096` predicts it; --write-matrix FILE gives an all_to_allv",
        )),
        Some(CollectiveChoice::All) => {
            Ok(Collective::ALL.into_iter().filter(|collective| collective.has_variable_size()).collect())
        }
        None => Err(Failure::input_with_help(
            "no collective is given",
            "add --collective all_reduce, for example; `plan` accepts all",
        )),
    }
}

impl CallRequest {
    /// Resolves the flags for `ranks` ranks; `default_sizes` are used if the flags name none.
    ///
    /// # Errors
    /// [`Failure`]: no collective is named, a size is invalid for it, or the traffic matrix is missing or invalid.
    pub fn from_args(call: &CallArgs, ranks: usize, default_sizes: &[Bytes]) -> Result<Self, Failure> {
        let requested = match (&call.sizes, call.bytes) {
            (Some(sizes), _) => sizes.0.clone(),
            (None, Some(bytes)) => vec![bytes],
            (None, None) => Vec::new(),
        };
        let mut sizes =
            requested.into_iter().map(|size| call.round_to_elements(size)).collect::<Result<Vec<Bytes>, _>>()?;
        sizes.dedup();
        let collectives = collectives(call)?;
        let matrix = matrix(call, ranks)?;
        let is_halo = call.collective == Some(CollectiveChoice::Halo);
        let sizes = match (collectives.as_slice(), &matrix) {
            ([Collective::Barrier], _) if sizes.is_empty() => vec![Bytes(0)],
            ([Collective::Barrier], _) => return Err(Failure::input("a barrier moves no bytes: it has no size")),
            (_, Some(halo)) if is_halo => {
                let sizes = if sizes.is_empty() { default_sizes.to_vec() } else { sizes };
                let face_count = halo.total().0;
                let total_bytes =
                    |face: Bytes| face.0.checked_mul(face_count).map(Bytes).filter(|&bytes| bytes <= Bytes::MAX);
                let too_large =
                    || Failure::input(format!("{face_count} faces of this size are more than {}", Bytes::MAX));
                sizes.into_iter().map(|face| total_bytes(face).ok_or_else(too_large)).collect::<Result<_, _>>()?
            }
            (_, Some(matrix)) if sizes.is_empty() => vec![matrix.total()],
            (_, Some(matrix)) if matrix.total() == Bytes(0) && sizes.iter().any(|&size| size > Bytes(0)) => {
                return Err(Failure::input("the matrix is empty: there is nothing to scale to another size"));
            }
            _ if sizes.is_empty() => default_sizes.to_vec(),
            _ => sizes,
        };
        Ok(Self { collectives, matrix, sizes })
    }
}

/// Returns the matrix of an all_to_allv call; `None` for other collectives. For a halo exchange, every face has one
/// byte.
fn matrix(call: &CallArgs, ranks: usize) -> Result<Option<TrafficMatrix>, Failure> {
    let matrix = match (call.collective, &call.matrix, &call.grid) {
        (Some(CollectiveChoice::One(Collective::AllToAllV)), Some(path), None) => {
            let name = path.display().to_string();
            let text = fabricast_topologies::read::read_text_file(path, Limit::MATRIX)?;
            TrafficMatrix::parse(&text, &name).map_err(|error| matrix_failure(&error).with_file(path))?
        }
        (Some(CollectiveChoice::One(Collective::AllToAllV)), None, _) => {
            return Err(Failure::input_with_help(
                "an all_to_allv needs a matrix of the bytes from each rank to each rank",
                "add --matrix FILE: a line for each sender, a size for each receiver, separated by commas",
            ));
        }
        (Some(CollectiveChoice::Halo), None, Some(grid)) => {
            TrafficMatrix::halo(&grid.0, call.boundary(), Bytes(1)).map_err(|error| matrix_failure(&error))?
        }
        (Some(CollectiveChoice::Halo), None, None) => {
            return Err(Failure::input_with_help(
                "a halo exchange needs the grid of the ranks",
                "add --grid 4x2x1, for example: one to three sides",
            ));
        }
        (_, Some(_), _) => return Err(Failure::input("--matrix goes with --collective all_to_allv")),
        (_, None, Some(_)) => return Err(Failure::input("--grid goes with --collective halo")),
        _ if call.periodic => return Err(Failure::input("--periodic goes with --collective halo")),
        _ => return Ok(None),
    };
    if matrix.ranks() as usize == ranks {
        return Ok(Some(matrix));
    }
    let input = if call.grid.is_some() { "grid" } else { "matrix" };
    let failure = Failure::input(format!("the {input} has {} ranks, but there are {ranks}", matrix.ranks()));
    Err(call.matrix.iter().fold(failure, |failure, path| failure.with_file(path)))
}

fn matrix_failure(error: &MatrixError) -> Failure {
    Failure::input_at(error.to_string(), None, error.location())
}

/// Returns the protocols to consider. The default for a halo exchange is [`Protocol::Symmetric`], because neighbours
/// write their faces directly into each other's memory.
pub fn protocols(call: &CallArgs, flags: &StrategyArgs) -> Vec<Protocol> {
    match call.collective {
        Some(CollectiveChoice::Halo) if flags.protocol.is_empty() => vec![Protocol::Symmetric],
        _ => flags.protocol.clone(),
    }
}
