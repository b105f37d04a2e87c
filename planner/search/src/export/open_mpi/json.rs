//! Reader and writer of the JSON rule format of Open MPI 6.0.

use fabricast_sim::schedule::format::shortened;
use fabricast_topologies::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Communicator, Distribution, Routine, Rule, Rules};
use crate::export::TableError;
use crate::export::json_text::JsonText;

/// Returns the JSON text of rules.
#[must_use]
pub fn write(rules: &Rules) -> String {
    let mut collectives = Map::new();
    for (routine, communicators) in &rules.routines {
        let communicators = communicators.iter().map(|communicator| {
            let rules = communicator.rules.iter().map(|rule| {
                let max = if rule.max_bytes.0 > i64::MAX as u64 { json!("Inf") } else { json!(rule.max_bytes) };
                let algorithm =
                    routine.algorithm(rule.algorithm).map_or_else(|| json!(rule.algorithm), |name| json!(name));
                json!({
                    "msg_size_min": rule.min_bytes,
                    "msg_size_max": max,
                    "alg": algorithm,
                    "faninout": rule.fanout,
                    "seg_size": rule.segment,
                })
            });
            let rules: Vec<Value> = rules.collect();
            // A limit of `u32::MAX` would overflow Open MPI's C `int`. A missing key means no limit.
            let max =
                (communicator.max_ranks <= MAX_INT as u32).then(|| ("comm_size_max", json!(communicator.max_ranks)));
            let distribution = (communicator.distribution != Distribution::Any)
                .then(|| ("comm_rank_distribution", json!(communicator.distribution.name())));
            let members = [("comm_size_min", json!(communicator.min_ranks)), ("rules", json!(rules))];
            let members = members.into_iter().chain(max).chain(distribution);
            members.map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>()
        });
        collectives.insert(routine.name().to_owned(), communicators.map(Value::Object).collect());
    }
    let value = json!({ "rule_file_version": 3, "module": "tuned", "collectives": collectives });
    format!("{value:#}\n")
}

/// Keys of the file object. This list and the next two are those of Open MPI's
/// `docs/tuning-apps/tuned_dynamic_file_schema.json`, which allows no others.
const FILE: [&str; 4] = ["rule_file_version", "module", "collectives", "$schema"];
const COMMUNICATOR: [&str; 4] = ["comm_size_min", "comm_size_max", "comm_rank_distribution", "rules"];
const RULE: [&str; 7] = ["msg_size_min", "msg_size_max", "alg", "faninout", "seg_size", "reqs", "bine_imp"];

/// Largest value of the numbers that Open MPI reads into a C `int`: ranks, fan-out, segment size and requests.
const MAX_INT: u64 = i32::MAX as u64;

/// Reads rules; `source` is the file name used in errors. Unknown keys and algorithms are errors, because they are most
/// likely mistakes; Open MPI ignores them.
///
/// # Errors
/// [`TableError`] with line and column: invalid JSON, another structure, unknown keys, collectives and algorithms,
/// invalid numbers, ranges that end before they begin.
pub fn read(text: &str, source: &str) -> Result<Rules, TableError> {
    let json = JsonText::new(text, source);
    let root = json.root()?;
    let file = json.known_members(root, "a file of rules", &FILE)?;
    if let Some(module) = file.get("module").filter(|module| module.get() != "\"tuned\"") {
        return Err(json.error_at(module.get(), format!("module {}: expected \"tuned\"", shortened(module.get()))));
    }
    if let Some(version) = file.get("rule_file_version") {
        json.number(version, "rule_file_version", MAX_INT, "")?;
    }
    let collectives = file.get("collectives");
    let collectives = collectives.ok_or_else(|| json.error_at(root.get(), "no key `collectives`: expected one"))?;
    let mut routines = Vec::new();
    for (name, key, communicators) in json.members(collectives, "the collectives")?.iter() {
        let routine = Routine::from_name(name).ok_or_else(|| {
            let known: Vec<&str> = Routine::all().map(Routine::name).collect();
            let message =
                format!("no collective of Open MPI's `{}`: expected one of {}", shortened(name), known.join(", "));
            json.error_at(key, message)
        })?;
        let communicators = json.items(communicators, "communicators")?;
        let communicators = communicators.into_iter().map(|value| communicator(json, routine, value));
        routines.push((routine, communicators.collect::<Result<_, _>>()?));
    }
    routines.sort_by_key(|routine| routine.0);
    Ok(Rules { comments: Vec::new(), routines })
}

