//! Checks rules against a communicator: no matching rules, unreachable rules, sizes without a rule.

use std::collections::BTreeMap;

use super::{Communicator, Ranks, Rules};
use crate::export::Finding;

/// Largest message size that is checked, in bytes.
const LARGEST: u64 = 1 << 40;

/// Returns the problems of the rules for a communicator, by collective, then by rule.
#[must_use]
pub fn findings(rules: &Rules, ranks: Ranks) -> Vec<Finding> {
    let Ranks { ranks: count, hosts } = ranks;
    let mut messages = Vec::new();
    if rules.routines.is_empty() {
        messages.push("no rules: Open MPI uses its defaults".to_owned());
    }
    for &(routine, _) in &rules.routines {
        let name = routine.name();
        let Some(communicator) = rules.communicator(routine, ranks) else {
            messages
                .push(format!("{name} has no rules for {count} ranks on {hosts} hosts: Open MPI uses its defaults"));
            continue;
        };
        let (unreachable, gaps) = coverage_problems(communicator);
        messages.extend(unreachable.into_iter().map(|rule| {
            let number = rule + 1;
            format!("{name}: no call matches rule {number} for {count} ranks: earlier rules match all of its sizes")
        }));
        messages.extend(
            gaps.into_iter().map(|(first, last)| {
                format!("{name} of {first} to {last} bytes has no rule: Open MPI uses its defaults")
            }),
        );
    }
    messages.into_iter().map(|message| Finding::warning(None, message)).collect()
}

/// Returns the indices, from 0, of rules whose sizes earlier rules cover, and the size ranges in bytes without a rule.
fn coverage_problems(communicator: &Communicator) -> (Vec<usize>, Vec<(u64, u64)>) {
    // Disjoint size ranges covered by the rules so far, first size to last.
    let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
    let mut unreachable = Vec::new();
    for (index, rule) in communicator.rules.iter().enumerate() {
        let (mut first, mut last) = (rule.min_bytes.0, rule.max_bytes.0);
        if covered.range(..=first).next_back().is_some_and(|(_, &end)| end >= last) {
            unreachable.push(index);
            continue;
        }
        while let Some((&from, &to)) =
            covered.range(..=last.saturating_add(1)).next_back().filter(|(_, to)| to.saturating_add(1) >= first)
        {
            (first, last) = (first.min(from), last.max(to));
            covered.remove(&from);
        }
        covered.insert(first, last);
    }
    let mut gaps = Vec::new();
    let mut next = 0;
    for (first, last) in covered.into_iter().chain([(LARGEST + 1, LARGEST + 1)]) {
        if first > next && next <= LARGEST {
            gaps.push((next, (first - 1).min(LARGEST)));
        }
        next = next.max(last.saturating_add(1));
    }
    (unreachable, gaps)
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::Bytes;
    use proptest::prelude::*;

    use super::super::{Distribution, Routine, Rule};
    use super::*;

    fn make_rules(ranges: &[(u64, u64)]) -> Rules {
        let rule = |&(first, last)| Rule {
            min_bytes: Bytes(first),
            max_bytes: Bytes(last),
            algorithm: 3,
            fanout: 0,
            segment: 0,
        };
        let rules = ranges.iter().map(rule).collect();
        let communicator = Communicator { min_ranks: 8, max_ranks: 8, distribution: Distribution::Any, rules };
        let routine = Routine::from_name("allreduce").unwrap();
        Rules { comments: Vec::new(), routines: vec![(routine, vec![communicator])] }
    }

    #[test]
    fn unreachable_rules_and_uncovered_sizes_are_reported() {
        let messages = |rules: &Rules, ranks| {
            let reported = findings(rules, Ranks { ranks, hosts: 1 });
            reported.into_iter().map(|finding| finding.message).collect::<Vec<_>>()
        };
        assert_eq!(messages(&make_rules(&[(0, 7), (8, u64::MAX)]), 8), Vec::<String>::new());
        assert_eq!(
            messages(&make_rules(&[(0, 7), (12, u64::MAX), (4, 5)]), 8),
            [
                "allreduce: no call matches rule 3 for 8 ranks: earlier rules match all of its sizes",
                "allreduce of 8 to 11 bytes has no rule: Open MPI uses its defaults"
            ]
        );
        assert!(messages(&make_rules(&[(0, 7)]), 4)[0].contains("no rules for 4 ranks on 1 hosts"));
        assert!(messages(&Rules::default(), 4)[0].contains("no rules: Open MPI uses its defaults"));
    }

    proptest! {
        /// Unreachable rules and gaps equal those of an independent check of every single size.
        #[test]
        fn coverage_matches_check_of_every_size(ranges in prop::collection::vec((0u64..24, 0u64..24), 0..6)) {
            let ranges: Vec<(u64, u64)> = ranges.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
            let rules = make_rules(&ranges);
            let (unreachable, gaps) = coverage_problems(&rules.routines[0].1[0]);
            let first = |size: u64| ranges.iter().position(|&(a, b)| (a..=b).contains(&size));
            for index in 0..ranges.len() {
                prop_assert_eq!(unreachable.contains(&index), (0..30).all(|size| first(size) != Some(index)));
            }
            for size in 0..30 {
                prop_assert_eq!(gaps.iter().any(|&(a, b)| (a..=b).contains(&size)), first(size).is_none());
            }
        }
    }
}
