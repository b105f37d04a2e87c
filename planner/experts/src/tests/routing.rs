//! Probabilities of routing against an enumeration of all choices of experts.

use proptest::prelude::*;

use crate::{RoutingPattern, TokenRouting};

/// All sets of `k` of the numbers 0 to `n` − 1, as bit masks.
pub(super) fn sets(n: u32, k: u32) -> impl Iterator<Item = u32> {
    (0u32..1 << n).filter(move |set| set.count_ones() == k)
}

/// Share of all choices of experts that have one in `first..first + count`, by enumeration.
fn enumerated_hits(routing: &TokenRouting, first: u32, count: u32) -> f64 {
    let block = ((1u32 << count) - 1) << first;
    let (groups, limit) = match routing.pattern() {
        RoutingPattern::GroupLimited { groups, limit } => (groups, limit),
        _ => (1, 1),
    };
    let size = routing.experts() / groups;
    let (mut hits, mut all) = (0u64, 0u64);
    for chosen_groups in sets(groups, limit) {
        let pool = (0..routing.experts()).filter(|expert| chosen_groups >> (expert / size) & 1 == 1);
        let pool: u32 = pool.map(|expert| 1 << expert).sum();
        for experts in sets(routing.experts(), routing.top_k()).filter(|experts| experts & !pool == 0) {
            all += 1;
            hits += u64::from(experts & block != 0);
        }
    }
    hits as f64 / all as f64
}

proptest! {
    /// The hypergeometric closed form equals the share found by enumeration of all choices, with and without a group
    /// limit.
    #[test]
    fn hit_probability_equals_enumeration(
        size in 1u32..4, groups in 1u32..4, limit in 1u32..4, top_k in 1u32..5, first in 0u32..9, count in 1u32..9,
    ) {
        let experts = size * groups;
        let limit = limit.min(groups);
        let top_k = top_k.min(size * limit);
        let first = first % experts;
        let count = count.min(experts - first);
        for pattern in [RoutingPattern::Random, RoutingPattern::GroupLimited { groups, limit }] {
            let routing = TokenRouting::new(1, 16, experts, top_k, pattern).unwrap();
            let (exact, enumerated) = (routing.hit_probability(first, count), enumerated_hits(&routing, first, count));
            prop_assert!((exact - enumerated).abs() < 1e-12, "{routing:?} {first}+{count}: {exact} {enumerated}");
        }
    }

    /// Balanced routing reaches as many equal blocks as there are experts per token, or all.
    #[test]
    fn balanced_tokens_reach_distinct_blocks(blocks in 1u32..32, size in 1u32..9, top_k in 1u32..33) {
        let experts = blocks * size;
        let top_k = top_k.min(experts);
        let routing = TokenRouting::new(1, 16, experts, top_k, RoutingPattern::Balanced).unwrap();
        let reached: f64 = (0..blocks).map(|block| routing.hit_probability(block * size, size)).sum();
        prop_assert!((reached - f64::from(top_k.min(blocks))).abs() < 1e-9, "{reached}");
    }
}

#[test]
fn one_group_of_all_experts_is_random_routing() {
    let random = TokenRouting::new(1, 16, 64, 6, RoutingPattern::Random).unwrap();
    let pattern = RoutingPattern::GroupLimited { groups: 8, limit: 8 };
    let limited = TokenRouting::new(1, 16, 64, 6, pattern).unwrap();
    for (first, count) in [(0, 1), (0, 8), (5, 20), (60, 4), (0, 64)] {
        let difference = random.hit_probability(first, count) - limited.hit_probability(first, count);
        assert!(difference.abs() < 1e-12, "{first}+{count}");
    }
}

/// With hundreds of groups, the number of sets exceeds the range of floating-point numbers. A token still misses a
/// group with probability 1 − l/g, and never misses a block of all groups.
#[test]
fn many_groups_have_probabilities() {
    let (groups, limit) = (4096, 2048);
    let routing = TokenRouting::new(1, 16, 4096, 2048, RoutingPattern::GroupLimited { groups, limit }).unwrap();
    for (first, count, expected) in [(0, 1, 0.5), (4095, 1, 0.5), (0, 4096, 1.0)] {
        let hit = routing.hit_probability(first, count);
        assert!((hit - expected).abs() < 1e-9, "{first}+{count}: {hit}");
    }
}

#[test]
fn impossible_routings_are_errors() {
    let message = |tokens, experts, top_k, pattern| {
        TokenRouting::new(tokens, 16, experts, top_k, pattern).unwrap_err().to_string()
    };
    let limited = |groups, limit| RoutingPattern::GroupLimited { groups, limit };
    let random = RoutingPattern::Random;
    assert_eq!(message(0, 8, 2, random), "the number of tokens must be more than 0");
    assert_eq!(message(1 << 31, 8, 2, random), "2147483648 tokens; expected at most 1073741824");
    assert_eq!(message(1, 8, 9, random), "top-k 9: expected at most 8, the number of experts that a token can use");
    assert_eq!(
        message(1, 8, 5, limited(4, 2)),
        "top-k 5: expected at most 4, the number of experts that a token can use"
    );
    assert_eq!(message(1, 8, 2, limited(4, 5)), "tokens may use 5 of 4 groups of experts; expected 1 to 4");
    assert_eq!(message(1, 8, 2, limited(3, 2)), "8 experts do not divide evenly among 3 groups");
    let routing = TokenRouting::new(1, 16, 8, 2, random).unwrap();
    assert!(routing.with_skew(0.5).is_err());
}