fn communicator(json: JsonText<'_>, routine: Routine, value: &RawValue) -> Result<Communicator, TableError> {
    let members = json.known_members(value, "a communicator", &COMMUNICATOR)?;
    let ranks = |key: &str, missing: u32| match members.get(key) {
        None => Ok(missing),
        Some(value) if is_infinite(value) => Ok(u32::MAX),
        Some(value) => Ok(json.number(value, key, MAX_INT, " or Inf")? as u32),
    };
    let (min_ranks, max_ranks) = (ranks("comm_size_min", 0)?, ranks("comm_size_max", u32::MAX)?);
    if let Some(last) = members.get("comm_size_max").filter(|_| max_ranks < min_ranks) {
        return Err(json.error_at(last.get(), format!("comm_size_max {max_ranks} is below comm_size_min {min_ranks}")));
    }
    let distribution = match members.get("comm_rank_distribution") {
        None => Distribution::Any,
        Some(value) => {
            let known = Distribution::ALL.into_iter().find(|item| value.get() == format!("\"{}\"", item.name()));
            known.ok_or_else(|| {
                let names = Distribution::ALL.map(Distribution::name).join(", ");
                let text = shortened(value.get());
                json.error_at(value.get(), format!("comm_rank_distribution {text}: expected one of {names}"))
            })?
        }
    };
    let rules = members.get("rules").ok_or_else(|| json.error_at(value.get(), "a communicator without `rules`"))?;
    let rules = json.items(rules, "rules")?.into_iter().map(|item| rule(json, routine, item));
    Ok(Communicator { min_ranks, max_ranks, distribution, rules: rules.collect::<Result<_, _>>()? })
}

fn rule(json: JsonText<'_>, routine: Routine, value: &RawValue) -> Result<Rule, TableError> {
    let members = json.known_members(value, "a rule", &RULE)?;
    let bytes = |key: &str, missing: u64| match members.get(key) {
        None => Ok(Bytes(missing)),
        Some(value) if is_infinite(value) => Ok(Bytes(u64::MAX)),
        Some(value) => json.number(value, key, i64::MAX as u64, " or Inf").map(Bytes),
    };
    let (min_bytes, max_bytes) = (bytes("msg_size_min", 0)?, bytes("msg_size_max", u64::MAX)?);
    if let Some(last) = members.get("msg_size_max").filter(|_| max_bytes < min_bytes) {
        let message = format!("msg_size_max {} is below msg_size_min {}", max_bytes.0, min_bytes.0);
        return Err(json.error_at(last.get(), message));
    }
    let int = |key: &str| members.get(key).map_or(Ok(0), |value| json.number(value, key, MAX_INT, ""));
    int("reqs")?;
    let (fanout, segment) = (int("faninout")? as u32, int("seg_size")?);
    let algorithm = members.get("alg").ok_or_else(|| json.error_at(value.get(), "a rule without `alg`"))?;
    Ok(Rule { min_bytes, max_bytes, algorithm: parse_algorithm(json, routine, algorithm)?, fanout, segment })
}

/// Returns the number of an algorithm given by number or name.
fn parse_algorithm(json: JsonText<'_>, routine: Routine, value: &RawValue) -> Result<u32, TableError> {
    let number = if value.get().starts_with('"') {
        routine.number(&json.read::<String>(value)?)
    } else {
        value.get().parse::<u32>().ok().filter(|&number| routine.algorithm(number).is_some())
    };
    number.ok_or_else(|| {
        let message = format!("{} has no algorithm {}: {}", routine.name(), shortened(value.get()), routine.expected());
        json.error_at(value.get(), message)
    })
}

