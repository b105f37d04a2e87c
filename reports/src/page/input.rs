//! Inputs of a page, which are identified by their content, regardless of the file name.

use std::collections::BTreeMap;

use fabricast_search::export::{SavedPlan, TableError};
use fabricast_sim::schedule::format::FormatError;
use fabricast_sim::schedule::{Schedule, format};
use fabricast_study::answer::{Answer, AnswerError};
use fabricast_topologies::Fabric;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::comparison::Comparison;
use super::picture::Picture;
use super::run::Run;
use super::timeline::Trace;
use super::{Block, Page, Section, comparison, plan, run, timeline};
use crate::topology;

/// Parsed input file.
#[derive(Debug)]
pub enum Input {
    /// `results.json` of a study.
    Study(Box<Answer>),
    /// Plan, from `plan --format json`.
    Plan(Box<SavedPlan>),
    /// Comparison of measured and predicted times, from `compare --format json`.
    Comparison(Box<Comparison>),
    /// Result of one simulation, from `simulate --format json`.
    Run(Box<Run>),
    /// Trace of one simulation, from `simulate --trace`.
    Trace(Box<Trace>),
    /// Schedule in any supported file format.
    Schedule(Box<Schedule>),
    /// Fabric in any supported file format.
    Fabric(Box<Fabric>),
}

/// Errors in creating a page.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The content of the file is none of the known inputs.
    #[error("{name}: not an input of a page")]
    Unknown {
        /// Name of the file.
        name: String,
        /// Description of the content, and the accepted inputs.
        help: String,
    },
    /// The file is a study definition, and not the results of a study.
    #[error("{name}: a study, and none of the inputs is its results.json")]
    Study {
        /// Name of the file.
        name: String,
    },
    /// The file was recognized as a known input, but is invalid.
    #[error("{name}:{line}:{column}: {message}")]
    Syntax {
        /// Name of the file.
        name: String,
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error, from 1.
        column: usize,
        /// Description of the error by the parser.
        message: String,
    },
    /// The file was recognized as the results of a study, but is invalid.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The file was recognized as a plan, but is invalid.
    #[error(transparent)]
    Plan(#[from] TableError),
    /// The file was recognized as a schedule, but is invalid.
    #[error(transparent)]
    Schedule(#[from] FormatError),
    /// The file was recognized as a fabric, but is invalid.
    #[error(transparent)]
    Fabric(#[from] fabricast_topologies::Error),
}

impl InputError {
    /// Returns a suggestion for the user; `None` if the message is sufficient.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Unknown { help, .. } => Some(help),
            Self::Study { .. } => Some("`fabricast study FILE -o DIR` runs it and writes the page"),
            _ => None,
        }
    }
}

/// List of the accepted inputs, for error messages.
const EXPECTED: &str = "a page is made of results.json of `study`, what `plan`, `compare` and `simulate` write with \
                        --format json, the trace of `simulate --trace`, a schedule, or a fabric";

impl Input {
    /// Reads the text of a file. `name`: name of the file in errors.
    ///
    /// # Errors
    /// [`InputError`] if the text is not a known input, or is invalid.
    pub fn read(text: &str, name: &str) -> Result<Self, InputError> {
        let text = text.trim_start_matches('\u{feff}');
        let unknown = |help: &str| Err(InputError::Unknown { name: name.to_owned(), help: help.to_owned() });
        if text.trim().is_empty() {
            return unknown(&format!("it is empty; {EXPECTED}"));
        }
        if text.trim_start().starts_with('{') {
            return Self::json(text, name);
        }
        if has_table(text, "candidate") {
            return Err(InputError::Study { name: name.to_owned() });
        }
        if has_table(text, "measurement") {
            return unknown("this is a manifest: use the output of `fabricast compare MANIFEST --format json`");
        }
        if text.contains("<algo") {
            return Ok(Self::Schedule(Box::new(format::read(text, name)?)));
        }
        use fabricast_topologies::read::Format as Topology;
        // The format detection accepts nearly any text as a spec, but a spec has one of these tables.
        let is_spec = ["[[node]]", "[[device]]", "[[link]]", "[cluster]"].iter().any(|table| text.contains(table));
        match fabricast_topologies::read::detect(text).filter(|kind| *kind != Topology::Spec || is_spec) {
            Some(_) => Ok(Self::Fabric(Box::new(fabricast_topologies::read_text(text, name)?))),
            None => unknown(EXPECTED),
        }
    }

