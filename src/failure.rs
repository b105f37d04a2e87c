//! Failures of commands: exit codes and messages.

use std::path::Path;

use fabricast_topologies::SourceLocation;
use fabricast_topologies::read::{Limit, read_text_file};
use fabricast_topologies::visible::visible_lines;
use miette::Diagnostic;

use crate::excerpt::Excerpt;

/// Failure with a documented exit code: 1 failed, 2 bad input or usage, 3 no GPU.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command ran with a negative result: exit code 1.
    #[error("{0}")]
    Failed(String),
    /// Wrong input or usage: exit code 2.
    #[error("{message}")]
    Input {
        /// Error message without the excerpt.
        message: String,
        /// Suggested fix.
        help: Option<String>,
        /// Source location of the error, if there is one.
        location: Option<Box<SourceLocation>>,
        /// Excerpt of the text around the error, if the text is available.
        excerpt: Option<Box<Excerpt>>,
    },
    /// A required GPU or driver is missing: exit code 3.
    #[error("{0}")]
    NoGpu(String),
    /// Stopped by Ctrl-C or SIGTERM, after resources were released: exit code 130 or 143, by shell convention.
    #[error("{}", crate::stop::stop_message())]
    Interrupted,
}

impl Failure {
    /// Creates an input failure without a source location.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input { message: shorten_words(&message.into()), help: None, location: None, excerpt: None }
    }

    /// Creates an input failure with a suggested fix.
    pub fn input_with_help(message: impl Into<String>, help: impl Into<String>) -> Self {
        let (message, help) = (shorten_words(&message.into()), Some(help.into()));
        Self::Input { message, help, location: None, excerpt: None }
    }

    /// Creates an input failure with a source location, whose line is shown if the file can be read again.
    pub fn input_at(message: impl Into<String>, help: Option<String>, location: Option<&SourceLocation>) -> Self {
        let excerpt = location.filter(|location| location.line > 0).and_then(|location| {
            let text = read_text_file(Path::new(&location.source), Limit::SCHEDULE).ok()?;
            Excerpt::new(&text, location).map(Box::new)
        });
        let location = location.cloned().map(Box::new);
        Self::Input { message: shorten_words(&message.into()), help, location, excerpt }
    }

    /// Adds a suggested fix, unless there is one.
    pub fn or_with_help(mut self, advice: &str) -> Self {
        if let Self::Input { help: help @ None, .. } = &mut self {
            *help = Some(advice.to_owned());
        }
        self
    }

    /// Adds the file name to the message, unless the message contains it. The file becomes the location of the error if
    /// there is none.
    pub fn with_file(mut self, path: &Path) -> Self {
        let name = path.display().to_string();
        if let Self::Input { location: location @ None, .. } = &mut self {
            *location = Some(Box::new(SourceLocation::from_source(&name)));
        }
        match &mut self {
            Self::Failed(message) | Self::Input { message, .. } if !message.contains(&name) => {
                *message = format!("{name}: {message}");
            }
            _ => {}
        }
        self
    }

    /// Exit code of the process after this failure.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Input { .. } => 2,
            Self::NoGpu(_) => 3,
            Self::Interrupted => crate::stop::stop_exit_code(),
        }
    }
}

/// Maximum length of a word in a message, in bytes. Longer words come from files and are cut.
const MAX_WORD_LENGTH: usize = 300;

/// Returns the message with overlong words cut in the middle.
fn shorten_words(message: &str) -> String {
    if message.len() <= MAX_WORD_LENGTH {
        return message.to_owned();
    }
    let words = message.split(' ').map(|word| {
        let length = word.chars().count();
        if length <= MAX_WORD_LENGTH {
            return word.to_owned();
        }
        let head: String = word.chars().take(MAX_WORD_LENGTH / 2).collect();
        let tail: String = word.chars().skip(length - MAX_WORD_LENGTH / 4).collect();
        format!("{head}…{tail}")
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Displayable failure: control characters from files, names and other software are made visible.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DisplayedFailure<'a> {
    message: String,
    help: Option<String>,
    excerpt: Option<&'a Excerpt>,
}

impl<'a> DisplayedFailure<'a> {
    /// Creates the displayable form of a failure.
    pub fn new(failure: &'a Failure) -> Self {
        let message = visible_lines(&failure.to_string()).into_owned();
        match failure {
            Failure::Input { help, excerpt, .. } => {
                let help = help.as_deref().map(|help| visible_lines(help).into_owned());
                Self { message, help, excerpt: excerpt.as_deref() }
            }
            _ => Self { message, help: None, excerpt: None },
        }
    }
}

impl Diagnostic for DisplayedFailure<'_> {
    fn help<'b>(&'b self) -> Option<Box<dyn std::fmt::Display + 'b>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn std::fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.excerpt.map(|excerpt| excerpt as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let excerpt = self.excerpt?;
        Some(Box::new(std::iter::once(miette::LabeledSpan::new_with_span(Some("here".into()), excerpt.span()))))
    }
}

