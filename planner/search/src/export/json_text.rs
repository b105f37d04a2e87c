//! JSON reader that retains the position of every value, so that errors name the source location.

use std::borrow::Cow;
use std::fmt;

use fabricast_sim::schedule::format::shortened;
use fabricast_topologies::Origin;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::TableError;

/// JSON text with its origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonText<'a>(Origin<'a>);

/// Key of an object. A key with escapes is owned and has no position in the text.
#[derive(Debug, serde::Deserialize)]
struct ObjectKey<'a>(#[serde(borrow)] Cow<'a, str>);

/// Members of a JSON object, in the order of the text.
#[derive(Debug)]
pub(super) struct Members<'a>(Vec<(ObjectKey<'a>, &'a RawValue)>);

impl<'a> JsonText<'a> {
    /// Creates a reader of `text`; `source` is the file name.
    pub(super) fn new(text: &'a str, source: &'a str) -> Self {
        Self(Origin::new(source, text))
    }

    /// Returns the whole text as one JSON value.
    pub(super) fn root(self) -> Result<&'a RawValue, TableError> {
        serde_json::from_str(self.0.text)
            .map_err(|error| TableError::from_json_error(self.0, 0..self.0.text.len(), &error))
    }

    /// Creates an error about `part`, a slice of the text.
    pub(super) fn error_at(self, part: &str, message: impl Into<String>) -> TableError {
        TableError::new(self.0.source, self.0.text, self.0.byte_range(part), message)
    }

    /// Deserializes a JSON value; an error has the source location of the part that does not match.
    pub(super) fn read<T: Deserialize<'a>>(self, value: &'a RawValue) -> Result<T, TableError> {
        let fault = |error| TableError::from_json_error(self.0, self.0.byte_range(value.get()), &error);
        serde_json::from_str(value.get()).map_err(fault)
    }

    /// Returns the members of an object and rejects repeated keys. `description` describes the object in errors.
    pub(super) fn members(self, value: &'a RawValue, description: &str) -> Result<Members<'a>, TableError> {
        if !value.get().starts_with('{') {
            return Err(self.error_at(value.get(), format!("expected {description}, an object")));
        }
        let members: Members<'a> = self.read(value)?;
        let mut keys: Vec<(&str, usize)> =
            members.0.iter().zip(0..).map(|((key, _), index)| (&*key.0, index)).collect();
        keys.sort_unstable();
        let repeated = keys.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1).min();
        match repeated.and_then(|index| members.0.get(index)) {
            Some((key, value)) => Err(self.error_at(key.part(value), format!("the key `{}` is given twice", key.0))),
            None => Ok(members),
        }
    }

    /// Variant of [`Self::members`] that also rejects keys outside `known`.
    pub(super) fn known_members(
        self,
        value: &'a RawValue,
        description: &str,
        known: &[&str],
    ) -> Result<Members<'a>, TableError> {
        let members = self.members(value, description)?;
        match members.0.iter().find(|(key, _)| !known.contains(&&*key.0)) {
            Some((key, value)) => {
                let message =
                    format!("{description} has no `{}`: expected one of {}", shortened(&key.0), known.join(", "));
                Err(self.error_at(key.part(value), message))
            }
            None => Ok(members),
        }
    }

    /// Returns the values of a list. `description` describes them in errors.
    pub(super) fn items(self, value: &'a RawValue, description: &str) -> Result<Vec<&'a RawValue>, TableError> {
        if !value.get().starts_with('[') {
            return Err(self.error_at(value.get(), format!("expected a list of {description}")));
        }
        self.read(value)
    }

    /// Returns a whole number up to `max`. In errors, `key` is the name of the number and `or` lists alternatives.
    pub(super) fn number(self, value: &RawValue, key: &str, max: u64, or: &str) -> Result<u64, TableError> {
        let read = value.get().parse::<u64>().ok().filter(|&number| number <= max);
        let text = shortened(value.get());
        read.ok_or_else(|| {
            self.error_at(value.get(), format!("{key} {text}: expected a whole number from 0 to {max}{or}"))
        })
    }
}

impl<'a> Members<'a> {
    /// Returns the value of a key; `None` if the object has no such key.
    pub(super) fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(known, _)| known.0 == key).map(|(_, value)| *value)
    }

    /// Iterates over key, position of the key in the text, and value.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str, &'a RawValue)> {
        self.0.iter().map(|(key, value)| (&*key.0, key.part(value), *value))
    }
}

impl ObjectKey<'_> {
    /// Returns the slice of the text that holds the key; for a key with escapes, its value.
    fn part<'b>(&'b self, value: &'b RawValue) -> &'b str {
        match &self.0 {
            Cow::Borrowed(key) => key,
            Cow::Owned(_) => value.get(),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// Returns a text without its byte order mark, if there is one.
pub(super) fn strip_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}
