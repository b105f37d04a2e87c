//! A study as a page, with pictures of the fabric that is put first: how busy each job keeps its links.

use fabricast_planner::study::Study;
use fabricast_planner::study::answer::{Answer, ResultRow};
use fabricast_planner::study::load::of_row;
use fabricast_reports::format;
use fabricast_reports::page::{self, Picture};
use fabricast_reports::topology::{Options, counts};
use fabricast_topologies::Fabric;
use rayon::prelude::*;

/// The page; fabrics stand in the order of the candidates.
pub fn html(study: &Study, answer: &Answer, fabrics: &[Fabric]) -> String {
    page::of_study(answer, &pictures(study, answer, fabrics).unwrap_or_default()).html()
}

/// The first candidate's fabric, by job; once and without load where none is known.
fn pictures(study: &Study, answer: &Answer, fabrics: &[Fabric]) -> Option<Vec<(String, Picture)>> {
    let first = answer.ranking.first()?;
    let number = answer.candidates.iter().position(|one| one.name == first.candidate)?;
    let fabric = fabrics.get(number)?;
    let loaded = |job: &fabricast_planner::job::Job| {
        let row = answer.results.iter().find(|row| row.candidate == first.candidate && row.job == job.name())?;
        let load = of_row(job, row, fabric)?;
        let options = Options { utilization: Some(&load), hosts: None };
        Some((row.job.clone(), Picture::of_fabric(caption(row), fabric, &options)))
    };
    let pictures: Vec<_> = study.jobs.par_iter().filter_map(loaded).collect();
    Some(match pictures.is_empty() {
        true => {
            let caption = format!("{}: {}", first.candidate, counts(fabric));
            vec![(first.candidate.clone(), Picture::of_fabric(caption, fabric, &Options::default()))]
        }
        false => pictures,
    })
}

/// What is shown, and the busiest link.
fn caption(row: &ResultRow) -> String {
    let busiest = row.load.first().map_or_else(String::new, |one| {
        format!("; the busiest, {} ({}), to {} %", one.busiest, one.links, format::percent(one.most))
    });
    format!("{} during a step of {}: how busy its links are{busiest}", row.candidate, row.job)
}
