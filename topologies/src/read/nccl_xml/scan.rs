//! Scan of the tags before parsing, to reject files that would keep the XML parser busy for many seconds.
//!
//! The XML parser compares each attribute of an element with every other and passes namespaces on to every element, so
//! a megabyte of either is expensive. Topology files have no namespaces, and NCCL itself accepts 16 attributes per
//! element.

use crate::error::{Origin, Result};

/// Maximum number of attributes of an element.
const MAX_ATTRIBUTES: usize = 64;

/// Returns an error for namespaces and for elements with more than [`MAX_ATTRIBUTES`] attributes.
pub(super) fn reject_hostile(origin: Origin<'_>) -> Result<()> {
    let mut rest = origin.text;
    while let Some(open) = rest.find('<') {
        let tag = rest.get(open..).unwrap_or_default();
        // Constructs that may contain markup characters, and their terminators.
        let end =
            [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")].iter().find(|(start, _)| tag.starts_with(start));
        let length = match end {
            Some((_, end)) => tag.find(end).map_or(tag.len(), |at| at + end.len()),
            None => tag_length(tag, |at, name, count| {
                let position = origin.text.len() - tag.len() + at;
                if name.starts_with("xmlns") {
                    return Err(
                        origin.invalid(position..position + 1, "XML namespaces are not allowed in a topology file")
                    );
                }
                if count > MAX_ATTRIBUTES {
                    let message = format!("an element with more than {MAX_ATTRIBUTES} attributes");
                    return Err(origin.invalid(position..position + 1, message));
                }
                Ok(())
            })?,
        };
        rest = tag.get(length..).unwrap_or_default();
    }
    Ok(())
}

/// Length in bytes of the tag at the start of `tag`. Calls `attribute` for each attribute with the byte position of its
/// `=`, its name, and its number from 1.
fn tag_length(tag: &str, mut attribute: impl FnMut(usize, &str, usize) -> Result<()>) -> Result<usize> {
    let mut quote = None;
    let mut count = 0;
    let mut name_start = 1;
    for (at, c) in tag.char_indices().skip(1) {
        match (quote, c) {
            (Some(open), c) => quote = if c == open { None } else { quote },
            (None, '"' | '\'') => quote = Some(c),
            (None, '>') => return Ok(at + 1),
            // A tag starts inside another tag; the parser reports this error.
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
        let scan = |text: &str| reject_hostile(Origin::new("t", text));
        let attributes = |n: usize| (0..n).map(|i| format!(" a{i}='=='")).collect::<String>();
        assert!(
            scan(&format!("<!--{0}--><a{1}><![CDATA[<{0}]]></a>{0}<?x {0}?>", attributes(100), attributes(64))).is_ok()
        );
        let error = scan(&format!("<b/>\n<a{}/>", attributes(65))).unwrap_err();
        assert_eq!(error.location().unwrap().line, 2);
        assert_eq!(scan("<a\n xmlns:b='u'/>").unwrap_err().location().unwrap().line, 2);
        for unfinished in ["<", "<a b='", "<!--", "<a <b", "<é=\u{301}"] {
            assert!(scan(unfinished).is_ok());
        }
    }
}
