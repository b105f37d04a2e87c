//! `completions`: shell completion scripts, generated from the definitions that parse the command line.

use clap_complete::{Shell, generate};

use crate::args::{CompletionsArgs, visible_commands};
use crate::failure::Failure;
use crate::output::Output;

pub fn run(args: &CompletionsArgs, output: &Output) -> Result<(), Failure> {
    output.write(&script(args.shell))
}

fn script(shell: Shell) -> String {
    let mut bytes = Vec::new();
    generate(shell, &mut visible_commands(), env!("CARGO_PKG_NAME"), &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::every_command;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Runs bash and returns the completions that it offers for each command line, whose last word is incomplete.
    fn offered_by_bash(command_lines: &[Vec<String>]) -> Vec<Vec<String>> {
        let mut input = script(Shell::Bash);
        for words in command_lines {
            let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            let last = words.len() - 1;
            input += &format!("\nCOMP_WORDS=({}) COMP_CWORD={last} COMPREPLY=()\n", quoted.join(" "));
            input += &format!("_fabricast fabricast {} {}\n", quoted[last], quoted[last - 1]);
            input += "echo \"${COMPREPLY[*]}\"\n";
        }
        let mut bash =
            Command::new("bash").args(["--norc", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        bash.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = bash.wait_with_output().unwrap();
        assert!(output.status.success());
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// Names of the subcommands of a command.
    fn subcommand_names(command: &clap::Command) -> Vec<String> {
        let visible = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        visible.map(|subcommand| subcommand.get_name().to_owned()).collect()
    }

    fn long_flags(command: &clap::Command) -> Vec<String> {
        let visible = command.get_arguments().filter(|flag| !flag.is_hide_set());
        visible.filter_map(|flag| flag.get_long()).map(|long| format!("--{long}")).collect()
    }

    fn sorted(mut words: Vec<String>) -> Vec<String> {
        words.sort();
        words
    }

    #[test]
    fn bash_completes_all_commands_and_flags() {
        let commands = every_command();
        let command_lines = |prefix: &str| -> Vec<Vec<String>> {
            let words = |path: &Vec<String>| path.iter().cloned().chain([prefix.to_owned()]).collect();
            commands.iter().map(|(path, _)| words(path)).collect()
        };
        let (all, flags) = (offered_by_bash(&command_lines("")), offered_by_bash(&command_lines("--")));
        assert_eq!((all.len(), flags.len()), (commands.len(), commands.len()));
        for (((path, command), all), flags) in commands.iter().zip(all).zip(flags) {
            assert_eq!(sorted(flags), sorted(long_flags(command)), "{path:?}");
            if command.has_subcommands() {
                let offered = all.into_iter().filter(|word| !word.starts_with('-') && word != "help").collect();
                assert_eq!(sorted(offered), sorted(subcommand_names(command)), "{path:?}");
            }
        }
    }

    #[test]
    fn bash_script_has_valid_syntax() {
        let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        bash.stdin.take().unwrap().write_all(script(Shell::Bash).as_bytes()).unwrap();
        let output = bash.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Part of a script from the first occurrence of `begins` to the next `ends`; empty if there is none.
    fn block<'a>(script: &'a str, begins: &str, ends: &str) -> &'a str {
        let rest = script.find(begins).and_then(|start| script.get(start..)).unwrap_or_default();
        rest.split(ends).next().unwrap_or_default()
    }

    #[test]
    fn zsh_completes_all_commands_and_flags() {
        let zsh = script(Shell::Zsh);
        for (path, command) in every_command() {
            let listed = block(&zsh, &format!("\n_{}_commands() {{", path.join("__subcmd__")), "\n}");
            assert!(!listed.is_empty(), "{path:?}");
            for name in subcommand_names(&command) {
                assert!(listed.contains(&format!("\n'{name}:")), "{path:?} {name}");
            }
            // Flags of a subcommand are in its branch of the script; flags of the root command are in front of the
            // first branch.
            let branch = match path.as_slice() {
                [_] => block(&zsh, "_arguments", "&& ret=0").to_owned(),
                [.., last] => {
                    let begins = format!("({last})\n_arguments");
                    let branches = zsh.split(&begins).skip(1);
                    branches.map(|rest| rest.split("&& ret=0").next().unwrap_or_default()).collect()
                }
                [] => String::new(),
            };
            for long in long_flags(&command) {
                let is_known = ["[", "=[", "=-["].iter().any(|end| branch.contains(&format!("{long}{end}")));
                assert!(is_known, "{path:?} {long}");
            }
        }
    }

    #[test]
    fn fish_completes_all_commands_and_flags() {
        let fish = script(Shell::Fish);
        for (path, command) in every_command() {
            // The condition of a line identifies its command.
            let condition = match path.as_slice() {
                [_, one] => format!("\"__fish_fabricast_using_subcommand {one}"),
                [_, one, two] => {
                    format!("\"__fish_fabricast_using_subcommand {one}; and __fish_seen_subcommand_from {two}\"")
                }
                _ => "\"__fish_fabricast_needs_command\"".to_owned(),
            };
            let lines: Vec<&str> = fish.lines().filter(|line| line.contains(&condition)).collect();
            let is_known = |words: &str| lines.iter().any(|line| format!("{line} ").contains(words));
            for name in subcommand_names(&command) {
                assert!(is_known(&format!(" -a \"{name}\" ")), "{path:?} {name}");
            }
            for long in long_flags(&command) {
                assert!(is_known(&format!(" -l {} ", long.trim_start_matches('-'))), "{path:?} {long}");
            }
        }
    }

    #[test]
    fn scripts_are_deterministic() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            assert!(script(shell).contains("fabricast"), "{shell}");
            assert_eq!(script(shell), script(shell), "{shell}");
        }
    }
}
