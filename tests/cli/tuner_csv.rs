//! Independent reader of the CSV of NCCL's example tuner, from the specification of the format: lines, commas, whole
//! numbers, inclusive ranges, -1 for any, `#` for a comment, lines of at most 255 bytes, and the first matching row
//! (NCCL 2.30 `plugins/tuner/example/{plugin.c,README.md}`).

/// A row of the CSV, as specified in the README.
#[derive(Clone, Debug)]
pub struct Line {
    pub collective: String,
    pub bytes: (u64, u64),
    /// Algorithm, protocol and number of channels.
    pub cell: (String, String, i64),
    /// Numbers of nodes and ranks of matching communicators; -1 matches any.
    pub communicator: (i64, i64),
}

/// Parses all rows of a CSV.
pub fn lines(text: &str) -> Vec<Line> {
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let parsed = rows.map(|line| {
        assert!(line.len() <= 255, "{line}");
        let words: Vec<&str> = line.split(',').collect();
        assert_eq!(words.len(), 8, "{line}");
        let number = |column: usize| words[column].parse::<i64>().unwrap();
        assert!(["broadcast", "reduce", "allgather", "reducescatter", "allreduce"].contains(&words[0]), "{line}");
        assert!(["tree", "ring", "nvls", "nvls_tree", "pat"].contains(&words[3]), "{line}");
        assert!(["ll", "ll128", "simple"].contains(&words[4]), "{line}");
        assert!(number(5) > 0 && number(6) > 0 && number(7) > 0, "{line}");
        Line {
            collective: words[0].to_owned(),
            bytes: (words[1].parse().unwrap(), words[2].parse().unwrap()),
            cell: (words[3].to_owned(), words[4].to_owned(), number(5)),
            communicator: (number(6), number(7)),
        }
    });
    parsed.collect()
}

/// Returns the first row that matches a call on a number of nodes and ranks.
pub fn find<'a>(lines: &'a [Line], (nodes, ranks): (u64, u64), collective: &str, bytes: u64) -> Option<&'a Line> {
    let name = collective.replace('_', "");
    let matches_count = |pattern: i64, count: u64| pattern == -1 || u64::try_from(pattern) == Ok(count);
    lines.iter().find(|line| {
        line.collective == name
            && (line.bytes.0..=line.bytes.1).contains(&bytes)
            && matches_count(line.communicator.0, nodes)
            && matches_count(line.communicator.1, ranks)
    })
}
