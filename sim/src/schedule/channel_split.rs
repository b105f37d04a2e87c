//! Splitting of channels: the work of each channel is distributed over several thread blocks, each of which handles a
//! part of every chunk.

use super::{
    Channel, Dependency, Header, Layout, Program, Rank, Schedule, ScheduleError, ScheduleGenerator, Segment, Walk,
};

/// Generator of a schedule whose channels are split into `parts` each.
struct SplitChannels<'a> {
    schedule: &'a Schedule,
    parts: u16,
    header: Header,
}

impl Schedule {
    /// Returns the schedule with each channel split into `parts` channels. Part k handles the k-th part of every chunk
    /// and depends on the k-th parts of other operations. The result models the time of a channel that several thread
    /// blocks execute. The total number of bytes is unchanged. The result computes the collective only if operations on
    /// the same chunks have equal spans.
    ///
    /// # Errors
    /// [`ScheduleError::TooManyOperations`], and errors of the resulting schedule.
    pub fn split_channels(&self, parts: u16) -> Result<Self, ScheduleError> {
        let parts = parts.clamp(1, u16::MAX / self.header.channels.max(1));
        let multiply = |count: u32| count.checked_mul(parts.into()).ok_or(ScheduleError::TooManyOperations);
        let segments = self.header.layout.segments().iter();
        let segments = segments.map(|segment| Ok(Segment { parts: multiply(segment.parts)?, ..*segment }));
        let layout = Layout::new(segments.collect::<Result<_, ScheduleError>>()?);
        multiply(layout.chunks())?;
        let header = Header {
            layout,
            channels: self.header.channels * parts,
            scratch_chunks: multiply(self.header.scratch_chunks)?,
            ..self.header.clone()
        };
        Self::build(&SplitChannels { schedule: self, parts, header })
    }
}

impl SplitChannels<'_> {
    /// Converts a walk over chunks into the walk of one part; the parts of an operation's chunks are consecutive.
    fn chunks(&self, walk: Walk, part: u16, span: u32) -> Walk {
        let scale = |value: u32| value.wrapping_mul(self.parts.into());
        let base = scale(walk.base).wrapping_add(span.wrapping_mul(part.into()));
        Walk { base, stride: scale(walk.stride), ..walk }
    }
}

impl ScheduleGenerator for SplitChannels<'_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let mut part_dependencies = Vec::new();
        for part in 0..self.parts {
            // The runs of part k of a rank follow all runs of the preceding parts.
            let run_in_part = |rank: Rank, run: u32| self.schedule.rank_runs(rank).len() as u32 * u32::from(part) + run;
            for id in self.schedule.rank_runs(rank) {
                let mut run = *self.schedule.run(id);
                run.channel = Channel(run.channel.0 + part * self.schedule.header.channels);
                run.src = self.chunks(run.src, part, run.span);
                run.dst = self.chunks(run.dst, part, run.span);
                part_dependencies.clear();
                let dependencies = self.schedule.dependencies(id).iter();
                part_dependencies
                    .extend(dependencies.map(|wait| Dependency { run: run_in_part(wait.rank, wait.run), ..*wait }));
                program.push(run, &part_dependencies);
            }
        }
    }
}
