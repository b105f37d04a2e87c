//! Tables of plans are compared with their plans through an independent reader of the formats.

use std::fs;
use std::path::{Path, PathBuf};

use fabricast_libraries::nccl::Function;
use fabricast_search::export::nccl_tuner::{self, Buffers, Lookup};
use fabricast_search::export::{AnyTable, SavedPlan, open_mpi};
use proptest::prelude::*;
use serde_json::Value;

use crate::run::{refused, run_in};
use crate::tuner_csv::{Line, find, lines};

fn function(collective: &str) -> Function {
    Function::ALL.into_iter().find(|f| f.name().to_lowercase() == collective.replace('_', "")).unwrap()
}

/// Makes a plan and its table in a folder; returns the plan's JSON and the table's text.
fn export_plan(folder: &Path, plan: &str, format: &str) -> (Value, String) {
    let run = run_in(folder, &format!("plan {plan} --format json -o plan.json"));
    assert_eq!(run.code, 0, "{plan}: {}", run.stderr);
    let run = run_in(folder, &format!("table plan.json --to {format} -o table"));
    assert_eq!(run.code, 0, "{plan}: {}", run.stderr);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    (serde_json::from_str(&read("plan.json")).unwrap(), read("table"))
}

/// Compares both readers of a table, and its look-up, with the plan's ranges at a size.
fn assert_table_matches_plan(plan: &Value, lines: &[Line], lookup: &Lookup, collective: &str, bytes: u64) {
    // Below and above the planned sizes the library's own choice applies.
    let ranges = ["ranges", "outside_ranges"].into_iter().flat_map(|key| plan[key].as_array().unwrap());
    let contains_size = |range: &&Value| {
        range["collective"] == collective
            && range["min_bytes"].as_u64().unwrap() <= bytes
            && bytes <= range["max_bytes"].as_u64().unwrap()
    };
    let matching: Vec<&Value> = ranges.filter(contains_size).collect();
    assert_eq!(matching.len(), 1, "{collective} of {bytes} bytes: {matching:?}");
    let range = matching[0];
    let expected = ["algorithm", "protocol"].map(|key| range[key].as_str().unwrap());
    let channels = range["channels"].as_i64().unwrap();
    let communicator = (plan["library_nodes"].as_u64().unwrap(), plan["ranks"].as_u64().unwrap());
    let line = find(lines, communicator, collective, bytes)
        .unwrap_or_else(|| panic!("{collective} of {bytes} bytes has no row"));
    assert_eq!(line.cell, (expected[0].to_owned(), expected[1].to_owned(), channels), "{collective} {bytes}");
    let entry = lookup.find(function(collective), bytes, 1, Buffers::Plain).unwrap();
    let actual =
        (entry.algo.to_algorithm().unwrap().name(), entry.proto.to_protocol().name(), entry.channels.unwrap().get());
    assert_eq!(actual, (expected[0], expected[1], channels as u16), "{collective} {bytes}");
}

/// Generates sizes up to 2^40 bytes, equally many of each magnitude.
pub fn sizes() -> impl Strategy<Value = u64> {
    (0u32..=40, any::<u64>()).prop_map(|(bits, size)| ((1 << bits) | (size & ((1 << bits) - 1))).min(1 << 40))
}

