//! Contradictory times of the same configuration and message size.

use std::collections::BTreeMap;

use fabricast_topologies::{Bytes, Picos, SourceLocation};

use super::Measurement;

/// Minimum ratio of two times that contradict each other. Repeated rows of the shipped data differ by at most 38 %.
const MIN_CONTRADICTION_FACTOR: f64 = 3.0;

/// Two rows with equal configuration and size whose times differ by more than repetition explains.
#[derive(Clone, Debug, PartialEq)]
pub struct Contradiction {
    /// Message size in bytes.
    pub bytes: Bytes,
    /// Source location and value of the shortest time.
    pub shortest: (SourceLocation, Picos),
    /// Source location and value of the longest time.
    pub longest: (SourceLocation, Picos),
}

impl Contradiction {
    /// Ratio of the longest to the shortest time.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.longest.1.0 as f64 / self.shortest.1.0.max(1) as f64
    }
}

/// Returns the contradictions among measurements, by configuration and message size.
#[must_use]
pub fn contradictions(measurements: &[Measurement]) -> Vec<Contradiction> {
    let mut points: BTreeMap<(usize, &'static str, Bytes), Contradiction> = BTreeMap::new();
    let mut order: Vec<(usize, &'static str, Bytes)> = Vec::new();
    let mut configurations: BTreeMap<String, usize> = BTreeMap::new();
    for measurement in measurements {
        let next = configurations.len();
        let configuration = format!("{:?} {:?}", measurement.request, measurement.configuration);
        let configuration = *configurations.entry(configuration).or_insert(next);
        let source = measurement.file.display().to_string();
        for row in &measurement.rows {
            let key = (configuration, measurement.dtype(row).name(), row.bytes);
            let observation =
                (SourceLocation { line: row.line, ..SourceLocation::from_source(&source) }, row.measured());
            match points.get_mut(&key) {
                Some(point) => {
                    if observation.1 < point.shortest.1 {
                        point.shortest = observation;
                    } else if observation.1 > point.longest.1 {
                        point.longest = observation;
                    }
                }
                None => {
                    order.push(key);
                    points.insert(
                        key,
                        Contradiction { bytes: row.bytes, shortest: observation.clone(), longest: observation },
                    );
                }
            }
        }
    }
    order
        .iter()
        .filter_map(|key| points.get(key))
        .filter(|point| point.factor() >= MIN_CONTRADICTION_FACTOR)
        .cloned()
        .collect()
}
