//! When every operation happened: kept for the operations that were simulated, told for all that they stand for.

use crate::engine::{Span, Workload};

/// The spans of a run's operations. Memory goes with the operations simulated, not with those of the schedule.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// Of the operations simulated, by run and index.
    simulated: Vec<Span>,
    /// First of `simulated` of each simulated run, and their number at the end.
    starts: Vec<usize>,
    /// The simulated run that stands for each run.
    simulated_run: Vec<u32>,
}

impl Spans {
    /// The spans of every operation of a workload that was simulated as it is, background aside. They come by run and
    /// index, as the engine gives them.
    #[must_use]
    pub fn of_workload(workload: &Workload, spans: Vec<Span>) -> Self {
        let runs = workload.background_from.min(workload.runs.len() as u32);
        Self::new(workload, spans, (0..runs).collect())
    }

    /// Those of runs that others stand for: run r is run `simulated_run[r]` of `workload`.
    #[must_use]
    pub(crate) fn new(workload: &Workload, mut spans: Vec<Span>, simulated_run: Vec<u32>) -> Self {
        spans.retain(|span| span.run < workload.background_from);
        let mut starts = vec![0; workload.runs.len() + 1];
        for (number, run) in workload.runs.iter().enumerate() {
            starts[number + 1] = starts[number] + run.len as usize;
        }
        Self { simulated: spans, starts, simulated_run }
    }

    /// Whether there are none: not recorded, or nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.simulated.is_empty()
    }

    /// When an operation happened.
    #[must_use]
    pub fn get(&self, run: u32, index: u32) -> Option<Span> {
        let span = self.of_run(run).get(index as usize)?;
        Some(Span { run, ..*span })
    }

    /// All of them, by run and index.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        let runs = 0..self.simulated_run.len() as u32;
        runs.flat_map(|run| self.of_run(run).iter().map(move |span| Span { run, ..*span }))
    }

    /// The one that ended last; of several the one that its costs put last, of equal ones the first by run and index.
    #[must_use]
    pub fn last(&self) -> Option<Span> {
        let last = self.simulated.iter().max_by_key(|s| (s.done, s.costs, std::cmp::Reverse((s.run, s.index))))?;
        let run = self.simulated_run.iter().position(|&simulated| simulated == last.run)?;
        Some(Span { run: run as u32, ..*last })
    }

    /// Those of the runs that are wanted, by the instant at which they were ready, then by run and index.
    #[must_use]
    pub fn by_start(&self, wanted: impl Fn(u32) -> bool) -> ByStart<'_> {
        ByStart::new(self, wanted)
    }

    /// The spans that stand for those of a run; their `run` is that of the simulated one.
    fn of_run(&self, run: u32) -> &[Span] {
        let simulated = self.simulated_run.get(run as usize).map_or(usize::MAX, |&run| run as usize);
        match (self.starts.get(simulated), self.starts.get(simulated.saturating_add(1))) {
            (Some(&from), Some(&to)) => self.simulated.get(from..to).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// Equal where they say the same, whatever was simulated for it.
impl PartialEq for Spans {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Spans in order of time; see [`Spans::by_start`].
#[derive(Clone, Debug)]
pub struct ByStart<'a> {
    spans: &'a Spans,
    /// Places in `simulated`, by the instant at which they were ready.
    order: Vec<u32>,
    /// The runs that each simulated run stands for, one after the other.
    members: Vec<u32>,
    /// First of `members` of each simulated run, and their number at the end.
    first_member: Vec<u32>,
}

impl<'a> ByStart<'a> {
    fn new(spans: &'a Spans, wanted: impl Fn(u32) -> bool) -> Self {
        let mut order: Vec<u32> = (0..spans.simulated.len() as u32).collect();
        order.sort_by_key(|&place| spans.simulated[place as usize].ready);
        let members = || (0..).zip(&spans.simulated_run).filter(|&(run, _)| wanted(run));
        let mut first_member = vec![0u32; spans.starts.len().max(1)];
        for (_, &simulated) in members() {
            first_member[simulated as usize + 1] += 1;
        }
        for simulated in 1..first_member.len() {
            first_member[simulated] += first_member[simulated - 1];
        }
        let mut next = first_member.clone();
        let mut members_of = vec![0; first_member.last().map_or(0, |&count| count as usize)];
        for (run, &simulated) in members() {
            let place = &mut next[simulated as usize];
            members_of[*place as usize] = run;
            *place += 1;
        }
        Self { spans, order, members: members_of, first_member }
    }

    /// The spans.
    #[must_use]
    pub fn iter(&self) -> Instants<'_> {
        Instants { spans: self, rest: &self.order, now: Vec::new().into_iter() }
    }

    fn members_of(&self, simulated: u32) -> &[u32] {
        let bound = |number: usize| self.first_member.get(number).map_or(0, |&first| first as usize);
        self.members.get(bound(simulated as usize)..bound(simulated as usize + 1)).unwrap_or_default()
    }
}

/// The iterator of [`ByStart`]: those of one instant at a time.
#[derive(Clone, Debug)]
pub struct Instants<'a> {
    spans: &'a ByStart<'a>,
    rest: &'a [u32],
    now: std::vec::IntoIter<Span>,
}

impl Iterator for Instants<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let simulated = |place: &u32| self.spans.spans.simulated.get(*place as usize);
        loop {
            if let Some(span) = self.now.next() {
                return Some(span);
            }
            // Of the spans of an instant none may be wanted.
            let ready = simulated(self.rest.first()?)?.ready;
            let count = self.rest.partition_point(|place| simulated(place).is_some_and(|span| span.ready <= ready));
            let (instant, rest) = self.rest.split_at(count);
            let alike = |span: Span| self.spans.members_of(span.run).iter().map(move |&run| Span { run, ..span });
            let mut now: Vec<Span> = instant.iter().filter_map(simulated).flat_map(|&span| alike(span)).collect();
            now.sort_unstable_by_key(|span| (span.run, span.index));
            (self.rest, self.now) = (rest, now.into_iter());
        }
    }
}
