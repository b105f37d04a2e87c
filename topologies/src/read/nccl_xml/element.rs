//! An XML element whose attributes are read as numbers and identifiers, each fault with its place.

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
    /// Its tag.
    pub fn name(self) -> &'a str {
        self.node.tag_name().name()
    }

    /// Where its tag stands; the range ends with its first line, for elements are long.
    pub fn bytes(self) -> Range<usize> {
        let range = self.node.range();
        let text = self.origin.text.get(range.clone()).unwrap_or_default();
        range.start..range.start + text.find(['>', '\n']).map_or(text.len(), |i| i + 1)
    }

    /// The line where it starts.
    pub fn line(self) -> u32 {
        self.origin.place(self.bytes()).line
    }

    /// Elements directly in it.
    pub fn children(self) -> impl Iterator<Item = Element<'a>> {
        self.node.children().filter(Node::is_element).map(move |node| Element { origin: self.origin, node })
    }

    /// Whether an element of this tag is directly in it.
    pub fn has(self, tag: &str) -> bool {
        self.children().any(|child| child.name() == tag)
    }

    /// An attribute's text.
    pub fn text(self, attribute: &str) -> Option<&'a str> {
        self.node.attribute(attribute)
    }

    /// An attribute's text, which must be there.
    pub fn required(self, attribute: &str) -> Result<&'a str> {
        self.text(attribute).ok_or_else(|| {
            self.origin.invalid(self.bytes(), format!("<{}> needs the attribute `{attribute}`", self.name()))
        })
    }

    /// Where an attribute's value stands.
    pub fn value_bytes(self, attribute: &str) -> Range<usize> {
        self.node.attribute_node(attribute).map_or_else(|| self.bytes(), |attribute| attribute.range_value())
    }

    /// A whole number, decimal or `0x…`.
    pub fn integer(self, attribute: &str) -> Result<Option<i64>> {
        let Some(text) = self.text(attribute) else { return Ok(None) };
        let trimmed = text.trim();
        let read = match trimmed.strip_prefix("0x").or_else(|| trimmed.strip_prefix("0X")) {
            // Ids of 64 bits do not matter here, only that they are numbers.
            Some(hex) => i64::from_str_radix(hex, 16).ok(),
            None => trimmed.parse().ok(),
        };
        read.map(Some).ok_or_else(|| {
            let message = format!("{attribute}: `{}` is not a whole number", shortened(text));
            self.origin.invalid(self.value_bytes(attribute), message)
        })
    }

    /// A whole number that is not negative; negative ones mean that it is unknown.
    pub fn index(self, attribute: &str) -> Result<Option<u32>> {
        Ok(self.integer(attribute)?.and_then(|n| u32::try_from(n).ok()))
    }

    /// A number of links or lanes: required, from 1 to 65535.
    pub fn count(self, attribute: &str) -> Result<u16> {
        self.required(attribute)?;
        let read = self.integer(attribute)?.and_then(|n| u16::try_from(n).ok()).filter(|&n| n > 0);
        read.ok_or_else(|| {
            let message = format!("{attribute}: {} is not from 1 to 65535", self.text(attribute).unwrap_or_default());
            self.origin.invalid(self.value_bytes(attribute), message)
        })
    }

    /// All attributes, to be carried through.
    pub fn facts(self) -> impl Iterator<Item = (Box<str>, Box<str>)> {
        self.node.attributes().map(|attribute| (attribute.name().into(), attribute.value().into()))
    }
}

/// At most the first 40 characters, for error messages.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
