//! Strict readers of both formats; errors have line and column.

use std::num::NonZeroU16;

use fabricast_libraries::nccl::MAX_CHANNELS;
use fabricast_topologies::Bytes;
use serde_json::value::RawValue;

use super::{COLUMNS, Interval, Rule, Rules};
use crate::export::TableError;
use crate::export::json_text::JsonText;
use crate::export::nccl_tuner::names;

/// Number of columns that a row must have.
const REQUIRED: usize = 7;

/// Value of a column, and the slice of the text that contains it.
#[derive(Clone, Copy)]
struct Field<'a> {
    word: &'a str,
    part: &'a str,
}

/// Reads rules in CSV; `source` is the file name used in errors.
///
/// # Errors
/// [`TableError`] with line and column: an invalid word, number, interval or field, too few or too many fields.
pub fn read_csv(text: &str, source: &str) -> Result<Rules, TableError> {
    let file = JsonText::new(text, source);
    let mut rules = Rules::default();
    for (line, number) in text.lines().zip(1u32..) {
        let content = line.trim();
        if let Some(comment) = content.strip_prefix('#') {
            rules.comments.push(comment.strip_prefix(' ').unwrap_or(comment).to_owned());
            continue;
        }
        if content.is_empty() {
            continue;
        }
        let words = split(content);
        let fields = words.iter().map(|part| Field { word: part.trim(), part: part.trim() });
        let fields: Vec<Field<'_>> = fields.collect();
        if fields.first().is_some_and(|field| field.word == COLUMNS[0]) {
            let message = "a line with the names of the columns, which NCCLX rejects: expected a rule, or # before it";
            return Err(file.error_at(content, message));
        }
        if fields.len() < REQUIRED {
            let missing = COLUMNS.get(fields.len()).copied().unwrap_or_default();
            let end = content.get(content.len()..).unwrap_or_default();
            return Err(file.error_at(end, format!("the row ends before {missing}: expected {}", COLUMNS.join(","))));
        }
        if let Some(extra) = fields.get(COLUMNS.len()) {
            return Err(file.error_at(extra.part, format!("a ninth field: expected {}", COLUMNS.join(","))));
        }
        rules.rules.push(rule(file, |column| fields.get(column).copied(), content)?);
        rules.lines.push(number);
    }
    Ok(rules)
}

/// Splits a line at the commas outside of brackets.
fn split(line: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0u32);
    for (index, character) in line.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.extend(line.get(start..index));
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.extend(line.get(start..));
    parts
}

/// Reads rules in JSON; `source` is the file name used in errors.
///
/// # Errors
/// [`TableError`] with line and column: invalid JSON, another structure, unknown keys, an invalid word, number or
/// interval.
pub fn read_json(text: &str, source: &str) -> Result<Rules, TableError> {
    let json = JsonText::new(text, source);
    let root = json.root()?;
    let list = json.known_members(root, "a file of rules", &["rules"])?.get("rules");
    let list = list.ok_or_else(|| json.error_at(root.get(), "no key `rules`: expected one"))?;
    let mut rules = Rules::default();
    for item in json.items(list, "rules")? {
        let parts = json.known_members(item, "a rule", &["filter", "config"])?;
        let part = |key: &str| {
            parts.get(key).ok_or_else(|| json.error_at(item.get(), format!("a rule without `{key}`: expected one")))
        };
        let filter =
            json.known_members(part("filter")?, "a filter", &["collective", "bytesPerRank", "nNodes", "nLocalRanks"])?;
        let config =
            json.known_members(part("config")?, "a config", &["algorithm", "protocol", "channels", "chunkSize"])?;
        let mut fields = [None; COLUMNS.len()];
        for (slot, column) in fields.iter_mut().zip(COLUMNS) {
            *slot = filter.get(column).or(config.get(column)).map(|value| json_field(json, value)).transpose()?;
        }
        rules.rules.push(rule(json, |column| fields.get(column).copied().flatten(), item.get())?);
        rules.lines.push(json.error_at(item.get(), "").location.line);
    }
    Ok(rules)
}

