//! Named keys of a struct, read from text and written back.
//!
//! One table per struct defines names, units and types for the TOML reader, the command line's `key=value` lists and
//! the TOML writer.

use crate::fabric::{CpuArch, CpuFigures, GpuFigures, LinkKind, NicFigures, NodeKind, SwitchFigures, suggest_names};
use crate::route::{Ecmp, GpuDirect, PeerAccess, Routing};
use crate::{Bandwidth, Bytes, Picos};

/// A value in its source notation, before conversion to the type of the key.
#[derive(Clone, Debug)]
pub(crate) enum Scalar<'a> {
    /// A TOML string.
    Text(&'a str),
    /// A TOML integer.
    Integer(i64),
    /// A TOML float.
    Float(f64),
    /// A TOML boolean.
    Boolean(bool),
    /// A TOML array of integers.
    Integers(Vec<i64>),
    /// A value from a command line, whose type depends on the key.
    Bare(&'a str),
}

impl Scalar<'_> {
    /// Formats the value as error messages show it.
    fn display_text(&self) -> String {
        match self {
            Self::Text(text) | Self::Bare(text) => (*text).to_owned(),
            Self::Integer(n) => n.to_string(),
            Self::Float(x) => x.to_string(),
            Self::Boolean(b) => b.to_string(),
            Self::Integers(list) => format!("{list:?}"),
        }
    }

    /// Returns the error for a value of the wrong type.
    pub fn type_error<T>(&self, expected: &str) -> Result<T, String> {
        Err(format!("`{}` is not {expected}", self.display_text()))
    }

    /// Returns the error for a value that is none of the words in `known`; the message suggests similar words.
    pub fn unknown_word_error<T>(&self, known: &[&str]) -> Result<T, String> {
        let near = suggest_names(&self.display_text(), known.iter().copied());
        let hint = if near.is_empty() { String::new() } else { format!("; did you mean `{}`?", near.join("` or `")) };
        self.type_error(&format!("one of `{}`{hint}", known.join("`, `")))
    }
}

/// A type that the value of a key can have.
pub(crate) trait Keyed: Sized {
    /// Parses the value; the error states what was found and what was expected.
    fn read(value: &Scalar<'_>) -> Result<Self, String>;
    /// Formats as a TOML value, which [`Keyed::read`] parses to an equal value.
    fn write(&self) -> String;
}

/// One named key, which reads and writes a field of the struct `T`.
pub(crate) struct Key<T: 'static> {
    /// Name of the key in TOML and on the command line.
    pub name: &'static str,
    /// Description for `--help`, without the final period; empty for keys that no flag accepts.
    pub help: &'static str,
    /// Sets the field from a value; the error states what was expected.
    pub set: fn(&mut T, &Scalar<'_>) -> Result<(), String>,
    /// The field as a TOML value; `None` if it is not set.
    pub get: fn(&T) -> Option<String>,
}

/// A struct whose fields can be set by key.
pub(crate) trait Keys: Default + 'static {
    /// All keys, in the order in which they are written.
    const KEYS: &'static [Key<Self>];
}

/// Implements [`Keys`] for a struct whose listed fields are all `Option` of a [`Keyed`] type. A description may follow a
/// field.
macro_rules! keys {
    ($type:ty { $($field:ident $(: $help:literal)?),* $(,)? }) => {
        impl $crate::keys::Keys for $type {
            const KEYS: &'static [$crate::keys::Key<Self>] = &[$($crate::keys::Key {
                name: stringify!($field),
                help: concat!($($help)?),
                set: |into, value| {
                    into.$field = Some($crate::keys::Keyed::read(value)?);
                    Ok(())
                },
                get: |from| from.$field.as_ref().map($crate::keys::Keyed::write),
            }),*];
        }
    };
}
pub(crate) use keys;

