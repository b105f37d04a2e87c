//! Page of a study: the best machine, its advantage, and the assumptions on which the result depends.

mod charts;
mod decision;
mod library_defaults;
mod load;
mod sentences;
mod tables;
mod timeline;

use fabricast_study::answer::{Answer, CandidateRow, JobKind, JobRow, KernelsRow, PaymentMode, PriceRow, ResultRow};
use fabricast_study::library_comparison::LibraryComparison;

use super::{Block, Choice, Page, Picture, Section};
use crate::format;

/// Titles of the sections that are shown when the page is opened.
const SUMMARY: [&str; 3] = ["Ranking", "Cost against speed", "Breakdown of a step"];

pub use charts::{breakdown, memory, pareto};
pub use decision::opening_lines;
pub use library_defaults::bandwidths;
pub use load::links;
pub use tables::{costs, measured};
pub use timeline::{interval_name, step_title, timelines};

/// Creates the page of a study. `pictures`: for each job, the fabric of the first-ranked candidate with the load of its
/// links, if available.
#[must_use]
pub fn page(answer: &Answer, pictures: &[(String, Picture)]) -> Page {
    build_page(answer, pictures, None)
}

/// Creates the page of a study that also shows the library's default strategies in the steps of the first-ranked
/// candidate, by job, if available. Without them the page equals that of [`page`].
#[must_use]
pub fn page_with_library_defaults(
    answer: &Answer,
    pictures: &[(String, Picture)],
    comparisons: &[(String, LibraryComparison)],
) -> Page {
    build_page(answer, pictures, Some(comparisons))
}

fn build_page(
    answer: &Answer,
    pictures: &[(String, Picture)],
    comparisons: Option<&[(String, LibraryComparison)]>,
) -> Page {
    let of_job = |(job, picture): &(String, Picture)| (job.clone(), vec![Block::Picture(picture.clone())]);
    let pictures = Choice::blocks("Job", pictures.iter().map(of_job).collect());
    let of_some = |is_meant: &dyn Fn(&JobRow) -> bool, make: &dyn Fn(&str) -> Vec<Block>| {
        let jobs = answer.jobs.iter().filter(|job| is_meant(job));
        Choice::blocks("Job", jobs.map(|job| (job.name.clone(), make(&job.name))).collect())
    };
    let of_jobs = |make: &dyn Fn(&str) -> Vec<Block>| of_some(&|_| true, make);
    // A trace does not contain memory use.
    let is_held = |job: &JobRow| job.kind != JobKind::Trace;
    let mut sections =
        vec![Section::new("Ranking", vec![Block::Table("Candidates by rank".into(), tables::ranking(answer))])];
    let pareto = of_jobs(&|job| charts::pareto_lines(answer, job).map(Block::Lines).into_iter().collect());
    if answer.is_priced() {
        sections.push(Section::new("Cost against speed", pareto));
    }
    sections.push(Section::new("Breakdown of a step", of_jobs(&|job| vec![Block::Bars(breakdown(answer, job))])));
    let steps = of_jobs(&|job| timeline::blocks(answer, job));
    if answer.results.iter().any(|row| !row.timelines.is_empty()) {
        sections.push(Section::new("Timeline of a step", steps));
    }
    if answer.results.iter().any(|row| !row.load.is_empty()) {
        let load = of_jobs(&|job| load::blocks(answer, job));
        sections.push(Section::new("Link utilization", load));
    }
    if !pictures.is_empty() {
        sections.push(Section::new("Fabric", pictures));
    }
    sections.push(Section::new(
        "Every candidate and job",
        vec![Block::Table("All results".into(), tables::results(answer))],
    ));
    if answer.candidates.iter().any(|candidate| candidate.costs.is_some()) {
        let caption = format!("Costs in {}", answer.currency);
        sections.push(Section::new("Costs", vec![Block::Table(caption, costs(answer))]));
    }
    if answer.jobs.iter().any(is_held) {
        let bars = of_some(&is_held, &|job| memory(answer, job).map(Block::Bars).into_iter().collect());
        sections.push(Section::new("Memory of the most loaded GPU", bars));
    }
    let has_calls = |job: &JobRow| {
        answer.results.iter().any(|row| row.job == job.name && !(row.calls.is_empty() && row.exchanges.is_empty()))
    };
    if answer.jobs.iter().any(has_calls) {
        sections.push(Section::new("Calls of a step", of_some(&has_calls, &|job| load::calls(answer, job))));
    }
    let default_blocks = |make: &dyn Fn(&str, &LibraryComparison) -> Vec<Block>| {
        let options = comparisons.unwrap_or_default().iter().map(|(job, one)| (job.clone(), make(job, one)));
        Choice::blocks("Job", options.filter(|(_, blocks)| !blocks.is_empty()).collect())
    };
    let mut choices = default_blocks(&|job, one| library_defaults::choices(answer, job, one));
    choices.extend(
        comparisons.and_then(|comparisons| library_defaults::unexamined_jobs(answer, comparisons)).map(Block::Text),
    );
    for (title, blocks) in [
        ("Library defaults", choices),
        ("The call with the most time", default_blocks(&|_, one| library_defaults::schedule(one))),
        ("Bus bandwidth of calls", default_blocks(&|_, one| library_defaults::curves(one))),
    ] {
        if !blocks.is_empty() {
            sections.push(Section::new(title, blocks));
        }
    }
    if !answer.measured.is_empty() {
        let table = Block::Table("Measured steps".into(), measured(answer));
        sections.push(Section::new("Measured against predicted", vec![table]));
    }
    if !answer.sensitivities.is_empty() {
        let table = Block::Table("The ranking under other assumptions".into(), tables::sensitivities(answer));
        sections.push(Section::new("Sensitivity of the ranking", vec![table]));
    }
    sections.push(Section::new(
        "Candidates and jobs",
        vec![
            Block::Table("Candidates as specified".into(), tables::candidates(answer)),
            Block::Table("Jobs as specified".into(), tables::jobs(answer)),
        ],
    ));
    let mut sources = vec![Block::List(assumptions(answer))];
    if !answer.sources.is_empty() {
        sources.push(Block::Table("Prices from the built-in list".into(), tables::sources(answer)));
    }
    let fabrics = fabric_sources(answer);
    if !fabrics.is_empty() {
        sources.push(Block::List(fabrics));
    }
    sections.push(Section::new("Assumptions and sources", sources));
    // The first sheet of paper holds the answer, the ranking, cost against speed and the breakdown of a step.
    let is_summary = |section: &Section| SUMMARY.contains(&section.title.as_str());
    let sections = sections.into_iter().map(|one| if is_summary(&one) { one } else { one.collapsed() }).collect();
    Page { title: title(answer), answer: sentences::sentences(answer), sections }
}

