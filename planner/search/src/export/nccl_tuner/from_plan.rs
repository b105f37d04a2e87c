//! Converts a plan to CSV: one row per size range with the same algorithm, protocol and number of channels.

use std::num::NonZeroU16;

use fabricast_sim::schedule::Collective;

use super::{Table, TunerRow};
use crate::export::expressible::{self, ExportedStrategy, MissingEntry};
use crate::export::{DroppedStrategy, SavedPick, SavedPlan, SavedRange, SavedRow, header};
use crate::plan::SizeRange;
use fabricast_libraries::Library;
use fabricast_libraries::nccl::{Algo, Function, MAX_CHANNELS, Proto, has_kernel};

/// Table, and the strategies of the plan that it cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedTable {
    /// CSV table of the plan.
    pub table: Table,
    /// Strategies that the table cannot express.
    pub dropped: Vec<DroppedStrategy>,
}

/// Function, algorithm, protocol and channels of a row.
pub(in crate::export) type Cell = (Function, Algo, Proto, NonZeroU16);

impl ConvertedTable {
    /// Creates the table of a plan with the fewest rows. The rows of each collective cover all sizes without gaps or
    /// overlaps.
    #[must_use]
    pub fn new(plan: &SavedPlan) -> Self {
        let is_nccl = !matches!(plan.library, Some(Library::OpenMpi(_) | Library::Rccl(_)));
        let default_cell = |range: &SavedRange| cell(range.collective, &range.pick()).ok().filter(|_| is_nccl);
        let expressible::Choices { ranges, dropped } = expressible::choose_entries(
            plan,
            ExportedStrategy::BestOfLibrary,
            MissingEntry::UseNeighbour,
            |row, pick| plan_cell(plan, row, pick),
            default_cell,
        );
        let nodes = plan.library_nodes.unwrap_or(plan.nodes);
        let row = |SizeRange { min_bytes, max_bytes, key: (function, algo, proto, channels), .. }| TunerRow {
            function,
            min_bytes,
            max_bytes,
            algo,
            proto,
            channels: Some(channels),
            nodes: Some(nodes),
            ranks: Some(plan.ranks),
            pipe_ops: None,
            buffers: super::Buffers::Any,
        };
        let mut comments = header::lines(plan, "Table of NCCL's example tuner", &dropped);
        comments.push(super::COLUMNS.get(..8).unwrap_or_default().join(","));
        let rows = ranges.into_iter().map(row).collect();
        Self { table: Table { comments, rows, ..Table::default() }, dropped }
    }
}

/// Variant of [`cell`] for a row of a plan. Returns an error for plans made for another library, because their times do
/// not apply to NCCL.
fn plan_cell(plan: &SavedPlan, row: &SavedRow, pick: &SavedPick) -> Result<Cell, String> {
    match plan.library {
        Some(library @ (Library::OpenMpi(_) | Library::Rccl(_))) => Err(format!("the plan is for {library}")),
        _ => cell(row.collective, pick),
    }
}

/// Returns true if the table can express this strategy for the row.
pub(in crate::export) fn can_express(plan: &SavedPlan, row: &SavedRow, pick: &SavedPick) -> bool {
    plan_cell(plan, row, pick).is_ok()
}

/// Returns the table cell of a strategy in NCCL's terms, or the reason why a tuner plugin cannot select the strategy.
pub(in crate::export) fn cell(collective: Collective, pick: &SavedPick) -> Result<Cell, String> {
    let Some(function) = Function::from_collective(collective) else {
        return Err("NCCL implements it with sends and receives, which tuners do not control".to_owned());
    };
    let (Some(algo), Some(proto)) = (Algo::from_algorithm(pick.algorithm), Proto::from_protocol(pick.protocol)) else {
        return Err("no algorithm and protocol of NCCL's tuners".to_owned());
    };
    if !has_kernel(function, algo, proto) {
        return Err("NCCL has no such kernel".to_owned());
    }
    let channels = NonZeroU16::new(pick.channels).filter(|count| count.get() <= MAX_CHANNELS);
    let channels = channels.ok_or_else(|| format!("NCCL has at most {MAX_CHANNELS} channels"))?;
    Ok((function, algo, proto, channels))
}
