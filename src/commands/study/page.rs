//! HTML page of a study, with details of the best candidate: pictures of its fabric, the link load of each job, and the
//! library's default choices in its steps.

use fabricast_planner::job::Job;
use fabricast_planner::study::answer::{Answer, ResultRow};
use fabricast_planner::study::beside::Beside;
use fabricast_planner::study::{Study, beside, load};
use fabricast_reports::format;
use fabricast_reports::page::{self, Page, Picture};
use fabricast_reports::topology::{Options, counts};
use fabricast_topologies::Fabric;
use rayon::prelude::*;

/// Details of the best candidate, by job.
#[derive(Default)]
pub struct OfFirst {
    pictures: Vec<(String, Picture)>,
    /// The library's default choices, by job.
    pub besides: Vec<(String, Beside)>,
}

impl OfFirst {
    /// Computes the details for a study's answer; `fabrics` are in the order of the candidates.
    pub fn new(study: &Study, answer: &Answer, fabrics: &[Fabric]) -> Self {
        let Some(first) = First::of(answer, fabrics) else { return Self::default() };
        let (pictures, besides) = rayon::join(|| first.pictures(study, answer), || first.besides(study, answer));
        Self { pictures, besides }
    }

    /// Creates the page of the answer.
    pub fn page(&self, answer: &Answer) -> Page {
        page::of_study_beside(answer, &self.pictures, &self.besides)
    }
}

/// The best candidate.
struct First<'a> {
    name: &'a str,
    fabric: &'a Fabric,
}

impl<'a> First<'a> {
    fn of(answer: &'a Answer, fabrics: &'a [Fabric]) -> Option<Self> {
        let name = answer.ranking.first()?.candidate.as_str();
        let number = answer.candidates.iter().position(|one| one.name == name)?;
        Some(Self { name, fabric: fabrics.get(number)? })
    }

    fn row<'r>(&self, job: &Job, answer: &'r Answer) -> Option<&'r ResultRow> {
        answer.results.iter().find(|row| row.candidate == self.name && row.job == job.name())
    }

    /// Pictures of the fabric with the link load of each job; one picture without load if no load is known.
    fn pictures(&self, study: &Study, answer: &Answer) -> Vec<(String, Picture)> {
        let loaded = |job: &Job| {
            let row = self.row(job, answer)?;
            let load = load::of_row(job, row, self.fabric)?;
            let options = Options { utilization: Some(&load), hosts: None };
            Some((row.job.clone(), Picture::of_fabric(caption(row), self.fabric, &options)))
        };
        let pictures: Vec<_> = study.jobs.par_iter().filter_map(loaded).collect();
        if !pictures.is_empty() {
            return pictures;
        }
        let caption = format!("{}: {}", self.name, counts(self.fabric));
        vec![(self.name.to_owned(), Picture::of_fabric(caption, self.fabric, &Options::default()))]
    }

    /// The library's default choices in the steps of each job.
    fn besides(&self, study: &Study, answer: &Answer) -> Vec<(String, Beside)> {
        let of_job =
            |job: &Job| Some((job.name().to_owned(), beside::of_row(study, job, self.row(job, answer)?, self.fabric)?));
        study.jobs.par_iter().filter_map(of_job).collect()
    }
}

/// Caption with the candidate, the job and the busiest link.
fn caption(row: &ResultRow) -> String {
    let busiest = row.load.first().map_or_else(String::new, |one| {
        format!("; the busiest, {} ({}), to {} %", one.busiest, one.links, format::percent(one.most))
    });
    format!("{} during a step of {}: how busy its links are{busiest}", row.candidate, row.job)
}
