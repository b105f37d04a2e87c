//! State of a candidate between its first lower bound and its simulation.

use fabricast_sim::schedule::ScheduleGenerator;
use fabricast_topologies::Picos;

use super::templates::BlockTemplate;

/// Strategy whose schedule was examined.
pub(super) struct Examined {
    pub(super) generator: Box<dyn ScheduleGenerator + Send + Sync>,
    pub(super) extent: ExaminationDepth,
    pub(super) lower_bound: Picos,
}

/// Extent to which a schedule was examined.
pub(super) enum ExaminationDepth {
    /// First rank only.
    FirstRank,
    /// First channel only, as a schedule of one channel.
    FirstChannel,
    /// Whole schedule.
    Whole(Option<BlockTemplate>),
}

impl Examined {
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.extent, ExaminationDepth::Whole(_))
    }
}
