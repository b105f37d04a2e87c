//! HTML page of a study, with details of the best candidate: pictures of its fabric, the link load of each job, and the
//! library's default choices in its steps.

use std::borrow::Cow;

use fabricast_reports::format;
use fabricast_reports::page::{self, Page, Picture};
use fabricast_reports::topology::{Options, counts};
use fabricast_study::answer::{Answer, ResultRow};
use fabricast_study::library_comparison::LibraryComparison;
use fabricast_study::prediction::Prediction;
use fabricast_study::{Study, library_comparison, link_utilization};
use fabricast_topologies::Fabric;
use fabricast_workload::job::Job;
use rayon::prelude::*;

/// Details of the best candidate, by job.
#[derive(Default)]
pub struct BestCandidateDetails {
    pictures: Vec<(String, Picture)>,
    /// Name of each job, and the library's default choices in its steps.
    pub library_defaults: Vec<(String, LibraryComparison)>,
}

impl BestCandidateDetails {
    /// Computes the details for a study's answer; `fabrics` are in the order of the candidates.
    pub fn new(study: &Study, answer: &Answer, fabrics: &[Fabric], predictions: Predictions<'_>) -> Self {
        let Some(first) = BestCandidate::from_answer(answer, fabrics, predictions) else { return Self::default() };
        let (pictures, library_defaults) =
            rayon::join(|| first.pictures(study, answer), || first.library_defaults(study));
        Self { pictures, library_defaults }
    }

    /// Creates the page of the answer.
    pub fn page(&self, answer: &Answer) -> Page {
        page::study_page_with_details(answer, &self.pictures, &self.library_defaults)
    }
}

/// Predictions of a study, by the index of the candidate and of the job; `None` for a job that does not run.
pub type Predictions<'a> = &'a (dyn Fn(usize, usize) -> Option<Cow<'a, Prediction>> + Sync);

/// Candidate that ranks first.
struct BestCandidate<'a, 'p> {
    name: &'a str,
    /// Index of the candidate in the study.
    index: usize,
    fabric: &'a Fabric,
    predictions: Predictions<'p>,
}

impl<'a, 'p> BestCandidate<'a, 'p> {
    fn from_answer(answer: &'a Answer, fabrics: &'a [Fabric], predictions: Predictions<'p>) -> Option<Self> {
        let name = answer.ranking.first()?.candidate.as_str();
        let index = answer.candidates.iter().position(|candidate| candidate.name == name)?;
        Some(Self { name, index, fabric: fabrics.get(index)?, predictions })
    }

    fn row<'r>(&self, job: &Job, answer: &'r Answer) -> Option<&'r ResultRow> {
        answer.results.iter().find(|row| row.candidate == self.name && row.job == job.name())
    }

    /// Pictures of the fabric with the link load of each job; one picture without load if no load is known.
    fn pictures(&self, study: &Study, answer: &Answer) -> Vec<(String, Picture)> {
        let draw = |(number, job): (usize, &Job)| {
            let row = self.row(job, answer)?;
            let prediction = (self.predictions)(self.index, number)?;
            let load = link_utilization::compute_utilization(job, &prediction, self.fabric)?;
            let options = Options { utilization: Some(&load), hosts: None };
            Some((row.job.clone(), Picture::from_fabric(caption(row), self.fabric, &options)))
        };
        let pictures: Vec<_> = study.jobs.par_iter().enumerate().filter_map(draw).collect();
        if !pictures.is_empty() {
            return pictures;
        }
        let caption = format!("{}: {}", self.name, counts(self.fabric));
        vec![(self.name.to_owned(), Picture::from_fabric(caption, self.fabric, &Options::default()))]
    }

    /// Compares the selected strategies with the library default for each job: job name and comparison, without jobs
    /// that cannot be compared.
    fn library_defaults(&self, study: &Study) -> Vec<(String, LibraryComparison)> {
        let curve = study.curve(self.index, self.fabric);
        let compare = |(number, job): (usize, &Job)| {
            let prediction = (self.predictions)(self.index, number)?;
            Some((job.name().to_owned(), library_comparison::compare(job, &prediction, self.fabric, curve)?))
        };
        study.jobs.par_iter().enumerate().filter_map(compare).collect()
    }
}

/// Caption with the candidate, the job and the busiest link.
fn caption(row: &ResultRow) -> String {
    let busiest = row.load.first().map_or_else(String::new, |load| {
        format!("; the busiest, {} ({}), to {} %", load.busiest, load.links, format::percent(load.max))
    });
    format!("{} during a step of {}: link utilization{busiest}", row.candidate, row.job)
}
