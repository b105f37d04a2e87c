//! Parses the text of a manifest into entries.

use std::ops::Range;
use std::str::FromStr;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType, Protocol, UnknownName};
use fabricast_topologies::fabric::suggest_names;
use fabricast_topologies::{LineIndex, NetworkSpec, Origin, SourceLocation};
use toml::de::{DeTable, DeValue};

use super::entry::{Located, ManifestEntry};
use super::{LAUNCHES, PROCESSES, REGISTERED, ROLES};
use crate::measured::{MeasuredError, MeasuredLibrary};

/// The keys of a `[[measurement]]`, in the order of the documentation.
const KEYS: [&str; 23] = [
    "file",
    "fabric",
    "nodes",
    "gpus",
    "gpu",
    "collective",
    "algorithm",
    "protocol",
    "library",
    "nvls",
    "network",
    "channels",
    "registered",
    "launch",
    "processes",
    "role",
    "dtype",
    "env",
    "cluster",
    "hardware",
    "source",
    "software",
    "note",
];

/// Largest number of channels that a manifest may state.
const MAX_CHANNELS: i64 = 1024;

/// Parses a manifest; `source` names it in errors.
///
/// # Errors
/// [`MeasuredError::Invalid`] with line and column, for invalid TOML, unknown keys (with similar ones), invalid
/// values, and manifests without a measurement.
pub fn read(text: &str, source: &str) -> Result<Vec<ManifestEntry>, MeasuredError> {
    let lines = LineIndex::new(text);
    let origin = Origin::new(source, text).with_line_index(&lines);
    let document = DeTable::parse(text).map_err(|error| {
        let location = origin.locate(error.span().unwrap_or_default());
        MeasuredError::invalid(location, error.message().to_owned())
    })?;
    let mut entries = Vec::new();
    for (key, value) in document.get_ref() {
        let name = key.get_ref().as_ref();
        if name != "measurement" {
            return Err(unknown(origin.locate(key.span()), "key", name, &["measurement"]));
        }
        let wrong =
            |bytes| MeasuredError::invalid(origin.locate(bytes), "expected `[[measurement]]`, a list of tables");
        let DeValue::Array(list) = value.get_ref() else { return Err(wrong(value.span())) };
        for item in list {
            let DeValue::Table(table) = item.get_ref() else { return Err(wrong(item.span())) };
            entries.push(ManifestReader { origin, location: origin.locate(item.span()) }.entry(table)?);
        }
    }
    if entries.is_empty() {
        let message = "no measurement: expected `[[measurement]]` with file, fabric, nodes and gpus";
        return Err(MeasuredError::invalid(SourceLocation::from_source(source), message));
    }
    Ok(entries)
}

fn unknown(location: SourceLocation, kind: &str, name: &str, known: &[&str]) -> MeasuredError {
    let suggestions = suggest_names(name, known.iter().copied());
    let help = (!suggestions.is_empty()).then(|| format!("did you mean `{}`?", suggestions.join("` or `")));
    let message = format!("unknown {kind} `{name}`; expected one of {}", known.join(", "));
    MeasuredError::Invalid { place: location, message, help }
}

struct ManifestReader<'a> {
    origin: Origin<'a>,
    location: SourceLocation,
}

/// A key, its value and the source location of the value.
struct Field<'a> {
    key: &'a str,
    value: &'a DeValue<'a>,
    bytes: Range<usize>,
    origin: Origin<'a>,
}

impl ManifestReader<'_> {
    fn entry(&self, table: &DeTable<'_>) -> Result<ManifestEntry, MeasuredError> {
        let mut entry = ManifestEntry { place: self.location.clone(), ..ManifestEntry::default() };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let field = Field { key: name, value: value.get_ref(), bytes: value.span(), origin: self.origin };
            match name {
                "file" => entry.file = field.located(field.text()?.to_owned()),
                "fabric" => entry.fabric = field.located(field.text()?.to_owned()),
                "nodes" => entry.nodes = Some(field.integer(1, u32::MAX.into())? as u32),
                "gpus" => entry.gpus = Some(field.integer(1, u32::MAX.into())? as u32),
                "gpu" => entry.gpu = Some(field.text()?.to_owned()),
                "network" => entry.network = Some(field.network()?),
                "collective" => entry.collective = Some(field.located(field.word::<Collective>()?)),
                "algorithm" => entry.algorithm = Some(field.word::<Algorithm>()?),
                "protocol" => entry.protocol = Some(field.word::<Protocol>()?),
                "channels" => entry.channels = Some(field.integer(1, MAX_CHANNELS)? as u16),
                "library" => entry.library = Some(field.word::<MeasuredLibrary>()?),
                "nvls" => entry.in_network = if field.boolean()? { InNetwork::Allowed } else { InNetwork::Off },
                "registered" => entry.registered = field.choice(&REGISTERED)?,
                "launch" => entry.launch = Some(field.located(field.choice::<Launch>(&LAUNCHES)?)),
                "processes" => entry.processes = Some(field.located(field.choice::<Processes>(&PROCESSES)?)),
                "role" => entry.role = field.choice(&ROLES)?,
                "dtype" => entry.dtype = Some(field.word::<DataType>()?),
                "env" => entry.env = field.settings()?,
                "cluster" => entry.notes.cluster = Some(field.text()?.to_owned()),
                "hardware" => entry.notes.hardware = Some(field.text()?.to_owned()),
                "source" => entry.notes.source = Some(field.text()?.to_owned()),
                "software" => entry.notes.software = Some(field.text()?.to_owned()),
                "note" => entry.notes.note = Some(field.text()?.to_owned()),
                _ => return Err(unknown(self.origin.locate(key.span()), "key", name, &KEYS)),
            }
        }
        for required in ["file", "fabric", "nodes", "gpus"] {
            if table.get(required).is_none() {
                return Err(MeasuredError::invalid(
                    self.location.clone(),
                    format!("[[measurement]] needs `{required}`"),
                ));
            }
        }
        Ok(entry)
    }
}

