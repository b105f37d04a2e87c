//! `study`: which machine for these training jobs.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabricast_planner::job::{Job, Training, Zero};
use fabricast_planner::step::Share;
use fabricast_planner::study::{self, Band, JobResult, Ranked, Study, read_study};
use fabricast_reports::table::{Cell, Column, Look, Table, Tone, Unit, Value};
use fabricast_topologies::{Error, Fabric, FabricRequest, Place};
use rayon::prelude::*;
use serde::Serialize;

use crate::args::StudyArgs;
use crate::failure::Failure;
use crate::files;
use crate::output::{self, Format, Output};
use crate::watch::{self, Position};

pub fn run(args: &StudyArgs, output: &Output) -> Result<(), Failure> {
    let folder = output.file.as_deref();
    let Some(path) = &args.study else {
        return match folder {
            Some(folder) => files::write_folder(folder, &[("study.toml", study::TEMPLATE.to_owned())]),
            None => output.write(study::TEMPLATE),
        };
    };
    let text = fabricast_topologies::read::text_of_file(path)?;
    let study = read_study(&text, &path.display().to_string())?;
    let fabrics = fabrics(&study, path.parent().unwrap_or(Path::new("")))?;
    let total = (study.candidates.len() * study.jobs.len()) as u64;
    let done = AtomicUsize::new(0);
    let position = || Position { done: done.load(Ordering::Relaxed) as u64, total };
    let results = watch::with_progress(output, "running jobs", position, || study::run(&study, &fabrics, Some(&done)))?;
    let ranking = study::rank(&study, &results);
    let answer = Answer { study: &study, results: &results, ranking: &ranking };
    let json = || output::json(&answer.json());
    match folder {
        Some(folder) => {
            let mut files = vec![("results.json", json()?)];
            match output.format {
                Format::Text => files.push(("ranking.txt", answer.text(&Look::default()))),
                Format::Csv => files.push(("ranking.csv", super::csv(&answer.results())?)),
                Format::Json => {}
            }
            files::write_folder(folder, &files)
        }
        None => output.write(&match output.format {
            Format::Text => answer.text(&output.look()),
            Format::Csv => super::csv(&answer.results())?,
            Format::Json => json()?,
        }),
    }
}

/// The fabrics of all candidates; files are relative to the study.
fn fabrics(study: &Study, folder: &Path) -> Result<Vec<Fabric>, Failure> {
    let load = |candidate: &study::Candidate| {
        let name = &candidate.fabric.fabric;
        let beside = folder.join(name);
        let is_file = fabricast_topologies::preset::text(name).is_none() && beside.exists();
        let request = match is_file {
            true => FabricRequest { fabric: beside.display().to_string(), ..candidate.fabric.clone() },
            false => candidate.fabric.clone(),
        };
        let at = |place: &Place, error: &Error| {
            Failure::at(format!("{place}: {error}"), error.help().map(str::to_owned), Some(place))
        };
        let fabric = fabricast_topologies::load(&request).map_err(|error| match &error {
            // What is wrong in a file of its own is shown there.
            Error::Syntax { .. } | Error::Invalid { .. } => error.into(),
            other => at(&candidate.fabric_place, other),
        })?;
        if fabric.gpus().is_empty() {
            return Err(Failure::at("no GPUs in use", None, Some(&candidate.fabric_place)));
        }
        Ok(fabric)
    };
    study.candidates.par_iter().map(load).collect::<Vec<_>>().into_iter().collect()
}

struct Answer<'a> {
    study: &'a Study,
    results: &'a [JobResult],
    ranking: &'a [Ranked],
}

/// `results.json`.
#[derive(Serialize)]
struct StudyJson<'a> {
    assumptions: AssumptionsJson,
    results: Vec<ResultJson<'a>>,
    ranking: Vec<RankedJson<'a>>,
}

#[derive(Serialize)]
struct AssumptionsJson {
    years: f64,
    utilization: f64,
    usd_per_kwh: f64,
    efficiency_matrix: f64,
    efficiency_memory: f64,
    efficiency_start_us: f64,
}