/// Returns true for `"Inf"`. Open MPI accepts the spellings `inf`, `INF` and `Inf`.
fn is_infinite(value: &RawValue) -> bool {
    ["\"inf", "\"Inf", "\"INF"].iter().any(|word| value.get().starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_error(text: &str) -> (u32, u32, String) {
        let error = read(text, "rules.json").unwrap_err();
        (error.location.line, error.location.column, error.message)
    }

    /// Returns the text of a rules file with `rule` on its third line, from column 1 on.
    fn rule_file(rule: &str) -> String {
        format!("{{\"collectives\": {{\"allreduce\": [\n{{\"comm_size_min\": 2, \"rules\": [\n{rule}]}}]}}}}")
    }

    #[test]
    fn invalid_json_rules_are_rejected_with_location() {
        for (rule, column, expected) in [
            (r#"{"alg": "rings"}"#, 9, "expected 0 or one of 1 basic_linear"),
            (r#"{"alg": 7}"#, 9, "allreduce has no algorithm 7"),
            (r#"{"alg": -1}"#, 9, "no algorithm -1"),
            (r#"{"alg": 3.0}"#, 9, "no algorithm 3.0"),
            (r#"{"alg": null}"#, 9, "no algorithm null"),
            (r#"{"msg_size_min": 0}"#, 1, "without `alg`"),
            (r#"{"alg": 3, "msg_size_mx": 8}"#, 13, "no `msg_size_mx`: expected one of msg_size_min"),
            (r#"{"alg": 3, "alg": 4}"#, 13, "`alg` is given twice"),
            (r#"{"alg": 3, "msg_size_min": 9, "msg_size_max": 8}"#, 47, "8 is below msg_size_min 9"),
            (
                r#"{"alg": 3, "msg_size_max": 9223372036854775808}"#,
                28,
                "whole number from 0 to 9223372036854775807 or Inf",
            ),
            (r#"{"alg": 3, "msg_size_max": "all"}"#, 28, "or Inf"),
            (r#"{"alg": 3, "msg_size_max": [1]}"#, 28, "or Inf"),
            (r#"{"alg": 3, "seg_size": 2147483648}"#, 24, "whole number from 0 to 2147483647"),
            (r#"{"alg": 3, "faninout": "2"}"#, 24, "whole number"),
            (r#"{"alg": 3, "reqs": true}"#, 20, "whole number"),
            (r#"[3]"#, 1, "an object"),
            (r#"{"alg": 3"#, 10, "expected"),
        ] {
            let (line, actual_column, message) = read_error(&rule_file(rule));
            assert_eq!((line, actual_column), (3, column), "{rule}: {message}");
            assert!(message.contains(expected), "{rule}: {message}");
        }
        assert!(read(&rule_file(r#"{"alg": "ring", "msg_size_max": "INF", "reqs": 2, "bine_imp": 1}"#), "").is_ok());
    }

    #[test]
    fn invalid_json_files_and_communicators_are_rejected_with_location() {
        for (text, line, column, expected) in [
            ("", 1, 1, "EOF"),
            ("[]", 1, 1, "an object"),
            ("{\n}", 1, 1, "`collectives`"),
            ("{\n\"collectives\": []}", 2, 16, "an object"),
            ("{\"module\": \"basic\", \"collectives\": {}}", 1, 12, "expected \"tuned\""),
            ("{\"rule_file_version\": 1.5, \"collectives\": {}}", 1, 23, "whole number"),
            ("{\"colectives\": {}}", 1, 3, "`colectives`"),
            ("{\"collectives\": {\"all_reduce\": []}}", 1, 19, "expected one of allgather"),
            ("{\"collectives\": {\"bcast\": [],\n \"bcast\": []}}", 2, 3, "is given twice"),
            ("{\"collectives\": {\"bcast\": {}}}", 1, 27, "a list of communicators"),
            ("{\"collectives\": {\"bcast\": [{}]}}", 1, 28, "without `rules`"),
            ("{\"collectives\": {\"bcast\": [{\"rules\": 1}]}}", 1, 38, "a list of rules"),
            (
                "{\"collectives\": {\"bcast\": [{\"comm_size_min\": -2, \"rules\": []}]}}",
                1,
                46,
                "0 to 2147483647 or Inf",
            ),
            (
                "{\"collectives\": {\"bcast\": [{\"comm_size_min\": 8, \"comm_size_max\": 4, \"rules\": []}]}}",
                1,
                66,
                "below",
            ),
            (
                "{\"collectives\": {\"bcast\": [{\"comm_rank_distribution\": \"two\", \"rules\": []}]}}",
                1,
                55,
                "one-per-node",
            ),
            ("{\"collectives\": {}} {}", 1, 21, "trailing"),
        ] {
            let (actual_line, actual_column, message) = read_error(text);
            assert_eq!((actual_line, actual_column), (line, column), "{text}: {message}");
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    /// The first communicator that matches is used, and `single-node` matches only if all ranks are on one host.
    #[test]
    fn communicator_rank_distribution_selects_rules() {
        let communicator_json = |distribution: &str, algorithm: u32| {
            format!(r#"{{"comm_rank_distribution": "{distribution}", "rules": [{{"alg": {algorithm}}}]}}"#)
        };
        let rules =
            [communicator_json("single-node", 3), communicator_json("one-per-node", 4), communicator_json("any", 6)]
                .join(",");
        let text = format!("{{\"collectives\": {{\"allreduce\": [{rules}]}}}}");
        let rules = read(&text, "rules.json").unwrap();
        let routine = Routine::from_name("allreduce").unwrap();
        for (ranks, hosts, algorithm) in [(8, 1, 3), (8, 8, 4), (8, 2, 6), (1, 1, 3)] {
            let rule = rules.find(routine, super::super::Ranks { ranks, hosts }, 1024).unwrap();
            assert_eq!(rule.algorithm, algorithm, "{ranks} ranks on {hosts} hosts");
        }
        assert_eq!(read(&write(&rules), "again").unwrap(), rules);
    }
}
