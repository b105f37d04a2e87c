//! Output of SVG and HTML as text: elements with escaped attributes, and numbers that are short and always finite.
//!
//! The output is well-formed in both languages: HTML supports `&apos;`, and accepts `/>` on elements without content.

use std::fmt::Write as _;

use fabricast_topologies::visible::visible;
use quick_xml::escape::escape;

/// Writer of markup, element by element.
#[derive(Clone, Debug, Default)]
pub struct Markup {
    text: String,
    open: Vec<&'static str>,
}

/// Formats a coordinate with at most two decimals. Non-finite values become 0, so that they do not invalidate a
/// picture.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.2}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// Truncates a text to at most `letters` characters.
pub(crate) fn shortened(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(letters.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short + "…"
}

impl Markup {
    /// Opens an element.
    pub fn open(&mut self, name: &'static str, attributes: &[(&str, &str)]) {
        self.tag(name, attributes);
        self.text.push_str(">\n");
        self.open.push(name);
    }

    /// Closes the element opened last.
    pub fn close(&mut self) {
        if let Some(name) = self.open.pop() {
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "</{name}>");
        }
    }

    /// Writes an element without content.
    pub fn empty(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.tag(name, attributes);
        self.text.push_str("/>\n");
    }

    /// Writes an element without content, but with an end tag, which HTML requires for some elements.
    pub fn empty_element(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.tag(name, attributes);
        let _ = writeln!(self.text, "></{name}>");
    }

    /// Writes an element with text content.
    pub fn text(&mut self, name: &str, attributes: &[(&str, &str)], content: &str) {
        self.tag(name, attributes);
        let _ = writeln!(self.text, ">{}</{name}>", escape(&*printable(content)));
    }

    /// Writes an element with text content and preserves its line breaks.
    pub(crate) fn multiline_text(&mut self, name: &str, content: &str) {
        let lines: Vec<String> = content.lines().map(|line| escape(&*printable(line)).into_owned()).collect();
        let _ = writeln!(self.text, "<{name}>{}</{name}>", lines.join("\n"));
    }

    /// Writes markup that is already complete and escaped: output of this module, or a fixed text.
    pub fn raw(&mut self, markup: &str) {
        self.text.push_str(markup);
    }

    /// Closes all open elements and returns the markup.
    #[must_use]
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }

    fn tag(&mut self, name: &str, attributes: &[(&str, &str)]) {
        let _ = write!(self.text, "<{name}");
        for (key, value) in attributes {
            let _ = write!(self.text, " {key}=\"{}\"", escape(&*printable(value)));
        }
    }
}

/// Replaces line breaks and tabs by blanks, and control characters by visible characters, since XML does not allow them
/// even if escaped.
fn printable(text: &str) -> String {
    visible(&text.replace(['\n', '\t'], " ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_finite() {
        let shown = [0.0, -0.001, 1.5, 2.0 / 3.0, f64::NAN, f64::INFINITY, -12.0].map(number);
        assert_eq!(shown, ["0", "0", "1.5", "0.67", "0", "0", "-12"]);
    }

    #[test]
    fn names_are_escaped() {
        let mut svg = Markup::default();
        svg.open("g", &[("id", "a\"><script>\u{0}")]);
        svg.text("text", &[], "<b>&\u{1b}");
        let text = svg.finish();
        let document = roxmltree::Document::parse(&text).unwrap();
        assert_eq!(document.root_element().attribute("id"), Some("a\"><script>\\u{0}"));
        assert_eq!(document.root_element().first_element_child().unwrap().text(), Some("<b>&\\u{1b}"));
    }
}
