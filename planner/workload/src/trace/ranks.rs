//! Parser of rank groups: `0-7`, `0 2 4`, `0-3 8-11`.

/// Parses ranks and returns them in the given order.
///
/// # Errors
/// Description of an invalid or duplicate rank, or of an empty list.
pub(super) fn parse(text: &str) -> Result<Vec<u32>, String> {
    let mut ranks = Vec::new();
    for word in text.split_whitespace() {
        let number = |text: &str| {
            text.parse::<u32>().ok().filter(|rank| *rank < MAX_RANKS).ok_or_else(|| {
                format!("`{word}` is not a rank: expected a number under {MAX_RANKS}, or a range as 0-7")
            })
        };
        match word.split_once('-') {
            None => ranks.push(number(word)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(format!("`{word}` runs backwards"));
                }
                ranks.extend(first..=last);
            }
        }
        if ranks.len() > MAX_RANKS as usize {
            return Err(format!("more than {MAX_RANKS} ranks"));
        }
    }
    let mut sorted = ranks.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair.first() == pair.last()) {
        Some(pair) => Err(format!("rank {} is named twice", pair.first().copied().unwrap_or_default())),
        None if ranks.is_empty() => Err("no ranks".to_owned()),
        None => Ok(ranks),
    }
}

/// Formats ascending ranks as `parse` reads them: `0-3 6`.
pub(super) fn format(ranks: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<String>>().join(" ")
}

/// Maximum number of ranks in a trace; rank numbers are smaller.
pub(super) const MAX_RANKS: u32 = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_ranks_are_read_back() {
        for (ranks, text) in [(&[0, 1, 2, 5][..], "0-2 5"), (&[7], "7"), (&[3, 4], "3-4")] {
            assert_eq!(format(ranks), text);
            assert_eq!(parse(text).as_deref(), Ok(ranks));
        }
    }

    #[test]
    fn ranges_and_numbers_are_read() {
        assert_eq!(parse("0-3 8 6"), Ok(vec![0, 1, 2, 3, 8, 6]));
        for (text, expected) in [
            ("", "no ranks"),
            ("3-1", "backwards"),
            ("0-3 2", "twice"),
            ("x", "is not a rank"),
            ("0-9999999999", "is not a rank"),
        ] {
            assert!(parse(text).unwrap_err().contains(expected), "{text}");
        }
    }
}
