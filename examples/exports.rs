//! Measures table exports as whole processes: a plan of all collectives written in every format, and the check of a
//! table of 100,000 rows.
//!
//! ```text
//! cargo build --release && cargo run --release --example exports
//! ```
//!
//! Each run writes to an empty place. A folder of files is also written over itself: the file system then flushes the
//! new files before the old ones are removed, and the time is that of the disk.
//!
//! The program under test is the one in the folder above this example's. The plan is for eight H200, once without a
//! library and once for each library that has a format.
#![allow(clippy::print_stdout, missing_docs)] // a program for people

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs per case; the table shows the minimum and the median.
const REPEATS: usize = 15;

/// Rows of the checked table.
const ROWS: u64 = 100_000;

/// Format, and the library of the plan that it is made from.
const FORMATS: [(&str, Option<&str>); 8] = [
    ("nccl-tuner", Some("nccl-2.28.9")),
    ("nccl-env", Some("nccl-2.28.9")),
    ("openmpi", Some("open_mpi-4.1")),
    ("openmpi-json", Some("open_mpi-4.1")),
    ("json", None),
    ("json", Some("nccl-2.28.9")),
    ("mscclpp", None),
    ("msccl-xml", None),
];

fn main() -> Result<(), Box<dyn Error>> {
    let program = program()?;
    let folder = std::env::temp_dir().join(format!("fabricast-exports-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    println!("{:<32} {:>6} {:>10} {:>10} {:>10}", "case", "files", "size", "least", "median");
    for (format, library) in FORMATS {
        let plan = format!("plan-{}.json", library.unwrap_or("all"));
        if !folder.join(&plan).exists() {
            let restricted = library.map_or_else(String::new, |name| format!("--library {name}"));
            let flags = format!("plan --fabric hgx-h200 --collective all --format json {restricted} -o {plan}");
            run(&program, &folder, &flags)?;
        }
        let made = format!("{format}-{}", library.unwrap_or("all"));
        let flags = format!("table {plan} --to {format} -o {made}");
        let times = repeated(&program, &folder, &flags, Some(&made))?;
        let (files, bytes) = size_of(&folder.join(&made))?;
        print(&made, files, bytes, &times);
        if folder.join(&made).is_dir() {
            print(&format!("{made}, written over"), files, bytes, &repeated(&program, &folder, &flags, None)?);
        }
    }
    fs::write(folder.join("rows.csv"), rows()?)?;
    let flags =
        "table --check rows.csv --fabric hgx-h200 --library nccl-2.28.9 --sizes 1KiB..2KiB --format json -o checked";
    let times = repeated(&program, &folder, flags, Some("checked"))?;
    let (files, bytes) = size_of(&folder.join("rows.csv"))?;
    print("check of 100,000 rows", files, bytes, &times);
    let flags = "table --check rows.csv --fabric hgx-h200 --library nccl-2.28.9 --format json -o checked";
    let times = repeated(&program, &folder, flags, Some("checked"))?;
    print("the same, priced at all sizes", files, bytes, &times);
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn print(case: &str, files: usize, bytes: u64, times: &[Duration]) {
    let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
    let (least, median) = (ms(times.first()), ms(times.get(times.len() / 2)));
    let megabytes = bytes as f64 / 1e6;
    println!("{case:<32} {files:>6} {megabytes:>8.3}MB {least:>8.1}ms {median:>8.1}ms");
}

/// Path of `fabricast`, in the folder above the examples.
fn program() -> Result<PathBuf, Box<dyn Error>> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).ok_or("this program lies in no folder")?;
    let program = folder.join("fabricast");
    if program.is_file() { Ok(program) } else { Err("there is no fabricast: `cargo build --release` first".into()) }
}

/// Sorted times of a call, without the first run. The output `made`, if named, is removed before each run.
fn repeated(program: &Path, folder: &Path, flags: &str, made: Option<&str>) -> Result<Vec<Duration>, Box<dyn Error>> {
    let timed = || -> Result<Duration, Box<dyn Error>> {
        match made.map(|made| folder.join(made)) {
            Some(made) if made.is_dir() => fs::remove_dir_all(made)?,
            Some(made) if made.exists() => fs::remove_file(made)?,
            _ => {}
        }
        run(program, folder, flags)
    };
    timed()?;
    let mut times = (0..REPEATS).map(|_| timed()).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times)
}

fn run(program: &Path, folder: &Path, flags: &str) -> Result<Duration, Box<dyn Error>> {
    let mut command = Command::new(program);
    command.args(flags.split_whitespace()).arg("-q").current_dir(folder).stdout(Stdio::null());
    let begun = Instant::now();
    let output = command.output()?;
    let wall = begun.elapsed();
    if !output.status.success() {
        return Err(format!("{flags}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(wall)
}

/// Number of files and bytes of a file or folder.
fn size_of(path: &Path) -> Result<(usize, u64), Box<dyn Error>> {
    if path.is_file() {
        return Ok((1, fs::metadata(path)?.len()));
    }
    let sizes = fs::read_dir(path)?.map(|file| Ok(file?.metadata()?.len()));
    let sizes = sizes.collect::<Result<Vec<u64>, std::io::Error>>()?;
    Ok((sizes.len(), sizes.iter().sum()))
}

/// Table of many short rows.
fn rows() -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let functions = ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"];
    for (place, function) in (0..ROWS).zip(functions.iter().cycle()) {
        let first = place / functions.len() as u64 * 64;
        let channels = 1 + place % 8;
        writeln!(text, "{function},{first},{},ring,ll,{channels},1,8", first + 63)?;
    }
    Ok(text)
}
