//! Arguments of `completions`, and the command definitions for completions and manual pages.

use clap::{Arg, Args, Command, CommandFactory, Id};
use clap_complete::Shell;

use super::Cli;

/// Arguments of `completions`.
#[derive(Clone, Copy, Debug, Args)]
pub struct CompletionsArgs {
    /// Shell that reads the script
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Returns the command definitions without hidden items, which are helper processes and fault injection.
pub fn visible_commands() -> Command {
    without_hidden(super::with_examples(Cli::command()))
}

/// Removes hidden subcommands and arguments. Clap cannot remove them, so a command that has any is rebuilt.
fn without_hidden(command: Command) -> Command {
    let command = command.mut_subcommands(without_hidden);
    if !command.get_subcommands().any(Command::is_hide_set) && !command.get_arguments().any(Arg::is_hide_set) {
        return command;
    }
    let is_visible = |id: &Id| command.get_arguments().all(|flag| flag.get_id() != id || !flag.is_hide_set());
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .after_help(command.get_after_help().cloned().unwrap_or_default())
        .subcommand_required(command.is_subcommand_required_set())
        .args(command.get_arguments().filter(|flag| !flag.is_hide_set()).cloned())
        .groups(command.get_groups().filter(|group| group.get_args().all(is_visible)).cloned())
        .subcommands(command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).cloned())
}

/// Returns every visible command with the words that name it, beginning with the root command. Completions and manual
/// pages must cover all of them. Clap's own `help` subcommand is excluded.
#[cfg(test)]
pub fn every_command() -> Vec<(Vec<String>, Command)> {
    fn add(parents: &[String], command: &Command, commands: &mut Vec<(Vec<String>, Command)>) {
        let path = [parents, &[command.get_name().to_owned()]].concat();
        commands.push((path.clone(), command.clone()));
        command
            .get_subcommands()
            .filter(|subcommand| !subcommand.is_hide_set())
            .for_each(|subcommand| add(&path, subcommand, commands));
    }
    // Uses the original definitions, independent of `without_hidden`.
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut commands = Vec::new();
    add(&[], &root, &mut commands);
    commands
}
