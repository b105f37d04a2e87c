//! Parts that the readers of JSON traces share: loosely typed values, and errors with line and column.

use std::borrow::Cow;
use std::fmt;

use fabricast_topologies::SourceLocation;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::ranks::MAX_RANKS;
use crate::job::JobError;

/// Returns the error of a JSON text with the line and column that `serde_json` reports.
pub(super) fn error(source: &str, error: &serde_json::Error) -> JobError {
    let text = error.to_string();
    // `serde_json` appends the location, which the error of the job states in front.
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    let location = SourceLocation {
        line: u32::try_from(error.line()).unwrap_or_default(),
        column: u32::try_from(error.column()).unwrap_or_default(),
        ..SourceLocation::from_source(source)
    };
    JobError::at(&location, message)
}

/// JSON value of which versions of a program write a number, the number in quotes, or a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Loose<'a> {
    /// Absent, null, or of a type that no field has.
    #[default]
    Absent,
    Integer(i64),
    Text(Cow<'a, str>),
    List(Vec<i64>),
}

impl Loose<'_> {
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            Self::Text(text) => text.trim().parse().ok(),
            Self::Absent | Self::List(_) => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_ref()),
            _ => None,
        }
    }
}

struct LooseVisitor;

impl<'de> Visitor<'de> for LooseVisitor {
    type Value = Loose<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Loose::Absent)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Loose::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(value).map_or(Loose::Absent, Loose::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        let is_whole = value.fract() == 0.0 && value.abs() < 1e15;
        Ok(if is_whole { Loose::Integer(value as i64) } else { Loose::Absent })
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Loose::Absent)
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Loose::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Loose::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Flat>()? {
            if list.len() <= MAX_RANKS as usize {
                list.extend(item.0);
            }
        }
        Ok(Loose::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Loose::Absent)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Loose<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor)
    }
}

/// Item of a list: its integer, if it is one. Lists in lists are skipped without recursion.
struct Flat(Option<i64>);

struct FlatVisitor;

impl<'de> Visitor<'de> for FlatVisitor {
    type Value = Flat;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Flat(None))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Flat(Some(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Flat(i64::try_from(value).ok()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Flat(None))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Flat(None))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Flat(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Flat(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Flat(None))
    }
}

impl<'de> Deserialize<'de> for Flat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FlatVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_type_are_read() {
        let cases = [
            ("7", Loose::Integer(7)),
            ("7.0", Loose::Integer(7)),
            ("null", Loose::Absent),
            ("{\"a\": [1]}", Loose::Absent),
            ("\"[0, 1]\"", Loose::Text("[0, 1]".into())),
            ("\"a\\n\"", Loose::Text("a\n".into())),
            ("[0, [1], \"x\", 2]", Loose::List(vec![0, 2])),
        ];
        for (text, expected) in cases {
            assert_eq!(serde_json::from_str::<Loose<'_>>(text).unwrap(), expected, "{text}");
        }
        assert_eq!(Loose::Text(" 12 ".into()).integer(), Some(12));
    }

    #[test]
    fn errors_have_line_and_column() {
        let broken = serde_json::from_str::<Vec<u8>>("[1,\n 2,").unwrap_err();
        let error = error("t.json", &broken).to_string();
        assert!(error.starts_with("t.json:2:3: EOF while parsing"), "{error}");
    }
}
