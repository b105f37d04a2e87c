//! Reader of files written by `gpu bench`.

use fabricast_topologies::SourceLocation;
use serde::Deserialize;
use serde_json::Value;

use super::{Bench, BenchPoint};

/// Value of the key `format` in benchmark files.
pub const FORMAT: &str = "fabricast-bench";
/// Version of the benchmark file format that this program reads and writes.
pub const VERSION: u32 = 1;

/// Reasons why a file is not a valid benchmark file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BenchFileError {
    /// The text is not JSON with the fields of a benchmark file.
    #[error("{location}: expected a file that `gpu bench` wrote: {reason}")]
    Syntax {
        /// Source location of the error in the benchmark file.
        location: SourceLocation,
        /// Description of the syntax error.
        reason: String,
    },
    /// The key `format` has another value than [`FORMAT`].
    #[error(
        "{source_name}: `format` is `{found}`, expected `{FORMAT}`: `gpu bench -o FILE --format json` writes such files"
    )]
    Format {
        /// Name of the benchmark file.
        source_name: String,
        /// Value of `format` in the file.
        found: String,
    },
    /// The key `version` has another value than [`VERSION`].
    #[error("{source_name}: `version` is {found}, but this version of fabricast reads {VERSION}")]
    Version {
        /// Name of the benchmark file.
        source_name: String,
        /// Value of `version` in the file.
        found: u32,
    },
    /// A point refers to a GPU that the probe does not contain.
    #[error("{source_name}: point {index} refers to GPU {gpu}, but the machine has {count}")]
    Gpu {
        /// Name of the benchmark file.
        source_name: String,
        /// Index of the point in the file, from 0.
        index: usize,
        /// CUDA ordinal of the GPU that the point refers to.
        gpu: usize,
        /// Number of GPUs in the probe of the file.
        count: usize,
    },
    /// The probe contains no GPU.
    #[error("{source_name}: the machine has no GPU, so nothing was measured")]
    NoGpus {
        /// Name of the benchmark file.
        source_name: String,
    },
    /// A time or rate of a point is not a positive number.
    #[error("{source_name}: point {index}: {field} is {value}, expected a positive number")]
    Figure {
        /// Name of the benchmark file.
        source_name: String,
        /// Index of the point in the file, from 0.
        index: usize,
        /// JSON key of the time or rate, such as `time_us`.
        field: &'static str,
        /// Value in the file, in the unit of the key.
        value: f64,
    },
}

impl BenchFileError {
    /// Source location of a syntax error. `None` for errors that concern the whole file or a point.
    pub fn location(&self) -> Option<&SourceLocation> {
        match self {
            Self::Syntax { location, .. } => Some(location),
            _ => None,
        }
    }
}

/// Keys that identify the format and version of a file, regardless of its other contents.
#[derive(Deserialize)]
struct Identification {
    format: Option<Value>,
    version: Option<Value>,
}

