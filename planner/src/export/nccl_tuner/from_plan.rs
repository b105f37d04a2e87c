//! The CSV of a plan: a row for each stretch of sizes with one algorithm, protocol and number of channels.

use std::num::NonZeroU16;

use fabricast_sim::schedule::Collective;

use super::{Row, Table};
use crate::export::choices::{self, Unsaid, Wanted};
use crate::export::{Dropped, SavedPick, SavedPlan, SavedRange, SavedRow, header};
use crate::library::Library;
use crate::library::nccl::{Algo, Function, MAX_CHANNELS, Proto, has_kernel};
use crate::plan::Stretch;

/// A table, and what of the plan it does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromPlan {
    /// The table.
    pub table: Table,
    /// What was dropped.
    pub dropped: Vec<Dropped>,
}

/// What a row says of sizes.
pub(in crate::export) type Cell = (Function, Algo, Proto, NonZeroU16);

impl FromPlan {
    /// The table of a plan, with the fewest rows: each collective's cover all sizes, without gaps or overlaps.
    #[must_use]
    pub fn new(plan: &SavedPlan) -> Self {
        let is_nccl = !matches!(plan.library, Some(Library::OpenMpi(_)));
        let own = |range: &SavedRange| cell(range.collective, &range.pick()).ok().filter(|_| is_nccl);
        let choices::Choices { stretches, dropped } =
            choices::choices(plan, (Wanted::OfLibrary, Unsaid::AsNeighbours), |row, pick| said(plan, row, pick), own);
        let nodes = plan.library_nodes.unwrap_or(plan.nodes);
        let row = |Stretch { min_bytes, max_bytes, key: (function, algo, proto, channels), .. }| Row {
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
        let rows = stretches.into_iter().map(row).collect();
        Self { table: Table { comments, rows, ..Table::default() }, dropped }
    }
}

/// The same of a row of a plan; nothing of a plan that was made for another library, whose times are that library's.
fn said(plan: &SavedPlan, row: &SavedRow, pick: &SavedPick) -> Result<Cell, String> {
    match plan.library {
        Some(library @ Library::OpenMpi(_)) => Err(format!("the plan is for {library}")),
        _ => cell(row.collective, pick),
    }
}

/// Whether a table says this of a row.
pub(in crate::export) fn says(plan: &SavedPlan, row: &SavedRow, pick: &SavedPick) -> bool {
    said(plan, row, pick).is_ok()
}

/// What NCCL calls a pick; or why its tuners cannot say it.
pub(in crate::export) fn cell(collective: Collective, pick: &SavedPick) -> Result<Cell, String> {
    let Some(function) = Function::of(collective) else {
        return Err("NCCL makes it of sends and receives, which no tuner decides".to_owned());
    };
    let (Some(algo), Some(proto)) = (Algo::of(pick.algorithm), Proto::of(pick.protocol)) else {
        return Err("no algorithm and protocol of NCCL's tuners".to_owned());
    };
    if !has_kernel(function, algo, proto) {
        return Err("NCCL has no such kernel".to_owned());
    }
    let channels = NonZeroU16::new(pick.channels).filter(|count| count.get() <= MAX_CHANNELS);
    let channels = channels.ok_or_else(|| format!("NCCL has at most {MAX_CHANNELS} channels"))?;
    Ok((function, algo, proto, channels))
}
