//! Tests of invalid files. For any contents of a file, NCCL's communicator is created, and NCCL makes the choices.

use std::path::Path;

use proptest::prelude::*;

use crate::answers::{row, table};
use crate::library::{Call, Communicator, VERSIONS, Version};

const CALL: Call = Call { function: 4, bytes: 1 << 20, operations: 1, registered: 0 };

fn written(text: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.csv");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

/// Returns true if the plugin leaves a call to NCCL.
fn is_inert(communicator: &Communicator) -> bool {
    let costs = [5.0; 21];
    let answer = communicator.ask(CALL, &costs, 7, 3);
    answer.costs == costs && answer.channels == -7
}

/// Asserts that exactly one warning is logged and that it contains the words in `expected`.
fn warned(path: Option<&Path>, expected: &[&str]) {
    for version in VERSIONS {
        let communicator = Communicator::new(version, path, 8, 1);
        let warnings: Vec<_> = communicator.messages.iter().filter(|(level, _)| *level == 2).collect();
        assert_eq!(warnings.len(), 1, "{:?}", communicator.messages);
        for word in expected {
            assert!(warnings[0].1.contains(word), "{word}: {:?}", communicator.messages);
        }
        assert!(is_inert(&communicator));
    }
}

#[test]
fn bad_lines_are_reported_and_the_whole_file_is_ignored() {
    let good = "allreduce,0,1000000000,ring,ll,4,1,8\n";
    for (bad, location, word) in [
        ("allreduce,0,1,ring,ll,4,1", ":3:", "nRanks"),
        ("allreduce,0,1,rong,ll,4,1,8", ":3:15", "ring"),
        ("allreduce,0,1,ring,ll,65,1,8", ":3:23", "64"),
        ("allreduce,0,1e3,ring,ll,4,1,8", ":3:13", "1e3"),
        ("allreduce,0,99999999999999999999,ring,ll,4,1,8", ":3:13", "max_bytes"),
    ] {
        let (_folder, path) = written(format!("# made\n{good}{bad}\n{good}").as_bytes());
        warned(Some(&path), &["table.csv", location, word, "NCCL chooses"]);
    }
}

#[test]
fn unreadable_files_cause_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    warned(Some(&folder.path().join("none.csv")), &["none.csv", "NCCL chooses"]);
    warned(Some(folder.path()), &["not a regular file"]);
    warned(Some(Path::new("/dev/zero")), &["not a regular file"]);
    let (_folder, path) = written(b"allreduce,0,1,ring,ll,4,1,8\n\xff\xfe\n");
    warned(Some(&path), &["line 2", "UTF-8"]);
    let name = folder.path().join("a\nb%s%n");
    warned(Some(&name), &["%s%n"]);
}

#[test]
fn missing_or_empty_tables_leave_the_choice_to_nccl_without_warning() {
    let (_folder, empty) = written(b"");
    let (_folder, other) = written(b"allreduce,0,1000000000,ring,ll,4,2,16\n");
    for (path, expected) in
        [(None, "FABRICAST_TUNER_FILE"), (Some(&empty), "0 of 0 rows"), (Some(&other), "0 of 1 rows")]
    {
        for version in VERSIONS {
            let communicator = Communicator::new(version, path.map(std::path::PathBuf::as_path), 8, 1);
            assert_eq!(communicator.messages.len(), 1, "{:?}", communicator.messages);
            assert_eq!(communicator.messages[0].0, 3);
            assert!(communicator.messages[0].1.contains(expected), "{:?}", communicator.messages);
            assert!(is_inert(&communicator));
        }
    }
}

#[test]
fn the_example_plugins_variable_names_a_table() {
    let (_folder, path) = written(b"allreduce,0,1073741824,ring,ll,4,1,8\n");
    for version in VERSIONS {
        let communicator = Communicator::with_variable("NCCL_TUNER_CONFIG_FILE", version, Some(&path), 8, 1);
        assert!(
            communicator.messages[0].1.contains("1 of 1 rows are for 8 ranks on 1 nodes"),
            "{:?}",
            communicator.messages
        );
        assert_eq!(communicator.ask(CALL, &[5.0; 21], 7, 3).channels, 4);
    }
}

