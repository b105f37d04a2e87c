//! Text output of `gpu doctor`.

use std::fmt;

use super::hosts::HostDirection;
use super::{Diagnosis, PairVerdict};

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, measured {}, compared with {}", self.machine, self.date, self.fabric)?;
        self.pairs(f)?;
        for verdict in &self.hosts {
            let direction = match verdict.direction {
                HostDirection::ToGpu => format!("host to GPU {}", verdict.gpu),
                HostDirection::FromGpu => format!("GPU {} to host", verdict.gpu),
            };
            figures(&direction, verdict.measured_gb_per_s, verdict.expected_gb_per_s, f)?;
            if let (Some(concurrent), Some(expected)) =
                (verdict.concurrent_gb_per_s, verdict.expected_concurrent_gb_per_s)
            {
                write!(f, "; while all GPUs copy {concurrent:.1}, expected {expected:.1}")?;
            }
            writeln!(f, "{}", verdict.fault.map(|fault| format!("  {}", fault.name())).unwrap_or_default())?;
        }
        if self.findings.is_empty() {
            return writeln!(f, "no fault found");
        }
        for finding in &self.findings {
            let word = finding.severity.name();
            writeln!(f, "{word}: {} ({})", finding.message, finding.fault.name())?;
            writeln!(f, "  probably: {}", finding.cause)?;
            writeln!(f, "  look: {}", finding.command)?;
        }
        Ok(())
    }
}

fn figures(name: &str, measured: Option<f64>, expected: Option<f64>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.1}"));
    write!(f, "{name}: {} GB/s, expected {}", number(measured), number(expected))
}

/// Formats a range of two values, or a single value if both round to the same text.
fn range_text(low: f64, high: f64, digits: usize) -> String {
    let (low, high) = (format!("{low:.digits$}"), format!("{high:.digits$}"));
    if low == high { low } else { format!("{low}–{high}") }
}

impl Diagnosis {
    /// Prints one line per path class for the pairs without a fault, and one line for each pair with a fault.
    fn pairs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut classes: Vec<_> = self.pairs.iter().map(|pair| pair.class).collect();
        classes.sort();
        classes.dedup();
        for class in classes {
            let healthy: Vec<&PairVerdict> =
                self.pairs.iter().filter(|pair| pair.class == class && pair.fault.is_none()).collect();
            if healthy.is_empty() {
                continue;
            }
            let range = |figure: &dyn Fn(&PairVerdict) -> Option<f64>| {
                let figures = || healthy.iter().filter_map(|pair| figure(pair));
                figures().reduce(f64::min).zip(figures().reduce(f64::max))
            };
            write!(f, "{} pairs over {class}", healthy.len())?;
            if let Some((low, high)) = range(&|pair| pair.measured_gb_per_s) {
                write!(f, ": {} GB/s", range_text(low, high, 0))?;
            }
            if let Some((_, expected)) = range(&|pair| pair.expected_gb_per_s) {
                write!(f, ", expected {expected:.0}")?;
            }
            if let Some((low, high)) = range(&|pair| pair.bidirectional_gb_per_s) {
                write!(f, "; both ways {}", range_text(low, high, 0))?;
            }
            if let Some((low, high)) = range(&|pair| pair.blocks_gb_per_s) {
                write!(f, "; thread blocks {}", range_text(low, high, 0))?;
                if let Some((_, expected)) = range(&|pair| pair.expected_blocks_gb_per_s) {
                    write!(f, ", expected {expected:.0}")?;
                }
            }
            if let Some((low, high)) = range(&|pair| pair.flag_us) {
                write!(f, "; flags {} µs", range_text(low, high, 2))?;
                if let Some((_, expected)) = range(&|pair| Some(pair.expected_flag_us)) {
                    write!(f, ", expected {expected:.2}")?;
                }
            }
            writeln!(f)?;
        }
        for pair in &self.pairs {
            if let Some(fault) = pair.fault {
                let name = format!("GPU {} to GPU {} over {}", pair.src, pair.dst, pair.class);
                figures(&name, pair.measured_gb_per_s, pair.expected_gb_per_s, f)?;
                writeln!(f, "  {}", fault.name())?;
            }
        }
        Ok(())
    }
}
