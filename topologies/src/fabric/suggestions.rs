//! Suggestions of similar names for every "did you mean" message.

/// Maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 3;

/// Longest name (in characters) that is compared; longer ones are unlikely to be typos.
const MAX_NAME_LENGTH: usize = 64;

/// Known names that are similar to `name`, best match first. A name is similar if its edit distance is at most a third
/// of the length of `name`, or if it contains `name`. Comparison ignores case.
///
/// The cost is one small edit-distance table per known name; names of very different length are skipped.
#[must_use]
pub fn suggest_names<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let wanted: Vec<char> = name.chars().take(MAX_NAME_LENGTH + 1).flat_map(char::to_lowercase).collect();
    if wanted.is_empty() || wanted.len() > MAX_NAME_LENGTH {
        return Vec::new();
    }
    let allowed = (wanted.len() / 3).max(1);
    let lower: String = wanted.iter().collect();
    let mut matches: Vec<(usize, &str)> = Vec::new();
    for candidate in known {
        let letters: Vec<char> = candidate.chars().take(MAX_NAME_LENGTH + 1).flat_map(char::to_lowercase).collect();
        if letters.len().abs_diff(wanted.len()) <= allowed {
            let edits = edit_distance(&wanted, &letters);
            if edits <= allowed {
                matches.push((edits, candidate));
                continue;
            }
        }
        if wanted.len() >= 3 && letters.len() <= MAX_NAME_LENGTH && letters.iter().collect::<String>().contains(&lower)
        {
            matches.push((allowed + 1, candidate));
        }
    }
    matches.sort_unstable();
    matches.dedup();
    matches.into_iter().take(MAX_SUGGESTIONS).map(|(_, candidate)| candidate.to_owned()).collect()
}

/// Optimal string alignment distance of two words: insertions, deletions, replacements and swaps of adjacent letters.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, &y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == y && b[j - 1] == x {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        let distance = |a: &str, b: &str| edit_distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("ring", "rign"), 1);
        assert_eq!(distance("hgx-h200", "hgx-h200"), 0);
    }

    #[test]
    fn similar_names_are_sorted_and_dissimilar_ones_omitted() {
        let known = ["hgx-h100", "hgx-h200", "dgx-a100", "l40s-pcie"];
        assert_eq!(suggest_names("hgx-h20", known), ["hgx-h200", "hgx-h100"]);
        assert_eq!(suggest_names("H200", known), ["hgx-h200"]);
        assert_eq!(suggest_names("cray", known), Vec::<String>::new());
        assert_eq!(suggest_names("", known), Vec::<String>::new());
        assert_eq!(suggest_names(&"x".repeat(1000), known), Vec::<String>::new());
    }
}