/// Returns the ends of ranges and their neighbours, within 1 to 2^40 bytes inclusive.
pub fn sizes_around_ends(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
    let ends = ranges.flat_map(|(first, last)| [first, last.min(1 << 40)]);
    let neighbours = ends.flat_map(|size| [size.saturating_sub(1), size, size + 1]).chain([1, 1 << 40]);
    neighbours.filter(|size| (1..=1 << 40).contains(size)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Any plan for a library exports to a table that gives the same choice at every size.
    #[test]
    fn tables_equal_plans_at_every_size(
        fabric in prop_oneof![Just("hgx-h200"), Just("dgx-a100"), Just("hgx-h100 --no-nvls"), Just("hgx-h200 --nodes 2")],
        library in prop_oneof![Just("nccl-2.28.9"), Just("nccl-2.30"), Just("nccl-2.31")],
        gpus in prop_oneof![Just(2), Just(4), Just(8)],
        collective in prop_oneof![Just("all_reduce"), Just("all_gather"), Just("reduce_scatter"), Just("broadcast"), Just("reduce")],
        first in 1u64..3000,
        factor in 2u64..40,
        probes in prop::collection::vec(sizes(), 64),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let flags = format!(
            "--fabric {fabric} --gpus {gpus} --library {library} --collective {collective} --sizes {first}..64MiB:{factor}"
        );
        let (plan, text) = export_plan(folder.path(), &flags, "nccl-tuner");
        let lines = lines(&text);
        let table = nccl_tuner::read(&text, "table").unwrap();
        let saved = SavedPlan::read(&plan.to_string(), "plan").unwrap();
        let lookup = Lookup::new(&table, saved.library_nodes.unwrap(), saved.ranks);
        // Sizes around every end of the table's rows and of the plan's ranges are compared, and sizes of all
        // magnitudes.
        let plan_ranges = saved.ranges.iter().chain(&saved.outside_ranges).map(|range| (range.min_bytes.0, range.max_bytes.0));
        let table_ranges = table.rows.iter().map(|row| (row.min_bytes.0, row.max_bytes.0));
        for bytes in sizes_around_ends(plan_ranges.chain(table_ranges)).into_iter().chain(probes) {
            assert_table_matches_plan(&plan, &lines, &lookup, collective, bytes);
        }
        // The table has the minimum number of rows: no two neighbours are equal, and no size is covered twice.
        for pair in lines.windows(2) {
            prop_assert!(pair[0].cell != pair[1].cell && pair[0].bytes.1 + 1 == pair[1].bytes.0, "{pair:?}");
        }
        // Writing the table again gives the same text.
        prop_assert_eq!(nccl_tuner::write(&table), text);
        // Every row can be used on the fabric that the table was made for.
        let check = run_in(folder.path(), &format!(
            "table --check table --fabric {fabric} --gpus {gpus} --library {library} --sizes 1KiB..1MiB:1024 --format json"
        ));
        prop_assert_eq!(check.code, 0, "{}", check.stderr);
        let checked: Value = serde_json::from_str(&check.stdout).unwrap();
        let row_findings = checked["findings"].as_array().unwrap().iter().filter(|one| !one["line"].is_null());
        prop_assert_eq!(row_findings.count(), 0, "{}", checked["findings"]);
    }
}

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A forced strategy that was measured as more than 5 % faster than the library's own choice is in the table at every
/// size.
#[test]
fn faster_measured_strategies_are_used() {
    use std::collections::BTreeMap;

    use fabricast_sim::profile::{Launch, Processes};
    use fabricast_validate::measured::manifest::{self, RegistrationKind};

    let data = repository().join("validate/data/h200-node");
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for (gpus, launch, processes, file) in [
        (2u32, Launch::Graph, Processes::Single, "manifest.toml"),
        (8, Launch::Stream, Processes::PerGpu, "manifest.toml"),
        (8, Launch::Graph, Processes::Single, "other-launches.toml"),
    ] {
        let loaded = manifest::load(&data.join(file)).unwrap();
        type Times = BTreeMap<(String, u64), Vec<(Option<(String, String)>, f64)>>;
        let mut times: Times = BTreeMap::new();
        for measurement in &loaded.measurements {
            let configuration = &measurement.configuration;
            let is_comparable = configuration.gpus == gpus
                && (configuration.launch, configuration.processes) == (launch, processes)
                && configuration.registered == RegistrationKind::Plain
                && configuration.channels.is_none();
            for row in measurement.rows.iter().filter(|_| is_comparable) {
                let cell = configuration
                    .algorithm
                    .zip(configuration.protocol)
                    .map(|(a, p)| (a.name().to_owned(), p.name().to_owned()));
                let key = (configuration.collective.name().to_owned(), row.bytes.0);
                times.entry(key).or_default().push((cell, row.measured().us()));
            }
        }
        let launch_flags = match (launch, processes) {
            (Launch::Graph, _) => "--launch graph --processes single",
            (Launch::Stream, _) => "--launch stream --processes per_gpu",
        };
        let data_folder = data.display();
        let flags = format!(
            "--fabric {data_folder}/topology.xml --gpus {gpus} --no-nvls --library nccl-2.28.9 --collective all \
             --sizes 1KiB..1GiB {launch_flags} --measured {data_folder}/{file}"
        );
        let (_, text) = export_plan(folder.path(), &flags, "nccl-tuner");
        let lines = lines(&text);
        for ((collective, bytes), cells) in &times {
            let default_us = cells.iter().filter(|cell| cell.0.is_none()).map(|cell| cell.1).fold(f64::MAX, f64::min);
            let forced = cells.iter().filter_map(|(cell, time)| Some((cell.as_ref()?, *time)));
            let Some((best, time)) = forced.min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            if default_us == f64::MAX || default_us / time <= 1.05 || !(1024..=1 << 30).contains(bytes) {
                continue;
            }
            let Some(line) = find(&lines, (1, gpus.into()), collective, *bytes) else { continue };
            let selected = (line.cell.0.clone(), line.cell.1.clone());
            let selected_us = cells.iter().filter(|cell| cell.0.as_ref() == Some(&selected)).map(|cell| cell.1);
            let selected_us = selected_us.fold(f64::MAX, f64::min);
            // The two best strategies differ by less than the noise of measurements.
            assert!(
                selected_us <= time * 1.04,
                "{gpus} GPUs, {collective} of {bytes}: {selected:?} {selected_us}, {best:?} {time}, by itself {default_us}"
            );
            compared += 1;
        }
    }
    assert!(compared > 0, "the data have such sizes");
}

#[test]
fn open_mpi_rules_round_trip_in_both_formats() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--fabric hgx-h200 --library open_mpi-4.1 --collective all --sizes 1KiB..64MiB:4";
    let (plan, text) = export_plan(folder.path(), flags, "openmpi");
    let classic = open_mpi::read_classic(&text, "table").unwrap();
    assert_eq!(open_mpi::write_classic(&classic), text);
    let run = run_in(folder.path(), "table plan.json --to openmpi-json -o rules.json");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let json = fs::read_to_string(folder.path().join("rules.json")).unwrap();
    let json = open_mpi::read_json(&json, "rules.json").unwrap();
    let saved = SavedPlan::read(&plan.to_string(), "plan").unwrap();
    for row in &saved.rows {
        let Some(routine) = open_mpi::Routine::from_collective(row.collective) else { continue };
        let algorithm = |rules: &open_mpi::Rules| {
            rules.find(routine, open_mpi::Ranks { ranks: 8, hosts: 1 }, row.bytes.0).map(|rule| rule.algorithm)
        };
        assert!(algorithm(&classic).is_some(), "{} {}", row.collective, row.bytes);
        assert_eq!(algorithm(&classic), algorithm(&json));
    }
    let check = run_in(folder.path(), "table --check rules.json --fabric hgx-h200 --sizes 1KiB..1MiB:32 --format json");
    assert_eq!(check.code, 0, "{}", check.stderr);
}

