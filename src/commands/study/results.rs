//! Result tables of a study, with a row for each job on each candidate.

use fabricast_reports::table::{Cell, Column, Table, Unit, Value};
use fabricast_study::answer::{Answer, JobKind, ResultRow};

/// Column with the function that fills its cells.
struct ResultField<'a> {
    column: Column,
    cell: Box<dyn Fn(&ResultRow) -> Cell + 'a>,
}

/// Table of all results.
fn table(answer: &Answer, fields: Vec<ResultField<'_>>) -> Table {
    let (columns, cells): (Vec<Column>, Vec<_>) = fields.into_iter().map(|field| (field.column, field.cell)).unzip();
    let mut table = Table::new(columns);
    answer.results.iter().for_each(|row| table.row(cells.iter().map(|cell| cell(row)).collect()));
    table
}

fn text<'a>(key: &str, title: &str, value: impl Fn(&ResultRow) -> String + 'a) -> ResultField<'a> {
    let cell = Box::new(move |row: &ResultRow| Value::text(value(row)).into());
    ResultField { column: Column::new(key, title, Unit::Text), cell }
}

fn number<'a>(key: &str, title: &str, value: impl Fn(&ResultRow) -> Option<f64> + 'a) -> ResultField<'a> {
    let cell = Box::new(move |row: &ResultRow| Value::or_missing(value(row), Value::Number).into());
    ResultField { column: Column::new(key, title, Unit::Number), cell }
}

fn percent<'a>(key: &str, title: &str, value: impl Fn(&ResultRow) -> Option<f64> + 'a) -> ResultField<'a> {
    let cell = Box::new(move |row: &ResultRow| Value::or_missing(value(row), Value::Share).into());
    ResultField { column: Column::new(key, title, Unit::Percent), cell }
}

impl ResultField<'_> {
    /// Marks a column as optional, so that it is hidden first on narrow terminals.
    fn optional(self) -> Self {
        Self { column: self.column.spare(), ..self }
    }
}

/// Columns with the candidate and job of a row.
fn names<'a>() -> Vec<ResultField<'a>> {
    vec![text("candidate", "candidate", |row| row.candidate.clone()), text("job", "job", |row| row.job.clone())]
}

fn fits(row: &ResultRow) -> String {
    let memory = row.memory_excess_gb.map(|excess| format!("no, by {excess:.1} GB"));
    let host_memory = row.host_memory_excess_gb.map(|excess| format!("no, by {excess:.1} GB of the CPUs' memory"));
    let slo = (!row.slo_violations.is_empty()).then(|| format!("SLO violation: {}", row.slo_violations.join(", ")));
    let reasons: Vec<String> = memory.into_iter().chain(host_memory).chain(slo).collect();
    if reasons.is_empty() { "yes".to_owned() } else { reasons.join("; ") }
}

/// Optional columns that apply only to some kinds of jobs.
struct OptionalColumns {
    /// True if latencies of requests are shown.
    requests: bool,
    /// True if percentiles of latencies are shown, which jobs with a rate of arrivals have.
    percentiles: bool,
    /// True if times to swap an adapter are shown, which jobs with adapters have.
    adapters: bool,
    /// True if the number of concurrent requests is shown, because memory capacity and not the job determines it.
    in_flight: bool,
    /// True if the cost of a step is shown, in addition to the costs per hour and per token.
    step_cost: bool,
}

/// Columns of speed, efficiency, memory and cost.
fn main_fields<'a>(optional_columns: &OptionalColumns) -> Vec<ResultField<'a>> {
    let parallel = |row: &ResultRow| {
        Cell::from(Value::or_missing(row.parallel, |parallelism| Value::text(parallelism.to_string())))
    };
    let mut fields = vec![
        ResultField {
            column: Column::new("ranks", "GPUs", Unit::Number),
            cell: Box::new(|row| Value::Count(row.ranks).into()),
        },
        ResultField { column: Column::new("parallel", "parallel", Unit::Text), cell: Box::new(parallel) }.optional(),
        number("step_time_s", "step s", |row| Some(row.step_time_s)),
        number("tokens_per_s", "tokens/s", |row| row.tokens_per_s),
    ];
    if optional_columns.in_flight {
        let count = |row: &ResultRow| Cell::from(Value::or_missing(row.concurrent_requests, Value::Count));
        fields.push(ResultField {
            column: Column::new("concurrent_requests", "concurrent requests", Unit::Number),
            cell: Box::new(count),
        });
    }
    if optional_columns.requests {
        fields.push(number("ttft_s", "TTFT s", |row| row.ttft_s));
        fields.push(number("tpot_s", "TPOT s", |row| row.tpot_s));
    }
    if optional_columns.adapters {
        fields.push(number("adapter_swap_s", "adapter swap s", |row| row.adapter_swap_s));
    }
    if optional_columns.percentiles {
        fields.push(number("ttft_p50_s", "TTFT p50 s", |row| Some(row.latencies?.ttft_s?.p50)).optional());
        fields.push(number("ttft_p99_s", "TTFT p99 s", |row| Some(row.latencies?.ttft_s?.p99)));
        fields.push(number("tpot_p99_s", "TPOT p99 s", |row| Some(row.latencies?.tpot_s?.p99)).optional());
    }
    fields.extend([
        percent("exposed_comm_share", "exposed comm", |row| Some(row.exposed_comm_share)).optional(),
        percent("hidden_comm_share", "hidden comm", |row| row.hidden_comm_share).optional(),
        percent("efficiency", "vs 1 GPU", |row| row.efficiency).optional(),
        percent("efficiency_node", "vs 1 node", |row| row.efficiency_node).optional(),
        number("memory_gb", "memory GB", |row| row.memory_gb).optional(),
        text("fits", "fits", fits),
        number("cost_per_hour", "USD/h", |row| row.cost_per_hour).optional(),
    ]);
    if optional_columns.step_cost {
        fields.push(number("cost_per_step", "USD/step", |row| row.cost_per_step));
    }
    fields.push(number("cost_per_million_tokens", "USD/M tokens", |row| row.cost_per_million_tokens));
    fields.push(text("bottleneck", "bottleneck", |row| row.bottleneck.clone()).optional());
    fields
}

