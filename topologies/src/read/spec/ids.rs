//! Ids with ranges: `gpu[0-7]` expands to eight ids, `n[0-1]/gpu[0-7]` to sixteen; an id without ranges expands to
//! itself.

/// Maximum number of ids that one text may expand to: four times the largest supported cluster.
pub(crate) const MAX_IDS: u64 = 1 << 18;

/// Maximum length of an id in bytes, before expansion: NCCL's own limit on names.
const MAX_ID_LENGTH: usize = 255;

/// A numeric range in an id, such as `[0-7]`.
struct Range<'a> {
    /// Text before this range, from the end of the previous one.
    before: &'a str,
    first: u32,
    last: u32,
    /// Number of digits to pad to if the range is written with leading zeros (`[00-15]`).
    width: usize,
}

impl Range<'_> {
    fn count(&self) -> u64 {
        u64::from(self.last) - u64::from(self.first) + 1
    }
}

/// Splits an id into its ranges and the text after the last one.
fn split_ranges(id: &str) -> Result<(Vec<Range<'_>>, &str), String> {
    let mut ranges = Vec::new();
    let mut from = 0;
    let mut at = 0;
    while let Some(open) = id[at..].find('[').map(|i| at + i) {
        at = open + 1;
        let Some(close) = id[at..].find(']').map(|i| at + i) else {
            break;
        };
        let inside = &id[at..close];
        let Some((first, last)) = inside.split_once('-') else {
            continue;
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(first) || !digits(last) {
            continue;
        }
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` in `{id}` is too large"));
        let (low, high) = (number(first)?, number(last)?);
        if low > high {
            return Err(format!("the range [{inside}] in `{id}` runs backwards"));
        }
        let width = if first.len() > 1 && first.starts_with('0') { first.len() } else { 0 };
        ranges.push(Range { before: &id[from..open], first: low, last: high, width });
        from = close + 1;
        at = from;
    }
    Ok((ranges, &id[from..]))
}

/// Returns true if a text has no ranges, so that it expands to itself alone.
pub(crate) fn is_plain_id(id: &str) -> bool {
    matches!(expand(id).as_deref(), Ok([one]) if **one == *id)
}

/// Expands a text to all its ids; the last range varies fastest.
pub(crate) fn expand(id: &str) -> Result<Vec<Box<str>>, String> {
    if id.is_empty() {
        return Err("an id must not be empty".to_owned());
    }
    if id.len() > MAX_ID_LENGTH {
        return Err(format!("an id of {} bytes is longer than {MAX_ID_LENGTH}", id.len()));
    }
    if id.chars().any(char::is_control) {
        return Err(format!("the id {id:?} contains a control character"));
    }
    let (ranges, rest) = split_ranges(id)?;
    let total = ranges.iter().try_fold(1u64, |product, range| product.checked_mul(range.count()));
    if total.is_none_or(|total| total > MAX_IDS) {
        return Err(format!("`{id}` expands to more than {MAX_IDS} ids"));
    }
    let mut ids = vec![String::new()];
    for range in &ranges {
        let mut longer = Vec::with_capacity(ids.len() * range.count() as usize);
        for prefix in &ids {
            for n in range.first..=range.last {
                longer.push(format!("{prefix}{}{n:0width$}", range.before, width = range.width));
            }
        }
        ids = longer;
    }
    Ok(ids.into_iter().map(|id| (id + rest).into_boxed_str()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<String> {
        expand(text).unwrap().into_iter().map(String::from).collect()
    }

    #[test]
    fn ranges_expand_in_order() {
        assert_eq!(ids("gpu[0-2]"), ["gpu0", "gpu1", "gpu2"]);
        assert_eq!(ids("n[1-2]/nic[9-10]x"), ["n1/nic9x", "n1/nic10x", "n2/nic9x", "n2/nic10x"]);
        assert_eq!(ids("r[08-10]"), ["r08", "r09", "r10"]);
    }

    #[test]
    fn ids_without_ranges_are_unchanged() {
        for id in
            ["gpu0", "a[b", "a]b", "a[]", "a[1]", "a[1-]", "a[-1]", "a[x-y]", "[", "mlx5[a]0", "é[1,2]", "a[1-2-3]"]
        {
            assert_eq!(ids(id), [id]);
            assert!(is_plain_id(id));
        }
    }

    #[test]
    fn invalid_and_oversized_ids_are_rejected() {
        assert!(expand(&"[".repeat(256)).is_err());
        for id in ["", "a[2-1]", "a[0-999999999]", "a[0-99999999999]", "a[0-9999]b[0-9999]c[0-9999]d[0-9999]", "a\nb"] {
            assert!(expand(id).is_err(), "{id}");
        }
    }
}
