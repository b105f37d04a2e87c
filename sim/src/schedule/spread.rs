//! A schedule over more thread blocks: what a channel does is done by several, each with its part of every chunk.

use super::{Channel, Dependency, Generate, Header, Layout, Program, Rank, Schedule, ScheduleError, Segment, Walk};

/// A schedule whose channels are several each.
struct Spread<'a> {
    schedule: &'a Schedule,
    parts: u16,
    header: Header,
}

impl Schedule {
    /// The same with each channel spread over so many: part k of each has the k-th part of every chunk, and waits for what the k-th parts
    /// of others do. What executes a channel by several blocks takes as long as this. (It moves what the whole moves; that it computes the
    /// collective holds where operations on the same chunks span as many.)
    ///
    /// # Errors
    /// [`ScheduleError::TooManyOperations`]; others are those of the schedule.
    pub fn spread(&self, parts: u16) -> Result<Self, ScheduleError> {
        let parts = parts.clamp(1, u16::MAX / self.header.channels.max(1));
        let more = |count: u32| count.checked_mul(parts.into()).ok_or(ScheduleError::TooManyOperations);
        let segments = self.header.layout.segments().iter();
        let segments = segments.map(|one| Ok(Segment { parts: more(one.parts)?, ..*one }));
        let layout = Layout::new(segments.collect::<Result<_, ScheduleError>>()?);
        more(layout.chunks())?;
        let header = Header {
            layout,
            channels: self.header.channels * parts,
            scratch_chunks: more(self.header.scratch_chunks)?,
            ..self.header.clone()
        };
        Self::build(&Spread { schedule: self, parts, header })
    }
}

impl Spread<'_> {
    /// Chunks of the whole, as those of a part: an operation's chunks are its parts' one after the other.
    fn chunks(&self, walk: Walk, (part, span): (u16, u32)) -> Walk {
        let times = |value: u32| value.wrapping_mul(self.parts.into());
        let base = times(walk.base).wrapping_add(span.wrapping_mul(part.into()));
        Walk { base, stride: times(walk.stride), ..walk }
    }
}

impl Generate for Spread<'_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let mut waits = Vec::new();
        for part in 0..self.parts {
            // Part k of a rank's runs comes behind all runs of the parts before.
            let of_part = |rank: Rank, run: u32| self.schedule.runs_of(rank).len() as u32 * u32::from(part) + run;
            for id in self.schedule.runs_of(rank) {
                let mut run = *self.schedule.run(id);
                run.channel = Channel(run.channel.0 + part * self.schedule.header.channels);
                run.src = self.chunks(run.src, (part, run.span));
                run.dst = self.chunks(run.dst, (part, run.span));
                waits.clear();
                let own = self.schedule.dependencies(id).iter();
                waits.extend(own.map(|wait| Dependency { run: of_part(wait.rank, wait.run), ..*wait }));
                program.push(run, &waits);
            }
        }
    }
}