impl Field<'_> {
    fn located<T>(&self, value: T) -> Located<T> {
        Located { value, place: self.origin.locate(self.bytes.clone()) }
    }

    fn wrong(&self, message: impl std::fmt::Display) -> MeasuredError {
        MeasuredError::invalid(self.origin.locate(self.bytes.clone()), format!("{}: {message}", self.key))
    }

    fn text(&self) -> Result<&str, MeasuredError> {
        match self.value {
            DeValue::String(text) if !text.trim().is_empty() => Ok(text),
            DeValue::String(_) => Err(self.wrong("must not be empty")),
            _ => Err(self.wrong("expected a text in quotes")),
        }
    }

    fn boolean(&self) -> Result<bool, MeasuredError> {
        match self.value {
            DeValue::Boolean(value) => Ok(*value),
            _ => Err(self.wrong("expected `true` or `false`")),
        }
    }

    fn integer(&self, min: i64, max: i64) -> Result<i64, MeasuredError> {
        let number = match self.value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let within = number.filter(|number| (min..=max).contains(number));
        within.ok_or_else(|| self.wrong(format!("expected a whole number from {min} to {max}")))
    }

    fn word<T: FromStr<Err = UnknownName>>(&self) -> Result<T, MeasuredError> {
        self.text()?.parse().map_err(|error| self.wrong(error))
    }

    fn choice<T: Copy>(&self, known: &[(T, &str)]) -> Result<T, MeasuredError> {
        let text = self.text()?;
        let names: Vec<&str> = known.iter().map(|row| row.1).collect();
        let value = known.iter().find(|row| row.1 == text).map(|row| row.0);
        value.ok_or_else(|| unknown(self.origin.locate(self.bytes.clone()), self.key, text, &names))
    }

    /// Parses settings of the form `A=1 B=2`.
    fn settings(&self) -> Result<Vec<(String, String)>, MeasuredError> {
        let setting = |word: &str| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => {
                Err(self.wrong(format!("`{word}` is not a setting: expected NAME=VALUE, several with blanks between")))
            }
        };
        self.text()?.split_whitespace().map(setting).collect()
    }

    /// Parses a network. Its keys are those of `[cluster] network`, which the command line joins in one text.
    fn network(&self) -> Result<NetworkSpec, MeasuredError> {
        let DeValue::Table(table) = self.value else {
            return Err(self.wrong("expected a table, as in `network = { kind = \"rail\", nic = \"400 Gb/s\" }`"));
        };
        let Some(kind) = table.get("kind") else { return Err(self.wrong("needs `kind`")) };
        // Keys are parsed one by one, so that an error has the source location of its key.
        let mut text = String::new();
        let mut spec = NetworkSpec::default();
        for (name, value) in std::iter::once(("kind", kind))
            .chain(table.iter().map(|(key, value)| (key.get_ref().as_ref(), value)).filter(|entry| entry.0 != "kind"))
        {
            let field = Field { key: name, value: value.get_ref(), bytes: value.span(), origin: self.origin };
            let setting = format!("{name}={}", field.bare()?);
            text = if text.is_empty() { setting } else { format!("{text},{setting}") };
            spec = text.parse().map_err(|error: fabricast_topologies::Error| {
                let message = error.to_string();
                let message = message.split_once("`: ").map_or(message.as_str(), |(_, detail)| detail);
                MeasuredError::invalid(self.origin.locate(field.bytes.clone()), format!("network: {message}"))
            })?;
        }
        Ok(spec)
    }

    /// Returns a value in the form used on the command line.
    fn bare(&self) -> Result<String, MeasuredError> {
        let number = |value: &DeValue<'_>| match value {
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string())
            }
            _ => None,
        };
        match self.value {
            DeValue::String(text) if !text.contains([',', '=']) => Ok(text.clone().into_owned()),
            DeValue::Float(number) => Ok(number.as_str().replace('_', "")),
            DeValue::Boolean(value) => Ok(value.to_string()),
            DeValue::Array(list) => {
                let sides: Option<Vec<String>> = list.iter().map(|side| number(side.get_ref())).collect();
                sides.map(|sides| sides.join("x")).ok_or_else(|| self.wrong("expected a list of whole numbers"))
            }
            value => number(value).ok_or_else(|| self.wrong("expected a number, a text, true or false")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_topologies::{Bandwidth, NetworkKind};

    const MINIMAL: &str = "[[measurement]]\nfile = \"a.csv\"\nfabric = \"hgx-h200\"\nnodes = 2\ngpus = 8\n";

    #[test]
    fn every_key_is_read() {
        let rest = "collective = \"allreduce\"\nalgorithm = \"ring\"\nprotocol = \"ll\"\nlibrary = \"nccl-2.28.9\"\n\
                    nvls = false\nchannels = 8\nregistered = \"symmetric\"\nlaunch = \"stream\"\nprocesses = \"single\"\n\
                    role = \"check\"\ndtype = \"bf16\"\nenv = \"A=1 B=x=y\"\ncluster = \"c\"\nhardware = \"h\"\nsource = \"s\"\n\
                    software = \"w\"\nnote = \"n\"\ngpu = \"h200\"\n\
                    network = { kind = \"torus\", nics_per_node = 8, nic = \"400 Gb/s\", dimensions = [1, 2], oversubscription = 1.5 }\n";
        let text = format!("{MINIMAL}{rest}");
        for key in KEYS {
            assert!(text.contains(&format!("{key} = ")), "{key}");
        }
        let entry = read(&text, "m.toml").unwrap().remove(0);
        assert_eq!(entry.collective.unwrap().value, Collective::AllReduce);
        assert_eq!((entry.algorithm, entry.protocol), (Some(Algorithm::Ring), Some(Protocol::Ll)));
        assert_eq!(entry.library.unwrap().to_string(), "nccl-2.28.9");
        assert_eq!((entry.in_network, entry.channels), (InNetwork::Off, Some(8)));
        assert_eq!(entry.env, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "x=y".to_owned())]);
        let network = entry.network.unwrap();
        assert_eq!((network.kind, network.nic), (NetworkKind::Torus, Some(Bandwidth(50_000_000_000))));
        assert_eq!((network.dimensions, network.oversubscription), (Some(vec![1, 2]), Some(1.5)));
        assert_eq!(entry.notes.note.as_deref(), Some("n"));

        let entry = read(MINIMAL, "m.toml").unwrap().remove(0);
        assert_eq!((entry.nodes, entry.gpus, entry.in_network), (Some(2), Some(8), InNetwork::Allowed));
        assert_eq!((entry.launch, entry.processes, entry.dtype), (None, None, None));
        assert_eq!(entry.place.line, 1);
    }

    #[test]
    fn errors_name_the_fault_and_its_location() {
        for (line, location, expected) in [
            ("nods = 1", "m.toml:6:1", "unknown key `nods`"),
            ("collective = \"all_redcue\"", "m.toml:6:14", "did you mean all_reduce?"),
            ("protocol = \"l\"", "m.toml:6:12", "unknown protocol"),
            ("library = \"ncl\"", "m.toml:6:11", "did you mean nccl?"),
            ("channels = 0", "m.toml:6:12", "channels: expected a whole number from 1 to 1024"),
            ("channels = 1.5", "m.toml:6:12", "channels: expected"),
            ("nvls = \"no\"", "m.toml:6:8", "expected `true` or `false`"),
            ("launch = \"grahp\"", "m.toml:6:10", "unknown launch `grahp`"),
            ("env = \"A\"", "m.toml:6:7", "`A` is not a setting"),
            ("network = \"rail\"", "m.toml:6:11", "expected a table"),
            ("network = { nic = \"400 Gb/s\" }", "m.toml:6:11", "needs `kind`"),
            ("network = { kind = \"rail\", nic = \"4\" }", "m.toml:6:34", "nic: "),
            ("network = { kind = \"rail\", nick = 1 }", "m.toml:6:35", "did you mean nic?"),
            ("note = 3", "m.toml:6:8", "expected a text"),
            ("role = ", "m.toml:6:8", ""),
        ] {
            let error = read(&format!("{MINIMAL}{line}\n"), "m.toml").unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(location) && text.contains(expected), "{line}: {text}");
        }
        let error = read(&format!("{MINIMAL}nods = 1\n"), "m.toml").unwrap_err();
        assert_eq!(error.help(), Some("did you mean `nodes`?"));
        for (text, expected) in [
            ("", "no measurement"),
            ("[[measurment]]\n", "unknown key `measurment`"),
            ("measurement = 3\n", "a list of tables"),
            ("[[measurement]]\nfile = \"a\"\n", "needs `fabric`"),
            ("[[measurement]]\nfile = \"\"\n", "must not be empty"),
        ] {
            let error = read(text, "m.toml").unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
