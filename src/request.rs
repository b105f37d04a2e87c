//! Commands as calls from another program: the input is a list of settings by flag name, and the output is the
//! command's JSON document.
//!
//! A request is parsed with the definition of the command line, so that values, defaults, conflicts and messages equal
//! those of the command.

mod flags;
mod schedule_file;
mod schedule_kernel;

use std::ffi::OsString;
use std::sync::Arc;

use clap::Parser;
use fabricast_topologies::SourceLocation;
use fabricast_topologies::visible::visible_lines;

use crate::args::{Cli, Command};
use crate::commands;
pub use crate::control::{CommandAnswer, CommandProgress, Control, Position};
use crate::failure::Failure;
use crate::output::Output;
pub use flags::{Flag, FlagKind, FlagValue, flags};
pub use schedule_file::{ScheduleFile, ScheduleFileFormat};
pub use schedule_kernel::{KernelParameters, KernelTarget, ScheduleKernel};

/// Value of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The flag without a value.
    Switch,
    /// The flag, repeated for each of these values.
    Values(Vec<OsString>),
}

impl Setting {
    /// A single value.
    #[must_use]
    pub fn value(value: impl Into<OsString>) -> Self {
        Self::Values(vec![value.into()])
    }
}

/// Call of a command.
#[derive(Debug)]
pub struct Request(Cli);

/// Failed call of a command.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// Error message of the command, without the excerpt of the file.
    pub message: String,
    /// Suggested fix.
    pub help: Option<String>,
    /// Source location of the error; its line is 0 if only the file is known.
    pub location: Option<SourceLocation>,
    /// Exit code of the command: 1 failed, 2 bad input or usage, 3 no GPU, 130 stopped by [`Control::stop`].
    pub exit_code: u8,
    /// Result and warnings before the failure, such as the fault of a schedule that failed its verification.
    pub answer: Box<CommandAnswer>,
}

impl Request {
    /// Creates a request from the words of a command (`["fabric", "show"]`), its positional arguments, and its flags by
    /// their long names.
    ///
    /// # Errors
    /// [`RequestError`] with exit code 2: an unknown flag, a value that the command rejects, flags in conflict.
    pub fn new(command: &[&str], positionals: &[OsString], settings: &[(&str, Setting)]) -> Result<Self, RequestError> {
        let mut words: Vec<OsString> = vec!["fabricast".into()];
        words.extend(command.iter().map(Into::into));
        for (name, setting) in settings {
            match setting {
                Setting::Switch => words.push(format!("--{name}").into()),
                Setting::Values(values) => words.extend(values.iter().map(|value| {
                    let mut word = OsString::from(format!("--{name}="));
                    word.push(value);
                    word
                })),
            }
        }
        words.push("--format=json".into());
        if !positionals.is_empty() {
            words.push("--".into());
            words.extend(positionals.iter().cloned());
        }
        let cli = Cli::try_parse_from(words).map_err(|error| usage_error(&error))?;
        match cli.command {
            // GPU commands start helper processes of this program and reserve GPUs before its threads start.
            Command::Gpu(_) => Err(Failure::input("gpu commands need a separate process: run `fabricast gpu`")),
            #[cfg(feature = "serve")]
            Command::Serve(_) => Err(Failure::input("serve needs a separate process: run `fabricast serve`")),
            _ => Ok(Self(cli)),
        }
        .map_err(|failure| RequestError::new(&failure, CommandAnswer::default()))
    }

    /// Runs the command. `control` receives its result and can stop it from another thread.
    ///
    /// # Errors
    /// [`RequestError`]: every failure that ends the command with an exit code other than 0.
    pub fn run(&self, control: &Arc<Control>) -> Result<CommandAnswer, RequestError> {
        answer_of(control, || match self.0.global.threads {
            None => self.run_on_current_pool(control),
            Some(threads) => rayon::ThreadPoolBuilder::new()
                .num_threads(threads.into())
                .build()
                .map_err(|error| Failure::Failed(format!("cannot start {threads} threads: {error}")))
                .and_then(|pool| pool.install(|| self.run_on_current_pool(control))),
        })
    }

    fn run_on_current_pool(&self, control: &Arc<Control>) -> Result<(), Failure> {
        let Cli { command, global } = &self.0;
        let output = Output::new(global, command.output_kind())?.to_caller(Arc::clone(control));
        commands::run(command, &output)
    }
}

impl RequestError {
    fn new(failure: &Failure, answer: CommandAnswer) -> Self {
        let (help, location) = match failure {
            Failure::Input { help, location, .. } => (help.as_deref(), location.as_deref()),
            _ => Default::default(),
        };
        Self {
            message: visible_lines(&failure.to_string()).into_owned(),
            help: help.map(|help| visible_lines(help).into_owned()),
            location: location.cloned(),
            exit_code: failure.code(),
            answer: Box::new(answer),
        }
    }
}

/// Runs `work`, whose output goes to `control`, and returns the result and the warnings that `control` received.
fn answer_of(control: &Control, work: impl FnOnce() -> Result<(), Failure>) -> Result<CommandAnswer, RequestError> {
    control.with_answer(|answer| *answer = CommandAnswer::default());
    let outcome = work();
    let answer = control.with_answer(std::mem::take);
    match outcome {
        Ok(()) => Ok(answer),
        Err(failure) => Err(RequestError::new(&failure, answer)),
    }
}

