//! How a command fails: the exit code, and what the user reads.

use std::path::Path;

use fabricast_topologies::Place;
use fabricast_topologies::read::{Limit, text_of_file};
use fabricast_topologies::visible::visible_lines;
use miette::Diagnostic;

use crate::excerpt::Excerpt;

/// A failure with an exit code of the contract: 1 failed, 2 bad input or usage, 3 no GPU.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command ran and its answer is no: exit 1.
    #[error("{0}")]
    Failed(String),
    /// The input or the usage is wrong: exit 2.
    #[error("{message}")]
    Input {
        /// What is wrong.
        message: String,
        /// What to do.
        help: Option<String>,
        /// The offending text, where there is one.
        excerpt: Option<Box<Excerpt>>,
    },
    /// A GPU or driver is needed and missing: exit 3.
    #[error("{0}")]
    NoGpu(String),
    /// Ctrl-C or SIGTERM, after everything was given back: exit 130 or 143, as shells count.
    #[error("{}", crate::watch::stopped_by())]
    Interrupted,
}

impl Failure {
    /// Bad input without a place.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input { message: shortened(&message.into()), help: None, excerpt: None }
    }

    /// Bad input with advice.
    pub fn input_with_help(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Input { message: shortened(&message.into()), help: Some(help.into()), excerpt: None }
    }

    /// Bad input at a place, shown with its line where the file can be read again.
    pub fn at(message: impl Into<String>, help: Option<String>, place: Option<&Place>) -> Self {
        let excerpt = place.filter(|place| place.line > 0).and_then(|place| {
            let text = text_of_file(Path::new(&place.source), Limit::SCHEDULE).ok()?;
            Excerpt::new(&text, place).map(Box::new)
        });
        Self::Input { message: shortened(&message.into()), help, excerpt }
    }

    /// The same with advice, where there is none yet.
    pub fn or_help(mut self, advice: &str) -> Self {
        if let Self::Input { help: help @ None, .. } = &mut self {
            *help = Some(advice.to_owned());
        }
        self
    }

    /// The same of a file, named before the message unless it stands there already.
    pub fn of_file(mut self, path: &Path) -> Self {
        let name = path.display().to_string();
        match &mut self {
            Self::Failed(message) | Self::Input { message, .. } if !message.contains(&name) => {
                *message = format!("{name}: {message}");
            }
            _ => {}
        }
        self
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Input { .. } => 2,
            Self::NoGpu(_) => 3,
            Self::Interrupted => crate::watch::stopped(),
        }
    }
}

/// A word of a message longer than this is cut: it comes from a file, and nobody reads a megabyte.
const LONGEST_WORD: usize = 300;

/// The message with overlong words cut in the middle.
fn shortened(message: &str) -> String {
    if message.len() <= LONGEST_WORD {
        return message.to_owned();
    }
    let words = message.split(' ').map(|word| {
        let letters = word.chars().count();
        if letters <= LONGEST_WORD {
            return word.to_owned();
        }
        let head: String = word.chars().take(LONGEST_WORD / 2).collect();
        let tail: String = word.chars().skip(letters - LONGEST_WORD / 4).collect();
        format!("{head}…{tail}")
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A failure as it is shown: whatever its message repeats of files, names and other software, without what a terminal would
/// obey.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Shown<'a> {
    message: String,
    help: Option<String>,
    excerpt: Option<&'a Excerpt>,
}

impl<'a> Shown<'a> {
    /// A failure, made visible.
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

impl Diagnostic for Shown<'_> {
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
        Self::at(error.to_string(), error.help().map(str::to_owned), error.place())
    }
}

impl From<fabricast_sim::profile::ProfileError> for Failure {
    fn from(error: fabricast_sim::profile::ProfileError) -> Self {
        Self::at(error.to_string(), None, error.place())
    }
}

impl From<fabricast_sim::SimulateError> for Failure {
    fn from(error: fabricast_sim::SimulateError) -> Self {
        use fabricast_sim::SimulateError as E;
        use fabricast_sim::engine::EngineError;
        use fabricast_sim::lower::LowerError;
        match error {
            E::Engine(deadlock @ EngineError::Deadlock { .. }) => Self::Failed(deadlock.to_string()),
            E::Lower(LowerError::Unreachable(error)) => Self::from(error)
                .or_help("`fabricast fabric check` lists what is not joined; --fail takes links and devices away"),
            other => Self::input(other.to_string()),
        }
    }
}

impl From<fabricast_planner::plan::PlanError> for Failure {
    fn from(error: fabricast_planner::plan::PlanError) -> Self {
        use fabricast_planner::plan::PlanError as E;
        use fabricast_sim::SimulateError::Engine;
        use fabricast_sim::engine::EngineError::TooLong;
        match error {
            // A missing path is not the strategy's fault.
            E::Simulation { source, .. } if !matches!(*source, Engine(TooLong { .. })) => (*source).into(),
            other => Self::input(other.to_string()),
        }
    }
}

impl From<fabricast_planner::job::JobError> for Failure {
    fn from(error: fabricast_planner::job::JobError) -> Self {
        Self::at(error.to_string(), error.help.clone(), Some(&error.place))
    }
}

impl From<fabricast_planner::step::TimeError> for Failure {
    fn from(error: fabricast_planner::step::TimeError) -> Self {
        use fabricast_planner::step::TimeError as E;
        match error {
            E::Job(error) => error.into(),
            E::Plan(error) => error.into(),
        }
    }
}

impl From<fabricast_planner::study::StudyError> for Failure {
    fn from(error: fabricast_planner::study::StudyError) -> Self {
        use fabricast_planner::study::StudyError as E;
        match &error {
            E::Study(job) | E::Job { error: job, .. } => {
                Self::at(error.to_string(), job.help.clone(), Some(&job.place))
            }
            E::Plan { .. } | E::Profile { .. } => Self::input(error.to_string()),
        }
    }
}

impl From<fabricast_validate::measured::MeasuredError> for Failure {
    fn from(error: fabricast_validate::measured::MeasuredError) -> Self {
        Self::at(error.to_string(), error.help().map(str::to_owned), error.place())
    }
}

impl From<fabricast_validate::compare::CompareError> for Failure {
    fn from(error: fabricast_validate::compare::CompareError) -> Self {
        use fabricast_validate::compare::CompareError as E;
        match error {
            E::Profile(error) => error.into(),
            E::Plan { place, source } => Self::at(format!("{place}: {source}"), None, Some(&place)),
            E::NoRows => Self::input(error.to_string()),
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
        Self::at(error.to_string(), None, error.place())
    }
}
