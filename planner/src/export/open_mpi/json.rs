//! The JSON format of Open MPI 6.0.

use std::collections::BTreeMap;

use fabricast_topologies::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Communicator, Routine, Rule, Rules};
use crate::export::TableError;

/// Writes rules.
#[must_use]
pub fn write(rules: &Rules) -> String {
    let mut collectives = Map::new();
    for (routine, communicators) in &rules.routines {
        let communicators = communicators.iter().map(|one| {
            let rules = one.rules.iter().map(|rule| {
                let most = if rule.max_bytes.0 > i64::MAX as u64 { json!("Inf") } else { json!(rule.max_bytes) };
                let algorithm =
                    routine.algorithm(rule.algorithm).map_or_else(|| json!(rule.algorithm), |name| json!(name));
                json!({
                    "msg_size_min": rule.min_bytes,
                    "msg_size_max": most,
                    "alg": algorithm,
                    "faninout": rule.fanout,
                    "seg_size": rule.segment,
                })
            });
            let rules: Vec<Value> = rules.collect();
            json!({ "comm_size_min": one.min_ranks, "comm_size_max": one.max_ranks, "rules": rules })
        });
        collectives.insert(routine.name().to_owned(), communicators.collect());
    }
    let value = json!({ "rule_file_version": 3, "module": "tuned", "collectives": collectives });
    format!("{value:#}\n")
}

#[derive(Deserialize)]
struct File {
    collectives: BTreeMap<String, Vec<CommunicatorText>>,
}

#[derive(Deserialize)]
struct CommunicatorText {
    #[serde(default)]
    comm_size_min: Option<u32>,
    #[serde(default)]
    comm_size_max: Option<u32>,
    rules: Vec<RuleText>,
}

#[derive(Deserialize)]
struct RuleText {
    #[serde(default)]
    msg_size_min: Option<Size>,
    #[serde(default)]
    msg_size_max: Option<Size>,
    alg: Word,
    #[serde(default)]
    faninout: u32,
    #[serde(default)]
    seg_size: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Word(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Number(u32),
    Name(String),
}

/// Reads rules; `source` is the file's name, for errors.
///
/// # Errors
/// [`TableError`], with line and column where the JSON is not of this shape, with the rule where it cannot be.
pub fn read(text: &str, source: &str) -> Result<Rules, TableError> {
    let file: File = serde_json::from_str(text).map_err(|error| TableError::json(source, text, &error))?;
    let mut routines = Vec::new();
    for (name, communicators) in file.collectives {
        let wrong = |message: String| TableError::of(source, format!("{name}: {message}"));
        let routine = Routine::of_name(&name).ok_or_else(|| wrong("no collective of Open MPI's".to_owned()))?;
        let mut read = Vec::new();
        for one in communicators {
            let (min_ranks, max_ranks) = (one.comm_size_min.unwrap_or(0), one.comm_size_max.unwrap_or(u32::MAX));
            let rules = one.rules.into_iter().map(|rule| {
                let algorithm = match &rule.alg {
                    Word::Number(number) => routine.algorithm(*number).map(|_| *number),
                    Word::Name(name) => routine.number(name),
                };
                let algorithm = algorithm.ok_or_else(|| {
                    let known: Vec<&str> = routine.algorithms().collect();
                    wrong(format!("an unknown algorithm: expected one of {}", known.join(", ")))
                })?;
                let size = |size: Option<Size>, usual| match size {
                    None => Ok(Bytes(usual)),
                    Some(Size::Bytes(bytes)) => Ok(Bytes(bytes)),
                    Some(Size::Word(word)) if word.to_ascii_lowercase().starts_with("inf") => Ok(Bytes(u64::MAX)),
                    Some(Size::Word(word)) => Err(wrong(format!("size `{word}`: expected bytes or Inf"))),
                };
                let (min_bytes, max_bytes) = (size(rule.msg_size_min, 0)?, size(rule.msg_size_max, u64::MAX)?);
                Ok(Rule { min_bytes, max_bytes, algorithm, fanout: rule.faninout, segment: rule.seg_size })
            });
            let rules = rules.collect::<Result<Vec<_>, TableError>>()?;
            read.push(Communicator { min_ranks, max_ranks, rules });
        }
        routines.push((routine, read));
    }
    routines.sort_by_key(|routine| routine.0);
    Ok(Rules { comments: Vec::new(), routines })
}
