//! XML tag with its attributes; errors carry their location in the text.

use std::borrow::Cow;
use std::ops::Range;

use quick_xml::events::BytesStart;

use crate::schedule::file_format::{FormatError, Source, shortened};

/// Maximum number of attributes read per element; the limit of MSCCL is 16.
const MAX_ATTRIBUTES: usize = 32;

/// Opening tag, or tag of an empty element.
pub(super) struct Tag<'a> {
    pub(super) source: Source<'a>,
    /// Location of the tag in the text.
    pub(super) bytes: Range<usize>,
    name: String,
    attributes: Vec<(String, String, Range<usize>)>,
}

impl<'a> Tag<'a> {
    pub(super) fn new(source: Source<'a>, start: &BytesStart<'_>, bytes: Range<usize>) -> Result<Self, FormatError> {
        let mut tag =
            Self { source, bytes: bytes.clone(), name: start.name().as_ref().to_owned(), attributes: Vec::new() };
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|error| source.error(bytes.clone(), error.to_string()))?;
            let key = attribute.key.as_ref();
            let span = match &attribute.value {
                Cow::Borrowed(value) => {
                    let offset = source.offset(value);
                    offset..offset + value.len()
                }
                Cow::Owned(_) => bytes.clone(),
            };
            if tag.attributes.len() == MAX_ATTRIBUTES {
                return Err(source.error(span, format!("more than {MAX_ATTRIBUTES} attributes")));
            }
            if tag.attributes.iter().any(|(known, ..)| known == key) {
                return Err(source.error(span, format!("the attribute `{}` is given twice", shortened(key))));
            }
            let value = attribute
                .normalized_value(quick_xml::XmlVersion::Implicit1_0)
                .map_err(|error| source.error(span.clone(), error.to_string()))?;
            tag.attributes.push((key.to_owned(), value.into_owned(), span));
        }
        Ok(tag)
    }

    /// Creates an error located at the tag.
    pub(super) fn error(&self, message: impl Into<String>) -> FormatError {
        self.source.error(self.bytes.clone(), message)
    }

    /// Creates an error located at an attribute's value, or at the tag if the attribute is missing.
    pub(super) fn attribute_error(&self, attribute: &str, message: impl Into<String>) -> FormatError {
        let span = self.find(attribute).map_or(self.bytes.clone(), |(_, span)| span);
        self.source.error(span, message)
    }

    /// Returns the text of an attribute; `None` if the tag does not have it.
    pub(super) fn text(&self, attribute: &str) -> Option<&str> {
        self.find(attribute).map(|(value, _)| value)
    }

    /// Returns the text of an attribute.
    ///
    /// # Errors
    /// [`FormatError`] if the tag does not have it.
    pub(super) fn required(&self, attribute: &str) -> Result<&str, FormatError> {
        self.text(attribute).ok_or_else(|| self.error(format!("<{}> needs the attribute `{attribute}`", self.name)))
    }

    /// Returns an integer attribute within `range`. A missing attribute has the value `missing`, if given.
    ///
    /// # Errors
    /// [`FormatError`] at the attribute if it is invalid or missing.
    pub(super) fn number(&self, attribute: &str, range: Range<i64>, missing: Option<i64>) -> Result<i64, FormatError> {
        let text = match (self.text(attribute), missing) {
            (None, Some(missing)) => return Ok(missing),
            _ => self.required(attribute)?,
        };
        text.trim().parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
            let (from, to) = (range.start, range.end - 1);
            let message = format!("{attribute}: `{}`; expected a whole number from {from} to {to}", shortened(text));
            self.attribute_error(attribute, message)
        })
    }

    /// Returns an attribute that is a count or an index of 32 bits.
    ///
    /// # Errors
    /// [`FormatError`] at the attribute if it is invalid or missing.
    pub(super) fn index(&self, attribute: &str) -> Result<u32, FormatError> {
        Ok(self.number(attribute, 0..1 << 32, None)? as u32)
    }

    /// Returns an attribute that is an index; `None` for −1.
    ///
    /// # Errors
    /// [`FormatError`] at the attribute if it is invalid or missing.
    pub(super) fn optional_index(&self, attribute: &str) -> Result<Option<u32>, FormatError> {
        Ok(u32::try_from(self.number(attribute, -1..1 << 32, None)?).ok())
    }

    /// Returns a Boolean attribute, which is 0 or 1. A missing attribute has the value `missing`, if given.
    ///
    /// # Errors
    /// [`FormatError`] at the attribute if it is invalid or missing.
    pub(super) fn flag(&self, attribute: &str, missing: Option<i64>) -> Result<bool, FormatError> {
        Ok(self.number(attribute, 0..2, missing)? == 1)
    }

    fn find(&self, attribute: &str) -> Option<(&str, Range<usize>)> {
        let found = self.attributes.iter().find(|(key, ..)| key == attribute);
        found.map(|(_, value, span)| (value.as_str(), span.clone()))
    }
}
