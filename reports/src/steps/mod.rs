//! Pictures of schedules: a line for each rank, a column for each step, an arrow for a transfer between ranks, and a
//! mark for an operation in a rank's own memory.
//!
//! The step of an operation is the length of the longest chain of dependencies before it ([`Schedule::steps`]), which
//! does not depend on sizes. Several transfers of one step between the same ranks are drawn as one broader arrow. Of a
//! large schedule, only the first ranks and steps are drawn, and a remark states the omitted parts.

mod draw;

use fabricast_sim::schedule::{OpId, OpKind, Schedule};

use crate::chart::{ChartError, Format, output};
use crate::format;

/// Maximum number of ranks drawn.
const MOST_RANKS: u32 = 32;
/// Maximum number of steps drawn.
const MOST_STEPS: u32 = 32;
/// Maximum number of arrows drawn; later steps are omitted.
const MOST_ARROWS: usize = 4000;
/// Maximum number of operations of a schedule that is drawn.
const MOST_OPERATIONS: u32 = 1 << 24;

/// Errors in drawing a schedule.
#[derive(Debug, thiserror::Error)]
pub enum StepsError {
    /// The schedule has too many operations to be drawn; contains their number.
    #[error("a picture of {} operations; at most {} are drawn", format::grouped(*.0), format::grouped(MOST_OPERATIONS.into()))]
    TooLarge(u64),
    /// Operations that wait for each other have no step; contains one of them.
    #[error("operation {} waits for itself, so it has no step; `schedule verify` reports the cycle", .0.0)]
    Cycle(OpId),
    /// The drawing library failed.
    #[error(transparent)]
    Drawing(#[from] ChartError),
}

/// Mark of the picture: the transfers of one step from one rank to another, or local operations of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    step: u32,
    /// Rank whose data are moved.
    from: u32,
    /// Rank that receives the data; equal to `from` for local operations.
    to: u32,
    movement: DataMovement,
}

/// Kind of data movement of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DataMovement {
    Put,
    PutReduce,
    Get,
    GetReduce,
    Copy,
    Reduce,
}

impl DataMovement {
    /// Returns the kind of data movement of an operation; `None` if it moves no data.
    fn from_kind(kind: OpKind) -> Option<Self> {
        if !kind.moves_data() {
            return None;
        }
        Some(match (kind.is_transfer(), kind.reads_peer(), kind.reduces()) {
            (true, false, false) => Self::Put,
            (true, false, true) => Self::PutReduce,
            (true, true, false) => Self::Get,
            (true, true, true) => Self::GetReduce,
            (false, _, false) => Self::Copy,
            (false, _, true) => Self::Reduce,
        })
    }
}

/// Mark that represents several operations, with their number and the chunks of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MergedMark {
    mark: Mark,
    operations: u32,
    /// First and last chunk that the first operation writes.
    chunks: (u32, u32),
}

/// Content of the picture of a schedule, without positions.
struct SchedulePicture {
    title: String,
    subtitle: String,
    ranks: u32,
    steps: u32,
    marks: Vec<MergedMark>,
    /// Remark on the parts that are omitted; may be empty.
    remark: String,
}

/// Draws a schedule: its steps as columns, its ranks as lines.
///
/// # Errors
/// [`StepsError`]: too many operations, or operations that wait for each other.
pub fn render(schedule: &Schedule, format: Format) -> Result<Vec<u8>, StepsError> {
    Ok(output::bytes(&draw::ScheduleSheet::new(&SchedulePicture::new(schedule)?), format)?)
}

impl SchedulePicture {
    fn new(schedule: &Schedule) -> Result<Self, StepsError> {
        if schedule.operation_count() > MOST_OPERATIONS {
            return Err(StepsError::TooLarge(schedule.operation_count().into()));
        }
        let all_steps = schedule.steps().map_err(StepsError::Cycle)?;
        let (header, call) = (schedule.header(), schedule.header().call);
        let ranks = call.ranks.min(MOST_RANKS);
        let mut marks: Vec<(Mark, (u32, u32))> = Vec::new();
        let mut steps = 0;
        for (op, &step) in schedule.operations().zip(&all_steps) {
            let Some(movement) = DataMovement::from_kind(op.kind) else { continue };
            steps = steps.max(step + 1);
            let (from, to) = if op.kind.reads_peer() { (op.peer.0, op.rank.0) } else { (op.rank.0, op.peer.0) };
            if step < MOST_STEPS && from < ranks && to < ranks {
                let last = op.dst.index.saturating_add(op.span.saturating_sub(1));
                marks.push((Mark { step, from, to, movement }, (op.dst.index, last)));
            }
        }
        marks.sort_unstable();
        let mut drawn: Vec<MergedMark> = Vec::new();
        for (mark, chunks) in marks {
            match drawn.last_mut().filter(|last| last.mark == mark) {
                Some(last) => last.operations += 1,
                None => drawn.push(MergedMark { mark, operations: 1, chunks }),
            }
        }
        let mut shown = steps.min(MOST_STEPS);
        if drawn.len() > MOST_ARROWS {
            shown = drawn.get(MOST_ARROWS).map_or(shown, |first| first.mark.step).max(1);
            drawn.retain(|drawn| drawn.mark.step < shown);
            drawn.truncate(MOST_ARROWS);
        }
        let mut left_out = Vec::new();
        if steps > shown {
            left_out.push(format!("steps {shown} to {}", format::grouped((steps - 1).into())));
        }
        if call.ranks > ranks {
            left_out.push(format!("ranks {ranks} to {}", format::grouped((call.ranks - 1).into())));
        }
        let remark = if left_out.is_empty() { String::new() } else { format!("not drawn: {}", left_out.join(", ")) };
        let count = |n: u32, singular: &str| {
            format!("{} {singular}{}", format::grouped(n.into()), if n == 1 { "" } else { "s" })
        };
        Ok(Self {
            title: format!("{}: {}", header.name, call.collective),
            subtitle: format!(
                "{} · {} · {} · {} · {}",
                count(call.ranks, "rank"),
                format::bytes(call.bytes),
                count(header.layout.chunks(), "chunk"),
                count(schedule.operation_count(), "operation"),
                count(steps, "step")
            ),
            ranks,
            steps: shown,
            marks: drawn,
            remark,
        })
    }

    /// Returns true if there are so few arrows that each can have a label with its chunks.
    fn has_labels(&self) -> bool {
        let crossing = self.marks.iter().filter(|drawn| drawn.mark.from != drawn.mark.to).count();
        crossing as u64 <= u64::from(self.steps) * u64::from(self.ranks) && self.ranks <= 16
    }
}

#[cfg(test)]
mod tests;
