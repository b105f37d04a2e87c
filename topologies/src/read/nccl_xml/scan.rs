//! A look at the tags before they are parsed.
//!
//! The XML parser compares every attribute of an element with every other and hands namespaces down to every element, so
//! that a megabyte of either takes it many seconds. No topology file has namespaces, and NCCL itself takes 16 attributes.

use crate::error::{Origin, Result};

/// Most attributes of an element that are read.
const MOST_ATTRIBUTES: usize = 64;

/// Refuses elements with more attributes than any topology has, and namespaces.
pub(super) fn refuse_hostile(origin: Origin<'_>) -> Result<()> {
    let mut rest = origin.text;
    while let Some(open) = rest.find('<') {
        let tag = rest.get(open..).unwrap_or_default();
        // What may hold signs of its own, and what ends it.
        let end =
            [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")].iter().find(|(start, _)| tag.starts_with(start));
        let length = match end {
            Some((_, end)) => tag.find(end).map_or(tag.len(), |at| at + end.len()),
            None => tag_length(tag, |at, name, count| {
                let place = origin.text.len() - tag.len() + at;
                if name.starts_with("xmlns") {
                    return Err(origin.invalid(place..place + 1, "XML namespaces have no place in a topology file"));
                }
                if count > MOST_ATTRIBUTES {
                    let message = format!("an element with more than {MOST_ATTRIBUTES} attributes");
                    return Err(origin.invalid(place..place + 1, message));
                }
                Ok(())
            })?,
        };
        rest = tag.get(length..).unwrap_or_default();
    }
    Ok(())
}

/// The length of a tag; calls `attribute` with place, text before the `=` and number of each attribute.
fn tag_length(tag: &str, mut attribute: impl FnMut(usize, &str, usize) -> Result<()>) -> Result<usize> {
    let mut quote = None;
    let mut count = 0;
    let mut name_start = 1;
    for (at, c) in tag.char_indices().skip(1) {
        match (quote, c) {
            (Some(open), c) => quote = if c == open { None } else { quote },
            (None, '"' | '\'') => quote = Some(c),
            (None, '>') => return Ok(at + 1),
            // A tag in a tag: the parser will say so.
            (None, '<') => return Ok(at),
            (None, '=') => {
                count += 1;
                attribute(at, tag.get(name_start..at).unwrap_or_default(), count)?;
            }
            (None, c) if c.is_whitespace() => name_start = at + c.len_utf8(),
            (None, _) => {}
        }
    }
    Ok(tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attributes_of_tags_count() {
        let scan = |text: &str| refuse_hostile(Origin::new("t", text));
        let many = |n: usize| (0..n).map(|i| format!(" a{i}='=='")).collect::<String>();
        assert!(scan(&format!("<!--{0}--><a{1}><![CDATA[<{0}]]></a>{0}<?x {0}?>", many(100), many(64))).is_ok());
        let error = scan(&format!("<b/>\n<a{}/>", many(65))).unwrap_err();
        assert_eq!(error.place().unwrap().line, 2);
        assert_eq!(scan("<a\n xmlns:b='u'/>").unwrap_err().place().unwrap().line, 2);
        for unfinished in ["<", "<a b='", "<!--", "<a <b", "<é=\u{301}"] {
            assert!(scan(unfinished).is_ok());
        }
    }
}
