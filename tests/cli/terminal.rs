//! Names from files, file names and arguments are escaped on output: control characters that a terminal would obey
//! appear as visible escape sequences in every command.

use std::path::Path;
use std::process::{Command, Stdio};

/// Name with escape sequences that set the title, clear the screen, change the colour (C1), reorder text, break the
/// line and return to its start.
const NAME: &str = "x\u{1b}]0;pwn\u{7}\u{1b}[2J\u{9b}31m\u{202e}\u{2028}\u{7f}\r";

/// [`NAME`] as written in TOML and JSON strings.
const WRITTEN: &str = "x\\u001b]0;pwn\\u0007\\u001b[2J\\u009b31m\\u202e\\u2028\\u007f\\r";

/// Similar name for device ids, which may not have control characters.
const ID: &str = "x\\u202e\\u2028pwn";

/// Returns true for characters that must not occur in output.
fn is_hidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Runs the command; both output streams must have only visible characters, and one of them must contain the name in
/// recognizable form. Returns the exit code and the output.
fn run_output(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
    let output = command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    let (out, err) = (text(output.stdout), text(output.stderr));
    for (stream, text) in [("stdout", &out), ("stderr", &err)] {
        let hidden = text.find(is_hidden);
        assert!(hidden.is_none(), "{arguments:?}: {stream}, byte {hidden:?}: {text:?}");
    }
    assert!(!err.contains("panicked"), "{arguments:?}: {err}");
    (output.status.code().unwrap(), out + &err)
}

/// Returns a spec in which every text is hostile.
fn spec() -> String {
    let gpu = |id: &str| {
        format!(
            "[[node]]\nid = \"{id}\"\nkind = \"gpu\"\ncompute_capability = 90\nhost = \"h{ID}\"\nmodel = \"m{WRITTEN}\"\n"
        )
    };
    let link = format!(
        "[[link]]\na = \"a{ID}\"\nb = \"b{ID}\"\nkind = \"nvlink\"\nbandwidth = \"450 GB/s\"\nlatency = \"350 ns\"\n"
    );
    let head = format!("name = \"f{WRITTEN}\"\nsource = [\"s{WRITTEN}\"]\n");
    head + &gpu(&format!("a{ID}")) + &gpu(&format!("b{ID}")) + &link
}

/// Returns an MSCCL++ plan with a hostile name, in which each of two ranks copies its own chunk.
fn schedule() -> String {
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schedules/mscclpp-allreduce.json"),
    );
    let mut plan: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    plan["name"] = NAME.into();
    plan.to_string()
}

#[test]
fn names_in_files_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("f.toml", &spec());
    write("s.json", &schedule());
    write("flows.csv", &format!("src,dst,bytes,start_us\n{NAME},b,1,0\n").replace('\r', ""));
    write("job.csv", &format!("collective,bytes,ranks,name\nall_reduce,1MiB,0-1,{NAME}\n").replace('\r', ""));
    write("wrong.csv", &format!("collective,bytes,ranks\n{NAME},1MiB,0-1\n").replace('\r', ""));
    write("m.csv", &format!("{NAME},1\n1,1\n"));
    write("log.txt", &format!("bytes,time_us\n1024,{NAME}\n2048,7\n"));
    write(
        "manifest.toml",
        &format!("[[measurement]]\nfile = \"{WRITTEN}\"\nfabric = \"{WRITTEN}\"\nnodes = 1\ngpus = 8\n"),
    );
    write("table.csv", &format!("{NAME},1,2,ring,simple,8,-1,-1\n"));
    write("profile.toml", &format!("name = \"{WRITTEN}\"\n\"{WRITTEN}\" = 1\n"));
    write(
        "study.toml",
        &format!("[[candidate]]\nname = \"c{WRITTEN}\"\nfabric = \"hgx-h100\"\n[[job]]\nname = \"{WRITTEN}\"\n"),
    );
    write("results.json", &format!("{{\"format\": 7, \"candidates\": [{{\"name\": \"{WRITTEN}\"}}]}}"));
    write("plan.json", &format!("{{\"fabric\": \"{WRITTEN}\"}}"));
    let mut escaped = 0;
    for arguments in [
        "fabric show f.toml",
        "fabric show f.toml -v",
        "fabric show f.toml --format json",
        "fabric show f.toml --format csv",
        "fabric check f.toml",
        "fabric export f.toml --to json",
        "fabric export f.toml --to spec",
        "fabric export f.toml --to dot",
        "fabric export f.toml --to svg",
        "fabric export f.toml --to nccl-xml",
        "simulate --fabric f.toml --profile ideal --collective all_reduce --algorithm ring --protocol simple",
        "simulate --fabric f.toml --profile ideal --collective all_reduce --algorithm ring --protocol simple --format json",
        "simulate --fabric f.toml --profile ideal --collective all_reduce --algorithm ring --protocol simple --format csv",
        "simulate --fabric f.toml --profile ideal --collective all_reduce --critical-path",
        "simulate --fabric f.toml --profile ideal --collective all_reduce --utilization-over-time=3",
        "plan --fabric f.toml --profile ideal --collective all_reduce --sizes 1KiB..1MiB",
        "plan --fabric f.toml --profile ideal --collective all_reduce --sizes 1KiB..1MiB --format json",
        "plan --fabric f.toml --profile ideal --collective all_reduce --sizes 1KiB..1MiB --format csv",
        "schedule verify s.json",
        "schedule show s.json",
        "schedule show s.json --format csv",
        "schedule show s.json --format json",
        "schedule convert s.json --to json",
        "schedule convert s.json --to msccl-xml",
        "schedule convert s.json --to mscclpp",
        "simulate --fabric hgx-h100 --gpus 2 --schedule s.json",
        "simulate --fabric hgx-h100 --flows flows.csv",
        "simulate --fabric hgx-h100 --gpus 2 --job job.csv",
        "simulate --fabric hgx-h100 --gpus 2 --job job.csv --format csv",
        "simulate --fabric hgx-h100 --gpus 2 --job wrong.csv",
        "simulate --fabric hgx-h100 --gpus 2 --collective all_to_allv --matrix m.csv",
        "compare log.txt --fabric hgx-h100 --collective all_reduce",
        "compare log.txt --fabric hgx-h100 --collective all_reduce --format csv",
        "compare manifest.toml",
        "calibrate manifest.toml",
        "table --check table.csv --fabric hgx-h100",
        "table plan.json --explain",
        "plan diff plan.json plan.json",
        "simulate --fabric hgx-h100 --collective all_reduce --profile ./profile.toml",
        "study study.toml",
        "report results.json",
    ] {
        let (_, text) = run_output(folder.path(), &arguments.split(' ').collect::<Vec<_>>());
        escaped += usize::from(text.contains("pwn"));
    }
    assert!(escaped > 25, "{escaped} of the commands repeat a name");
}

