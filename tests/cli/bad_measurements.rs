//! Tests of measured data that cannot be used: each fault is reported with file and line, and nothing is dropped
//! silently.

use super::run::{refused, run_in};

const MANIFEST: &str = "[[measurement]]\nfile = \"a.csv\"\nfabric = \"hgx-h200\"\nnodes = 1\ngpus = 8\n\
    collective = \"all_reduce\"\nalgorithm = \"ring\"\nprotocol = \"ll\"\n";
const LOG: &str = "--fabric hgx-h200 --collective all_reduce --algorithm ring --protocol ll";

#[test]
fn logs_without_rows_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let head = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n";
    for (log, expected) in [
        ("nothing here\n", "a.txt: no table"),
        ("  8  2  float  sum  -1  5.83  0.00  0.00  0  5.78  0.00  0.00  0\n", "a.txt:1: a row without the head line"),
        // The columns of this log are renamed.
        (&head.replace("time", "clock")[..], "a.txt"),
    ] {
        std::fs::write(folder.path().join("a.txt"), log).unwrap();
        refused(folder.path(), &format!("compare a.txt {LOG}"), expected);
        std::fs::write(folder.path().join("m.toml"), MANIFEST.replace("a.csv", "a.txt")).unwrap();
        refused(folder.path(), "calibrate m.toml", expected);
    }
}

#[test]
fn invalid_rows_are_reported_and_the_others_used() {
    let folder = tempfile::tempdir().unwrap();
    let csv = "bytes,time_us\n1024,NaN\n2048,-3\n4096,0\n8192,20\n16384,inf\n32768\n65536,25\n";
    std::fs::write(folder.path().join("a.csv"), csv).unwrap();
    std::fs::write(folder.path().join("m.toml"), MANIFEST).unwrap();
    for arguments in [format!("compare a.csv {LOG} --no-explain"), "compare m.toml --no-explain".to_owned()] {
        let run = run_in(folder.path(), &arguments);
        assert_eq!(run.code, 0, "{run:?}");
        for line in [2, 3, 4, 6, 7] {
            assert!(run.stderr.contains(&format!("a.csv:{line}: skipped: ")), "line {line}: {}", run.stderr);
        }
        assert!(run.stdout.contains("2 rows"), "{}", run.stdout);
    }
}

#[test]
fn sizes_that_contradict_the_collective_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let log = "\
# nccl-tests version 2.17.6\n# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n\
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n\
  16  5  float  sum  -1  5.68  0.00  0.00  0  5.69  0.01  0.01  0\n\
  16  4  float  sum  -1  5.68  0.00  0.00  0  5.69  0.01  0.01  0\n";
    std::fs::write(folder.path().join("a.txt"), log).unwrap();
    let run = run_in(folder.path(), &format!("compare a.txt {LOG} --gpus 2 --no-explain"));
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("a.txt:5: skipped: 16 B are not a multiple of 5 elements"), "{}", run.stderr);
}

#[test]
fn manifests_with_missing_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "bytes,time_us\n1024,5\n").unwrap();
    for (from, to, expected) in [("a.csv", "b.csv", "m.toml:2"), ("hgx-h200", "hgx-h20", "unknown fabric `hgx-h20`")] {
        std::fs::write(folder.path().join("m.toml"), MANIFEST.replace(from, to)).unwrap();
        for command in ["compare", "calibrate"] {
            refused(folder.path(), &format!("{command} m.toml"), expected);
        }
    }
}

#[test]
fn contradictions_and_too_few_rows_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "bytes,time_us\n1024,15\n2048,16\n1024,45.5\n").unwrap();
    std::fs::write(folder.path().join("m.toml"), MANIFEST).unwrap();
    let run = run_in(folder.path(), "compare m.toml --no-explain");
    assert_eq!(run.code, 0, "{run:?}");
    for expected in ["a.csv:2", "a.csv:4", "these contradict each other"] {
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
    let run = run_in(folder.path(), "calibrate m.toml");
    assert_eq!(run.code, 2, "{run:?}");
    assert!(
        run.stderr.contains("3 rows cannot determine") && run.stderr.contains("these contradict each other"),
        "{}",
        run.stderr
    );
}

/// Rejection of the JSON of `gpu run` if it is truncated, of another format, or contains invalid values.
#[test]
fn invalid_json_of_gpu_run_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../data/measured/gpu_run.json");
    let truncated = &text[..text.len() - 300];
    for (text, expected) in [
        (truncated.to_owned(), "run.json:17:"),
        (
            text.replacen("\"nccl-symmetric\"", "\"nccl-symetric\"", 1),
            "run.json:11: not the JSON of `gpu run`: unknown executor `nccl-symetric`; expected one of kernels, copies",
        ),
        (text.replace("\"fabricast_gpu_run\": 2,", ""), "of format 1, but this version of fabricast reads format 2"),
        (
            text.replace("\"fabricast_gpu_run\": 2", "\"fabricast_gpu_run\": 9"),
            "of format 9, but this version of fabricast reads format 2",
        ),
        (text.replace("\"fabric\": \"hgx-h200\"", "\"fabric\": \"hgx-h20\""), "unknown fabric `hgx-h20`"),
        (text.replace("\"gpus\": 2", "\"gpus\": 1"), "2 ranks on 1 GPUs"),
        (text.replace("\"direct\"", "\"dirct\""), "unknown algorithm `dirct`"),
        (text.replace("\"blocks\": 69, ", ""), "run.json:12: a strategy needs `algorithm`, `protocol` and `blocks`"),
        (text.replace("\"graph_us\": ", "\"graph\": "), "no row has a time that can be used"),
    ] {
        std::fs::write(folder.path().join("run.json"), text).unwrap();
        for command in ["compare", "calibrate"] {
            refused(folder.path(), &format!("{command} run.json"), expected);
        }
    }
    let run = run_in(folder.path(), "calibrate run.json");
    assert_eq!(run.code, 2, "{run:?}");
}
