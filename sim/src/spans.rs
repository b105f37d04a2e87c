//! Times of every operation. They are stored for simulated operations, and expanded to all operations that those
//! represent.

use crate::engine::{Span, Workload};

/// Spans of all operations of a simulation. The memory is proportional to the number of simulated operations, not to
/// the number of operations of the schedule.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// Spans of the operations simulated, by run and index.
    simulated: Vec<Span>,
    /// Index in `simulated` of the first span of each simulated run, followed by their total number.
    starts: Vec<usize>,
    /// Simulated run that represents each run.
    simulated_run: Vec<u32>,
}

impl Spans {
    /// Creates the spans of a workload that was simulated without folding. Background runs are dropped. `spans` must be
    /// sorted by run and index, as the engine returns them.
    #[must_use]
    pub fn from_workload(workload: &Workload, spans: Vec<Span>) -> Self {
        let runs = workload.background_from.min(workload.runs.len() as u32);
        Self::new(workload, spans, (0..runs).collect())
    }

    /// Creates the spans of runs that are represented by others. Run r is represented by run `simulated_run[r]` of
    /// `workload`.
    #[must_use]
    pub(crate) fn new(workload: &Workload, mut spans: Vec<Span>, simulated_run: Vec<u32>) -> Self {
        spans.retain(|span| span.run < workload.background_from);
        let mut starts = vec![0; workload.runs.len() + 1];
        for (number, run) in workload.runs.iter().enumerate() {
            starts[number + 1] = starts[number] + run.len as usize;
        }
        Self { simulated: spans, starts, simulated_run }
    }

    /// Returns true if there are no spans, because they were not recorded or there are no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.simulated.is_empty()
    }

    /// Returns the span of an operation; `None` if there is no such operation or it was not recorded.
    #[must_use]
    pub fn get(&self, run: u32, index: u32) -> Option<Span> {
        let span = self.run_spans(run).get(index as usize)?;
        Some(Span { run, ..*span })
    }

    /// Returns all spans, by run and index.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        let runs = 0..self.simulated_run.len() as u32;
        runs.flat_map(|run| self.run_spans(run).iter().map(move |span| Span { run, ..*span }))
    }

    /// Returns the span that ended last. Among several, the one with the largest costs; among equal ones, the first by
    /// run and index.
    #[must_use]
    pub fn last(&self) -> Option<Span> {
        let last = self.simulated.iter().max_by_key(|s| (s.done, s.costs, std::cmp::Reverse((s.run, s.index))))?;
        let run = self.simulated_run.iter().position(|&simulated| simulated == last.run)?;
        Some(Span { run: run as u32, ..*last })
    }

    /// Returns the spans of the runs that `wanted` selects, ordered by the time at which they were ready, then by run
    /// and index.
    #[must_use]
    pub fn by_start(&self, wanted: impl Fn(u32) -> bool) -> ByStart<'_> {
        ByStart::new(self, wanted)
    }

    /// Returns the spans that represent those of a run. Their field `run` is the simulated run.
    fn run_spans(&self, run: u32) -> &[Span] {
        let simulated = self.simulated_run.get(run as usize).map_or(usize::MAX, |&run| run as usize);
        match (self.starts.get(simulated), self.starts.get(simulated.saturating_add(1))) {
            (Some(&from), Some(&to)) => self.simulated.get(from..to).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// Two collections are equal if all spans are equal, regardless of folding.
impl PartialEq for Spans {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Spans in order of time; see [`Spans::by_start`].
#[derive(Clone, Debug)]
pub struct ByStart<'a> {
    spans: &'a Spans,
    /// Indexes in `simulated`, ordered by the time at which the spans were ready.
    order: Vec<u32>,
    /// Runs that each simulated run represents, grouped by simulated run.
    members: Vec<u32>,
    /// Index in `members` of the first run that each simulated run represents, followed by their total number.
    first_member: Vec<u32>,
}

impl<'a> ByStart<'a> {
    fn new(spans: &'a Spans, wanted: impl Fn(u32) -> bool) -> Self {
        let mut order: Vec<u32> = (0..spans.simulated.len() as u32).collect();
        order.sort_by_key(|&position| spans.simulated[position as usize].ready);
        let members = || (0..).zip(&spans.simulated_run).filter(|&(run, _)| wanted(run));
        let mut first_member = vec![0u32; spans.starts.len().max(1)];
        for (_, &simulated) in members() {
            first_member[simulated as usize + 1] += 1;
        }
        for simulated in 1..first_member.len() {
            first_member[simulated] += first_member[simulated - 1];
        }
        let mut next = first_member.clone();
        let mut members_by_run = vec![0; first_member.last().map_or(0, |&count| count as usize)];
        for (run, &simulated) in members() {
            let position = &mut next[simulated as usize];
            members_by_run[*position as usize] = run;
            *position += 1;
        }
        Self { spans, order, members: members_by_run, first_member }
    }

    /// Returns the spans, ordered by the time at which they were ready, then by run and index.
    #[must_use]
    pub fn iter(&self) -> Instants<'_> {
        Instants { spans: self, remaining: &self.order, now: Vec::new().into_iter() }
    }

    fn class_members(&self, simulated: u32) -> &[u32] {
        let bound = |number: usize| self.first_member.get(number).map_or(0, |&first| first as usize);
        self.members.get(bound(simulated as usize)..bound(simulated as usize + 1)).unwrap_or_default()
    }
}

/// Iterator over the spans of [`ByStart`], expanded one instant at a time.
#[derive(Clone, Debug)]
pub struct Instants<'a> {
    spans: &'a ByStart<'a>,
    remaining: &'a [u32],
    now: std::vec::IntoIter<Span>,
}

impl Iterator for Instants<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let simulated = |position: &u32| self.spans.spans.simulated.get(*position as usize);
        loop {
            if let Some(span) = self.now.next() {
                return Some(span);
            }
            // It is possible that none of the spans of an instant is selected.
            let ready = simulated(self.remaining.first()?)?.ready;
            let count =
                self.remaining.partition_point(|position| simulated(position).is_some_and(|span| span.ready <= ready));
            let (instant, rest) = self.remaining.split_at(count);
            let member_spans =
                |span: Span| self.spans.class_members(span.run).iter().map(move |&run| Span { run, ..span });
            let mut now: Vec<Span> =
                instant.iter().filter_map(simulated).flat_map(|&span| member_spans(span)).collect();
            now.sort_unstable_by_key(|span| (span.run, span.index));
            (self.remaining, self.now) = (rest, now.into_iter());
        }
    }
}