#[test]
fn written_schedules_have_sizes_and_verify() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--fabric hgx-h200 --gpus 4 --collective all_reduce --sizes 1KiB..4MiB:8 --format json -o plan.json";
    assert_eq!(run_in(folder.path(), &format!("plan {flags}")).code, 0);
    for (format, ending) in [("mscclpp", "json"), ("msccl-xml", "xml")] {
        let run = run_in(folder.path(), &format!("table plan.json --to {format} -o {format}"));
        if run.code == 2 {
            assert!(run.stderr.contains("no pick"), "{}", run.stderr);
            continue;
        }
        assert_eq!(run.code, 0, "{}", run.stderr);
        let files: Vec<PathBuf> =
            fs::read_dir(folder.path().join(format)).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(!files.is_empty());
        for file in files {
            assert_eq!(file.extension().unwrap(), ending);
            let name = file.strip_prefix(folder.path()).unwrap().display().to_string();
            let verified = run_in(folder.path(), &format!("schedule verify {name}"));
            assert_eq!(verified.code, 0, "{name}: {}", verified.stderr);
        }
    }
    refused(folder.path(), "table plan.json --to mscclpp", "folder");
}

/// A schedule file for a range of sizes is evaluated only within that range.
#[test]
fn schedules_are_evaluated_at_several_sizes() {
    let golden = repository().join("tests/cli/tables/golden");
    let check = |file: &str, extra_flags: &str| {
        let flags = format!("--check {}/{file} --fabric hgx-h200 --gpus 2 --no-nvls {extra_flags}", golden.display());
        let run = run_in(&golden, &format!("table {flags} --format json"));
        assert_eq!(run.code, 0, "{file}: {}", run.stderr);
        serde_json::from_str::<Value>(&run.stdout).unwrap()
    };
    for file in ["mscclpp/all_reduce-11585-1482909.json", "msccl-xml/all_reduce-11585-1482909.xml"] {
        let checked = check(file, "");
        let rows = checked["rows"].as_array().unwrap();
        let sizes: Vec<u64> = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
        // The sizes are powers of two within the range and the ends of the range, in whole chunks of 16 bytes.
        assert!(sizes.contains(&(1 << 14)) && sizes.contains(&(1 << 20)), "{file}: {sizes:?}");
        assert!(sizes.len() > 7 && sizes.iter().all(|size| (11585..=1482909).contains(size)), "{file}: {sizes:?}");
        assert!(sizes[0] < 1 << 14 && sizes[sizes.len() - 1] > 1 << 20, "{file}: {sizes:?}");
        let times: Vec<f64> = rows.iter().map(|row| row["time_us"].as_f64().unwrap()).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{file}: {times:?}");
        for row in rows {
            let time = |key: &str| row[key].as_f64().unwrap();
            assert!(time("plan_us") > 0.0 && time("library_default_us") > 0.0 && row["valid"] == true, "{file}: {row}");
        }
        let given_sizes = check(file, "--sizes 1KiB..1MiB:1024");
        assert_eq!(given_sizes["rows"].as_array().unwrap().len(), 1, "{file}");
        let message = given_sizes["findings"][0]["message"].as_str().unwrap();
        assert!(message.starts_with("1 of the 2 requested sizes are not evaluated"), "{message}");
    }
}

