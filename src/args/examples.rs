//! Examples at the end of every help text, and the flags that the short help (`-h`) leaves out.

use clap::Command;

/// Number of commands.
const EXAMPLE_COUNT: usize = if cfg!(feature = "serve") { 35 } else { 34 };

/// Three examples of each command, by the words after `fabricast`; lines of a shell.
const EXAMPLES: [(&str, [&str; 3]); EXAMPLE_COUNT] = [
    (
        "",
        [
            "fabricast plan --fabric hgx-h200 --collective all_reduce",
            "fabricast compare allreduce.txt --fabric hgx-h100 --nodes 2",
            "fabricast study study.toml -o results",
        ],
    ),
    (
        "fabric",
        ["fabricast fabric list", "fabricast fabric check topology.xml", "fabricast fabric show hgx-h200 --nodes 2"],
    ),
    (
        "fabric list",
        [
            "fabricast fabric list",
            "fabricast fabric list --format csv",
            "fabricast fabric list --format json -o presets.json",
        ],
    ),
    (
        "fabric show",
        [
            "fabricast fabric show hgx-h200",
            "fabricast fabric show topology.xml --format json",
            "fabricast fabric show hgx-h100 --nodes 4 --network rail,nics_per_node=8,nic=400Gb/s",
        ],
    ),
    (
        "fabric check",
        [
            "fabricast fabric check topology.xml",
            "fabricast fabric check topo.txt --gpu-model h100-sxm",
            "fabricast fabric check hgx-h200 --fail gpu3-nvswitch0",
        ],
    ),
    (
        "fabric export",
        [
            "fabricast fabric export hgx-h200 --to svg -o hgx-h200.svg",
            "fabricast fabric export topo.txt --to nccl-xml -o topology.xml",
            "fabricast fabric export hgx-h200 --nodes 2 --to spec",
        ],
    ),
    (
        "simulate",
        [
            "fabricast simulate --fabric hgx-h200 --collective all_reduce --bytes 1GiB --library nccl-2.28.9",
            "fabricast simulate --fabric hgx-h100 --nodes 4 --collective all_gather --algorithm ring,pat --sizes 1KiB..1GiB:4",
            "fabricast simulate --fabric hgx-h200 --schedule schedule.xml --critical-path",
        ],
    ),
    (
        "schedule",
        [
            "fabricast schedule verify allreduce.xml",
            "fabricast schedule show allreduce.xml --picture allreduce.svg",
            "fabricast schedule generate --fabric hgx-h200 --collective all_gather --algorithm ring --to msccl-xml",
        ],
    ),
    (
        "schedule generate",
        [
            "fabricast schedule generate --fabric hgx-h200 --collective all_gather --algorithm ring -o ring.json",
            "fabricast schedule generate --fabric hgx-h100 --nodes 2 --collective all_reduce --algorithm hierarchical --bytes 1GiB",
            "fabricast schedule generate --fabric hgx-h200 --collective all_reduce --algorithm two_shot --to mscclpp",
        ],
    ),
    (
        "schedule verify",
        [
            "fabricast schedule verify allreduce.xml",
            "fabricast schedule verify plan.json --fifo-depth 8",
            "fabricast schedule verify ring.json --format json",
        ],
    ),
    (
        "schedule certify",
        [
            "fabricast schedule certify trees.json --fabric mi300x",
            "fabricast schedule certify trees.json --fabric mi300x --fail gpu0-gpu1",
            "fabricast schedule certify trees.json --fabric topology.xml --format json",
        ],
    ),
    (
        "schedule convert",
        [
            "fabricast schedule convert allreduce.xml --to json -o allreduce.json",
            "fabricast schedule convert ring.json --to msccl-xml -o ring.xml",
            "fabricast schedule convert ring.json --to mscclpp",
        ],
    ),
    (
        "schedule show",
        [
            "fabricast schedule show ring.json",
            "fabricast schedule show allreduce.xml --limit 1000",
            "fabricast schedule show allreduce.xml --picture allreduce.svg",
        ],
    ),
    (
        "plan",
        [
            "fabricast plan --fabric hgx-h200 --collective all_reduce",
            "fabricast plan --fabric topology.xml --nodes 16 --collective all --sizes 64KiB..1GiB:4 --library nccl-2.28.9",
            "fabricast plan --fabric hgx-h100 --collective all_reduce --bytes 1MiB --all",
        ],
    ),
    (
        "plan diff",
        [
            "fabricast plan diff before.json after.json",
            "fabricast plan diff before.json after.json --format csv",
            "fabricast plan diff a.json b.json --format json -o diff.json",
        ],
    ),
    (
        "table",
        [
            "fabricast table plan.json --to nccl-tuner -o tuner.csv",
            "fabricast table plan.json --explain",
            "fabricast table --check tuner.csv --fabric hgx-h200",
        ],
    ),
    (
        "compare",
        [
            "fabricast compare allreduce.txt --fabric hgx-h100 --nodes 2",
            "fabricast compare alltoall.json --fabric topology.xml --rows outside",
            "fabricast compare manifest.toml --chart errors.svg --max-error 0.2",
        ],
    ),
    (
        "study",
        [
            "fabricast study --template",
            "fabricast study study.toml -o results",
            "fabricast study study.toml --format csv",
        ],
    ),
    (
        "report",
        [
            "fabricast report results/results.json -o study.html",
            "fabricast report plan.json comparison.json",
            "fabricast report run.json trace.json topology.xml -o run.html",
        ],
    ),
    #[cfg(feature = "serve")]
    (
        "serve",
        ["fabricast serve", "fabricast serve --port 0", "fabricast serve --address 10.0.0.7 --port 8080 --host node17"],
    ),
    (
        "calibrate",
        [
            "fabricast calibrate manifest.toml -o profile.toml",
            "fabricast calibrate manifest.toml --hold-out gpus=2 --chart fit.svg",
            "fabricast calibrate run.json --profile nccl-2.28-h200 --prior proportional -o profile.toml",
        ],
    ),
    (
        "gpu",
        [
            "fabricast gpu doctor",
            "fabricast gpu probe --format json",
            "fabricast gpu run --fabric auto --collective all_reduce",
        ],
    ),
    (
        "gpu probe",
        [
            "fabricast gpu probe",
            "fabricast gpu probe --format json",
            "fabricast gpu probe --format json -o machine.json",
        ],
    ),
    ("gpu bench", ["fabricast gpu bench", "fabricast gpu bench -o bench.json", "fabricast gpu bench --format json"]),
    (
        "gpu doctor",
        [
            "fabricast gpu doctor",
            "fabricast gpu doctor --format json",
            "fabricast gpu doctor --format csv -o findings.csv",
        ],
    ),
    (
        "gpu run",
        [
            "fabricast gpu run --fabric auto --collective all_reduce",
            "fabricast gpu run --fabric auto --collective all_gather --algorithm ring --protocol ll --sizes 1KiB..64MiB:8",
            "fabricast gpu run --fabric auto --collective all_reduce --format json -o run.json",
        ],
    ),
    (
        "gpu prove",
        [
            "fabricast gpu prove tuner.csv",
            "fabricast gpu prove tuner.csv --format json",
            "fabricast gpu prove tuner.csv --format csv -o proof.csv",
        ],
    ),
    ("list", ["fabricast list gpus", "fabricast list models", "fabricast list prices"]),
    (
        "list models",
        [
            "fabricast list models",
            "fabricast list models --columns name,parameters,source",
            "fabricast list models --format json",
        ],
    ),
    (
        "list prices",
        ["fabricast list prices", "fabricast list prices --wide", "fabricast list prices --format csv -o prices.csv"],
    ),
    (
        "list gpus",
        ["fabricast list gpus", "fabricast list gpus --wide", "fabricast list gpus --format csv -o gpus.csv"],
    ),
    (
        "list presets",
        [
            "fabricast list presets",
            "fabricast list presets --format json",
            "fabricast list presets --format csv -o presets.csv",
        ],
    ),
    ("schema", ["fabricast schema", "fabricast schema plan -o plan.schema.json", "fabricast schema comparison"]),
    (
        "completions",
        [
            "fabricast completions bash -o ~/.local/share/bash-completion/completions/fabricast",
            "fabricast completions zsh -o ~/.zfunc/_fabricast",
            "fabricast completions fish",
        ],
    ),
    ("man", ["fabricast man -o ~/.local/share/man/man1", "fabricast man", "fabricast man --force -o man1"]),
];