impl From<fabricast_topologies::Error> for Failure {
    fn from(error: fabricast_topologies::Error) -> Self {
        Self::input_at(error.to_string(), error.help().map(str::to_owned), error.location())
    }
}

impl From<fabricast_sim::profile::ProfileError> for Failure {
    fn from(error: fabricast_sim::profile::ProfileError) -> Self {
        Self::input_at(error.to_string(), None, error.location())
    }
}

impl From<fabricast_sim::SimulateError> for Failure {
    fn from(error: fabricast_sim::SimulateError) -> Self {
        use fabricast_sim::SimulateError as E;
        use fabricast_sim::engine::EngineError;
        use fabricast_sim::lower::LowerError;
        match error {
            error if error.is_interrupt() => Self::Interrupted,
            E::Engine(deadlock @ EngineError::Deadlock { .. }) => Self::Failed(deadlock.to_string()),
            E::Lower(LowerError::Unreachable(error)) => Self::from(error)
                .or_with_help("`fabricast fabric check` lists unconnected devices; --fail removes links and devices"),
            other => Self::input(other.to_string()),
        }
    }
}

impl From<fabricast_search::plan::PlanError> for Failure {
    fn from(error: fabricast_search::plan::PlanError) -> Self {
        use fabricast_search::plan::PlanError as E;
        use fabricast_sim::SimulateError::Engine;
        use fabricast_sim::engine::EngineError::TooLong;
        match error {
            E::Interrupted => Self::Interrupted,
            // A missing path is an error of the fabric, not of the strategy.
            E::Simulation { source, .. } if !matches!(*source, Engine(TooLong { .. })) => (*source).into(),
            other => Self::input(other.to_string()),
        }
    }
}

impl From<fabricast_workload::job::JobError> for Failure {
    fn from(error: fabricast_workload::job::JobError) -> Self {
        Self::input_at(error.to_string(), error.help.clone(), Some(&error.location))
    }
}

impl From<fabricast_perf::step::TimeError> for Failure {
    fn from(error: fabricast_perf::step::TimeError) -> Self {
        use fabricast_perf::step::TimeError as E;
        match error {
            E::Job(error) => error.into(),
            E::Plan(error) => error.into(),
        }
    }
}

impl From<fabricast_study::StudyError> for Failure {
    fn from(error: fabricast_study::StudyError) -> Self {
        use fabricast_study::StudyError as E;
        match &error {
            E::Study(job) | E::Job { error: job, .. } => {
                Self::input_at(error.to_string(), job.help.clone(), Some(&job.location))
            }
            E::Plan { .. } | E::Profile { .. } => Self::input(error.to_string()),
        }
    }
}

impl From<fabricast_validate::measured::MeasuredError> for Failure {
    fn from(error: fabricast_validate::measured::MeasuredError) -> Self {
        Self::input_at(error.to_string(), error.help().map(str::to_owned), error.location())
    }
}

impl From<fabricast_validate::compare::CompareError> for Failure {
    fn from(error: fabricast_validate::compare::CompareError) -> Self {
        use fabricast_validate::compare::CompareError as E;
        match error {
            E::Profile(error) => error.into(),
            E::Plan { location: place, source } => Self::input_at(format!("{place}: {source}"), None, Some(&place)),
            E::NoRows => Self::input(error.to_string()),
            E::Interrupted => Self::Interrupted,
        }
    }
}

impl From<fabricast_validate::calibrate::CalibrateError> for Failure {
    fn from(error: fabricast_validate::calibrate::CalibrateError) -> Self {
        match error {
            fabricast_validate::calibrate::CalibrateError::Interrupted => Self::Interrupted,
            error => Self::input(error.to_string()),
        }
    }
}

impl From<fabricast_validate::execute::ExecuteError> for Failure {
    fn from(error: fabricast_validate::execute::ExecuteError) -> Self {
        use fabricast_validate::execute::ExecuteError as E;
        match error {
            E::Cuda(cuda) => cuda.into(),
            E::TooFewGpus { .. } => Self::NoGpu(error.to_string()),
            E::Kernel(_) | E::Unsupported { .. } | E::TooManyBlocks { .. } => Self::input(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<fabricast_validate::cuda::CudaError> for Failure {
    fn from(error: fabricast_validate::cuda::CudaError) -> Self {
        match error {
            fabricast_validate::cuda::CudaError::Interrupted => Self::Interrupted,
            error if error.is_absence() => Self::NoGpu(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<fabricast_validate::gpu::bench::BenchError> for Failure {
    fn from(error: fabricast_validate::gpu::bench::BenchError) -> Self {
        match error {
            fabricast_validate::gpu::bench::BenchError::Cuda(error) => error.into(),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<fabricast_validate::gpu::bench::BenchFileError> for Failure {
    fn from(error: fabricast_validate::gpu::bench::BenchFileError) -> Self {
        Self::input_at(error.to_string(), None, error.location())
    }
}