keys!(GpuFigures { model, compute_capability, sm_count, memory, memory_bandwidth, copy_engines, bf16_tflops });
keys!(CpuFigures { model, arch, vendor, family, model_id, numa, memory_bandwidth, memory });
keys!(NicFigures { model, speed, gdr, mtu, link, adaptive_routing, queue_pairs });
keys!(SwitchFigures { model, capacity, multicast });

/// Formats a text as a TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Keyed for String {
    fn read(value: &Scalar<'_>) -> Result<Self, String> {
        match value {
            Scalar::Text(text) | Scalar::Bare(text) => Ok((*text).to_owned()),
            other => other.type_error("a text in quotes"),
        }
    }

    fn write(&self) -> String {
        quoted(self)
    }
}

/// Implements [`Keyed`] for an integer type, limited to the range of the type.
macro_rules! integer {
    ($type:ty, $expected:literal) => {
        impl Keyed for $type {
            fn read(value: &Scalar<'_>) -> Result<Self, String> {
                let read = match value {
                    Scalar::Integer(n) => Self::try_from(*n).ok(),
                    Scalar::Bare(text) => text.trim().parse().ok(),
                    _ => None,
                };
                read.map_or_else(|| value.type_error($expected), Ok)
            }

            fn write(&self) -> String {
                self.to_string()
            }
        }
    };
}
integer!(u32, "a whole number from 0 to 4294967295");
integer!(i32, "a whole number of 32 bits");

impl Keyed for f64 {
    fn read(value: &Scalar<'_>) -> Result<Self, String> {
        let read = match value {
            Scalar::Integer(n) => Some(*n as Self),
            Scalar::Float(x) => Some(*x),
            Scalar::Bare(text) => text.trim().parse().ok(),
            _ => None,
        };
        match read {
            Some(x) if x.is_finite() && x > 0.0 => Ok(x),
            _ => value.type_error("a positive number"),
        }
    }

    fn write(&self) -> String {
        format!("{self:?}")
    }
}

