//! A TOML table whose errors have source locations.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Origin, Result};
use crate::fabric::suggest_names;
use crate::keys::{Keyed, Scalar};

/// A value and its byte range.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Located<T> {
    /// The value, converted to its type.
    pub value: T,
    /// Byte range of the value in the text.
    pub bytes: Range<usize>,
}

/// A table of a TOML document.
#[derive(Clone)]
pub(super) struct Table<'a> {
    pub origin: Origin<'a>,
    /// Name of the table in messages: `[[node]]`.
    pub name: &'static str,
    /// Byte range of its header.
    pub bytes: Range<usize>,
    entries: &'a DeTable<'a>,
}

/// A `key = value` entry of a table, with byte ranges.
pub(super) struct TableEntry<'a> {
    pub key: &'a str,
    pub key_bytes: Range<usize>,
    pub value: &'a DeValue<'a>,
    pub value_bytes: Range<usize>,
}

impl<'a> Table<'a> {
    pub fn new(origin: Origin<'a>, name: &'static str, table: &'a DeTable<'a>, bytes: Range<usize>) -> Self {
        Self { origin, name, bytes, entries: table }
    }

    /// All entries, sorted by key.
    pub fn entries(&self) -> impl Iterator<Item = TableEntry<'a>> + use<'a> {
        self.entries.iter().map(|(key, value)| TableEntry {
            key: key.get_ref().as_ref(),
            key_bytes: key.span(),
            value: value.get_ref(),
            value_bytes: value.span(),
        })
    }

    /// Returns an error for the first key that is not in `known`.
    pub fn expect_keys(&self, known: &[&str]) -> Result<()> {
        let stranger = self.entries().filter(|entry| !known.contains(&entry.key)).min_by_key(|e| e.key_bytes.start);
        stranger.map_or(Ok(()), |entry| Err(self.unknown_key(&entry, known)))
    }

    /// Creates the error for an unknown key; it lists the keys in `known` and suggests similar ones.
    pub fn unknown_key(&self, entry: &TableEntry<'_>, known: &[&str]) -> crate::Error {
        let message = format!("unknown key `{}` in {}; expected one of {}", entry.key, self.name, known.join(", "));
        match suggest_names(entry.key, known.iter().copied()).as_slice() {
            [] => self.origin.invalid(entry.key_bytes.clone(), message),
            near => {
                let help = format!("did you mean `{}`?", near.join("` or `"));
                self.origin.invalid_with_help(entry.key_bytes.clone(), message, help)
            }
        }
    }

    /// The unconverted value of a key; `None` if the key is absent.
    pub fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.entries.get(key)
    }

    /// The value of a key, converted to `T`; `None` if the key is absent.
    ///
    /// # Errors
    /// The value has another type.
    pub fn keyed<T: Keyed>(&self, key: &str) -> Result<Option<Located<T>>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = |message: String| self.origin.invalid(value.span(), format!("{key}: {message}"));
        let read = T::read(&scalar(value.get_ref()).map_err(wrong)?).map_err(wrong)?;
        Ok(Some(Located { value: read, bytes: value.span() }))
    }

    /// Variant of [`Table::keyed`] for a mandatory key.
    ///
    /// # Errors
    /// The key is absent, or its value has another type.
    pub fn required<T: Keyed>(&self, key: &str) -> Result<Located<T>> {
        self.keyed(key)?.ok_or_else(|| self.origin.invalid(self.bytes.clone(), format!("{} needs `{key}`", self.name)))
    }

    /// The tables in an array of tables; empty if the key is absent. `example` is the correct notation in errors.
    ///
    /// # Errors
    /// The value is no array, or an item is no table.
    pub fn tables(&self, key: &str, example: &'static str) -> Result<Vec<Table<'a>>> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let wrong = |bytes| self.origin.invalid(bytes, format!("`{key}` must be a list of tables: write {example}"));
        let DeValue::Array(array) = value.get_ref() else {
            return Err(wrong(value.span()));
        };
        array
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::Table(table) => Ok(Table::new(self.origin, example, table, item.span())),
                _ => Err(wrong(item.span())),
            })
            .collect()
    }

    /// The table under a key; `None` if the key is absent. `example` is the correct notation in errors.
    ///
    /// # Errors
    /// The value is no table.
    pub fn table(&self, key: &str, example: &'static str) -> Result<Option<Table<'a>>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.get_ref() {
            DeValue::Table(table) => Ok(Some(Table::new(self.origin, example, table, value.span()))),
            _ => Err(self.origin.invalid(value.span(), format!("`{key}` must be a table: write {example}"))),
        }
    }

    /// The value of a key that is a text or a list of texts; empty if the key is absent.
    ///
    /// # Errors
    /// The value or an item of the list is no text.
    pub fn texts(&self, key: &str) -> Result<Vec<Located<&'a str>>> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let text = |value: &'a Spanned<DeValue<'a>>| match value.get_ref() {
            DeValue::String(text) => Ok(Located { value: text.as_ref(), bytes: value.span() }),
            _ => Err(self.origin.invalid(value.span(), format!("`{key}` must be a text in quotes, or a list of such"))),
        };
        match value.get_ref() {
            DeValue::Array(array) => array.iter().map(text).collect(),
            _ => Ok(vec![text(value)?]),
        }
    }
}

/// Converts a TOML value to a [`Scalar`].
///
/// # Errors
/// A text with the reason: the value is a date, a table or a list of other values than integers, or a number is too
/// large.
pub(super) fn scalar<'a>(value: &'a DeValue<'a>) -> Result<Scalar<'a>, String> {
    let integer = |value: &DeValue<'_>| match value {
        DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix()).map_err(|_| format!("`{n}` is too large")),
        _ => Err("a list here must hold whole numbers".to_owned()),
    };
    Ok(match value {
        DeValue::String(text) => Scalar::Text(text),
        DeValue::Integer(_) => Scalar::Integer(integer(value)?),
        DeValue::Float(x) => Scalar::Float(x.as_str().parse().map_err(|_| format!("`{x}` is not a number"))?),
        DeValue::Boolean(b) => Scalar::Boolean(*b),
        DeValue::Array(list) => {
            Scalar::Integers(list.iter().map(|n| integer(n.get_ref())).collect::<Result<_, String>>()?)
        }
        DeValue::Datetime(_) => return Err("a date has no meaning here".to_owned()),
        DeValue::Table(_) => return Err("a table has no meaning here".to_owned()),
    })
}
