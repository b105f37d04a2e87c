//! Comment lines at the top of an exported file: its origin.

use super::{Dropped, SavedPlan};

/// Most lines about dropped strategies; the rest are only counted.
const MOST_DROPPED: usize = 20;

/// Returns the header lines without comment marks. Each fits the line length of NCCL's example tuner plugin.
pub(super) fn lines(plan: &SavedPlan, what: &str, dropped: &[Dropped]) -> Vec<String> {
    let date = if plan.profile_date.is_empty() { String::new() } else { format!(" of {}", plan.profile_date) };
    let library = plan.library.map_or_else(|| "none named".to_owned(), |library| library.to_string());
    let mut lines = vec![
        format!("{what}, made by fabricast {}", env!("CARGO_PKG_VERSION")),
        format!("fabric {}: {} ranks, hosts: {}", plan.fabric, plan.ranks, plan.nodes),
        format!("profile {}{date}; library {library}", plan.profile),
    ];
    lines.extend(unplanned(plan));
    lines.extend(dropped.iter().take(MOST_DROPPED).map(|one| format!("not said here: {one}")));
    if dropped.len() > MOST_DROPPED {
        lines.push(format!("and {} more", dropped.len() - MOST_DROPPED));
    }
    lines.iter().map(|line| shortened(line)).collect()
}

/// Returns a line with the planned size range if the library's default outside it is unknown.
fn unplanned(plan: &SavedPlan) -> Option<String> {
    let (first, last) = (plan.rows.iter().map(|row| row.bytes).min()?, plan.rows.iter().map(|row| row.bytes).max()?);
    plan.beyond.is_empty().then(|| {
        format!("planned: {first} to {last}; below and above stands what is taken at the nearest of these, unjudged")
    })
}

fn shortened(line: &str) -> String {
    const MOST: usize = 240;
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() <= MOST {
        return line;
    }
    let mut end = MOST;
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", line.get(..end).unwrap_or_default())
}
