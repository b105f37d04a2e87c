//! The `fabricast` command. It parses arguments, runs a subcommand (one file each under `commands`) and returns its
//! exit code: 0 done, 1 failed, 2 bad input or usage, 3 no GPU, 130 stopped by Ctrl-C, 143 by SIGTERM. The library
//! crates do the work.

mod args;
mod commands;
mod document;
mod excerpt;
mod failure;
mod files;
mod output;
mod output_format;
mod run_control;
mod setup;
mod stop;
mod terminal;

use std::process::ExitCode;
use std::time::Instant;

use clap::{CommandFactory, FromArgMatches};
use fabricast_topologies::visible::is_hidden;
use miette::{GraphicalReportHandler, GraphicalTheme};

use args::{Cli, Command, PlanCommand};
use failure::{DisplayedFailure, Failure};
use output::Output;
use terminal::Colours;

fn main() -> ExitCode {
    let (definition, colours) = definition();
    let parsed = definition.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return report_clap_error(&error, colours),
    };
    if matches!(cli.command, Command::Gpu(_)) {
        // Must precede the start of any thread. A failure is reported by the code that needs the reservation.
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
    match &cli.command {
        Command::Fabric(command) => commands::fabric::run(command, &output),
        Command::Simulate(args) => commands::simulate::run(args, &output),
        Command::Schedule(command) => commands::schedule::run(command, &output),
        Command::Plan(PlanCommand::Make(args)) => commands::plan::run(args, &output),
        Command::Plan(PlanCommand::Diff(args)) => commands::plan_diff::run(args, &output),
        Command::Table(args) => commands::table::run(args, &output),
        Command::Compare(args) => commands::compare::run(args, &output),
        Command::Calibrate(args) => commands::calibrate::run(args, &output),
        Command::Study(args) => commands::study::run(args, &output),
        Command::Report(args) => commands::report::run(args, &output),
        Command::Gpu(command) => commands::gpu::run(command, &output),
        Command::List(command) => commands::list::run(command, &output),
        Command::Schema(args) => commands::schema::run(args, &output),
        Command::Completions(args) => commands::completions::run(args, &output),
        Command::Man => commands::man::run(&output),
    }?;
    output.detail(&format!("took {:.3} s", started.elapsed().as_secs_f64()));
    Ok(())
}

/// Command-line definition, with colours if both outputs are terminals. Arguments with control characters disable
/// colours, so that their sequences cannot pass for clap's.
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
    // A failure to print cannot be reported.
    let _ = terminal::print(&text, colours);
    ExitCode::SUCCESS
}

/// Reports a failure on standard error, with the offending line if there is one. Lines are wrapped only on a terminal;
/// elsewhere the message is one line for programs.
fn report(failure: &Failure) {
    let terminal = terminal::is_error_shown();
    let mut theme = if terminal { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    // The first line begins as clap's errors do.
    theme.characters.error = "error:".to_owned();
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_width(terminal::width().map_or(110, usize::from))
        .with_wrap_lines(terminal)
        .with_links(false);
    let failure = DisplayedFailure::new(failure);
    let mut text = String::new();
    if handler.render_report(&mut text, &failure).is_err() {
        text = failure.to_string();
    }
    terminal::write_stderr_coloured(text.trim(), if terminal { Colours::Own } else { Colours::None });
}