/// Flags that only `--help` lists: settings for unusual machines, calls and files. The short help (`-h`) lists all
/// others.
const RARE_FLAGS: [&str; 28] = [
    "mig",
    "ecmp",
    "ranks_per_gpu",
    "buffers",
    "op",
    "root",
    "in_place",
    "matrix",
    "grid",
    "periodic",
    "chunk",
    "registered",
    "no_verify",
    "flows",
    "background",
    "stragglers",
    "groups",
    "calls",
    "no_fold",
    "utilization_over_time",
    "breakdown",
    "force",
    "threads",
    "fail",
    "slow",
    "no_p2p",
    "no_gdr",
    "shard",
];

/// Adds the examples to the help of every command, and hides rare flags in the short help.
pub fn with_examples(command: Command) -> Command {
    add(command, "")
}

fn add(command: Command, path: &str) -> Command {
    let examples = EXAMPLES.iter().find(|(name, _)| *name == path).map(|(_, lines)| lines.join("\n  "));
    let command = match examples {
        Some(lines) => command.after_help(format!("Examples:\n  {lines}")),
        None => command,
    };
    let rare = |flag: clap::Arg| {
        let is_rare = RARE_FLAGS.contains(&flag.get_id().as_str());
        flag.hide_short_help(is_rare)
    };
    command.mut_args(rare).mut_subcommands(|subcommand| {
        let name = match path {
            "" => subcommand.get_name().to_owned(),
            parent => format!("{parent} {}", subcommand.get_name()),
        };
        add(subcommand, &name)
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::{Cli, every_command};

    #[test]
    fn every_command_has_three_examples_that_parse() {
        let commands = every_command();
        assert_eq!(commands.len(), EXAMPLES.len());
        for (path, _) in commands {
            let name = path.get(1..).unwrap_or_default().join(" ");
            let (_, lines) = EXAMPLES.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}"));
            for line in lines {
                assert!(line.starts_with(&format!("fabricast {name}").trim_end().to_owned()), "{line}");
                if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    #[test]
    fn rare_flags_exist() {
        let mut known = Vec::new();
        fn collect(command: &Command, known: &mut Vec<String>) {
            known.extend(command.get_arguments().map(|flag| flag.get_id().to_string()));
            command.get_subcommands().for_each(|subcommand| collect(subcommand, known));
        }
        collect(&Cli::command(), &mut known);
        for flag in RARE_FLAGS {
            assert!(known.iter().any(|id| id == flag), "{flag}");
        }
    }
}
