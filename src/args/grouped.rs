//! Calls of `--call`, in the form `all_gather:ranks=0-3,8,bytes=1MiB,algorithm=ring`.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use super::shared::collective_choice;
use super::{CallArgs, CollectiveChoice, RankSet, Sizes, StrategyArgs};

/// A collective with settings that override the other flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedCall {
    /// Collective of the call.
    collective: CollectiveChoice,
    /// Keys and values, in the order given.
    settings: Vec<(Key, String)>,
    /// Value of `--call`, as given.
    pub text: String,
    /// Ranks that take part; `None` for all.
    pub ranks: Option<RankSet>,
}

/// Setting that a call may override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Ranks,
    Bytes,
    Algorithm,
    Protocol,
    Channels,
    Chunk,
    Root,
    Matrix,
    Grid,
}

const KEYS: [(Key, &str); 9] = [
    (Key::Ranks, "ranks"),
    (Key::Bytes, "bytes"),
    (Key::Algorithm, "algorithm"),
    (Key::Protocol, "protocol"),
    (Key::Channels, "channels"),
    (Key::Chunk, "chunk"),
    (Key::Root, "root"),
    (Key::Matrix, "matrix"),
    (Key::Grid, "grid"),
];

impl FromStr for GroupedCall {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (collective, settings_text) = text.split_once(':').unwrap_or((text, ""));
        let mut settings: Vec<(Key, String)> = Vec::new();
        for part in settings_text.split(',').filter(|_| !settings_text.is_empty()) {
            match (part.split_once('='), settings.last_mut()) {
                (Some((key_name, value)), _) => {
                    let key = KEYS.iter().find(|(_, name)| *name == key_name.trim()).map(|&(key, _)| key);
                    let key = key.ok_or_else(|| {
                        let names: Vec<&str> = KEYS.iter().map(|&(_, name)| name).collect();
                        format!("`{key_name}` is not a key of a call; expected one of {}", names.join(", "))
                    })?;
                    if settings.iter().any(|(known, _)| *known == key) {
                        return Err(format!("`{key_name}` is given twice"));
                    }
                    settings.push((key, value.trim().to_owned()));
                }
                // A part without a key that follows `ranks=` continues the list of ranks.
                (None, Some((Key::Ranks, ranks))) => {
                    ranks.push(',');
                    ranks.push_str(part);
                }
                (None, _) => return Err(format!("`{part}`: expected key=value, as in bytes=1MiB")),
            }
        }
        let ranks = settings.iter().find(|(key, _)| *key == Key::Ranks).map(|(_, ranks)| ranks.parse());
        let call = Self {
            collective: collective_choice(collective.trim())?,
            ranks: ranks.transpose()?,
            settings,
            text: text.to_owned(),
        };
        // Applies the settings once, so that invalid values are reported while the flag is parsed.
        call.apply_to(&CallArgs::default(), &StrategyArgs::default())?;
        Ok(call)
    }
}

impl GroupedCall {
    /// Returns true if the call names a part of a strategy.
    pub fn sets_strategy(&self) -> bool {
        let is_part = |key: Key| matches!(key, Key::Algorithm | Key::Protocol | Key::Channels | Key::Chunk);
        self.settings.iter().any(|&(key, _)| is_part(key))
    }

    /// Returns the flags with the settings of this call applied.
    ///
    /// # Errors
    /// A text that names the invalid value.
    pub fn apply_to(&self, call: &CallArgs, strategy: &StrategyArgs) -> Result<(CallArgs, StrategyArgs), String> {
        let (mut call, mut strategy) = (call.clone(), strategy.clone());
        call.collective = Some(self.collective);
        for (key, value) in &self.settings {
            match key {
                Key::Ranks => {}
                Key::Bytes => {
                    call.bytes = None;
                    call.sizes = Some(Sizes(vec![parse_value(value)?]));
                }
                Key::Algorithm => strategy.algorithm = vec![parse_value(value)?],
                Key::Protocol => strategy.protocol = vec![parse_value(value)?],
                Key::Channels => {
                    let channels: u16 = parse_value(value)?;
                    if !(1..=1024).contains(&channels) {
                        return Err(format!("{channels} channels; expected 1 to 1024"));
                    }
                    strategy.channels = vec![channels];
                }
                Key::Chunk => strategy.chunk = Some(parse_value(value)?),
                Key::Root => call.root = parse_value(value)?,
                Key::Matrix => call.matrix = Some(PathBuf::from(value)),
                Key::Grid => call.grid = Some(parse_value(value)?),
            }
        }
        Ok((call, strategy))
    }
}

fn parse_value<T: FromStr<Err: Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| format!("`{value}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_sim::schedule::Collective;
    use fabricast_topologies::Bytes;

    #[test]
    fn settings_of_a_call_override_flags() {
        let call: GroupedCall = "allgather:ranks=0-3,8,bytes=1MiB,algorithm=ring,root=2".parse().unwrap();
        assert_eq!(call.ranks.as_ref().map(|set| set.ranks.clone()), Some(vec![0, 1, 2, 3, 8]));
        let flags = StrategyArgs { channels: vec![4], ..StrategyArgs::default() };
        let (args, strategy) =
            call.apply_to(&CallArgs { bytes: Some(Bytes(3)), ..CallArgs::default() }, &flags).unwrap();
        assert_eq!(args.collective, Some(CollectiveChoice::One(Collective::AllGather)));
        assert_eq!((args.bytes, args.sizes, args.root), (None, Some(Sizes(vec![Bytes(1 << 20)])), 2));
        assert_eq!((strategy.algorithm, strategy.channels), (vec![Algorithm::Ring], vec![4]));
        let plain: GroupedCall = "barrier".parse().unwrap();
        assert_eq!(plain.ranks, None);
    }

    #[test]
    fn invalid_calls_are_rejected() {
        for (text, message) in [
            ("", "unknown collective ``"),
            ("all_gather:", ""),
            ("all_gahter:bytes=1", "did you mean all_gather?"),
            ("all_gather:size=1", "`size` is not a key of a call; expected one of ranks, bytes, algorithm"),
            ("all_gather:1MiB", "`1MiB`: expected key=value"),
            ("all_gather:bytes=1,2", "`2`: expected key=value"),
            ("all_gather:bytes=1,bytes=2", "`bytes` is given twice"),
            ("all_gather:bytes=x", "`x`: `x` is not a size"),
            ("all_gather:ranks=3-1", "`3-1` contains no rank"),
            ("all_gather:channels=0", "0 channels; expected 1 to 1024"),
            ("all_gather:algorithm=rnig", "did you mean ring?"),
        ] {
            match text.parse::<GroupedCall>() {
                Ok(_) => assert_eq!(message, "", "{text}"),
                Err(error) => assert!(!message.is_empty() && error.contains(message), "{text}: {error}"),
            }
        }
    }
}
