//! Converts a plan to rules: one per size range with the same algorithm, protocol and number of channels.

use super::{COLUMNS, Interval, Rule, Rules};
use crate::export::nccl_tuner::{ConvertedTable, TunerRow};
use crate::export::{DroppedStrategy, LAST_BYTES, SavedPlan, header};

/// Rules, and the strategies of the plan that they cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedRules {
    /// Rules of the plan.
    pub rules: Rules,
    /// Strategies that the rules cannot express.
    pub dropped: Vec<DroppedStrategy>,
}

impl ConvertedRules {
    /// Creates the rules of a plan from its table of NCCL's example tuner. Rules begin and end at multiples of the number
    /// of ranks: sizes less than that above the end of a row of the table keep the row below.
    #[must_use]
    pub fn new(plan: &SavedPlan) -> Self {
        let ConvertedTable { table, dropped } = ConvertedTable::new(plan);
        let mut comments = header::lines(plan, "Rules of NCCLX's tuner", &dropped);
        comments.push("load with NCCLX_TUNER_CONFIG_FILE".to_owned());
        comments.push(COLUMNS.get(..7).unwrap_or_default().join(","));
        let rules = table.rows.iter().filter_map(rule).collect();
        Self { rules: Rules { comments, rules, lines: Vec::new() }, dropped }
    }
}

/// Returns the rule of a row; `None` if the row contains no multiple of the number of ranks.
fn rule(row: &TunerRow) -> Option<Rule> {
    let (nodes, ranks) = (row.nodes.unwrap_or(1).max(1), row.ranks.unwrap_or(1).max(1));
    let quotient = |bytes: u64| i64::try_from(bytes.div_ceil(ranks.into())).ok();
    let low = quotient(row.min_bytes.0)?;
    let is_last = row.max_bytes >= LAST_BYTES;
    let high = row.max_bytes.0.checked_add(1).filter(|_| !is_last).and_then(quotient).map(|next| next - 1);
    if high.is_some_and(|high| high < low) {
        return None;
    }
    Some(Rule {
        function: row.function,
        bytes_per_rank: Interval { low: Some(low), high },
        algo: row.algo,
        proto: row.proto,
        channels: row.channels,
        nodes: Interval::exactly(nodes.into()),
        local_ranks: Interval::exactly((ranks / nodes).into()),
        chunk: None,
    })
}
