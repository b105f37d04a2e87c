//! Exact precedence queries on operations, fast for regular schedules.
//!
//! Every operation has a main dependency on another rank and one on its own. Either kind forms a forest; an ancestor in
//! a forest precedes its descendants (two comparisons). If this does not answer a query, neither for the operation
//! itself nor for the operations that receive its data (its *heirs*), a bounded search follows dependencies backwards,
//! never below the earlier position. Queries that the search does not answer are resolved in a batch at the end, 256
//! origins per pass over the graph.

use crate::schedule::order::{Graph, TotalOrder};

/// Maximum number of operations that a search visits before its query is deferred.
const MAX_SEARCH: usize = 48;

/// Number of origins that one pass over the graph resolves.
const ORIGINS_PER_PASS: usize = 256;

/// Answer to a precedence query: exact, or deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precedence {
    Before,
    NotBefore,
    /// Deferred: [`Reachability::resolve`] gives the answer.
    Deferred,
}

/// Placeholder for a missing operation number.
const NONE: u32 = u32::MAX;

/// Interval of an operation in the numbering of a forest. The numbers of its descendants are in `first..first + size`.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    first: u32,
    size: u32,
}

/// Index for precedence queries on positions in a [`TotalOrder`].
pub(crate) struct Reachability<'a> {
    graph: &'a Graph<'a>,
    order: &'a TotalOrder,
    /// Forest of the main dependencies on other ranks, and forest of the dependencies on the own rank.
    forests: [Vec<Interval>; 2],
    /// First and last operation that depends on each operation: operations of another rank, or else of the own rank.
    heirs: Vec<[u32; 2]>,
    /// Position whose dependencies are in `direct`.
    current: u32,
    direct: Vec<u32>,
    /// Last value of `current` whose direct dependencies include each position.
    visited_direct: Vec<u32>,
    /// Index of the last search that visited each position.
    visited: Vec<u32>,
    searches: u32,
    stack: Vec<u32>,
}

impl<'a> Reachability<'a> {
    pub(crate) fn new(graph: &'a Graph<'a>, order: &'a TotalOrder) -> Self {
        let count = order.operations.len();
        let mut parents = [vec![NONE; count], vec![NONE; count]];
        let mut heirs = [vec![[NONE; 2]; count], vec![[NONE; 2]; count]];
        for (position, &op) in order.operations.iter().enumerate() {
            let main = graph.main_dependencies(op).map(|on| on.map_or(NONE, |on| order.positions[on as usize]));
            for kind in 0..2 {
                let other = main[1 - kind];
                parents[kind][position] = if main[kind] == NONE { other } else { main[kind] };
                if let Some([first, last]) = heirs[kind].get_mut(main[kind] as usize) {
                    *first = (*first).min(position as u32);
                    *last = position as u32;
                }
            }
        }
        let [remote, local] = heirs;
        let heirs = remote.into_iter().zip(local).map(|(a, b)| if a[0] == NONE { b } else { a }).collect();
        Self {
            graph,
            order,
            forests: parents.map(|parents| forest(&parents)),
            heirs,
            current: u32::MAX,
            direct: Vec::new(),
            visited_direct: vec![u32::MAX; count],
            visited: vec![0; count],
            searches: 0,
            stack: Vec::new(),
        }
    }

    /// Selects the operation that is the later one in subsequent queries.
    pub(crate) fn enter(&mut self, later: u32) {
        self.current = later;
        self.direct.clear();
        let op = self.order.operations[later as usize];
        for dependency in self.graph.dependencies(op) {
            let position = self.order.positions[dependency as usize];
            self.direct.push(position);
            self.visited_direct[position as usize] = later;
        }
    }

    /// Answers the query if the operation at position `earlier` precedes the selected one ([`Self::enter`]).
    #[inline]
    pub(crate) fn before_current(&mut self, earlier: u32) -> Precedence {
        if self.visited_direct[earlier as usize] == self.current || is_ancestor(&self.forests[0], earlier, self.current)
        {
            return Precedence::Before;
        }
        self.search(earlier)
    }

    /// Returns true if one of the operations `earlier` is an ancestor of `later` in either forest.
    fn is_ancestor_of_any(&self, earlier: [u32; 3], later: u32) -> bool {
        earlier
            .into_iter()
            .any(|earlier| earlier <= later && self.forests.iter().any(|forest| is_ancestor(forest, earlier, later)))
    }

    fn search(&mut self, earlier: u32) -> Precedence {
        let [first, last] = self.heirs[earlier as usize];
        let family = [earlier, first, last];
        if self.is_ancestor_of_any(family, self.current) {
            return Precedence::Before;
        }
        self.searches += 1;
        self.stack.clear();
        // The first dependency is searched first, because generators list the dependency that delivers the data first.
        self.stack.extend(self.direct.iter().rev().filter(|&&p| p > earlier));
        let mut visited = 0;
        while let Some(position) = self.stack.pop() {
            if std::mem::replace(&mut self.visited[position as usize], self.searches) == self.searches {
                continue;
            }
            if self.is_ancestor_of_any(family, position) {
                return Precedence::Before;
            }
            visited += 1;
            if visited > MAX_SEARCH {
                return Precedence::Deferred;
            }
            let from = self.stack.len();
            for dependency in self.graph.dependencies(self.order.operations[position as usize]) {
                let position = self.order.positions[dependency as usize];
                if position == earlier {
                    return Precedence::Before;
                }
                if position > earlier {
                    self.stack.push(position);
                }
            }
            self.stack[from..].reverse();
        }
        Precedence::NotBefore
    }