fn title(answer: &Answer) -> String {
    let jobs: Vec<&str> = answer.jobs.iter().map(|job| job.name.as_str()).collect();
    if let [only] = answer.candidates.as_slice() {
        return match jobs.as_slice() {
            [one] => format!("{one} on {}", only.name),
            several => format!("{} jobs on {}", several.len(), only.name),
        };
    }
    if answer.candidates.iter().all(|candidate| candidate.machine.is_some()) && !answer.sizings.is_empty() {
        return match jobs.as_slice() {
            [one] => format!("How many nodes for {one}?"),
            several => format!("How many nodes for {} jobs?", several.len()),
        };
    }
    match jobs.as_slice() {
        [one] => format!("Which of {} machines for {one}?", answer.candidates.len()),
        several => format!("Which of {} machines for {} jobs?", answer.candidates.len(), several.len()),
    }
}

fn candidate_results<'a, 'b>(
    answer: &'a Answer,
    candidate: &'b str,
) -> impl Iterator<Item = &'a ResultRow> + use<'a, 'b> {
    answer.results.iter().filter(move |one| one.candidate == candidate)
}

/// Returns the term for a phase or a share of a step, given its name in `results.json`.
fn step_term(name: &str) -> String {
    match name {
        "hand_off" => "pipeline transfer".to_owned(),
        "slowed" => "slowdown".to_owned(),
        "updated" => "updated weights".to_owned(),
        "word_gradients" => "embedding gradients".to_owned(),
        "words" => "embedding".to_owned(),
        other => other.replace('_', " "),
    }
}

fn is_within(answer: &Answer, candidate: &str) -> bool {
    answer.ranking.iter().any(|one| one.candidate == candidate && one.meets_constraints)
}

