//! Reading what `gpu bench` wrote.

use fabricast_topologies::Place;

use super::Bench;

/// What the key `format` says.
pub const FORMAT: &str = "fabricast-bench";
/// The version that is written and read.
pub const VERSION: u32 = 1;

/// Why a file is not what `gpu bench` wrote.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BenchFileError {
    /// It is no such JSON.
    #[error("not what `gpu bench` writes: {reason}")]
    Syntax {
        /// Where.
        place: Place,
        /// What is wrong.
        reason: String,
    },
    /// It is JSON of another kind.
    #[error("`format` is `{found}`, expected `{FORMAT}`: `gpu bench -o FILE --format json` writes such files")]
    Format {
        /// The file.
        source_name: String,
        /// What it says.
        found: String,
    },
    /// It is of another version.
    #[error("`version` is {found}, this program reads {VERSION}")]
    Version {
        /// The file.
        source_name: String,
        /// What it says.
        found: u32,
    },
    /// It names GPUs that its own probe does not have.
    #[error("point {index} is of GPU {gpu}, and the machine has {count}")]
    Gpu {
        /// The file.
        source_name: String,
        /// Which point, from 0.
        index: usize,
        /// The GPU.
        gpu: usize,
        /// How many there are.
        count: usize,
    },
    /// A figure is no figure.
    #[error("point {index}: {what} is {value}, expected a positive number")]
    Figure {
        /// The file.
        source_name: String,
        /// Which point, from 0.
        index: usize,
        /// Which figure.
        what: &'static str,
        /// Its value.
        value: f64,
    },
}

impl BenchFileError {
    /// Where the fault is, where that is known.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Syntax { place, .. } => Some(place),
            _ => None,
        }
    }
}

/// Reads a file's text; `source` names it in errors.
///
/// # Errors
/// [`BenchFileError`].
pub fn read(text: &str, source: &str) -> Result<Bench, BenchFileError> {
    let bench: Bench = serde_json::from_str(text).map_err(|error| {
        let reason = error.to_string();
        let suffix = format!(" at line {} column {}", error.line(), error.column());
        BenchFileError::Syntax {
            place: Place {
                source: source.to_owned(),
                line: error.line() as u32,
                column: error.column() as u32,
                ..Place::default()
            },
            reason: reason.strip_suffix(&suffix).unwrap_or(&reason).to_owned(),
        }
    })?;
    let source_name = || source.to_owned();
    if bench.format != FORMAT {
        return Err(BenchFileError::Format { source_name: source_name(), found: bench.format });
    }
    if bench.version != VERSION {
        return Err(BenchFileError::Version { source_name: source_name(), found: bench.version });
    }
    let count = bench.probe.devices.len();
    for (index, point) in bench.points.iter().enumerate() {
        if let Some(gpu) = [point.src, point.dst].into_iter().flatten().find(|&gpu| gpu >= count) {
            return Err(BenchFileError::Gpu { source_name: source_name(), index, gpu, count });
        }
        for (what, value) in [("time_us", Some(point.time_us)), ("gbps", point.gbps)] {
            if let Some(value) = value.filter(|value| !(value.is_finite() && *value >= 0.0)) {
                return Err(BenchFileError::Figure { source_name: source_name(), index, what, value });
            }
        }
    }
    Ok(bench)
}