impl Keyed for bool {
    fn read(value: &Scalar<'_>) -> Result<Self, String> {
        match value {
            Scalar::Boolean(b) => Ok(*b),
            Scalar::Bare("true") => Ok(true),
            Scalar::Bare("false") => Ok(false),
            other => other.type_error("`true` or `false`"),
        }
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Keyed for Vec<u32> {
    fn read(value: &Scalar<'_>) -> Result<Self, String> {
        let read: Option<Self> = match value {
            Scalar::Integers(list) => list.iter().map(|&n| u32::try_from(n).ok()).collect(),
            Scalar::Bare(text) | Scalar::Text(text) => text.split('x').map(|n| n.trim().parse().ok()).collect(),
            _ => None,
        };
        read.map_or_else(|| value.type_error("a list of whole numbers, as `[4, 4, 2]` or `4x4x2`"), Ok)
    }

    fn write(&self) -> String {
        format!("{self:?}")
    }
}

/// Implements [`Keyed`] for a quantity with a unit. Quantities are strings in TOML; the error for a plain number lists
/// the valid units.
macro_rules! quantity {
    ($type:ty, $write:expr) => {
        impl Keyed for $type {
            fn read(value: &Scalar<'_>) -> Result<Self, String> {
                value.display_text().parse().map_err(|error: $crate::UnitError| error.to_string())
            }

            fn write(&self) -> String {
                let write: fn(&Self) -> String = $write;
                format!("\"{}\"", write(self))
            }
        }
    };
}
quantity!(Bytes, Bytes::to_string);
// `Display` rounds to three decimals. Values that this would change are written exactly, in the smallest unit.
quantity!(Bandwidth, |rate| if rate.0.is_multiple_of(1_000_000) {
    rate.to_string()
} else {
    format!("{} B/s", rate.0)
});
quantity!(Picos, |time| if time.0 < 1_000_000 || time.0.is_multiple_of(1_000) {
    time.to_string()
} else {
    format!("{} ps", time.0)
});

/// Implements [`Keyed`] for an enum with a fixed word for each variant.
macro_rules! keyed_enum {
    ($type:ty { $($word:literal => $value:path),* $(,)? }) => {
        impl $type {
            /// All variants.
            pub const ALL: &'static [Self] = &[$($value),*];

            /// The name of the variant in specs, in JSON and on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($value => $word),* }
            }
        }

        impl $crate::keys::Keyed for $type {
            fn read(value: &$crate::keys::Scalar<'_>) -> Result<Self, String> {
                use $crate::keys::Scalar;
                match value {
                    $(Scalar::Text($word) | Scalar::Bare($word) => Ok($value),)*
                    other => other.unknown_word_error(&[$($word),*]),
                }
            }

            fn write(&self) -> String {
                $crate::keys::quoted(self.name())
            }
        }
    };
}
pub(crate) use keyed_enum;

keyed_enum!(CpuArch { "x86_64" => CpuArch::X86, "arm64" => CpuArch::Arm, "ppc64" => CpuArch::Power });
keyed_enum!(LinkKind {
    "nvlink" => LinkKind::Nvlink,
    "c2c" => LinkKind::C2c,
    "pcie" => LinkKind::Pcie,
    "upi" => LinkKind::Upi,
    "infiniband" => LinkKind::Infiniband,
    "ethernet" => LinkKind::Ethernet,
});
keyed_enum!(NodeKind {
    "gpu" => NodeKind::Gpu,
    "mig" => NodeKind::Mig,
    "accelerator" => NodeKind::Accelerator,
    "nvswitch" => NodeKind::Nvswitch,
    "pcie_switch" => NodeKind::PcieSwitch,
    "cpu" => NodeKind::Cpu,
    "nic" => NodeKind::Nic,
    "switch" => NodeKind::Switch,
});
/// Settings that restrict routes, as pairs of key and value. Settings at their defaults are omitted.
pub(crate) fn routing_settings(routing: Routing) -> Vec<(&'static str, String)> {
    let off = |key, is_off: bool| is_off.then(|| (key, "off".to_owned()));
    let hashed = match routing.ecmp {
        Ecmp::Averaged => None,
        Ecmp::Hashed { seed } => Some(("ecmp", format!("hashed={seed}"))),
    };
    let p2p = match routing.p2p {
        PeerAccess::Allowed => None,
        PeerAccess::Switches => Some(("p2p", "switches".to_owned())),
        PeerAccess::Off => off("p2p", true),
    };
    [p2p, off("gdr", routing.gdr == GpuDirect::Off), hashed].into_iter().flatten().collect()
}

/// Sets one setting of `routing` from its key and value, in the notation of [`routing_settings`].
///
/// # Errors
/// An unknown key or an invalid value; the message lists the valid ones.
pub(crate) fn set_routing(routing: &mut Routing, key: &str, value: &str) -> Result<(), String> {
    let switch = || match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ if key == "p2p" => Err(format!("p2p: `{value}` is none of on, switches, off")),
        _ => Err(format!("{key}: `{value}` is neither on nor off")),
    };
    match key {
        "p2p" if value == "switches" => routing.p2p = PeerAccess::Switches,
        "p2p" => routing.p2p = if switch()? { PeerAccess::Allowed } else { PeerAccess::Off },
        "gdr" => routing.gdr = if switch()? { GpuDirect::Allowed } else { GpuDirect::Off },
        "ecmp" => {
            let seed = value.strip_prefix("hashed=").and_then(|seed| seed.parse().ok());
            routing.ecmp = match (value, seed) {
                ("averaged", _) => Ecmp::Averaged,
                (_, Some(seed)) => Ecmp::Hashed { seed },
                _ => return Err(format!("ecmp: `{value}` is neither averaged nor hashed=SEED")),
            };
        }
        other => return Err(format!("there is no setting `{other}`: expected p2p, gdr, ecmp")),
    }
    Ok(())
}
