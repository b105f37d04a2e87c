//! State of a candidate between its first lower bound and its simulation.

use fabricast_sim::schedule::ScheduleGenerator;
use fabricast_sim::template::Template;
use fabricast_topologies::Picos;

use super::templates::GroupTemplate;

/// Strategy whose schedule was examined.
pub(super) struct ExaminedStrategy {
    pub(super) generator: Box<dyn ScheduleGenerator + Send + Sync>,
    pub(super) extent: ExaminationDepth,
    pub(super) lower_bound: Picos,
}

/// Part of a schedule that was examined for its lower bound.
pub(super) enum ExaminationDepth {
    /// Only the first rank was examined.
    FirstRank,
    /// The first rank and the ranks on a longest chain of dependencies were examined.
    LongestChain,
    /// Only the first channel was examined, as a schedule of one channel.
    FirstChannel,
    /// The whole schedule was examined; `None` if it has no template.
    Whole(Option<GroupTemplate>),
}

impl ExaminedStrategy {
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.extent, ExaminationDepth::Whole(_))
    }

    /// Returns true if a simulation of the schedule without a time limit may take long: it has no exact template, or more
    /// loops than its template.
    pub(super) fn is_long(&self) -> bool {
        let header = self.generator.header();
        self.exact_template().is_none_or(|(template, groups)| template.is_prolonged_for(header, groups))
    }

    /// Returns the template that gives the time of this schedule, and the number of groups of channels; `None` if the
    /// schedule itself has to be simulated.
    pub(super) fn exact_template(&self) -> Option<(&Template, u16)> {
        let ExaminationDepth::Whole(Some(group)) = &self.extent else { return None };
        let template = group.template().filter(|template| template.is_exact())?;
        template.fits(self.generator.header(), group.groups).then_some((template, group.groups))
    }
}
