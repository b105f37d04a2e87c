//! What is said of measured data as it is read: rows left out, figures that contradict each other.

use fabricast_validate::measured::manifest::Loaded;

use crate::output::Output;

/// Most warnings of one kind; the rest are counted.
const MOST_WARNINGS: usize = 20;

/// What cannot be used or believed, on standard error.
pub fn warn(loaded: &Loaded, output: &Output) {
    let rejected = loaded.measurements.iter().flat_map(|one| {
        one.rejected
            .iter()
            .map(|rejected| format!("{}:{}: left out: {}", one.file.display(), rejected.line, rejected.reason))
    });
    let contradictory = loaded.contradictions.iter().map(|found| {
        let (short, long) = (&found.shortest, &found.longest);
        format!("{} is {} at {} and {} at {}: both cannot be", found.bytes, short.1, short.0, long.1, long.0)
    });
    for warnings in [rejected.collect::<Vec<_>>(), contradictory.collect()] {
        for warning in warnings.iter().take(MOST_WARNINGS) {
            output.warn(warning);
        }
        if warnings.len() > MOST_WARNINGS {
            output.warn(&format!("and {} more of this kind; JSON has all", warnings.len() - MOST_WARNINGS));
        }
    }
}
