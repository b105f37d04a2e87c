//! An XML element whose attributes are parsed as numbers and identifiers; errors have source locations.

use std::ops::Range;

use roxmltree::Node;

use crate::error::{Origin, Result};

/// An element of a topology file.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub origin: Origin<'a>,
    pub node: Node<'a, 'a>,
}

impl<'a> Element<'a> {
    /// The tag of the element.
    pub fn name(self) -> &'a str {
        self.node.tag_name().name()
    }

    /// Byte range of its start tag, limited to the first line, because elements can be long.
    pub fn bytes(self) -> Range<usize> {
        let range = self.node.range();
        let text = self.origin.text.get(range.clone()).unwrap_or_default();
        range.start..range.start + text.find(['>', '\n']).map_or(text.len(), |i| i + 1)
    }

    /// The line at which the element starts.
    pub fn line(self) -> u32 {
        self.origin.locate(self.bytes()).line
    }

    /// The child elements.
    pub fn children(self) -> impl Iterator<Item = Element<'a>> {
        self.node.children().filter(Node::is_element).map(move |node| Element { origin: self.origin, node })
    }

    /// Returns true if a child element has this tag.
    pub fn has_child(self, tag: &str) -> bool {
        self.children().any(|child| child.name() == tag)
    }

    /// The text of an attribute; `None` if the element does not have it.
    pub fn text(self, attribute: &str) -> Option<&'a str> {
        self.node.attribute(attribute)
    }

    /// The text of a mandatory attribute.
    ///
    /// # Errors
    /// The attribute is absent. The error's location is the element.
    pub fn required(self, attribute: &str) -> Result<&'a str> {
        self.text(attribute).ok_or_else(|| {
            self.origin.invalid(self.bytes(), format!("<{}> needs the attribute `{attribute}`", self.name()))
        })
    }

    /// Byte range of an attribute's value; that of the start tag if the attribute is absent.
    pub fn value_bytes(self, attribute: &str) -> Range<usize> {
        self.node.attribute_node(attribute).map_or_else(|| self.bytes(), |attribute| attribute.range_value())
    }

    /// Parses an attribute as a whole number, decimal or `0x…`; `None` if the attribute is absent.
    ///
    /// # Errors
    /// The text is not an integer of 64 bits.
    pub fn integer(self, attribute: &str) -> Result<Option<i64>> {
        let Some(text) = self.text(attribute) else { return Ok(None) };
        let trimmed = text.trim();
        let read = match trimmed.strip_prefix("0x").or_else(|| trimmed.strip_prefix("0X")) {
            // Hexadecimal ids of 64 bits are only checked to be numbers; their value is not used.
            Some(hex) => i64::from_str_radix(hex, 16).ok(),
            None => trimmed.parse().ok(),
        };
        read.map(Some).ok_or_else(|| {
            let message = format!("{attribute}: `{}` is not a whole number", shortened(text));
            self.origin.invalid(self.value_bytes(attribute), message)
        })
    }

    /// Parses an attribute as a non-negative number; `None` if it is absent, negative (which means unknown) or above 32
    /// bits.
    ///
    /// # Errors
    /// The text is not an integer of 64 bits.
    pub fn index(self, attribute: &str) -> Result<Option<u32>> {
        Ok(self.integer(attribute)?.and_then(|n| u32::try_from(n).ok()))
    }

    /// Parses a mandatory number of links or lanes, from 1 to 65535.
    ///
    /// # Errors
    /// The attribute is absent, or is not an integer in this range.
    pub fn count(self, attribute: &str) -> Result<u16> {
        self.required(attribute)?;
        let read = self.integer(attribute)?.and_then(|n| u16::try_from(n).ok()).filter(|&n| n > 0);
        read.ok_or_else(|| {
            let message = format!("{attribute}: {} is not from 1 to 65535", self.text(attribute).unwrap_or_default());
            self.origin.invalid(self.value_bytes(attribute), message)
        })
    }

    /// Names and values of all attributes, which the fabric stores as they are.
    pub fn attributes(self) -> impl Iterator<Item = (Box<str>, Box<str>)> {
        self.node.attributes().map(|attribute| (attribute.name().into(), attribute.value().into()))
    }
}

/// Truncates a text to 40 characters, for error messages.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
