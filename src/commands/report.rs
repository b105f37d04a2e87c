//! `report`: combines the output of other commands into one HTML page.

use std::borrow::Cow;

use fabricast_reports::page::{
    Input, InputError, bandwidths, breakdown, links, memory, pareto, report, study_page, timelines,
};
use fabricast_reports::{chart, steps};
use fabricast_study::answer::Answer;
use fabricast_topologies::read::Limit;

use super::study::LoadedStudy;
use super::study::page::BestCandidateDetails;
use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::files;
use crate::output::Output;
use crate::output_format::Format;

/// File of the page if `-o` names none.
const DEFAULT_FILE: &str = "report.html";

pub fn run(args: &ReportArgs, output: &Output) -> Result<(), Failure> {
    if output.format != Format::Text {
        return Err(Failure::input_with_help("a report is a page of HTML", "omit --format"));
    }
    let mut inputs = Vec::with_capacity(args.inputs.len());
    let mut studies = Vec::new();
    for path in &args.inputs {
        let text = fabricast_topologies::read::read_text_file(path, Limit::RESULT)?;
        let name = path.display().to_string();
        match Input::read(&text, &name) {
            Err(InputError::Study { name }) => studies.push((name, path)),
            input => inputs.push((name, input.map_err(|error| input_failure(error).with_file(path))?)),
        }
    }
    let mut loaded = Vec::with_capacity(studies.len());
    for (name, path) in studies {
        // A study file is used only together with its results.
        if answers(&inputs).next().is_none() {
            return Err(input_failure(InputError::Study { name }));
        }
        let study = LoadedStudy::read(path, output)?;
        if !answers(&inputs).any(|answer| study.is_answered_by(answer)) {
            return Err(input_failure(InputError::Study { name }));
        }
        loaded.push(study);
    }
    // Details from each answer's study file, in the order of the answers.
    let details: Vec<Option<BestCandidateDetails>> = answers(&inputs)
        .map(|answer| {
            let loaded = loaded.iter().find(|loaded| loaded.is_answered_by(answer))?;
            let predictions = |candidate: usize, job: usize| {
                let (candidate, job) = (loaded.study.candidates.get(candidate)?, loaded.study.jobs.get(job)?);
                answer.saved_prediction(&candidate.name, job.name()).map(Cow::Owned)
            };
            Some(BestCandidateDetails::new(&loaded.study, answer, &loaded.fabrics, &predictions))
        })
        .collect();
    let find_details = |answer: &Answer| {
        let index = answers(&inputs).position(|one| std::ptr::eq(one, answer))?;
        details.get(index)?.as_ref()
    };
    let answer_page =
        |answer: &Answer| find_details(answer).map_or_else(|| study_page(answer, &[]), |details| details.page(answer));
    let page = report(&inputs, &answer_page).map_err(input_failure)?.html();
    let named = output.with_default_file(DEFAULT_FILE)?;
    write(args, &page, answers(&inputs).zip(&details), &named)?;
    if output.file.is_some() {
        return Ok(());
    }
    output.write_message(&format!("wrote {DEFAULT_FILE}; -o names another file"))
}

/// Writes the page, and the charts of studies if a folder for them is named.
fn write<'a>(
    args: &ReportArgs,
    page: &str,
    answers: impl Iterator<Item = (&'a Answer, &'a Option<BestCandidateDetails>)>,
    output: &Output,
) -> Result<(), Failure> {
    let Some(folder) = &args.charts else { return output.write(page) };
    let charts = charts(answers)?;
    if charts.is_empty() {
        let message = "--charts draws the charts of studies, and none of the inputs is one";
        return Err(Failure::input_with_help(
            message,
            "give results.json of `study`; for `plan` and `compare`, use their own flag --chart",
        ));
    }
    let staged = files::stage_folder(folder, &charts, output.replace)?;
    let foreign = |names: &[String]| {
        let (count, first) =
            (super::format_count(names.len() as u64, "chart"), names.first().map_or("", String::as_str));
        Failure::input_with_help(
            format!("{} has {count} of another report, {first} among them: nothing is written", folder.display()),
            "--force removes them; otherwise move them away or name another folder",
        )
    };
    output.write_all(page, &[], staged, |files| {
        files::commit_replacing_folder(files, folder, is_chart, output.replace, foreign)
    })
}

