//! Comment lines at the top of an exported file: its origin, and the strategies that it omits.

use super::{DroppedStrategy, SavedPlan};

/// Maximum number of header lines about dropped strategies; the number of further strategies is stated in one line.
const MAX_DROPPED_LINES: usize = 20;

/// Returns the header lines without comment marks. Each fits the line length of NCCL's example tuner plugin.
pub(super) fn lines(plan: &SavedPlan, title: &str, dropped: &[DroppedStrategy]) -> Vec<String> {
    let date = if plan.profile_date.is_empty() { String::new() } else { format!(" of {}", plan.profile_date) };
    let library = plan.library.map_or_else(|| "none named".to_owned(), |library| library.to_string());
    let mut lines = vec![
        format!("{title}, made by fabricast {}", env!("CARGO_PKG_VERSION")),
        format!("fabric {}: {} ranks, hosts: {}", plan.fabric, plan.ranks, plan.nodes),
        format!("profile {}{date}; library {library}", plan.profile),
    ];
    lines.extend(unplanned(plan));
    lines.extend(dropped.iter().take(MAX_DROPPED_LINES).map(|entry| format!("not in this file: {entry}")));
    if dropped.len() > MAX_DROPPED_LINES {
        lines.push(format!("and {} more", dropped.len() - MAX_DROPPED_LINES));
    }
    lines.iter().map(|line| shortened(line)).collect()
}

/// Returns a header line with the planned size range if the library's default outside this range is unknown; otherwise
/// `None`.
fn unplanned(plan: &SavedPlan) -> Option<String> {
    let (first, last) = (plan.rows.iter().map(|row| row.bytes).min()?, plan.rows.iter().map(|row| row.bytes).max()?);
    plan.outside_ranges.is_empty().then(|| {
        format!("planned: {first} to {last}; smaller and larger sizes use the choice of the nearest planned size, not evaluated")
    })
}

fn shortened(line: &str) -> String {
    const MAX_BYTES: usize = 240;
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() <= MAX_BYTES {
        return line;
    }
    let mut end = MAX_BYTES;
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", line.get(..end).unwrap_or_default())
}
