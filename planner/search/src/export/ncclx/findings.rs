//! Checks rules against a fabric.

use super::Rules;
use crate::export::Finding;
use crate::export::nccl_tuner::{CheckContext, row_findings};

/// Returns the problems of the rules that match a communicator, by line.
#[must_use]
pub fn findings(rules: &Rules, context: CheckContext<'_>) -> Vec<Finding> {
    let (nodes, ranks) = (context.communicator.nodes, context.communicator.ranks);
    let table = rules.table(nodes, ranks);
    if table.rows.is_empty() {
        return vec![Finding::warning(None, format!("no rule is for {ranks} ranks on {nodes} nodes"))];
    }
    let mut findings = row_findings(&table, context, |_| None);
    let chunks = rules.rules.iter().zip(&rules.lines).filter(|(rule, _)| rule.chunk.is_some());
    findings.extend(chunks.map(|(_, &line)| {
        Finding::warning(Some(line), "chunkSize is not evaluated: times are those of NCCL's own chunk".to_owned())
    }));
    findings
}
