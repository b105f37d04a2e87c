//! `man`: manual pages, generated from the definitions that parse the command line. Each command has its own page, as
//! in git (`man fabricast-fabric-show`). Pages have no date, so that their text is deterministic.

use clap::Command;
use clap_mangen::Man;

use crate::args::visible_commands;
use crate::failure::Failure;
use crate::files;
use crate::output::Output;

/// Writes all pages to a folder, or the main page to standard output.
pub fn run(output: &Output) -> Result<(), Failure> {
    let pages = pages().map_err(|error| Failure::Failed(format!("cannot write manual pages: {error}")))?;
    match (&output.file, pages.first()) {
        (Some(folder), _) => files::write_folder(folder, &pages, output.replace),
        (None, Some((_, page))) => output.write(page),
        (None, None) => Ok(()),
    }
}

/// Returns the page of every command with its file name; the page of `fabricast` comes first.
fn pages() -> std::io::Result<Vec<(String, String)>> {
    let mut root = with_all_help(visible_commands()).disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add(&root, &mut pages)?;
    Ok(pages)
}

/// Returns the command without hidden flags in the short help, because manual pages would omit the flags that the short
/// help hides.
fn with_all_help(command: Command) -> Command {
    command.mut_args(|flag| flag.hide_short_help(false)).mut_subcommands(with_all_help)
}

fn add(command: &Command, pages: &mut Vec<(String, String)>) -> std::io::Result<()> {
    let page = Man::new(command.clone()).source(concat!("fabricast ", env!("CARGO_PKG_VERSION")));
    let mut bytes = Vec::new();
    page.render(&mut bytes)?;
    pages.push((page.get_filename(), String::from_utf8_lossy(&bytes).into_owned()));
    command.get_subcommands().try_for_each(|subcommand| add(subcommand, pages))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::every_command;

    #[test]
    fn every_command_has_a_page_with_its_flags_and_subcommands() {
        let pages = pages().unwrap();
        let commands = every_command();
        assert_eq!(pages.len(), commands.len());
        for (path, command) in commands {
            let name = format!("{}.1", path.join("-"));
            let (_, page) = pages.iter().find(|(file, _)| *file == name).unwrap_or_else(|| panic!("no {name}"));
            let page = page.replace("\\-", "-");
            let options = page.split(".SH OPTIONS").nth(1).unwrap_or_default();
            for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
                let Some(long) = flag.get_long() else { continue };
                assert!(options.contains(&format!("\\fB--{long}\\fR")), "{name}: --{long}");
                let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
                let mut plain = help.split(|letter: char| !letter.is_alphanumeric() && letter != ' ');
                let first = plain.find(|phrase| phrase.len() > 3).unwrap_or_default();
                assert!(!first.is_empty() && options.contains(first), "{name}: what --{long} does");
            }
            for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
                assert!(
                    page.contains(&format!("{}-{}(1)", path.join("-"), subcommand.get_name())),
                    "{name}: {}",
                    subcommand.get_name()
                );
            }
        }
    }

    #[test]
    fn main_page_comes_first_and_pages_are_deterministic() {
        let generated = pages().unwrap();
        assert_eq!(generated.first().map(|(name, _)| name.as_str()), Some("fabricast.1"));
        assert_eq!(generated, pages().unwrap());
    }
}
