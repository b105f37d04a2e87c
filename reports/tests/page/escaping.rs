//! Tests of the escaping of names from users' files.

use fabricast_reports::page::study_page;
use proptest::prelude::*;
use roxmltree::{Document, ParsingOptions};

use super::synthetic::study_with_names;

/// HTML elements that pages may contain.
const ELEMENTS: [&str; 41] = [
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "header",
    "h1",
    "h2",
    "h3",
    "button",
    "main",
    "div",
    "p",
    "nav",
    "a",
    "section",
    "details",
    "summary",
    "ul",
    "li",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "figure",
    "figcaption",
    "svg",
    "g",
    "path",
    "rect",
    "text",
    "span",
    "label",
    "select",
    "option",
    "footer",
    "script",
];

/// Returns the page without its style sheet and script, which are not XML.
fn without_style_and_script(html: &str) -> String {
    let (mut text, mut remaining) = (String::new(), html);
    for (open, close) in [("<style>", "</style>"), ("<script>", "</script>")] {
        assert_eq!((remaining.matches(open).count(), remaining.matches(close).count()), (1, 1), "{open}");
        let (before, after) = remaining.split_once(open).expect("once");
        let (_, after) = after.split_once(close).expect("once");
        text += before;
        remaining = after;
    }
    text + remaining
}

/// Returns a name with control and bidirectional characters replaced by escapes such as `\u{1b}`.
fn escaped(name: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}' | '\u{fffe}' | '\u{ffff}')
    };
    let escape = |c: char| if is_hidden(c) { format!("\\u{{{:x}}}", u32::from(c)) } else { c.to_string() };
    name.chars().map(escape).collect()
}

fn assert_escaped(name: &str) {
    let html = study_page(&study_with_names(3, 2, |kind, number| format!("{kind} {number}{name}")), &[]).html();
    assert_eq!(html.to_ascii_lowercase().matches("<script").count(), 1);
    let text = without_style_and_script(&html);
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(&text, options).expect("well-formed");
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        assert!(ELEMENTS.contains(&node.tag_name().name()), "<{}>", node.tag_name().name());
        for attribute in node.attributes() {
            assert!(!attribute.name().starts_with("on") && attribute.name() != "src", "{}", attribute.name());
            assert!(attribute.name() != "href" || attribute.value().starts_with("#section-"), "{}", attribute.value());
        }
    }
    // Hidden characters are shown by their numbers. All other characters are unchanged.
    let clean = |text: &str| text.replace(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'), " ");
    let expected = clean(&format!("machine 0{}", escaped(name)));
    let is_name = |node: roxmltree::Node<'_, '_>| {
        (node.has_tag_name("th") || node.has_tag_name("td")) && node.text().map(clean) == Some(expected.clone())
    };
    assert!(document.descendants().any(is_name), "{expected:?}");
}

#[test]
fn known_injections_are_escaped() {
    for name in [
        "</script><script>alert(1)</script>",
        "</style><style>*{display:none}",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "<!--",
        "]]>",
        "&lt;b&gt;&amp;",
        "</title></svg></table>",
        "javascript:alert(1)",
        "\u{0}\u{1b}[2J\u{7}",
        "\u{202e}evil",
    ] {
        assert_escaped(name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn any_name_stays_text(name in "[<>&\"'/=!a-z\\-\\]\\PC]{0,24}") {
        assert_escaped(&name);
    }
}
