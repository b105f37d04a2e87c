//! Sanitizing of external text (names in files, arguments, messages of other software) for terminals, browsers and XML
//! readers. Characters that move the cursor, start an escape sequence or reorder the text become visible escapes.
//!
//! The hidden characters are the ASCII and Latin-1 control characters (C0, DEL, C1), the marks and overrides of
//! bidirectional text, the line and paragraph separators, and U+FFFE and U+FFFF, which XML forbids. All other
//! characters are unchanged. Text without hidden characters is borrowed, not copied.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns true for characters that are invisible to a reader but may control the software that shows them.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// Sanitizes a name or another part of a line. Every hidden character, line breaks included, becomes its escape
/// (`\u{1b}`).
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, braced)
}

/// Sanitizes whole lines. Variant of [`visible`] that leaves line feeds and tabs unchanged.
#[must_use]
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden_in_lines, braced)
}

/// Sanitizes lines that the caller has coloured. Variant of [`visible_lines`] that leaves sequences that select colours
/// (`ESC [ 1 ; 31 m`) unchanged. Text from outside must have passed [`visible`] before it is coloured.
#[must_use]
pub fn visible_coloured(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut parts = text.split("\u{1b}[");
    shown.push_str(&visible_lines(parts.next().unwrap_or_default()));
    for part in parts {
        let codes = part.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(part.len());
        let is_colour = part.get(codes..).is_some_and(|rest| rest.starts_with('m'));
        shown.push_str(if is_colour { "\u{1b}[" } else { "\\u{1b}[" });
        shown.push_str(&visible_lines(part));
    }
    shown
}

/// Character in place of the escape character of a table's own colour sequences until [`visible_marked`] writes them.
/// It is in a private-use area, where no text has a meaning of its own.
const COLOUR_MARK: char = '\u{f001b}';

/// Codes of the colour sequences of tables: reset, bold, faint, default colour, red, green, yellow.
const TABLE_COLOURS: [&str; 7] = ["0", "1", "2", "39", "38;5;9", "38;5;10", "38;5;11"];

/// Marks the colour sequences of a table whose cells passed [`visible_lines`], so that they differ from those of text
/// from outside.
#[must_use]
pub fn mark_colours(text: &str) -> String {
    text.replace('\u{1b}', &COLOUR_MARK.to_string())
}

/// Sanitizes lines that contain tables with marked colours. Variant of [`visible_lines`] that writes the sequences of
/// [`mark_colours`] and escapes all others. Text from outside that contains a mark can change the colour of text, and
/// nothing else.
#[must_use]
pub fn visible_marked(text: &str) -> String {
    let text = visible_lines(text);
    let mut shown = String::with_capacity(text.len());
    let mut parts = text.split(COLOUR_MARK);
    shown.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let code = part.strip_prefix('[').and_then(|rest| rest.split_once('m')).map(|(code, _)| code);
        match code.is_some_and(|code| TABLE_COLOURS.contains(&code)) {
            true => shown.push('\u{1b}'),
            false => braced(COLOUR_MARK, &mut shown),
        }
        shown.push_str(part);
    }
    shown
}

/// Sanitizes a complete JSON or TOML document. Hidden characters occur only in its strings; they become escapes that
/// parsers decode.
#[must_use]
pub fn visible_in_strings(text: &str) -> Cow<'_, str> {
    // Carriage returns stay: JSON written on Windows ends its lines with them.
    replaced(
        text,
        |c| is_hidden_in_lines(c) && c != '\r',
        |c, out| {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        },
    )
}

/// Sanitizes a complete XML document. Characters that XML forbids become visible escapes; other hidden characters
/// become character references, which parsers decode.
#[must_use]
pub fn visible_in_xml(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden_in_lines, |c, out| {
        if is_forbidden_in_xml(c) {
            braced(c, out);
        } else {
            let _ = write!(out, "&#x{:x};", u32::from(c));
        }
    })
}

fn is_hidden_in_lines(c: char) -> bool {
    is_hidden(c) && !matches!(c, '\n' | '\t')
}

fn is_forbidden_in_xml(c: char) -> bool {
    (c < ' ' && !matches!(c, '\n' | '\t' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}')
}

fn braced(c: char, out: &mut String) {
    out.extend(c.escape_unicode());
}

fn replaced(text: &str, is_replaced: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(&is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_replaced(c) { escape(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hidden_characters_become_escapes() {
        assert_eq!(
            visible("a\u{1b}]0;x\u{7}\n\u{9b}\u{202e}\u{2028}é"),
            "a\\u{1b}]0;x\\u{7}\\u{a}\\u{9b}\\u{202e}\\u{2028}é"
        );
        assert_eq!(visible_lines("a\tb\r\nc\u{7f}"), "a\tb\\u{d}\nc\\u{7f}");
        assert!(matches!(visible("plain, 中文 and עברית"), Cow::Borrowed(_)));
        assert_eq!(
            visible_coloured("\u{1b}[1;31mred\u{1b}[0m \u{1b}[2J \u{1b}c"),
            "\u{1b}[1;31mred\u{1b}[0m \\u{1b}[2J \\u{1b}c"
        );
    }

    #[test]
    fn only_marked_colours_of_tables_are_written() {
        let table = mark_colours("\u{1b}[1mmodel\u{1b}[0m \u{1b}[38;5;9mbad\u{1b}[39m");
        assert_eq!(
            visible_marked(&format!("a\u{1b}[8mb \u{f001b}[8m {table}")),
            "a\\u{1b}[8mb \\u{f001b}[8m \u{1b}[1mmodel\u{1b}[0m \u{1b}[38;5;9mbad\u{1b}[39m"
        );
    }

    proptest! {
        #[test]
        fn sanitized_text_has_no_hidden_characters(text in any::<String>()) {
            prop_assert!(!visible(&text).contains(is_hidden));
            for shown in [visible_lines(&text), visible_in_strings(&text.replace('\r', "")), visible_in_xml(&text)] {
                prop_assert!(!shown.contains(is_hidden_in_lines));
            }
        }

        #[test]
        fn sanitized_json_and_xml_strings_parse_back(text in "[\u{7f}-\u{a0}\u{2000}-\u{2070}a-z]{0,20}") {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&visible_in_strings(&json)).unwrap(), text.as_str());
            let xml = format!("<a>{text}</a>");
            let shown = visible_in_xml(&xml);
            let document = roxmltree::Document::parse(&shown).unwrap();
            prop_assert_eq!(document.root_element().text().unwrap_or(""), text);
        }
    }
}
