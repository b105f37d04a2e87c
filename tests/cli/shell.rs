//! Tests of `--help`, `completions` and `man`: scripts and manual pages are identical on standard output and in files.
//!
//! Unit tests next to their generators check that they cover every command and flag.

use crate::run::{refused, run, run_in};

#[test]
fn completion_scripts_go_to_standard_output_or_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for (shell, mark) in [
        ("bash", "complete -F _fabricast"),
        ("zsh", "#compdef fabricast"),
        ("fish", "complete -c fabricast"),
        ("elvish", "edit:completion:arg-completer[fabricast]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let printed = run(&format!("completions {shell}"));
        assert_eq!((printed.code, printed.stderr.as_str()), (0, ""), "{shell}");
        assert!(printed.stdout.contains(mark), "{shell}");
        assert!(!printed.stdout.contains("nvshmem-rank"), "{shell} offers what --help hides");
        let written = run_in(folder.path(), &format!("completions {shell} -o {shell}"));
        assert_eq!((written.code, written.stdout.as_str(), written.stderr.as_str()), (0, "", ""), "{shell}");
        assert_eq!(std::fs::read_to_string(folder.path().join(shell)).unwrap(), printed.stdout, "{shell}");
    }
    refused(folder.path(), "completions tcsh", "[possible values: bash, elvish, fish, powershell, zsh]");
    refused(folder.path(), "completions bash -o nowhere/bash", "there is no folder nowhere");
}

#[test]
fn man_writes_a_page_per_command() {
    let folder = tempfile::tempdir().unwrap();
    let written = run_in(folder.path(), "man -o share/man1");
    assert_eq!((written.code, written.stdout.as_str(), written.stderr.as_str()), (0, "", ""));
    let read = |name: &str| std::fs::read_to_string(folder.path().join("share/man1").join(name)).unwrap();
    let printed = run("man");
    assert_eq!((printed.code, printed.stderr.as_str()), (0, ""));
    assert_eq!(read("fabricast.1"), printed.stdout);
    assert!(read("fabricast-fabric-show.1").contains(".TH fabricast-fabric-show 1"));
    assert!(read("fabricast-plan.1").contains("\\-\\-collective"));
    let files = std::fs::read_dir(folder.path().join("share/man1")).unwrap();
    let names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| name.starts_with("fabricast") && name.ends_with(".1")), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("nvshmem-rank") || name.contains("prove-side")), "{names:?}");
    refused(folder.path(), "man -o share/man1/fabricast.1", "expected a folder");
}

/// Every command with `--network` lists the keys in its long help, and not in its short one.
#[test]
fn help_of_networks_lists_kinds_and_keys() {
    for command in ["plan", "simulate", "compare", "table", "fabric show", "gpu run"] {
        let long = run(&format!("{command} --help"));
        assert_eq!((long.code, long.stderr.as_str()), (0, ""), "{command}");
        for line in
            ["`fat_tree`: leaf, spine and core switches", "`queue_pairs`: queue pairs of a connection", "`groups`: "]
        {
            assert_eq!(
                long.stdout.lines().filter(|text| text.trim().starts_with(line)).count(),
                1,
                "{command}: {line}"
            );
        }
        let short = run(&format!("{command} -h")).stdout;
        assert!(
            short.contains("Network between hosts: a kind and settings") && !short.contains("queue_pairs"),
            "{command}"
        );
    }
}