#[test]
fn plans_round_trip_through_json() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--fabric dgx-a100 --library nccl --collective all_gather --sizes 1KiB..64MiB:4";
    let (_, text) = export_plan(folder.path(), flags, "json");
    let plan = SavedPlan::read(&text, "table").unwrap();
    assert!(plan.rows.is_empty() && !plan.ranges.is_empty());
    assert_eq!((plan.ranges[0].min_bytes.0, plan.ranges.last().unwrap().max_bytes.0), (0, i64::MAX as u64));
    assert!(matches!(AnyTable::read(&text, "table"), Ok(AnyTable::Plan(_))));
    // Other formats, and therefore the tuner plugin, give the same result for the table as for the plan.
    fs::write(folder.path().join("table.json"), &text).unwrap();
    for format in ["nccl-tuner", "nccl-env", "json"] {
        let export = |plan: &str| {
            let run = run_in(folder.path(), &format!("table {plan} --to {format}"));
            assert_eq!(run.code, 0, "{}", run.stderr);
            run.stdout
        };
        assert_eq!(export("table.json"), export("plan.json"), "{format}");
    }
}

#[test]
fn plan_diff_lists_the_differences() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |gpus: u32, name: &str| {
        let flags = "--collective all_reduce --sizes 1KiB..1MiB:32 --format json";
        let run = run_in(folder.path(), &format!("plan --fabric hgx-h200 --gpus {gpus} {flags} -o {name}"));
        assert_eq!(run.code, 0, "{}", run.stderr);
    };
    plan(4, "a.json");
    plan(8, "b.json");
    let diff = |changed: &str| {
        let run = run_in(folder.path(), &format!("plan diff a.json {changed} --format json"));
        assert_eq!(run.code, 0, "{}", run.stderr);
        serde_json::from_str::<Value>(&run.stdout).unwrap()
    };
    let unchanged = diff("a.json");
    assert_eq!((unchanged["equal_rows"].as_u64(), unchanged["rows"].as_array().map(Vec::len)), (Some(3), Some(0)));
    let changed = diff("b.json");
    assert_eq!(changed["rows"].as_array().map(Vec::len), Some(3));
    assert!(changed["rows"][0]["change"].as_f64().unwrap() > 0.0);
}