fn json_field<'a>(json: JsonText<'a>, value: &'a RawValue) -> Result<Field<'a>, TableError> {
    let part = value.get();
    let word = if part.starts_with('"') { json.read(value)? } else { part };
    Ok(Field { word, part })
}

/// Creates a rule from the fields of its columns. `whole` is the text of the rule.
fn rule<'a>(
    file: JsonText<'a>,
    field: impl Fn(usize) -> Option<Field<'a>>,
    whole: &'a str,
) -> Result<Rule, TableError> {
    let [function, size, algo, proto, channels, nodes, local_ranks, chunk] = std::array::from_fn(&field);
    let named = |field: Option<Field<'a>>, column: usize| {
        field.ok_or_else(|| {
            let name = COLUMNS.get(column).copied().unwrap_or_default();
            file.error_at(whole, format!("a rule without `{name}`: expected one"))
        })
    };
    let interval = |field: Option<Field<'a>>, column: usize| match field {
        None => Ok(Interval::default()),
        Some(field) => Interval::parse(field.word).map_err(|message| {
            let name = COLUMNS.get(column).copied().unwrap_or_default();
            file.error_at(field.part, format!("{name} {message}"))
        }),
    };
    let (function, algo, proto) = (named(function, 0)?, named(algo, 2)?, named(proto, 3)?);
    Ok(Rule {
        function: names::function(function.word).map_err(|error| file.error_at(function.part, error.to_string()))?,
        bytes_per_rank: interval(size, 1)?,
        algo: names::algo(algo.word).map_err(|error| file.error_at(algo.part, error.to_string()))?,
        proto: names::proto(proto.word).map_err(|error| file.error_at(proto.part, error.to_string()))?,
        channels: match channels.filter(|field| !matches!(field.word, "" | "-1")) {
            None => None,
            Some(field) => {
                let known = field.word.parse::<NonZeroU16>().ok().filter(|count| count.get() <= MAX_CHANNELS);
                let message = || format!("channels `{}`: expected 1 to {MAX_CHANNELS}, or -1", field.word);
                Some(known.ok_or_else(|| file.error_at(field.part, message()))?)
            }
        },
        nodes: interval(nodes, 5)?,
        local_ranks: interval(local_ranks, 6)?,
        chunk: match chunk.filter(|field| !field.word.is_empty()) {
            None => None,
            Some(field) => {
                let known = field.word.parse::<u64>().ok().filter(|&bytes| i64::try_from(bytes).is_ok());
                let message = || format!("chunkSize `{}`: expected a whole number of bytes", field.word);
                let bytes = known.ok_or_else(|| file.error_at(field.part, message()))?;
                (bytes > 0).then_some(Bytes(bytes))
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use fabricast_libraries::nccl::{Algo, Function, Proto};

    use super::*;

    #[test]
    fn csv_and_json_of_the_same_rules_are_equal() {
        let csv = "# made by hand\n\nallreduce,[0,1048576],ring,ll128,,,\n allgather , [0,2097152],tree,simple,4,2,8\n\
                   allreduce,(1048576,),ring,simple,-1,*,*,524288\nreducescatter,(1048576,),ring,simple,-1,(1,),*,0\n";
        let json = r#"{"rules": [
          {"filter": {"collective": "allreduce", "bytesPerRank": "[0,1048576]"}, "config": {"algorithm": "ring", "protocol": "ll128"}},
          {"filter": {"collective": "allgather", "bytesPerRank": "[0,2097152]", "nNodes": 2, "nLocalRanks": 8},
           "config": {"algorithm": "tree", "protocol": "simple", "channels": 4}},
          {"filter": {"collective": "allreduce", "bytesPerRank": "(1048576,)"}, "config": {"algorithm": "ring", "protocol": "simple", "chunkSize": 524288}},
          {"filter": {"collective": "reducescatter", "bytesPerRank": "(1048576,)", "nNodes": "(1,)"}, "config": {"algorithm": "ring", "protocol": "simple"}}
        ]}"#;
        let (csv, json) = (read_csv(csv, "t.csv").unwrap(), read_json(json, "t.json").unwrap());
        assert_eq!(csv.rules, json.rules);
        assert_eq!(
            (csv.comments, csv.lines, json.lines),
            (vec!["made by hand".to_owned()], vec![3, 4, 5, 6], vec![2, 3, 5, 6])
        );
        let second = csv.rules[1];
        assert_eq!((second.function, second.algo, second.proto), (Function::AllGather, Algo::Tree, Proto::Simple));
        assert_eq!((second.channels.map(NonZeroU16::get), second.chunk), (Some(4), None));
        assert_eq!(csv.rules[2].chunk, Some(Bytes(524_288)));
    }

    #[test]
    fn rules_become_sizes_of_whole_calls_for_a_communicator() {
        let rules = read_csv(
            "allreduce,[0,99],ring,ll,-1,1,8\nallreduce,*,tree,ll,-1,2,8\nallreduce,(99,),ring,simple,2,*,*\n",
            "t",
        );
        let table = rules.unwrap().table(1, 8);
        let rows: Vec<_> = table.rows.iter().map(|row| (row.min_bytes.0, row.max_bytes.0, row.proto)).collect();
        assert_eq!(rows, [(0, 799, Proto::Ll), (800, u64::MAX, Proto::Simple)]);
        assert_eq!(table.lines, [1, 3]);
    }

    #[test]
    fn invalid_rules_are_rejected_with_location() {
        for (text, line, column, expected) in [
            ("collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks\n", 1, 1, "names of the columns"),
            ("allreduce,[0,1],ring,ll,-1,1", 1, 29, "nLocalRanks"),
            ("#\n  allreduced,*,ring,ll,-1,*,*", 2, 3, "allreduce"),
            ("allreduce,[2,1],ring,ll,-1,*,*", 1, 11, "no whole number"),
            ("allreduce,*,rings,ll,-1,*,*", 1, 13, "ring"),
            ("allreduce,*,ring,LL,-1,*,*", 1, 18, "protocol"),
            ("allreduce,*,ring,ll,0,*,*", 1, 21, "1 to 64"),
            ("allreduce,*,ring,ll,1,x,*", 1, 23, "nNodes"),
            ("allreduce,*,ring,ll,1,*,*,-4", 1, 27, "chunkSize"),
            ("allreduce,*,ring,ll,1,*,*,4,5", 1, 29, "ninth"),
        ] {
            let error = read_csv(text, "t.csv").unwrap_err();
            assert_eq!((error.location.line, error.location.column), (line, column), "{text}: {error}");
            assert!(error.message.contains(expected), "{text}: {error}");
        }
        for (text, column, expected) in [
            (r#"{"rules": {}}"#, 11, "list of rules"),
            (r#"{"rule": []}"#, 3, "expected one of rules"),
            (r#"{"rules": [{"filter": {"collective": "allreduce"}}]}"#, 12, "without `config`"),
            (
                r#"{"rules": [{"filter": {}, "config": {"algorithm": "ring", "protocol": "ll"}}]}"#,
                12,
                "without `collective`",
            ),
            (r#"{"rules": [{"filter": {"collective": "allreduce", "nodes": 2}, "config": {}}]}"#, 52, "nNodes"),
            (
                r#"{"rules": [{"filter": {"collective": "allreduce"}, "config": {"algorithm": "ring", "protocol": "ll", "channels": [4]}}]}"#,
                114,
                "1 to 64",
            ),
        ] {
            let error = read_json(text, "t.json").unwrap_err();
            assert_eq!((error.location.line, error.location.column), (1, column), "{text}: {error}");
            assert!(error.message.contains(expected), "{text}: {error}");
        }
    }
}