/// Error of clap without its heading and its references to the command line.
fn usage_error(error: &clap::Error) -> RequestError {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage:", "\n\nFor more information"].iter().filter_map(|mark| text.find(mark)).min();
    let message = text.get(..end.unwrap_or(text.len())).unwrap_or(text).trim_end();
    RequestError::new(&Failure::input(message), CommandAnswer::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulate(settings: &[(&str, &str)]) -> Result<CommandAnswer, RequestError> {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, Setting::value(value))).collect();
        Request::new(&["simulate"], &[], &settings)?.run(&Arc::default())
    }

    #[test]
    fn result_is_the_document_of_the_command() {
        let answer = simulate(&[("fabric", "dgx-a100"), ("collective", "all_reduce"), ("bytes", "64KiB")]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&answer.result.unwrap()).unwrap();
        assert_eq!(json["format"], "fabricast-simulation/2");
        assert_eq!(json["bytes"], 64 << 10);
    }

    #[test]
    fn warnings_reach_the_caller() {
        let settings = [
            ("fabric", "dgx-a100"),
            ("collective", "all_reduce"),
            ("bytes", "64KiB"),
            ("fail", "gpu3"),
            ("threads", "1"),
        ];
        let answer = simulate(&settings).unwrap();
        assert_eq!(answer.warnings, ["7 of 8 GPUs remain, and ranks are numbered over those"]);
    }

    #[test]
    fn rejected_values_and_flags_are_usage_errors() {
        for (name, value, message) in [
            ("collective", "all_produce", "invalid value 'all_produce' for '--collective <NAME>'"),
            ("colective", "all_reduce", "unexpected argument '--colective' found"),
            ("nodes", "-1", "invalid value '-1' for '--nodes <N>'"),
        ] {
            let error = simulate(&[("fabric", "dgx-a100"), (name, value)]).unwrap_err();
            assert!(error.message.starts_with(message) && !error.message.contains("Usage:"), "{error}");
            assert_eq!(error.exit_code, 2);
        }
    }

    #[test]
    fn errors_in_files_have_line_and_column() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("spec.toml");
        std::fs::write(&file, "name = \"x\"\n[[node]]\nid = 7\n").unwrap();
        let error = Request::new(&["fabric", "check"], &[file.clone().into()], &[]).unwrap().run(&Arc::default());
        let location = error.unwrap_err().location.unwrap();
        assert_eq!((location.source.as_str(), location.line, location.column), (file.to_str().unwrap(), 3, 6));
    }

    #[test]
    fn wrong_schedule_fails_with_its_fault() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ring.json");
        let settings = ["fabric=dgx-a100", "collective=all_gather", "bytes=64KiB", "algorithm=ring", "protocol=simple"]
            .map(|setting| setting.split_once('=').map(|(name, value)| (name, Setting::value(value))).unwrap());
        let generated = Request::new(&["schedule", "generate"], &[], &settings).unwrap().run(&Arc::default()).unwrap();
        // The first message is sent to a wrong rank, so the schedule is incorrect.
        let schedule = generated.result.unwrap().replacen("\"peer\":1", "\"peer\":2", 1);
        std::fs::write(&file, schedule).unwrap();
        let error =
            Request::new(&["schedule", "verify"], &[file.into()], &[]).unwrap().run(&Arc::default()).unwrap_err();
        assert_eq!(error.exit_code, 1, "{error}");
        assert!(error.answer.result.unwrap().contains("\"ok\": false"));
    }

    #[test]
    fn progress_ends_at_the_total_and_does_not_change_the_result() {
        let settings = [("fabric", "dgx-a100"), ("collective", "all_reduce"), ("sizes", "1KiB..64KiB:4")];
        let settings = settings.map(|(name, value)| (name, Setting::value(value)));
        let [silent, observed] = [false, true].map(|is_observed| {
            let control = Arc::<Control>::default();
            if is_observed {
                control.request_progress();
            }
            let answer = Request::new(&["plan"], &[], &settings).unwrap().run(&control).unwrap();
            (answer.result, control.progress())
        });
        assert_eq!(silent.1, None);
        let position = Position { done: 4, total: 4 };
        assert_eq!(observed.1, Some(CommandProgress { label: "planning".to_owned(), position }));
        assert_eq!(silent.0, observed.0);
    }

    #[test]
    fn stopped_commands_have_no_result() {
        let control = Arc::<Control>::default();
        control.stop();
        let folder = tempfile::tempdir().unwrap();
        let [job, times] = ["job.csv", "times.csv"].map(|name| folder.path().join(name));
        std::fs::write(&job, "collective,bytes\nall_reduce,1MiB\nall_gather,4MiB\n").unwrap();
        std::fs::write(&times, "bytes,time_us\n1024,20\n4096,21\n").unwrap();
        let fabric = ("fabric", Setting::value("dgx-a100"));
        let collective = ("collective", Setting::value("all_reduce"));
        for (command, files, setting) in [
            ("simulate", vec![], collective.clone()),
            ("plan", vec![], collective.clone()),
            ("simulate", vec![], ("job", Setting::value(&job))),
            ("plan", vec![], ("job", Setting::value(&job))),
            ("compare", vec![times.into()], collective),
        ] {
            let error =
                Request::new(&[command], &files, &[fabric.clone(), setting]).unwrap().run(&control).unwrap_err();
            assert_eq!((error.exit_code, error.answer.result), (130, None), "{command}: {}", error.message);
        }
    }
}