    fn json(text: &str, name: &str) -> Result<Self, InputError> {
        let keys: BTreeMap<String, &RawValue> = read(text, name)?;
        let has = |required: &[&str]| required.iter().all(|key| keys.contains_key(*key));
        Ok(if has(&["results", "ranking"]) {
            Self::Study(Box::new(Answer::read(text, name)?))
        } else if has(&["rows", "ranges"]) {
            Self::Plan(Box::new(SavedPlan::read(text, name)?))
        } else if has(&["summary", "groups", "rows"]) {
            Self::Comparison(Box::new(read(text, name)?))
        } else if has(&["traceEvents"]) {
            Self::Trace(Box::new(read(text, name)?))
        } else if has(&["time_us", "links"]) {
            Self::Run(Box::new(read(text, name)?))
        } else if has(&["fabricast_schedule"]) || has(&["name", "gpus", "collective"]) {
            Self::Schedule(Box::new(format::read(text, name)?))
        } else if has(&["nodes", "links"]) {
            Self::Fabric(Box::new(fabricast_topologies::read_text(text, name)?))
        } else {
            let present: Vec<&str> = keys.keys().map(String::as_str).take(8).collect();
            let help = format!("it is JSON with the keys {}; {EXPECTED}", present.join(", "));
            return Err(InputError::Unknown { name: name.to_owned(), help });
        })
    }
}

/// Returns true if the text has tables with this name, as `[[name]]` or as `name = [`.
fn has_table(text: &str, name: &str) -> bool {
    let lines = text.lines().map(|line| line.chars().filter(|c| !c.is_whitespace()).collect::<String>());
    let (heading, value) = (format!("[[{name}]]"), format!("{name}=["));
    lines.into_iter().any(|line| line.starts_with(&heading) || line.starts_with(&value))
}

fn read<'a, T: Deserialize<'a>>(text: &'a str, name: &str) -> Result<T, InputError> {
    serde_json::from_str(text).map_err(|error| InputError::Syntax {
        name: name.to_owned(),
        line: error.line(),
        column: error.column(),
        message: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
    })
}

/// Creates a page of all inputs, in their order. `study_page`: function that creates the page of a study. If there is a
/// run in addition to a fabric, the fabric is shown with the run's link load.
///
/// # Errors
/// [`InputError::Unknown`] for a schedule that cannot be drawn.
pub fn report(inputs: &[(String, Input)], study_page: &dyn Fn(&Answer) -> Page) -> Result<Page, InputError> {
    let mut pages: Vec<Page> = Vec::new();
    let runs = || inputs.iter().filter_map(|(_, input)| if let Input::Run(run) = input { Some(run) } else { None });
    for (name, input) in inputs {
        pages.push(match input {
            Input::Study(answer) => study_page(answer),
            Input::Plan(plan) => plan::page(plan),
            Input::Comparison(comparison) => comparison::page(comparison),
            Input::Run(run) => run::page(run),
            Input::Trace(trace) => timeline::page(name.rsplit(['/', '\\']).next().unwrap_or(name), trace),
            Input::Schedule(schedule) => {
                let caption =
                    format!("{} of {} ranks, step by step", schedule.header().name, schedule.header().call.ranks);
                let picture = Picture::from_schedule(caption, schedule).map_err(|error| InputError::Unknown {
                    name: name.clone(),
                    help: format!("the schedule cannot be drawn: {error}"),
                })?;
                picture_page(format!("Schedule {}", schedule.header().name), picture)
            }
            Input::Fabric(fabric) => picture_page(format!("Fabric {}", fabric.name()), fabric_picture(fabric, runs())),
        });
    }
    Ok(joined(pages))
}

fn picture_page(title: String, picture: Picture) -> Page {
    let section = Section::new(title.clone(), vec![Block::Picture(picture)]);
    Page { title, answer: Vec::new(), sections: vec![section] }
}

/// Returns the picture of a fabric, with the link load of the first run on it.
fn fabric_picture<'a>(fabric: &Fabric, mut runs: impl Iterator<Item = &'a Box<Run>>) -> Picture {
    let names = fabric.link_names();
    let load = runs.find_map(|run| run.link_load(&names).map(|load| (run.call_name(), load)));
    let (caption, load) = match load {
        Some((what, load)) => (format!("{}: link utilization during {what}", fabric.name()), Some(load)),
        None => (format!("{}: {}", fabric.name(), topology::counts(fabric)), None),
    };
    Picture::from_fabric(caption, fabric, &topology::Options { utilization: load.as_deref(), hosts: None })
}

/// Joins several pages into one. The title consists of the titles of the first pages, and each section is prefixed with
/// the title of its page.
fn joined(mut pages: Vec<Page>) -> Page {
    if pages.len() == 1 {
        return pages.pop().unwrap_or_default();
    }
    let titles: Vec<&str> = pages.iter().map(|page| page.title.as_str()).collect();
    let title = match titles.as_slice() {
        [first, second] => format!("{first}, and {second}"),
        [first, others @ ..] => format!("{first}, and {} more", others.len()),
        [] => "Nothing".to_owned(),
    };
    let answer = pages.iter().flat_map(|page| page.answer.iter().cloned()).collect();
    let several = pages.len() > 1;
    let sections = pages.iter().flat_map(|page| {
        page.sections.iter().map(move |section| {
            let title = if several && section.title != page.title {
                format!("{}: {}", page.title, section.title)
            } else {
                section.title.clone()
            };
            Section { title, ..section.clone() }
        })
    });
    let sections = sections.collect();
    Page { title, answer, sections }
}
