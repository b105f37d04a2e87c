//! Variants of packed trees, from those of the highest throughput to shallow or few ones.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Largest limit on the number of trees per root.
pub const MAX_TREES: u32 = 256;

/// Variant of packed trees. As text: `optimal`, a number of trees, or `widened-2` and similar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TreeVariant {
    /// As many trees as the optimal throughput needs.
    Optimal,
    /// Trees of the optimal rate in links widened by this factor: they use a part of the bandwidth and are shallower. With
    /// the largest factor, most ranks are children of the root.
    Widened(u32),
    /// At most this many trees per root, at the highest throughput that they permit: fewer and larger messages.
    AtMost(u32),
}

/// Variants among which a call selects, by size.
pub(crate) const VARIANTS: [TreeVariant; 7] = [
    TreeVariant::Optimal,
    TreeVariant::Widened(2),
    TreeVariant::Widened(4),
    TreeVariant::Widened(16),
    TreeVariant::AtMost(4),
    TreeVariant::AtMost(2),
    TreeVariant::AtMost(1),
];

impl TreeVariant {
    /// Factor by which links are widened.
    pub(crate) fn widening(self) -> u32 {
        match self {
            Self::Widened(factor) => factor,
            Self::Optimal | Self::AtMost(_) => 1,
        }
    }
}

/// Reason why a text names no variant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `optimal`, `widened-2`, `widened-4`, `widened-16` or a number of trees per root, 1 to {MAX_TREES}, not `{0}`"
)]
pub struct UnknownVariant(Box<str>);

impl FromStr for TreeVariant {
    type Err = UnknownVariant;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = VARIANTS.into_iter().find(|variant| variant.to_string() == text);
        let count = || text.parse().ok().filter(|trees| (1..=MAX_TREES).contains(trees)).map(Self::AtMost);
        named.or_else(count).ok_or_else(|| UnknownVariant(text.into()))
    }
}

impl fmt::Display for TreeVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Optimal => f.write_str("optimal"),
            Self::Widened(factor) => write!(f, "widened-{factor}"),
            Self::AtMost(trees) => write!(f, "{trees}"),
        }
    }
}

impl Serialize for TreeVariant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::AtMost(trees) => serializer.serialize_u32(*trees),
            Self::Optimal | Self::Widened(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for TreeVariant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = TreeVariant;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a variant of packed trees or a number of trees per root")
            }

            fn visit_u64<E: de::Error>(self, trees: u64) -> Result<TreeVariant, E> {
                trees.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TreeVariant, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for TreeVariant {
    fn schema_name() -> Cow<'static, str> {
        "TreeVariant".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Variant of packed trees: `optimal`, `widened-2` and similar, or a number of trees per root.",
            "type": ["integer", "string"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_read_back_from_their_names() {
        for variant in VARIANTS.into_iter().chain([TreeVariant::AtMost(3), TreeVariant::AtMost(MAX_TREES)]) {
            assert_eq!(variant.to_string().parse(), Ok(variant));
        }
        for text in ["", "0", "-1", "257", "widened-3", "widened", "Optimal"] {
            assert!(text.parse::<TreeVariant>().is_err(), "{text}");
        }
    }
}
