//! Entry point of the `fabricast` program: parses arguments, runs the command, reports its failure.

use std::process::ExitCode;
use std::time::Instant;

use clap::{CommandFactory, FromArgMatches};
use fabricast_topologies::visible::is_hidden;

use crate::args::{Cli, Command};
use crate::failure::Failure;
use crate::failure_report::report;
use crate::output::Output;
use crate::terminal::{self, Colours};
use crate::{args, commands, files, run_control};

/// Runs the command that this process's arguments name and returns its exit code: 0 for success, 1 for a failed
/// command, 2 for invalid input or usage, 3 for a missing GPU, 130 after Ctrl-C, 143 after SIGTERM.
#[must_use]
pub fn main() -> ExitCode {
    let (definition, colours) = definition();
    let parsed = definition.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return report_clap_error(&error, colours),
    };
    if matches!(cli.command, Command::Gpu(_)) {
        // The reservation must precede the start of any thread. If it fails, the code that needs it reports the
        // failure.
        let _ = fabricast_validate::nccl::reserve();
    }
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let code = failure.code();
            files::discard();
            report(&failure);
            fabricast_validate::cuda::exit_if_hanging(code);
            ExitCode::from(code)
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    if let Some(threads) = cli.global.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads.into())
            .build_global()
            .map_err(|error| Failure::Failed(format!("cannot start {threads} threads: {error}")))?;
    }
    run_control::stop_on_signals();
    let started = Instant::now();
    let output = Output::new(&cli.global, cli.command.output_kind())?;
    let outcome = commands::run(&cli.command, &output);
    output.release_warnings();
    outcome?;
    output.detail(&format!("took {:.3} s", started.elapsed().as_secs_f64()));
    Ok(())
}

/// Command-line definition, and the use of colours: only if both outputs are terminals and no argument contains control
/// characters, whose sequences could be mistaken for clap's colours.
fn definition() -> (clap::Command, Colours) {
    let is_visible = std::env::args_os().all(|argument| !argument.to_string_lossy().contains(is_hidden));
    match is_visible && terminal::is_output_shown() && terminal::is_error_shown() {
        true => (args::with_examples(Cli::command()), Colours::Own),
        false => (args::with_examples(Cli::command()).styles(clap::builder::Styles::plain()), Colours::None),
    }
}

/// Prints clap's message, which quotes arguments verbatim. Help texts go to standard output as results, errors to
/// standard error.
fn report_clap_error(error: &clap::Error, colours: Colours) -> ExitCode {
    let text = error.render().ansi().to_string();
    if error.use_stderr() {
        terminal::write_stderr_coloured(text.trim_end(), colours);
        return ExitCode::from(2);
    }
    // A failure to print cannot be reported, so it is ignored.
    let _ = terminal::print(&text, colours);
    ExitCode::SUCCESS
}