#[test]
fn file_names_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["", ".toml", ".csv", ".json", ".svg", ".et"].map(|end| format!("./{NAME}{end}"));
    for name in &names {
        for exists in [false, true] {
            if exists {
                std::fs::write(folder.path().join(name), "what = [nothing\n").unwrap();
            }
            for arguments in [
                "fabric show FILE",
                "plan --collective all_reduce --fabric FILE",
                "simulate --fabric gh200 --schedule FILE",
                "simulate --fabric gh200 --flows FILE",
                "simulate --fabric gh200 --job FILE",
                "simulate --fabric gh200 --collective all_reduce --profile FILE",
                "simulate --fabric gh200 --collective all_to_allv --matrix FILE",
                "schedule verify FILE",
                "table FILE --explain",
                "table --fabric gh200 --check FILE",
                "plan diff FILE FILE",
                "compare FILE",
                "compare --fabric gh200 --collective all_reduce FILE",
                "calibrate FILE",
                "study FILE",
                "report FILE",
                "gpu doctor --from FILE",
                "fabric list -o FILE/none",
            ] {
                let arguments: Vec<String> = arguments.split(' ').map(|word| word.replace("FILE", name)).collect();
                let (code, text) = run_output(folder.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
                assert!(code == 2 && text.contains("pwn"), "{arguments:?}: {code} {text}");
            }
        }
    }
}

#[test]
fn arguments_are_escaped() {
    for arguments in [
        &["NAME"][..],
        &["--NAME"],
        &["fabric", "show", "NAME"],
        &["fabric", "list", "--format", "NAME"],
        &["fabric", "list", "NAME"],
        &["simulate", "--fabric", "NAME", "--collective", "all_reduce"],
        &["simulate", "--fabric", "gh200", "--collective", "NAME"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--algorithm", "NAME"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--bytes", "NAME"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--fail", "NAME"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--slow", "NAME=0.5"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--straggler", "NAME=1us"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--library", "NAME"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--profile", "NAME"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--network", "NAME"],
        &["simulate", "--fabric", "gh200", "--collective", "all_reduce", "--mig", "NAME=1g"],
        &["completions", "NAME"],
    ] {
        let arguments: Vec<String> = arguments.iter().map(|word| word.replace("NAME", NAME)).collect();
        let (code, text) = run_output(
            Path::new(env!("CARGO_TARGET_TMPDIR")),
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        assert!(code == 2 && text.contains("pwn"), "{arguments:?}: {code} {text}");
    }
}

/// Files that commands write (tables, pictures, printed output) are escaped.
#[test]
fn written_files_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("f.toml"), spec()).unwrap();
    std::fs::write(folder.path().join("s.json"), schedule()).unwrap();
    for arguments in [
        "plan --fabric f.toml --profile ideal --collective all_reduce --sizes 1KiB..1MiB --chart plan.svg -o plan.txt",
        "plan --fabric f.toml --profile ideal --collective all_reduce --sizes 1KiB..1MiB --format json -o plan.json",
        "simulate --fabric f.toml --profile ideal --collective all_reduce --trace trace.json -o out.txt",
        "schedule show s.json --picture steps.svg",
        "fabric export f.toml --to svg -o f.svg",
        "fabric export f.toml --to spec -o again.toml",
        "fabric show f.toml --format csv -o f.csv",
        "report plan.json -o report.html",
    ] {
        let (code, text) = run_output(folder.path(), &arguments.split(' ').collect::<Vec<_>>());
        assert_eq!(code, 0, "{arguments}: {text}");
    }
    for name in [
        "trace.json",
        "plan.svg",
        "plan.txt",
        "plan.json",
        "out.txt",
        "steps.svg",
        "f.svg",
        "again.toml",
        "f.csv",
        "report.html",
    ] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(!text.contains(is_hidden), "{name}");
    }
    // Formats that have escape sequences of their own preserve the name.
    let name = |file: &str| {
        let (code, text) = run_output(folder.path(), &["fabric", "show", file, "--format", "json"]);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["name"].clone()
    };
    assert_eq!(name("again.toml"), format!("f{NAME}"));
    assert_eq!(name("f.toml"), format!("f{NAME}"));
}

