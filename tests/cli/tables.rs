//! Tables of plans, read back by an independent reader of the formats.

use std::fs;
use std::path::{Path, PathBuf};

use fabricast_planner::export::nccl_tuner::{self, Buffers, Lookup};
use fabricast_planner::export::{AnyTable, SavedPlan, open_mpi};
use fabricast_planner::library::nccl::Function;
use proptest::prelude::*;
use serde_json::Value;

use crate::run::{refused, run_in};
use crate::tuner_csv::{Line, find, lines};

fn function(collective: &str) -> Function {
    Function::ALL.into_iter().find(|f| f.name().to_lowercase() == collective.replace('_', "")).unwrap()
}

/// Makes a plan and its table in a folder; returns the plan's JSON and the table's text.
fn made(folder: &Path, plan: &str, to: &str) -> (Value, String) {
    let run = run_in(folder, &format!("plan {plan} --format json -o plan.json"));
    assert_eq!(run.code, 0, "{plan}: {}", run.stderr);
    let run = run_in(folder, &format!("table plan.json --to {to} -o table"));
    assert_eq!(run.code, 0, "{plan}: {}", run.stderr);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    (serde_json::from_str(&read("plan.json")).unwrap(), read("table"))
}

/// Compares both readers and the look-up with the plan's ranges at a size.
fn agrees(plan: &Value, lines: &[Line], lookup: &Lookup, collective: &str, bytes: u64) {
    // Below and above the planned sizes the library's own choice applies.
    let ranges = ["ranges", "beyond"].into_iter().flat_map(|key| plan[key].as_array().unwrap());
    let inside = |range: &&Value| {
        range["collective"] == collective
            && range["min_bytes"].as_u64().unwrap() <= bytes
            && bytes <= range["max_bytes"].as_u64().unwrap()
    };
    let holding: Vec<&Value> = ranges.filter(inside).collect();
    assert_eq!(holding.len(), 1, "{collective} of {bytes} bytes: {holding:?}");
    let range = holding[0];
    let expected = ["algorithm", "protocol"].map(|key| range[key].as_str().unwrap());
    let channels = range["channels"].as_i64().unwrap();
    let communicator = (plan["library_nodes"].as_u64().unwrap(), plan["ranks"].as_u64().unwrap());
    let line = find(lines, communicator, collective, bytes)
        .unwrap_or_else(|| panic!("{collective} of {bytes} bytes has no row"));
    assert_eq!(line.cell, (expected[0].to_owned(), expected[1].to_owned(), channels), "{collective} {bytes}");
    let answer = lookup.find(function(collective), bytes, 1, Buffers::Plain).unwrap();
    let found = (answer.algo.ours().unwrap().name(), answer.proto.ours().name(), answer.channels.unwrap().get());
    assert_eq!(found, (expected[0], expected[1], channels as u16), "{collective} {bytes}");
}

/// Sizes up to 2^40, equally many of each magnitude.
pub fn sizes() -> impl Strategy<Value = u64> {
    (0u32..=40, any::<u64>()).prop_map(|(bits, size)| ((1 << bits) | (size & ((1 << bits) - 1))).min(1 << 40))
}