/// Parses and validates the text of a benchmark file. `source` names the file in errors.
///
/// # Errors
/// The text is not a benchmark file of this format and version, the machine has no GPU, or a point has an invalid GPU,
/// time or rate.
pub fn read(text: &str, source: &str) -> Result<Bench, BenchFileError> {
    let source_name = || source.to_owned();
    if let Ok(Identification { format, version }) = serde_json::from_str(text) {
        if let Some(found) = format.as_ref().and_then(Value::as_str).filter(|found| *found != FORMAT) {
            return Err(BenchFileError::Format { source_name: source_name(), found: found.to_owned() });
        }
        let version = version.and_then(|version| u32::try_from(version.as_u64()?).ok());
        if let Some(found) = version.filter(|found| *found != VERSION) {
            return Err(BenchFileError::Version { source_name: source_name(), found });
        }
    }
    let bench: Bench = serde_json::from_str(text).map_err(|error| {
        let reason = error.to_string();
        let suffix = format!(" at line {} column {}", error.line(), error.column());
        BenchFileError::Syntax {
            location: SourceLocation {
                source: source.to_owned(),
                line: error.line() as u32,
                column: error.column() as u32,
                ..SourceLocation::default()
            },
            reason: reason.strip_suffix(&suffix).unwrap_or(&reason).to_owned(),
        }
    })?;
    let count = bench.probe.devices.len();
    if count == 0 {
        return Err(BenchFileError::NoGpus { source_name: source_name() });
    }
    for (index, point) in bench.points.iter().enumerate() {
        if let Some(gpu) = [point.src, point.dst].into_iter().flatten().find(|&gpu| gpu >= count) {
            return Err(BenchFileError::Gpu { source_name: source_name(), index, gpu, count });
        }
        let BenchPoint { time_us, fastest_us, slowest_us, gb_per_s, .. } = *point;
        let times = [("time_us", time_us), ("fastest_us", fastest_us), ("slowest_us", slowest_us)];
        for (name, value) in times.into_iter().chain(gb_per_s.map(|gb_per_s| ("gb_per_s", gb_per_s))) {
            if !(value.is_finite() && value > 0.0) {
                return Err(BenchFileError::Figure { source_name: source_name(), index, field: name, value });
            }
        }
    }
    Ok(bench)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::bench::{Load, PointKind};
    use crate::gpu::probe::tests::machine;

    fn bench() -> Bench {
        let point = BenchPoint {
            kind: PointKind::Blocks,
            load: Load::Shift(1),
            src: Some(0),
            dst: Some(1),
            blocks: Some(4),
            threads: Some(512),
            bytes: 1 << 20,
            time_us: 5.25,
            fastest_us: 5.0,
            slowest_us: 6.125,
            gb_per_s: Some(199.729),
        };
        Bench {
            format: FORMAT.into(),
            version: VERSION,
            date: "2026-11-21T04:00:00Z".into(),
            machine: "2 × NVIDIA H200, driver 580.159.04".into(),
            probe: machine(2),
            points: vec![point],
            skipped: vec!["something".into()],
        }
    }

    #[test]
    fn benchmark_round_trips_through_json() {
        let text = serde_json::to_string_pretty(&bench()).unwrap();
        assert_eq!(read(&text, "bench.json").unwrap(), bench());
        assert_eq!(bench().csv().lines().nth(1), Some("blocks,shift_1,0,1,4,512,1048576,5.25,5,6.125,199.729"));
    }

    #[test]
    fn other_formats_and_versions_are_named_whatever_they_contain() {
        let error = |text: &str| read(text, "x.json").unwrap_err().to_string();
        let run = error(r#"{"format": "fabricast-run/2", "fabricast_gpu_run": 2, "rows": []}"#);
        assert!(run.contains("`format` is `fabricast-run/2`, expected `fabricast-bench`"), "{run}");
        let later = error(r#"{"format": "fabricast-bench", "version": 2, "machines": []}"#);
        assert_eq!(later, "x.json: `version` is 2, but this version of fabricast reads 1");
    }

    #[test]
    fn invalid_files_are_reported_with_location() {
        let error = read("{\n  \"format\": 3}", "x.json").unwrap_err();
        assert!(
            error.to_string().starts_with("x.json:2:13: expected a file that `gpu bench` wrote: invalid type"),
            "{error}"
        );
        let wrong = |change: fn(&mut Bench)| {
            let mut bench = bench();
            change(&mut bench);
            read(&serde_json::to_string(&bench).unwrap(), "x.json").unwrap_err().to_string()
        };
        assert!(wrong(|bench| bench.format = "other".into()).contains("expected `fabricast-bench`"));
        assert!(wrong(|bench| bench.version = 2).contains("this version of fabricast reads 1"));
        assert!(
            wrong(|bench| bench.points[0].dst = Some(2)).contains("point 0 refers to GPU 2, but the machine has 2")
        );
        assert!(wrong(|bench| bench.points[0].time_us = -1.0).contains("point 0: time_us is -1"));
        assert!(wrong(|bench| bench.points[0].time_us = 0.0).contains("time_us is 0, expected a positive number"));
        assert!(
            wrong(|bench| bench.points[0].gb_per_s = Some(0.0)).contains("gb_per_s is 0, expected a positive number")
        );
        assert!(wrong(|bench| bench.points[0].fastest_us = 0.0).contains("fastest_us is 0"));
        let without_points = wrong(|bench| {
            bench.points.clear();
            bench.probe.devices.clear();
        });
        assert_eq!(without_points, "x.json: the machine has no GPU, so nothing was measured");
    }
}
