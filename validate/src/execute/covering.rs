//! Pairwise covering arrays: small sets of test cases in which every pair of levels of any two factors occurs, if the
//! constraints permit the pair.

/// Number of random candidates per case; the one that covers most new pairs is used.
const TRIES: u64 = 60;

/// Returns cases (one level per factor) that together contain every pair of levels of two factors that occurs in any
/// allowed case. The algorithm is greedy and deterministic. `levels`: number of levels of each factor.
#[must_use]
pub fn pairwise_cases(levels: &[usize], is_allowed: &dyn Fn(&[usize]) -> bool) -> Vec<Vec<usize>> {
    let mut open: Vec<(usize, usize, usize, usize)> = Vec::new();
    for (a, &levels_a) in levels.iter().enumerate() {
        for (b, &levels_b) in levels.iter().enumerate().skip(a + 1) {
            open.extend((0..levels_a).flat_map(|x| (0..levels_b).map(move |y| (a, x, b, y))));
        }
    }
    let has = |case: &[usize], &(a, x, b, y): &(usize, usize, usize, usize)| {
        case.get(a) == Some(&x) && case.get(b) == Some(&y)
    };
    let (mut cases, mut random) = (Vec::new(), 0x9e37_79b9_7f4a_7c15_u64);
    while let Some(&(a, x, b, y)) = open.first() {
        let mut best: Option<(usize, Vec<usize>)> = None;
        for attempt in 0..TRIES * 10 {
            if attempt >= TRIES && best.is_some() {
                break;
            }
            let mut case: Vec<usize> =
                levels.iter().map(|&count| (step(&mut random) % count.max(1) as u64) as usize).collect();
            for (factor, level) in [(a, x), (b, y)] {
                if let Some(slot) = case.get_mut(factor) {
                    *slot = level;
                }
            }
            if !is_allowed(&case) {
                continue;
            }
            let new = open.iter().filter(|pair| has(&case, pair)).count();
            if best.as_ref().is_none_or(|(covered, _)| new > *covered) {
                best = Some((new, case));
            }
        }
        match best {
            Some((_, case)) => {
                open.retain(|pair| !has(&case, pair));
                cases.push(case);
            }
            // No allowed case contains this pair.
            None => open.retain(|pair| *pair != (a, x, b, y)),
        }
    }
    cases
}

/// Returns the next number of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_pair_and_no_other_is_covered() {
        let levels = [5, 4, 3, 2];
        // The first level of the first factor occurs only with the first level of the second.
        let is_allowed = |case: &[usize]| case[0] != 0 || case[1] == 0;
        let cases = pairwise_cases(&levels, &is_allowed);
        assert!(cases.iter().all(|case| is_allowed(case)));
        for a in 0..4 {
            for b in a + 1..4 {
                for (x, y) in (0..levels[a]).flat_map(|x| (0..levels[b]).map(move |y| (x, y))) {
                    let found = cases.iter().any(|case| case[a] == x && case[b] == y);
                    assert_eq!(found, (a, x, b) != (0, 0, 1) || y == 0, "{a}={x} {b}={y}");
                }
            }
        }
        assert!(cases.len() < 40, "{} cases", cases.len());
        assert_eq!(cases, pairwise_cases(&levels, &is_allowed));
    }
}
