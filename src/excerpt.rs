//! Excerpts of the input around an error, limited to the width of a terminal, because a file may be a single line of
//! megabytes.

use fabricast_topologies::SourceLocation;
use fabricast_topologies::visible::{is_hidden, visible};
use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

/// Maximum number of characters shown per line.
const WIDTH: usize = 100;

/// Up to three lines of a text, with the offending one marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    name: String,
    /// Lines that are shown, each with a newline.
    text: String,
    /// Number of the first shown line, from 0.
    first_line: usize,
    /// Line and column of the error in the whole text, from 0.
    position: (usize, usize),
    /// Byte range of `text` that is underlined.
    span: SourceSpan,
}

impl Excerpt {
    /// Creates the excerpt around a source location in `text`; `None` if the text has no such line.
    pub fn new(text: &str, location: &SourceLocation) -> Option<Self> {
        let number = usize::try_from(location.line).ok()?.checked_sub(1)?;
        let column = usize::try_from(location.column).ok()?.saturating_sub(1);
        let first_line = number.saturating_sub(1);
        let mut lines = text.lines().skip(first_line).take(number - first_line + 2).peekable();
        // If the text ends with the line break before the location, there is no line to show.
        lines.peek()?;
        let mut excerpt_text = String::new();
        let mut span = None;
        for (line, content) in (first_line..).zip(lines) {
            if line != number {
                excerpt_text.push_str(&cut(content, 0).0);
            } else {
                let marked = text.get(location.bytes.clone()).unwrap_or_default();
                let marked = marked.lines().next().unwrap_or_default().chars().count();
                let (window, skipped) = cut(content, column);
                let characters: Vec<char> = window.chars().collect();
                let from = (column - skipped.min(column)).min(characters.len());
                let to = (from + marked).min(characters.len());
                let bytes = |characters: &[char]| characters.iter().map(|c| c.len_utf8()).sum::<usize>();
                let start = excerpt_text.len() + bytes(characters.get(..from).unwrap_or_default());
                span = Some((start, bytes(characters.get(from..to).unwrap_or_default())));
                excerpt_text.push_str(&window);
            }
            excerpt_text.push('\n');
        }
        let span = span?;
        Some(Self {
            name: visible(&location.source).into_owned(),
            text: excerpt_text,
            first_line,
            position: (number, column),
            span: span.into(),
        })
    }

    /// Returns the byte range of the excerpt that is underlined.
    pub fn span(&self) -> SourceSpan {
        self.span
    }
}

/// Returns at most [`WIDTH`] characters of a line around a column, and the number of characters omitted before them,
/// less the ellipsis. Tabs become blanks and hidden characters U+FFFD, so that columns keep their positions.
fn cut(line: &str, column: usize) -> (String, usize) {
    let start = if column < WIDTH * 3 / 4 { 0 } else { column - WIDTH / 2 };
    let mut characters = line.chars().skip(start).map(|c| match c {
        '\t' => ' ',
        hidden if is_hidden(hidden) => '\u{fffd}',
        other => other,
    });
    let mut window: String = characters.by_ref().take(WIDTH).collect();
    if characters.next().is_some() {
        window.push('…');
    }
    if start == 0 { (window, 0) } else { (format!("…{window}"), start - 1) }
}

impl SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        lines_before: usize,
        _lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        // With no context lines, miette requests only the position of the error; otherwise it requests all lines of the
        // excerpt.
        let (line, column) = if lines_before == 0 { self.position } else { (self.first_line, 0) };
        let range = if lines_before == 0 { *span } else { (0, self.text.len()).into() };
        let data = self.text.as_bytes().get(range.offset()..range.offset() + range.len()).unwrap_or_default();
        let count = self.text.lines().count();
        Ok(Box::new(MietteSpanContents::new_named(self.name.clone(), data, range, line, column, count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(text: &str, bytes: std::ops::Range<usize>) -> Excerpt {
        Excerpt::new(text, &SourceLocation::locate("f", text, bytes)).unwrap()
    }

    fn marked(excerpt: &Excerpt) -> &str {
        &excerpt.text[excerpt.span.offset()..excerpt.span.offset() + excerpt.span.len()]
    }

    #[test]
    fn adjacent_lines_are_shown_and_the_error_is_marked() {
        let result = excerpt("one\ntwo\nthree words here\nfour\nfive", 14..19);
        assert_eq!((result.text.as_str(), marked(&result)), ("two\nthree words here\nfour\n", "words"));
        assert_eq!((result.first_line, result.position), (1, (2, 6)));
    }

    #[test]
    fn long_lines_are_cut_around_the_error() {
        let line = format!("{}bad{}", "ü".repeat(1_000_000), "y".repeat(1_000_000));
        let result = excerpt(&line, 2_000_000..2_000_003);
        assert_eq!(marked(&result), "bad");
        assert!(result.text.chars().count() < WIDTH + 4 && result.text.starts_with('…'), "{}", result.text);
        assert_eq!(result.position, (0, 1_000_000));
        // The marked range is limited as well.
        assert!(excerpt(&line, 0..line.len()).text.chars().count() < WIDTH + 4);
    }

    #[test]
    fn locations_at_and_beyond_the_end_are_handled() {
        assert_eq!(marked(&excerpt("a\nb", 3..3)), "");
        assert!(Excerpt::new("", &SourceLocation::locate("f", "", 0..0)).is_none());
        let missing_line = SourceLocation { source: "f".to_owned(), line: 9, column: 3, bytes: 40..44 };
        assert!(Excerpt::new("shorter\nnow", &missing_line).is_none());
        let no_line = SourceLocation { source: "f".to_owned(), line: 0, column: 0, bytes: 0..0 };
        assert!(Excerpt::new("text", &no_line).is_none());
    }
}