    /// Returns, for each query, true if the first position precedes the second. Makes one pass over the operations in
    /// between per [`ORIGINS_PER_PASS`] different origins.
    pub(crate) fn resolve(&self, questions: &[(u32, u32)]) -> Vec<bool> {
        let mut by_origin: Vec<usize> = (0..questions.len()).collect();
        by_origin.sort_unstable_by_key(|&i| questions[i]);
        let mut answers = vec![false; questions.len()];
        let mut masks = vec![[0u64; ORIGINS_PER_PASS / 64]; self.order.operations.len()];
        let mut remaining = &by_origin[..];
        while let Some(&first) = remaining.first() {
            let mut origins: Vec<u32> = Vec::with_capacity(ORIGINS_PER_PASS);
            let mut batch_len = 0;
            for &i in remaining {
                if origins.last() != Some(&questions[i].0) {
                    if origins.len() == ORIGINS_PER_PASS {
                        break;
                    }
                    origins.push(questions[i].0);
                }
                batch_len += 1;
            }
            let (batch, later) = remaining.split_at(batch_len);
            remaining = later;
            let lowest = questions[first].0;
            let highest = batch.iter().map(|&i| questions[i].1).max().unwrap_or(lowest);
            self.spread(&origins, lowest, highest, &mut masks);
            for &i in batch {
                let lane = origins.partition_point(|&origin| origin < questions[i].0);
                answers[i] = masks[questions[i].1 as usize][lane / 64] >> (lane % 64) & 1 == 1;
            }
        }
        answers
    }

    /// Computes, for every position from `lowest` to `highest`, the mask of origins that precede it.
    fn spread(&self, origins: &[u32], lowest: u32, highest: u32, masks: &mut [[u64; ORIGINS_PER_PASS / 64]]) {
        for position in lowest..=highest {
            let mut mask = [0u64; ORIGINS_PER_PASS / 64];
            for dependency in self.graph.dependencies(self.order.operations[position as usize]) {
                let from = self.order.positions[dependency as usize];
                if from >= lowest {
                    for (word, more) in mask.iter_mut().zip(masks[from as usize]) {
                        *word |= more;
                    }
                    if let Ok(lane) = origins.binary_search(&from) {
                        mask[lane / 64] |= 1 << (lane % 64);
                    }
                }
            }
            masks[position as usize] = mask;
        }
    }
}

#[inline]
fn is_ancestor(forest: &[Interval], earlier: u32, later: u32) -> bool {
    let (a, b) = (forest[earlier as usize], forest[later as usize]);
    b.first.wrapping_sub(a.first) < a.size
}

/// Numbers a forest so that descendants are consecutive. Parents precede their children.
fn forest(parents: &[u32]) -> Vec<Interval> {
    let count = parents.len();
    let mut intervals = vec![Interval { first: 0, size: 1 }; count];
    for position in (0..count).rev() {
        if parents[position] != NONE {
            intervals[parents[position] as usize].size += intervals[position].size;
        }
    }
    // First free number for the next child of each operation.
    let mut next = vec![0u32; count];
    let mut next_root = 0;
    for position in 0..count {
        let from = match parents[position] {
            NONE => &mut next_root,
            parent => &mut next[parent as usize],
        };
        let first = *from;
        *from += intervals[position].size;
        intervals[position].first = first;
        next[position] = first + 1;
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Dependency, OpKind, Rank, Schedule, ScheduleGenerator};
    use crate::verify::tests::{Scripted, wait_run};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn answers_match_the_transitive_closure(
            picks in prop::collection::vec(prop::collection::vec((any::<u32>(), 0u32..40), 0..4), 2..120),
        ) {
            // Operation i depends on some of the operations shortly before it.
            let mut script = Scripted::waits(1);
            for (i, picks) in picks.iter().enumerate() {
                let i = i as u32;
                let on: Vec<Dependency> = picks
                    .iter()
                    .filter(|_| i > 0)
                    .map(|&(a, back)| Dependency::on_operation(Rank(0), i - 1 - (a % i).min(back), 0))
                    .collect();
                script.push(Rank(0), wait_run(OpKind::Wait), &on);
            }
            prop_assert_eq!(script.header().call.ranks, 1);
            let schedule = Schedule::build(&script).unwrap();
            let graph = Graph::new(&schedule);
            let order = graph.order().unwrap();
            let count = picks.len();
            let mut closure = vec![vec![false; count]; count];
            for b in 0..count {
                for dependency in graph.dependencies(order.operations[b]) {
                    let a = order.positions[dependency as usize] as usize;
                    let before_a = closure[a].clone();
                    closure[b].iter_mut().zip(before_a).for_each(|(b, a)| *b |= a);
                    closure[b][a] = true;
                }
            }
            let mut reachability = Reachability::new(&graph, &order);
            let mut questions = Vec::new();
            for b in 0..count as u32 {
                reachability.enter(b);
                for a in 0..b {
                    questions.push((a, b));
                    let expected = closure[b as usize][a as usize];
                    match reachability.before_current(a) {
                        Precedence::Before => prop_assert!(expected, "{a} before {b}"),
                        Precedence::NotBefore => prop_assert!(!expected, "{a} not before {b}"),
                        Precedence::Deferred => {}
                    }
                }
            }
            for (question, answer) in questions.iter().zip(reachability.resolve(&questions)) {
                prop_assert_eq!(answer, closure[question.1 as usize][question.0 as usize]);
            }
        }
    }
}
