//! Check for negative figures, which are invalid in an answer. Infinite values need no check, since JSON does not have
//! them.

/// Negative figure in a JSON text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NegativeFigure<'a> {
    /// Key of the figure.
    pub(super) key: &'a str,
    /// Figure as written in the text.
    pub(super) figure: &'a str,
    /// Line number of the figure, from 1.
    pub(super) line: usize,
    /// Column of the figure in bytes, from 1.
    pub(super) column: usize,
}

/// Largest absolute value of a negative figure that counts as 0, because it may be due to rounding.
const ROUNDING: f64 = 1e-9;

/// Returns the first negative figure of a JSON text; `None` if there is none.
pub(super) fn first_negative(text: &str) -> Option<NegativeFigure<'_>> {
    let mut key = "";
    let mut remaining = text;
    while let Some(start) = remaining.find(['"', '-']) {
        let tail = remaining.get(start..)?;
        if let Some(string) = tail.strip_prefix('"') {
            let mut is_escaped = false;
            let end = string.find(|letter| {
                let ends = letter == '"' && !is_escaped;
                is_escaped = letter == '\\' && !is_escaped;
                ends
            })?;
            (key, remaining) = (string.get(..end)?, string.get(end + 1..)?);
            continue;
        }
        let end = tail.find(|letter: char| !matches!(letter, '0'..='9' | '.' | 'e' | 'E' | '+' | '-'));
        let (figure, following) = tail.split_at(end.unwrap_or(tail.len()));
        let before = text.get(..text.len() - tail.len())?;
        // A minus sign after `e` belongs to an exponent.
        let is_exponent = before.ends_with(['e', 'E']);
        if !is_exponent && figure.parse::<f64>().is_ok_and(|figure| figure < -ROUNDING) {
            let line = before.rfind('\n').map_or(before, |newline| before.get(newline + 1..).unwrap_or_default());
            return Some(NegativeFigure {
                key,
                figure,
                line: before.matches('\n').count() + 1,
                column: line.len() + 1,
            });
        }
        remaining = following;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_figures_are_found_outside_strings_and_exponents() {
        for text in ["{}", r#"{"a-1": "-5", "b": [1e-9, 2E-3]}"#, r#"{"a\\": "x\"-5", "b": -1e-12, "c": -0.0}"#] {
            assert_eq!(first_negative(text), None, "{text}");
        }
        let negative = first_negative("{\"a\": \"é-\",\n \"b\": {\"c\": 1e-3, \"d\": [2,-5.5e1]}}");
        assert_eq!(negative, Some(NegativeFigure { key: "d", figure: "-5.5e1", line: 2, column: 27 }));
    }
}