/// Names in the files of a study's folder are escaped: those of candidates, jobs, devices and calls.
#[test]
fn files_of_a_study_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("f.toml", &spec());
    write("calls.csv", &format!("collective,bytes,ranks,name\nall_reduce,1MiB,0-1,{NAME}\n").replace('\r', ""));
    write(
        "study.toml",
        &format!(
            "[[candidate]]\nname = \"c{ID}\"\nfabric = \"f.toml\"\n[[candidate]]\nname = \"d{ID}\"\nfabric = \"f.toml\"\n\
             [[job]]\nname = \"j{ID}\"\nkind = \"trace\"\nfile = \"calls.csv\"\n"
        ),
    );
    let arguments = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for words in ["study study.toml -o out", "study study.toml -o out", "study study.toml --shard 1/2 -o part"] {
        let words = arguments(words);
        let (code, text) = run_output(folder.path(), &words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code, 0, "{words:?}: {text}");
    }
    let mut names: Vec<String> = Vec::new();
    for part in ["out", "part"] {
        for entry in std::fs::read_dir(folder.path().join(part)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let hidden = text.find(is_hidden);
            assert!(hidden.is_none(), "{}: byte {hidden:?}", path.display());
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(text.contains("pwn") || name == "shard.json", "{name} repeats no name");
            names.push(name);
        }
    }
    names.sort();
    let all = ["index.html", "ranking.csv", "ranking.txt", "results.json", "runs.jsonl", "runs.jsonl", "shard.json"];
    assert_eq!(names, all);
}

/// A PNG contains its size, density and pixels, and no text from files.
#[test]
fn png_files_contain_no_text() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("f.toml"), spec()).unwrap();
    let plan = "plan --fabric f.toml --profile ideal --collective all_reduce --sizes 1KiB..1MiB --chart plan.png";
    let (code, text) = run_output(folder.path(), &plan.split(' ').collect::<Vec<_>>());
    assert_eq!(code, 0, "{text}");
    let bytes = std::fs::read(folder.path().join("plan.png")).unwrap();
    let mut remaining = &bytes[8..];
    let mut kinds = Vec::new();
    while remaining.len() >= 12 {
        let length = u32::from_be_bytes(remaining[..4].try_into().unwrap()) as usize;
        kinds.push(String::from_utf8(remaining[4..8].to_vec()).unwrap());
        remaining = &remaining[12 + length..];
    }
    kinds.dedup();
    assert_eq!(kinds, ["IHDR", "pHYs", "IDAT", "IEND"]);
}

/// With COLUMNS, tables and notes fit that width; `--wide` shows all columns, and `--columns` the named ones.
#[test]
fn output_fits_the_stated_width() {
    let output = |arguments: &str, columns: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
        let output = command.args(arguments.split(' ')).env("COLUMNS", columns).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments}");
        String::from_utf8(output.stdout).unwrap()
    };
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let plan = "plan --fabric hgx-h200 --collective all_reduce --sizes 1KiB..1GiB:32";
    for arguments in [plan, "list gpus", "list models", "list prices", "fabric list", "schema"] {
        let text = output(arguments, "80");
        assert!(widest(&text) <= 80, "{arguments}: {text}");
        assert_eq!(output(arguments, "no number"), output(arguments, ""), "{arguments}");
    }
    assert!(output(plan, "80").contains("hidden columns (--wide shows them): "));
    assert!(!output(&format!("{plan} --wide"), "80").contains("hidden columns"));
    let named = output(&format!("{plan} --columns size,busbw"), "80");
    assert!(named.lines().any(|line| line.trim() == "size  busbw GB/s"), "{named}");
    assert!(output(&format!("{plan} --columns size,bussbw"), "80").contains("no such column: bussbw"));
}