#[derive(Serialize)]
struct ResultJson<'a> {
    candidate: &'a str,
    job: &'a str,
    ranks: usize,
    parallel: ParallelJson,
    micro_batches: u64,
    step_time_s: f64,
    tokens_per_s: f64,
    samples_per_s: f64,
    exposed_comm_share: f64,
    total_comm_share: f64,
    efficiency: f64,
    /// What the step's time goes to, in seconds; they add up to it.
    step_s: std::collections::BTreeMap<&'static str, f64>,
    memory_gb: f64,
    memory: MemoryJson,
    fits: bool,
    /// By how much it does not.
    memory_beyond_gb: Option<f64>,
    cost_per_hour: Option<f64>,
    cost_per_hour_low: Option<f64>,
    cost_per_hour_high: Option<f64>,
    cost_per_step: Option<f64>,
    cost_per_million_tokens: Option<f64>,
    cost_per_million_tokens_low: Option<f64>,
    cost_per_million_tokens_high: Option<f64>,
    kwh_per_million_tokens: Option<f64>,
    time_to_train_h: Option<f64>,
    cost_to_train: Option<f64>,
    binds: &'static str,
}

#[derive(Serialize)]
struct ParallelJson {
    tp: u32,
    pp: u32,
    dp: u32,
    ep: u32,
    cp: u32,
    interleave: u32,
    sequence: bool,
    zero: u8,
}

#[derive(Serialize)]
struct MemoryJson {
    weights_gb: f64,
    gradients_gb: f64,
    optimizer_gb: f64,
    activations_gb: f64,
}

#[derive(Serialize)]
struct RankedJson<'a> {
    rank: usize,
    candidate: &'a str,
    score: f64,
    by: &'static str,
    pareto: Option<bool>,
    within: bool,
    beyond: &'a [String],
}