/// Ends of ranges and their neighbours, from 1 to 2^40, both included.
pub fn around(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
    let ends = ranges.flat_map(|(first, last)| [first, last.min(1 << 40)]);
    let near = ends.flat_map(|at| [at.saturating_sub(1), at, at + 1]).chain([1, 1 << 40]);
    near.filter(|at| (1..=1 << 40).contains(at)).collect()
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
        let (plan, text) = made(folder.path(), &flags, "nccl-tuner");
        let lines = lines(&text);
        let table = nccl_tuner::read(&text, "table").unwrap();
        let saved = SavedPlan::read(&plan.to_string(), "plan").unwrap();
        let lookup = Lookup::new(&table, saved.library_nodes.unwrap(), saved.ranks);
        // Around every end of the table's rows and of the plan's ranges, and at sizes of all magnitudes.
        let of_plan = saved.ranges.iter().chain(&saved.beyond).map(|range| (range.min_bytes.0, range.max_bytes.0));
        let of_table = table.rows.iter().map(|row| (row.min_bytes.0, row.max_bytes.0));
        for bytes in around(of_plan.chain(of_table)).into_iter().chain(probes) {
            agrees(&plan, &lines, &lookup, collective, bytes);
        }
        // The number of rows is minimal: no two neighbours are equal, and no size is covered twice.
        for pair in lines.windows(2) {
            prop_assert!(pair[0].cell != pair[1].cell && pair[0].bytes.1 + 1 == pair[1].bytes.0, "{pair:?}");
        }
        // Rewriting the table gives the same text.
        prop_assert_eq!(nccl_tuner::write(&table), text);
        // Every row can be used on the fabric it was made for.
        let check = run_in(folder.path(), &format!(
            "table --check table --fabric {fabric} --gpus {gpus} --library {library} --sizes 1KiB..1MiB:1024 --format json"
        ));
        prop_assert_eq!(check.code, 0, "{}", check.stderr);
        let checked: Value = serde_json::from_str(&check.stdout).unwrap();
        let serious = checked["findings"].as_array().unwrap().iter().filter(|one| !one["line"].is_null());
        prop_assert_eq!(serious.count(), 0, "{}", checked["findings"]);
    }
}

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A forced strategy measured more than 5 % faster than the library's own choice is in the table, at every size.
#[test]
fn faster_measured_strategies_are_used() {
    use std::collections::BTreeMap;

    use fabricast_sim::profile::{Launch, Processes};
    use fabricast_validate::measured::manifest::{self, Registered};

    let data = repository().join("validate/data/h200-node");
    let folder = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for (gpus, launch, processes, file) in [
        (2u32, Launch::Graph, Processes::Single, "manifest.toml"),
        (8, Launch::Stream, Processes::PerGpu, "manifest.toml"),
        (8, Launch::Graph, Processes::Single, "other-launches.toml"),
    ] {
        let loaded = manifest::load(&data.join(file)).unwrap();
        type Times = BTreeMap<(String, u64), Vec<(Option<(String, String)>, f64)>>;
        let mut times: Times = BTreeMap::new();
        for one in &loaded.measurements {
            let of = &one.configuration;
            let alike = of.gpus == gpus
                && (of.launch, of.processes) == (launch, processes)
                && of.registered == Registered::Plain
                && of.channels.is_none();
            for row in one.rows.iter().filter(|_| alike) {
                let cell = of.algorithm.zip(of.protocol).map(|(a, p)| (a.name().to_owned(), p.name().to_owned()));
                let key = (of.collective.name().to_owned(), row.bytes.0);
                times.entry(key).or_default().push((cell, row.measured().us()));
            }
        }
        let launched = match (launch, processes) {
            (Launch::Graph, _) => "--launch graph --processes single",
            (Launch::Stream, _) => "--launch stream --processes per_gpu",
        };
        let place = data.display();
        let flags = format!(
            "--fabric {place}/topology.xml --gpus {gpus} --no-nvls --library nccl-2.28.9 --collective all \
             --sizes 1KiB..1GiB {launched} --measured {place}/{file}"
        );
        let (_, text) = made(folder.path(), &flags, "nccl-tuner");
        let lines = lines(&text);
        for ((collective, bytes), cells) in &times {
            let own = cells.iter().filter(|cell| cell.0.is_none()).map(|cell| cell.1).fold(f64::MAX, f64::min);
            let forced = cells.iter().filter_map(|(cell, time)| Some((cell.as_ref()?, *time)));
            let Some((best, time)) = forced.min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            if own == f64::MAX || own / time <= 1.05 || !(1024..=1 << 30).contains(bytes) {
                continue;
            }
            let Some(line) = find(&lines, (1, gpus.into()), collective, *bytes) else { continue };
            let taken = (line.cell.0.clone(), line.cell.1.clone());
            let of_taken = cells.iter().filter(|cell| cell.0.as_ref() == Some(&taken)).map(|cell| cell.1);
            let of_taken = of_taken.fold(f64::MAX, f64::min);
            // Within the noise of measurements the two best are equal.
            assert!(
                of_taken <= time * 1.04,
                "{gpus} GPUs, {collective} of {bytes}: {taken:?} {of_taken}, {best:?} {time}, by itself {own}"
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "the data have such sizes");
}

#[test]
fn open_mpi_rules_round_trip_in_both_formats() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--fabric hgx-h200 --library open_mpi-4.1 --collective all --sizes 1KiB..64MiB:4";
    let (plan, text) = made(folder.path(), flags, "openmpi");
    let classic = open_mpi::read_classic(&text, "table").unwrap();
    assert_eq!(open_mpi::write_classic(&classic), text);
    let run = run_in(folder.path(), "table plan.json --to openmpi-json -o rules.json");
    assert_eq!(run.code, 0, "{}", run.stderr);
    let json = fs::read_to_string(folder.path().join("rules.json")).unwrap();
    let json = open_mpi::read_json(&json, "rules.json").unwrap();
    let saved = SavedPlan::read(&plan.to_string(), "plan").unwrap();
    for row in &saved.rows {
        let Some(routine) = open_mpi::Routine::of(row.collective) else { continue };
        let of = |rules: &open_mpi::Rules| {
            rules.find(routine, open_mpi::Ranks { ranks: 8, hosts: 1 }, row.bytes.0).map(|rule| rule.algorithm)
        };
        assert!(of(&classic).is_some(), "{} {}", row.collective, row.bytes);
        assert_eq!(of(&classic), of(&json));
    }
    let check = run_in(folder.path(), "table --check rules.json --fabric hgx-h200 --sizes 1KiB..1MiB:32 --format json");
    assert_eq!(check.code, 0, "{}", check.stderr);
}

#[test]
fn written_schedules_have_sizes_and_verify() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--fabric hgx-h200 --gpus 4 --collective all_reduce --sizes 1KiB..4MiB:8 --format json -o plan.json";
    assert_eq!(run_in(folder.path(), &format!("plan {flags}")).code, 0);
    for (to, ending) in [("mscclpp", "json"), ("msccl-xml", "xml")] {
        let run = run_in(folder.path(), &format!("table plan.json --to {to} -o {to}"));
        if run.code == 2 {
            assert!(run.stderr.contains("no pick"), "{}", run.stderr);
            continue;
        }
        assert_eq!(run.code, 0, "{}", run.stderr);
        let files: Vec<PathBuf> =
            fs::read_dir(folder.path().join(to)).unwrap().map(|file| file.unwrap().path()).collect();
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

/// A file for a range of sizes is evaluated within that range only.
#[test]
fn schedules_are_evaluated_at_several_sizes() {
    let golden = repository().join("tests/cli/tables/golden");
    let check = |file: &str, more: &str| {
        let flags = format!("--check {}/{file} --fabric hgx-h200 --gpus 2 --no-nvls {more}", golden.display());
        let run = run_in(&golden, &format!("table {flags} --format json"));
        assert_eq!(run.code, 0, "{file}: {}", run.stderr);
        serde_json::from_str::<Value>(&run.stdout).unwrap()
    };
    for file in ["mscclpp/all_reduce-11585-1482909.json", "msccl-xml/all_reduce-11585-1482909.xml"] {
        let checked = check(file, "");
        let rows = checked["rows"].as_array().unwrap();
        let sizes: Vec<u64> = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
        // Powers of two within the range, and its ends in whole chunks of 16 bytes.
        assert!(sizes.contains(&(1 << 14)) && sizes.contains(&(1 << 20)), "{file}: {sizes:?}");
        assert!(sizes.len() > 7 && sizes.iter().all(|size| (11585..=1482909).contains(size)), "{file}: {sizes:?}");
        assert!(sizes[0] < 1 << 14 && sizes[sizes.len() - 1] > 1 << 20, "{file}: {sizes:?}");
        let times: Vec<f64> = rows.iter().map(|row| row["time_us"].as_f64().unwrap()).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{file}: {times:?}");
        for row in rows {
            let time = |key: &str| row[key].as_f64().unwrap();
            assert!(time("plan_us") > 0.0 && time("library_default_us") > 0.0 && row["valid"] == true, "{file}: {row}");
        }
        let asked = check(file, "--sizes 1KiB..1MiB:1024");
        assert_eq!(asked["rows"].as_array().unwrap().len(), 1, "{file}");
        let said = asked["findings"][0]["message"].as_str().unwrap();
        assert!(said.starts_with("1 of the 2 sizes asked for are not priced"), "{said}");
    }
}

#[test]
fn plans_round_trip_through_json() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--fabric dgx-a100 --library nccl --collective all_gather --sizes 1KiB..64MiB:4";
    let (_, text) = made(folder.path(), flags, "json");
    let plan = SavedPlan::read(&text, "table").unwrap();
    assert!(plan.rows.is_empty() && !plan.ranges.is_empty());
    assert_eq!((plan.ranges[0].min_bytes.0, plan.ranges.last().unwrap().max_bytes.0), (0, i64::MAX as u64));
    assert!(matches!(AnyTable::read(&text, "table"), Ok(AnyTable::Plan(_))));
    // Other formats, and so the tuner plugin, give the same result for it as for the plan.
    fs::write(folder.path().join("table.json"), &text).unwrap();
    for to in ["nccl-tuner", "nccl-env", "json"] {
        let of = |plan: &str| {
            let run = run_in(folder.path(), &format!("table {plan} --to {to}"));
            assert_eq!(run.code, 0, "{}", run.stderr);
            run.stdout
        };
        assert_eq!(of("table.json"), of("plan.json"), "{to}");
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
    let diff = |other: &str| {
        let run = run_in(folder.path(), &format!("plan diff a.json {other} --format json"));
        assert_eq!(run.code, 0, "{}", run.stderr);
        serde_json::from_str::<Value>(&run.stdout).unwrap()
    };
    let same = diff("a.json");
    assert_eq!((same["alike"].as_u64(), same["rows"].as_array().map(Vec::len)), (Some(3), Some(0)));
    let other = diff("b.json");
    assert_eq!(other["rows"].as_array().map(Vec::len), Some(3));
    assert!(other["rows"][0]["change"].as_f64().unwrap() > 0.0);
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
    let said: Vec<String> = checked["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{} {}", one["line"], one["message"].as_str().unwrap()))
        .collect();
    for expected in [
        "1 NVLSTree Simple",
        "2 no call takes",
        "3 60 channels",
        "4 channels -1",
        "null Reduce has no row",
        "Broadcast of 1025",
    ] {
        assert!(said.iter().any(|one| one.contains(expected)), "{expected}: {said:#?}");
    }
    let rows = checked["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["valid"] == false && row["collective"] == "all_reduce"));
    fs::write(folder.path().join("bad.csv"), "allreduce,0,1,ring,ll,1,1,8\nallreduce,0,x,ring,ll,1,1,8\n").unwrap();
    refused(folder.path(), &format!("table --check bad.csv {flags}"), "bad.csv:2:13");
    for (name, text, place) in [
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
        refused(folder.path(), &format!("table --check {name} {flags}"), place);
    }
    // Rules for another number of ranks are not an error, but are reported.
    let rules = "1\n2\n1\n16\n1\n0 4 0 0\n";
    fs::write(folder.path().join("rules.txt"), rules).unwrap();
    let check = "table --check rules.txt --fabric hgx-h200 --sizes 1KiB..2KiB --format csv";
    let run = run_in(folder.path(), check);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("allreduce has no rules for 8 ranks"), "{}", run.stderr);
}

/// A hand-written table, truncated, modified and reassembled, is read or rejected without a crash.
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
    let read = |(which, from, to, byte, how): (usize, prop::sample::Index, prop::sample::Index, u8, usize)| {
        let mut bytes = corpus[which].as_bytes().to_vec();
        let (a, b) = (from.index(bytes.len()), to.index(bytes.len()));
        let (a, b) = (a.min(b), a.max(b));
        match how {
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