/// Returns sentences on kernel efficiencies. Candidates with equal efficiencies share a sentence.
fn kernels(answer: &Answer) -> Vec<String> {
    let mut curves: Vec<(KernelsRow, Vec<&str>)> = Vec::new();
    for one in &answer.candidates {
        match curves.iter_mut().find(|(curve, _)| *curve == one.kernels) {
            Some((_, names)) => names.push(&one.name),
            None => curves.push((one.kernels, vec![&one.name])),
        }
    }
    let several = curves.len() > 1;
    let sentence = |(curve, names): (KernelsRow, Vec<&str>)| {
        format!(
            "Kernels{}: large GEMMs reach {} % of the GPU's peak, attention over long sequences {} % of the 16-bit \
             peak, weight-bound kernels {} % of the memory bandwidth, elementwise and normalization kernels {} %; each kernel adds {} µs.",
            if several { format!(" of {}", names.join(", ")) } else { String::new() },
            format::percent(curve.matrix),
            format::percent(curve.attention),
            format::percent(curve.memory),
            format::percent(curve.stream),
            format::significant(curve.launch_us)
        )
    };
    curves.into_iter().map(sentence).collect()
}

fn assumptions(answer: &Answer) -> Vec<String> {
    let stated = &answer.assumptions;
    let mut facts = kernels(answer);
    if answer.is_priced() {
        facts.push(format!(
            "Costs: purchases are depreciated over {} years at {} % utilization, and their energy costs {} {} per kWh; figures are the middle of the price bands.",
            stated.years,
            format::percent(stated.utilization),
            format::significant(stated.usd_per_kwh),
            answer.currency
        ));
    }
    let counts: Vec<String> = answer.candidates.iter().filter_map(price_multiplicity).collect();
    if !counts.is_empty() {
        facts.push(format!("Quantities of listed prices: {}.", counts.join("; ")));
    }
    if !answer.assumptions.price_bands.is_empty() && answer.is_priced() {
        facts.push(format!("Probability of lowest cost: {}.", answer.assumptions.price_bands));
    }
    facts.extend(answer.notes.iter().map(|note| format!("Note: {note}.")));
    let limits = &answer.constraints;
    let upper_limits = [
        ("purchase price", limits.budget_usd, answer.currency.as_str()),
        ("per hour", limits.cost_per_hour_usd, answer.currency.as_str()),
        ("of power", limits.power_kw, "kW"),
        ("of room", limits.racks, "racks"),
        ("of training", limits.max_train_days, "days"),
        ("to the first token", limits.max_ttft_s, "s"),
    ];
    let upper_limits: Vec<String> = upper_limits
        .iter()
        .filter_map(|(name, limit, unit)| limit.map(|limit| format!("{} {unit} {name}", format::significant(limit))))
        .collect();
    if !upper_limits.is_empty() {
        facts.push(format!("Constraints: at most {}.", upper_limits.join(", ")));
    }
    if let Some(rate) = limits.min_tokens_per_s {
        facts.push(format!("Constraints: at least {} tokens per second.", format::significant(rate)));
    }
    let mut profiles: Vec<&str> = answer.candidates.iter().map(|one| one.profile.as_str()).collect();
    profiles.sort_unstable();
    profiles.dedup();
    facts.push(format!("Communication is simulated with the costs of {}.", profiles.join(", ")));
    facts.push("Figures are predictions; the order of candidates with close results is uncertain.".to_owned());
    facts.extend(answer.accuracy.iter().map(|accuracy| format!("Compared with published figures: {accuracy}.")));
    facts
}

/// Returns the statement of the number of units of a listed price in a candidate's cost, such as `a100: 8 × node`;
/// `None` for other prices.
fn price_multiplicity(candidate: &CandidateRow) -> Option<String> {
    let price = candidate.price.as_ref()?;
    Some(format!("{}: {} × {}", candidate.name, price.count?, price.item.as_ref()?))
}

/// Returns the data sources of the candidates' fabrics without duplicates, as `fabric: source`.
fn fabric_sources(answer: &Answer) -> Vec<String> {
    let mut listed: Vec<(&str, &str)> = Vec::new();
    for candidate in &answer.candidates {
        for source in &candidate.sources {
            if !listed.iter().any(|(_, one)| one == source) {
                listed.push((&candidate.fabric_name, source));
            }
        }
    }
    listed.iter().map(|(fabric, source)| format!("{fabric}: {source}")).collect()
}

/// Formats a price with its currency and payment, such as `1.5 to 2 USD per GPU-hour`.
fn price(price: &PriceRow, currency: &str) -> String {
    let amount = if price.low < price.high {
        format!("{} to {}", format::significant(price.low), format::significant(price.high))
    } else {
        format::significant(price.low)
    };
    let paid = match price.payment {
        PaymentMode::Once => "once",
        PaymentMode::Hourly => "per hour",
        PaymentMode::HourlyByGpu => "per GPU-hour",
    };
    format!("{amount} {currency} {paid}")
}