#[test]
fn saved_plans_are_accepted_as_tables() {
    let row = |bytes: u64, protocol: &str, channels: u32| {
        format!(
            r#"{{"collective":"all_reduce","bytes":{bytes},"algorithm":"ring","protocol":"{protocol}","channels":{channels},"time_us":9.5}}"#
        )
    };
    let range = |min: u64, max: u64, protocol: &str, channels: u32| {
        format!(
            r#"{{"collective":"all_reduce","min_bytes":{min},"max_bytes":{max},"algorithm":"ring","protocol":"{protocol}","channels":{channels}}}"#
        )
    };
    let plan = format!(
        r#"{{"fabric":"hgx-h200","profile":"nccl-2.28-h200","ranks":8,"nodes":1,"library":"nccl-2.28.9",
"rows":[{},{}],"ranges":[{},{}]}}"#,
        row(1024, "ll", 2),
        row(1 << 20, "simple", 24),
        range(1, 32767, "ll", 2),
        range(32768, 1 << 40, "simple", 24)
    );
    let (_folder, path) = written(plan.as_bytes());
    for version in VERSIONS {
        let communicator = Communicator::new(version, Some(&path), 8, 1);
        assert!(communicator.messages[0].1.contains("2 of 2 rows are for 8 ranks"), "{:?}", communicator.messages);
        for (bytes, cell, channels) in [(1, 3, 2), (1024, 3, 2), (1 << 20, 5, 24), (1 << 41, 5, 24)] {
            let answer = communicator.ask(Call { bytes, ..CALL }, &[5.0; 21], 7, 3);
            assert_eq!((answer.costs[cell], answer.channels), (0.0, channels), "{bytes}");
        }
        assert!(is_inert(&Communicator::new(version, Some(&path), 4, 1)));
    }
    let (_folder, bad) = written(plan.replace("\"ranks\":8", "\"ranks\":x").as_bytes());
    warned(Some(&bad), &["table.csv:1:", "NCCL chooses"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2400, ..ProptestConfig::default() })]

    /// A table with bytes changed, removed or truncated is either read or rejected with one warning.
    #[test]
    fn damaged_tables_are_read_or_rejected(text in table(), harm in prop::collection::vec((any::<prop::sample::Index>(), any::<Option<u8>>()), 1..6), cut in any::<prop::sample::Index>(), is_cut in any::<bool>()) {
        let mut bytes = text.into_bytes();
        for (position, harm) in harm {
            if bytes.is_empty() { break }
            let index = position.index(bytes.len());
            match harm {
                Some(byte) => bytes[index] = byte,
                None => { bytes.remove(index); }
            }
        }
        if is_cut && !bytes.is_empty() {
            bytes.truncate(cut.index(bytes.len()));
        }
        survives(&bytes)?;
    }

    #[test]
    fn arbitrary_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        survives(&bytes)?;
    }

    #[test]
    fn arbitrary_words_in_a_row_are_read_or_rejected(row in row(), at in 0..10_usize, word in "\\PC{0,12}") {
        let mut fields: Vec<&str> = row.split(',').collect();
        if let Some(field) = fields.get_mut(at) {
            *field = &word;
        }
        survives(fields.join(",").as_bytes())?;
    }
}

/// Asserts that exactly one message is logged, and that no strategy is selected if it is a warning.
fn survives(bytes: &[u8]) -> Result<(), TestCaseError> {
    let (_folder, path) = written(bytes);
    let communicator = Communicator::new(Version::Five, Some(&path), 2, 1);
    prop_assert_eq!(communicator.messages.len(), 1, "{:?}", communicator.messages);
    if communicator.messages[0].0 == 2 {
        prop_assert!(is_inert(&communicator));
    }
    for function in 0..5 {
        let call = Call { function, ..CALL };
        let answer = communicator.ask(call, &[5.0; 21], 7, 3);
        prop_assert!(answer.costs.iter().filter(|&&cost| cost != 5.0).count() <= 1);
        prop_assert!(answer.channels == -7 || (1..=64).contains(&answer.channels));
    }
    Ok(())
}