/// Returns true if a file name is one that `report` gives to charts.
fn is_chart(name: &str) -> bool {
    let Some((stem, "svg" | "png")) = name.rsplit_once('.') else { return false };
    let mut parts = stem.split('-');
    let numbers = match parts.next() {
        Some("cost" | "steps" | "memory" | "links" | "schedule") => 1,
        Some("course" | "busbw") => 2,
        _ => return false,
    };
    let indices: Vec<&str> = parts.collect();
    indices.len() == numbers && indices.iter().all(|part| part.parse::<u32>().is_ok())
}

/// Answers of studies among the inputs.
fn answers(inputs: &[(String, Input)]) -> impl Iterator<Item = &Answer> {
    inputs.iter().filter_map(|(_, input)| if let Input::Study(answer) = input { Some(&**answer) } else { None })
}

/// Renders the charts of studies, with their file names. `cost-2.svg`, `steps-2.svg`, `memory-2.svg` and `links-2.svg`
/// belong to the second job, `course-2-1.svg` to its step on the best candidate. If the study file is given:
/// `busbw-2-1.svg` shows the kind of call with the largest share of that step, `schedule-2.svg` the operations of the
/// ranks in such a call.
fn charts<'a>(
    answers: impl Iterator<Item = (&'a Answer, &'a Option<BestCandidateDetails>)>,
) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut files = Vec::new();
    let mut number = 0;
    for (answer, details) in answers {
        for job in &answer.jobs {
            number += 1;
            let comparisons = details.iter().flat_map(|details| &details.library_defaults);
            let comparison = comparisons.filter(|(name, _)| *name == job.name).map(|(_, comparison)| comparison).next();
            for (extension, format) in [("svg", chart::Format::Svg), ("png", chart::Format::Png)] {
                let cost = pareto(answer, &job.name).map(|figure| ("cost", chart::render(&figure, format)));
                let bars = [
                    ("steps", Some(breakdown(answer, &job.name))),
                    ("memory", memory(answer, &job.name)),
                    ("links", links(answer, &job.name)),
                ];
                let bars = bars.into_iter().filter_map(|(name, bars)| Some((name, bars?)));
                let bars = bars.map(|(name, bars)| (name, chart::render_bars(&bars, format)));
                let tracks = (1..).zip(timelines(answer, &job.name));
                let tracks =
                    tracks.map(|(k, spans)| (format!("course-{number}-{k}"), chart::render_spans(&spans, format)));
                let numbered = cost.into_iter().chain(bars).map(|(name, bytes)| (format!("{name}-{number}"), bytes));
                let figures = (1..).zip(comparison.map(bandwidths).unwrap_or_default());
                let figures =
                    figures.map(|(k, figure)| (format!("busbw-{number}-{k}"), chart::render(&figure, format)));
                for (name, bytes) in numbered.chain(tracks).chain(figures) {
                    let bytes = bytes.map_err(|error| Failure::Failed(error.to_string()))?;
                    files.push((format!("{name}.{extension}"), bytes));
                }
                // Schedules of many ranks are drawn neither in files nor on the page.
                let example = comparison.and_then(|comparison| comparison.shown.as_ref());
                if let Some(Ok(bytes)) = example.map(|example| steps::render(&example.schedule, format)) {
                    files.push((format!("schedule-{number}.{extension}"), bytes));
                }
            }
        }
    }
    Ok(files)
}

fn input_failure(error: InputError) -> Failure {
    match error {
        InputError::Fabric(error) => error.into(),
        other => match other.help() {
            Some(help) => Failure::input_with_help(other.to_string(), help.to_owned()),
            None => Failure::input(other.to_string()),
        },
    }
}