#[test]
fn faults_of_a_table_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let table = "allreduce,0,1048576,nvls_tree,simple,8,1,8\nallreduce,0,1000,ring,ll,1,1,8\n\
                 broadcast,0,1024,ring,ll,60,-1,-1\nallgather,0,4294967295,ring,simple,-1,1,8\n";
    fs::write(folder.path().join("t.csv"), table).unwrap();
    let flags = "--fabric hgx-h200 --library nccl-2.28.9 --sizes 1KiB..1MiB:1024";
    let run = run_in(folder.path(), &format!("table --check t.csv {flags} --format json"));
    assert_eq!(run.code, 1, "{}", run.stderr);
    let checked: Value = serde_json::from_str(&run.stdout).unwrap();
    let messages: Vec<String> = checked["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{} {}", one["line"], one["message"].as_str().unwrap()))
        .collect();
    for expected in [
        "1 NVLSTree Simple",
        "2 no call matches",
        "3 60 channels",
        "4 channels -1",
        "null Reduce has no row",
        "Broadcast of 1025",
    ] {
        assert!(messages.iter().any(|one| one.contains(expected)), "{expected}: {messages:#?}");
    }
    let rows = checked["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["valid"] == false && row["collective"] == "all_reduce"));
    fs::write(folder.path().join("bad.csv"), "allreduce,0,1,ring,ll,1,1,8\nallreduce,0,x,ring,ll,1,1,8\n").unwrap();
    refused(folder.path(), &format!("table --check bad.csv {flags}"), "bad.csv:2:13");
    for (name, text, location) in [
        ("empty", "", "empty:1:1"),
        ("rules.json", "{\"collectives\": {\"bcast\": [\n{\"rules\": [{\"alg\": \"rong\"}]}]}}", "rules.json:2:20"),
        ("rules.txt", "1\n2\n1\n4\n1\n0 9 0 0\n", "rules.txt:6:3"),
        ("nccl.conf", "# made\nNCCL_ALGO=Rong\n", "nccl.conf:2:11"),
        ("plan.json", "{\"profile\": \"p\", \"ranges\": [],\n\"rows\": 3}", "plan.json:2:9"),
        (
            "plan.xml",
            "<algo name=\"a\" proto=\"LL\" nchannels=\"1\" nchunksperloop=\"2\" ngpus=\"2\"\n coll=\"no\"/>",
            "plan.xml:1:67",
        ),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
        refused(folder.path(), &format!("table --check {name} {flags}"), location);
    }
    // Rules for another number of ranks are no error, but are reported.
    let rules = "1\n2\n1\n16\n1\n0 4 0 0\n";
    fs::write(folder.path().join("rules.txt"), rules).unwrap();
    let check = "table --check rules.txt --fabric hgx-h200 --sizes 1KiB..2KiB --format csv";
    let run = run_in(folder.path(), check);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("allreduce has no rules for 8 ranks"), "{}", run.stderr);
}

/// A hand-written table whose text is truncated, modified or rearranged is read or rejected without a crash.
#[test]
fn damaged_tables_are_read_or_rejected() {
    let corpus = [
        include_str!("tables/example.csv"),
        include_str!("tables/rules.txt"),
        include_str!("tables/rules.json"),
        include_str!("tables/nccl.conf"),
        include_str!("tables/plan.json"),
    ];
    for text in corpus {
        AnyTable::read(text, "table").unwrap();
    }
    let damage = (0..corpus.len(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0usize..4);
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: 2_000, ..ProptestConfig::default() });
    let read = |(index, from, to, byte, kind): (usize, prop::sample::Index, prop::sample::Index, u8, usize)| {
        let mut bytes = corpus[index].as_bytes().to_vec();
        let (a, b) = (from.index(bytes.len()), to.index(bytes.len()));
        let (a, b) = (a.min(b), a.max(b));
        match kind {
            0 => bytes.truncate(a),
            1 => bytes[a] = byte,
            2 => drop(bytes.drain(a..b)),
            _ => {
                let part = bytes[a..b].to_vec();
                bytes.splice(a..a, part);
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Ok(AnyTable::NcclTuner(table)) = AnyTable::read(&text, "table") {
            let lookup = Lookup::new(&table, 1, 8);
            for bytes in [0, 1, 1 << 20, u64::MAX] {
                let _ = lookup.find(Function::AllReduce, bytes, 1, Buffers::Plain);
            }
        }
        Ok(())
    };
    runner.run(&damage, read).unwrap();
}