impl<'a> Answer<'a> {
    fn candidate(&self, number: usize) -> &'a str {
        self.study.candidates.get(number).map_or("", |one| one.name.as_str())
    }

    fn job(&self, number: usize) -> &'a str {
        self.study.jobs.get(number).map_or("", Job::name)
    }

    fn priced(&self) -> bool {
        self.results.iter().any(|one| one.cost_per_hour.is_some())
    }

    /// What the ranking is by.
    fn by(&self) -> &'static str {
        if self.priced() { "cost_per_million_tokens" } else { "seconds_per_million_tokens" }
    }

    fn json(&self) -> StudyJson<'a> {
        let (own, curve) = (self.study.assumptions, self.study.efficiency);
        StudyJson {
            assumptions: AssumptionsJson {
                years: own.years,
                utilization: own.utilization,
                usd_per_kwh: own.per_kwh,
                efficiency_matrix: curve.matrix,
                efficiency_memory: curve.memory,
                efficiency_start_us: curve.start.us(),
            },
            results: self.results.iter().map(|one| self.result(one)).collect(),
            ranking: (1..)
                .zip(self.ranking)
                .map(|(rank, one)| RankedJson {
                    rank,
                    candidate: self.candidate(one.candidate),
                    score: one.score,
                    by: self.by(),
                    pareto: one.pareto,
                    within: one.beyond.is_empty(),
                    beyond: &one.beyond,
                })
                .collect(),
        }
    }

    fn result(&self, one: &JobResult) -> ResultJson<'a> {
        let degrees = one.step.layout.degrees;
        let job = self.study.jobs.get(one.job).and_then(|job| match job {
            Job::Training(job) => Some(job),
            Job::Inference(_) => None,
        });
        let seconds = one.step.time.us() / 1e6;
        let gb = |bytes: fabricast_topologies::Bytes| bytes.0 as f64 / 1e9;
        let hour = one.cost_per_hour;
        let million = one.cost_per_million_tokens;
        ResultJson {
            candidate: self.candidate(one.candidate),
            job: self.job(one.job),
            ranks: one.ranks,
            parallel: ParallelJson {
                tp: degrees.tensor,
                pp: degrees.pipeline,
                dp: degrees.data,
                ep: degrees.expert,
                cp: degrees.context,
                interleave: degrees.interleave,
                sequence: degrees.token_shares() > 1,
                zero: match job.map_or(Zero::None, |job: &Training| job.zero) {
                    Zero::None => 0,
                    Zero::Optimizer => 1,
                    Zero::Gradients => 2,
                    Zero::Weights => 3,
                },
            },
            micro_batches: job.map_or(0, |job| one.step.layout.micro_batches(job)),
            step_time_s: seconds,
            tokens_per_s: one.tokens_per_s,
            samples_per_s: job.map_or(0.0, |job| job.global_batch as f64 / seconds),
            exposed_comm_share: one.step.exposed(),
            total_comm_share: one.step.total_communication(),
            efficiency: one.step.efficiency(),
            step_s: Share::ALL.iter().map(|&share| (share.name(), one.step.of(share).us() / 1e6)).collect(),
            memory_gb: gb(one.footprint.total()),
            memory: MemoryJson {
                weights_gb: gb(one.footprint.weights),
                gradients_gb: gb(one.footprint.gradients),
                optimizer_gb: gb(one.footprint.optimizer),
                activations_gb: gb(one.footprint.activations),
            },
            fits: one.beyond.is_none(),
            memory_beyond_gb: one.beyond.map(gb),
            cost_per_hour: hour.map(Band::middle),
            cost_per_hour_low: hour.map(|band| band.low),
            cost_per_hour_high: hour.map(|band| band.high),
            cost_per_step: hour.map(|band| band.middle() * seconds / 3600.0),
            cost_per_million_tokens: million.map(Band::middle),
            cost_per_million_tokens_low: million.map(|band| band.low),
            cost_per_million_tokens_high: million.map(|band| band.high),
            kwh_per_million_tokens: one.kwh_per_million_tokens,
            time_to_train_h: one.train_hours,
            cost_to_train: one.train_hours.zip(hour).map(|(hours, band)| hours * band.middle()),
            binds: one.step.binds().name(),
        }
    }

    fn text(&self, look: &Look) -> String {
        format!("{}\n\n{}", self.ranked().text(look).trim_end(), self.results().text(look))
    }

    fn ranked(&self) -> Table {
        let score = if self.priced() { "USD/M tokens" } else { "s/M tokens" };
        let columns = [
            Column::new("rank", "rank", Unit::Number),
            Column::new("candidate", "candidate", Unit::Text),
            Column::new(self.by(), score, Unit::Number),
            Column::new("pareto", "pareto", Unit::Text),
            Column::new("beyond", "beyond", Unit::Text),
        ];
        let mut table = Table::new(columns.into());
        for (rank, one) in (1..).zip(self.ranking) {
            let name = Cell::from(Value::text(self.candidate(one.candidate)));
            table.row(vec![
                Value::Count(rank).into(),
                if rank == 1 { name.tone(Tone::Strong) } else { name },
                Value::Number(one.score).into(),
                Value::or_missing(one.pareto, |front| Value::text(if front { "yes" } else { "no" })).into(),
                Value::text(one.beyond.join("; ")).into(),
            ]);
        }
        table.heading("candidates, weighted geometric mean over jobs");
        table
    }

    fn results(&self) -> Table {
        let text = |key: &str, title: &str| Column::new(key, title, Unit::Text);
        let number = |key: &str, title: &str| Column::new(key, title, Unit::Number);
        let share = |key: &str, title: &str| Column::new(key, title, Unit::Percent);
        let mut table = Table::new(vec![
            text("candidate", "candidate"),
            text("job", "job"),
            number("ranks", "GPUs"),
            text("parallel", "parallel"),
            number("step_time_s", "step s"),
            number("tokens_per_s", "tokens/s"),
            share("exposed_comm_share", "exposed"),
            share("total_comm_share", "comm"),
            share("efficiency", "efficiency"),
            number("memory_gb", "memory GB"),
            text("fits", "fits"),
            number("cost_per_hour", "USD/h"),
            number("cost_per_million_tokens", "USD/M tokens"),
            text("binds", "binds"),
        ]);
        for one in self.results {
            let fits = one.beyond.map_or("yes".to_owned(), |over| format!("no, by {:.1} GB", over.0 as f64 / 1e9));
            table.row(vec![
                Value::text(self.candidate(one.candidate)).into(),
                Value::text(self.job(one.job)).into(),
                Value::Count(one.ranks as u64).into(),
                Value::text(one.step.layout.degrees.to_string()).into(),
                Value::Number(one.step.time.us() / 1e6).into(),
                Value::Number(one.tokens_per_s).into(),
                Value::Share(one.step.exposed()).into(),
                Value::Share(one.step.total_communication()).into(),
                Value::Share(one.step.efficiency()).into(),
                Value::Number(one.footprint.total().0 as f64 / 1e9).into(),
                Value::text(fits).into(),
                Value::or_missing(one.cost_per_hour, |band| Value::Number(band.middle())).into(),
                Value::or_missing(one.cost_per_million_tokens, |band| Value::Number(band.middle())).into(),
                Value::text(one.step.binds().name()).into(),
            ]);
        }
        if self.priced() {
            let own = self.study.assumptions;
            table.note(format!(
                "costs: middle of the price bands; purchases over {} years at {:.0} % of the time, {} USD a kWh",
                own.years,
                own.utilization * 100.0,
                own.per_kwh
            ));
        }
        table
    }
}
