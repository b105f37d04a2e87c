//! Answers of forms: the study of a form, read and run as by `fabricast study`, with runs cached between forms.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fabricast_reports::page::{self, Page};
use fabricast_study::answer::{Answer, build_answer};
use fabricast_study::cases::{Cases, RunSpec};
use fabricast_study::key::Key;
use fabricast_study::{Outcome, Run, Watch};
use fabricast_topologies::FabricRequest;
use rustc_hash::FxHashMap;

use super::cache::Cache;
use super::form::{FormError, StudyText};
use crate::commands::study::LoadedStudy;
use crate::control::Control;
use crate::failure::Failure;
use crate::output::{self, Output};

/// Maximum number of cached runs.
const MAX_RUNS: usize = 1024;

/// Path of a form's study in source locations. Its file name is that of the download, so that results are equal; errors
/// show excerpts of files, and there is no such file.
const STUDY_PATH: &str = "<form>/study.toml";

/// Number of open sections of a summary: the ranking, and cost against speed.
const OPEN_SECTIONS: usize = 2;

/// Answer of a study in the forms that the page offers.
#[derive(Clone, Debug)]
pub struct StudyAnswer {
    answer: Answer,
}

impl StudyAnswer {
    /// Returns `results.json`, byte for byte as `fabricast study --format json` prints it.
    ///
    /// # Errors
    /// [`Failure`]: the answer cannot be written as JSON.
    pub fn json(&self) -> Result<String, Failure> {
        Ok(format!("{}\n", output::json(&self.answer)?))
    }

    /// Returns the answer in a sentence.
    pub fn sentence(&self) -> String {
        self.page().answer.into_iter().next().unwrap_or_default()
    }

    /// Returns the answer as HTML to insert into the page.
    pub fn summary(&self) -> String {
        self.page().summary(OPEN_SECTIONS)
    }

    /// Returns the answer as a separate page.
    pub fn page(&self) -> Page {
        page::study_page(&self.answer, &[])
    }
}

/// Failed computation of an answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AnswerError {
    /// The study of the form is refused.
    #[error(transparent)]
    Refused(#[from] FormError),
    /// Stopped, because nobody waits for the answer.
    #[error("stopped, because nobody waited for the answer: send the form again")]
    Stopped,
    /// An error of the program.
    #[error("the answer cannot be computed: {0}")]
    Failed(String),
}

/// Progress and stop flag of a computation.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of runs done.
    pub done: AtomicUsize,
    /// Number of runs to do; 0 until it is known.
    pub total: AtomicUsize,
    /// True when the computation no longer waits for others.
    pub begun: AtomicBool,
    /// Flag that stops the computation after its current runs.
    pub stop: AtomicBool,
}

/// Computes answers. Runs of earlier studies are cached: a study with other prices needs no new run.
#[derive(Debug)]
pub struct Answerer {
    outcomes: Mutex<Cache<Key, Arc<Outcome>>>,
}

impl Default for Answerer {
    fn default() -> Self {
        Self { outcomes: Mutex::new(Cache::new(MAX_RUNS)) }
    }
}

impl Answerer {
    /// Answers a study on threads of its own, as many as the common pool has. In the common pool, a short study would
    /// wait for the runs of a long one; the operating system divides the cores among pools.
    ///
    /// # Errors
    /// [`AnswerError`]: the study is refused, the computation was stopped, or the threads cannot be started.
    pub fn answer(&self, study: &StudyText, progress: &Progress) -> Result<StudyAnswer, AnswerError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(rayon::current_num_threads()).build();
        let pool = pool.map_err(|error| AnswerError::Failed(error.to_string()))?;
        pool.install(|| self.answer_here(study, progress))
    }

    /// Answers a study on the threads of the current pool.
    fn answer_here(&self, study: &StudyText, progress: &Progress) -> Result<StudyAnswer, AnswerError> {
        let failed = |failure: Failure| error_of_form(study, failure);
        // Warnings about fabrics belong to the commands; the answer contains the notes of the study.
        let silent = Output::for_caller(Arc::new(Control::default()));
        let loaded = LoadedStudy::from_text(&study.toml, STUDY_PATH, Path::new(""), &silent);
        let loaded = loaded.and_then(LoadedStudy::validate).map_err(failed)?;
        let load = |request: &FabricRequest| loaded.load(request);
        let cases = Cases::new(&loaded.study, &loaded.fabrics, &load).map_err(|error| failed(error.into()))?;
        let mut outcomes = self.cached(&cases);
        let missing: Vec<RunSpec> =
            cases.runs.iter().copied().filter(|case| !outcomes.contains_key(&case.key)).collect();
        progress.total.store(missing.len(), Ordering::Relaxed);
        let ended = |run: &Run| self.cache(run);
        let watch = Watch { ended: &ended, done: &progress.done, stop: &progress.stop };
        let runs = fabricast_study::run(&loaded.study, &loaded.fabrics, &cases, &missing, &load, &watch);
        let runs = runs.map_err(|error| failed(error.into()))?;
        if progress.stop.load(Ordering::Relaxed) {
            return Err(AnswerError::Stopped);
        }
        outcomes.extend(runs.into_iter().map(|run| (run.key, run.outcome)));
        fabricast_study::check_outcomes(&loaded.study, &cases, &outcomes).map_err(|error| failed(error.into()))?;
        let answer = build_answer(&loaded.study, &loaded.fabrics, &cases, &outcomes);
        let answer = answer.ok_or_else(|| AnswerError::Failed("a run of the study is missing".to_owned()))?;
        Ok(StudyAnswer { answer })
    }

    /// Returns the cached outcomes of a study.
    fn cached(&self, cases: &Cases) -> FxHashMap<Key, Outcome> {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cases.runs.iter().filter_map(|case| Some((case.key, outcomes.get(&case.key)?)));
        known.map(|(key, outcome)| (key, Outcome::clone(&outcome))).collect()
    }

    fn cache(&self, run: &Run) {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.insert(run.key, Arc::new(run.outcome.clone()));
    }
}

/// Converts a failure of the study to an error that names the field of the form that wrote the refused line.
fn error_of_form(study: &StudyText, failure: Failure) -> AnswerError {
    match failure {
        Failure::Input { message, help, location, .. } => {
            let location = location.filter(|location| location.source == STUDY_PATH);
            let prefix = location.as_ref().map(|location| format!("{location}: ")).unwrap_or_default();
            let message = message.strip_prefix(&prefix).map(str::to_owned).unwrap_or(message);
            let field = location.and_then(|location| study.field(location.line));
            AnswerError::Refused(FormError::Study { field, message, help })
        }
        Failure::Interrupted => AnswerError::Stopped,
        other => AnswerError::Failed(other.to_string()),
    }
}
