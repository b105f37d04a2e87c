//! Arguments of `completions`, and the commands that completions and manual pages tell of.

use clap::{Arg, Args, Command, CommandFactory, Id};
use clap_complete::Shell;

use super::Cli;

/// Completions of a shell.
#[derive(Clone, Copy, Debug, Args)]
pub struct CompletionsArgs {
    /// The shell that they are for
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The definitions of the command line without what `--help` hides: processes that commands start for themselves, faults for tests.
pub fn told_commands() -> Command {
    told(Cli::command())
}

/// Clap takes no command and no flag out again, so a command with something hidden is made anew.
fn told(command: Command) -> Command {
    let command = command.mut_subcommands(told);
    if !command.get_subcommands().any(Command::is_hide_set) && !command.get_arguments().any(Arg::is_hide_set) {
        return command;
    }
    let is_told = |id: &Id| command.get_arguments().all(|flag| flag.get_id() != id || !flag.is_hide_set());
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .subcommand_required(command.is_subcommand_required_set())
        .args(command.get_arguments().filter(|flag| !flag.is_hide_set()).cloned())
        .groups(command.get_groups().filter(|group| group.get_args().all(is_told)).cloned())
        .subcommands(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned())
}

/// Every command that is told of with the words that name it, the whole first: what completions and manual pages must hold. The
/// `help` of clap, which repeats them all, is none.
#[cfg(test)]
pub fn every_command() -> Vec<(Vec<String>, Command)> {
    fn add(above: &[String], command: &Command, all: &mut Vec<(Vec<String>, Command)>) {
        let path = [above, &[command.get_name().to_owned()]].concat();
        all.push((path.clone(), command.clone()));
        command.get_subcommands().filter(|below| !below.is_hide_set()).for_each(|below| add(&path, below, all));
    }
    // Straight from the definitions, not by way of `told`.
    let mut whole = Cli::command().disable_help_subcommand(true);
    whole.build();
    let mut all = Vec::new();
    add(&[], &whole, &mut all);
    all
}