/// Columns of samples, energy, and time and cost of the whole training.
fn training_fields<'a>() -> Vec<ResultField<'a>> {
    vec![
        number("samples_per_s", "samples/s", |row| row.samples_per_s),
        number("kwh_per_million_tokens", "kWh/M tokens", |row| row.kwh_per_million_tokens),
        number("time_to_train_h", "hours to train", |row| row.time_to_train_h),
        number("cost_to_train", "USD to train", |row| row.cost_to_train),
    ]
}

/// CSV table of all results, with the rank of the candidate. The columns are the same for every study.
pub fn csv(answer: &Answer) -> Table {
    let ranked = |row: &ResultRow| answer.ranking.iter().find(|entry| entry.candidate == row.candidate);
    let rank =
        move |row: &ResultRow| Cell::from(Value::or_missing(ranked(row), |entry| Value::Count(entry.rank as u64)));
    let pareto = move |row: &ResultRow| {
        let is_optimal = ranked(row).and_then(|entry| entry.pareto);
        Cell::from(Value::or_missing(is_optimal, |is_optimal| Value::text(if is_optimal { "yes" } else { "no" })))
    };
    let mut fields = vec![ResultField { column: Column::new("rank", "rank", Unit::Number), cell: Box::new(rank) }];
    fields.extend(names());
    fields.extend(main_fields(&OptionalColumns {
        requests: true,
        percentiles: true,
        adapters: true,
        in_flight: true,
        step_cost: true,
    }));
    fields.extend(training_fields());
    fields.push(percent("total_comm_share", "total comm", |row| Some(row.total_comm_share)));
    fields.push(number("score", "score", move |row| ranked(row)?.score));
    fields.push(percent("probability_best", "P(best)", move |row| ranked(row)?.probability_best));
    fields.push(ResultField { column: Column::new("pareto", "pareto", Unit::Text), cell: Box::new(pareto) });
    // Constraints that the candidate violates, if any.
    fields.push(text("meets_constraints", "meets constraints", move |row| {
        ranked(row).map_or_else(String::new, |entry| if entry.meets_constraints { "yes" } else { "no" }.to_owned())
    }));
    fields.push(text("violations", "violates", move |row| {
        ranked(row).map_or_else(String::new, |entry| entry.violations.join("; "))
    }));
    // Jobs to which rank, score, probability and Pareto front refer.
    fields.push(text("ranked_by", "ranked by", move |row| {
        let ranked_jobs = ranked(row).map(|entry| entry.jobs.as_slice()).unwrap_or_default();
        let all = || answer.jobs.iter().map(|job| job.name.clone()).collect();
        if ranked_jobs.is_empty() { all() } else { ranked_jobs.to_vec() }.join("; ")
    }));
    table(answer, fields)
}

/// Text table of all results.
pub fn results(answer: &Answer) -> Table {
    // Latency columns apply to inference jobs only. The cost of a step is shown for traces, because they have no cost
    // per token.
    let has_kind = |kind: JobKind| answer.results.iter().any(|row| row.kind == kind);
    let in_flight = answer.jobs.iter().any(|job| job.kind == JobKind::Inference && job.concurrency.is_none());
    let optional_columns = OptionalColumns {
        requests: has_kind(JobKind::Inference),
        percentiles: answer.results.iter().any(|row| row.latencies.is_some()),
        adapters: answer.results.iter().any(|row| row.adapter_swap_s.is_some()),
        in_flight,
        step_cost: has_kind(JobKind::Trace),
    };
    let mut table = table(answer, names().into_iter().chain(main_fields(&optional_columns)).collect());
    if optional_columns.requests {
        table.note("tokens of inference are output tokens; a step is the mean of those with and without prefill");
    }
    if optional_columns.step_cost {
        table.note(
            "a trace is one step, on the first GPUs of each candidate, all of which are paid for; its tokens and memory are unknown",
        );
    }
    if answer.is_priced() {
        let assumptions = &answer.assumptions;
        table.note(format!(
            "costs: middle of the price bands; purchases over {} years at {:.0} % utilization, {} USD per kWh",
            assumptions.years,
            assumptions.utilization * 100.0,
            assumptions.usd_per_kwh
        ));
    }
    answer.notes.iter().chain(&answer.accuracy).for_each(|note| table.note(note));
    table
}

/// Table of samples, energy and the whole training; `None` if no value is known.
pub fn training_table(answer: &Answer) -> Option<Table> {
    let is_trace = |row: &ResultRow| row.kind == JobKind::Trace;
    let mut fields = training_fields();
    // If there are traces, the main table contains this column.
    if !answer.results.iter().any(is_trace) {
        fields.insert(1, number("cost_per_step", "USD/step", |row| row.cost_per_step));
    }
    fields.retain(|field| answer.results.iter().any(|row| (field.cell)(row).is_known()));
    let field_count = fields.len();
    let mut table = table(answer, names().into_iter().chain(fields).collect());
    let has_training_totals = |row: &ResultRow| row.time_to_train_h.or(row.cost_to_train).is_some();
    table.heading(match answer.results.iter().any(has_training_totals) {
        true => "samples, steps, energy and the whole training",
        false => "samples, steps and energy",
    });
    (field_count > 0).then_some(table)
}
