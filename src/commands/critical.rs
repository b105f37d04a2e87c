//! `--critical-path`: the chain of dependent operations that determines the end of a run.

use fabricast_reports::format;
use fabricast_reports::table::{Column, Table, TextOptions, Unit, Value};
use fabricast_sim::Timeline;
use fabricast_sim::critical::CriticalStep;
use fabricast_sim::schedule::ScheduleGenerator;
use fabricast_topologies::Picos;
use schemars::JsonSchema;
use serde::Serialize;

use super::format_count;
use super::operations::{Operation, Operations};

/// Maximum number of table rows. If there are more, the longest ones are shown.
const MAX_ROWS: usize = 12;

/// Steps of a critical path in chronological order. The launch overhead follows the last step.
pub struct CriticalPath {
    steps: Vec<Step>,
    launch: Picos,
}

/// Operation on the critical path.
struct Step {
    operation: Operation,
    timing: CriticalStep,
}

impl CriticalPath {
    /// Creates the critical path of a recorded run.
    pub fn new(generator: &dyn ScheduleGenerator, timeline: &Timeline) -> Self {
        let mut operations = Operations::new(timeline);
        for step in &timeline.critical_path {
            operations.add(generator, timeline.run_rank(step.span.run));
        }
        let step = |timing: &CriticalStep| Some(Step { operation: operations.get(&timing.span)?, timing: *timing });
        let steps: Vec<Step> = timeline.critical_path.iter().filter_map(step).collect();
        let chain: Picos = steps.iter().map(|step| step.timing.total()).sum();
        // Without operations, the launch overhead is the whole time.
        Self { steps, launch: timeline.time - chain }
    }

    /// Returns the steps for JSON. Their durations add up to the time of the run.
    pub fn json(&self) -> Vec<CriticalStepJson> {
        let mut steps: Vec<CriticalStepJson> = self.steps.iter().map(CriticalStepJson::from).collect();
        if self.launch > Picos::ZERO {
            let end = self.steps.last().map(|step| step.timing.span.done).unwrap_or_default();
            steps.push(CriticalStepJson::launch(end, self.launch));
        }
        steps
    }

    /// Formats the path as a table with a row for each series of similar steps. The rows add up to the time of the run.
    pub fn text(&self, options: &TextOptions) -> String {
        let mut rows: Vec<StepSeries<'_>> = self.steps.chunk_by(Step::is_similar_to).map(StepSeries::new).collect();
        let launch = StepSeries { launch: self.launch, ..StepSeries::new(&[]) };
        rows.extend((self.launch > Picos::ZERO).then_some(launch));
        let totals = Sums::sum_rows(&rows);
        let omitted = retain_longest_rows(&mut rows);
        let mut fields = vec![
            Column::new("steps", "steps", Unit::Number),
            Column::new("kind", "kind", Unit::Text),
            Column::new("ranks", "ranks", Unit::Text),
            Column::new("chunks", "chunks", Unit::Text),
        ];
        // A column is omitted if its kind of duration is zero in all rows.
        let kinds: Vec<usize> = (0..KINDS.len()).filter(|&kind| totals.0[kind] > Picos::ZERO).collect();
        fields.extend(kinds.iter().map(|&kind| Column::new(KINDS[kind], KINDS[kind], Unit::Micros)));
        fields.push(Column::new("sum", "sum", Unit::Micros));
        let mut table = Table::new(fields);
        table.heading(format!("critical path: {}", format_count(self.steps.len() as u64, "operation")));
        let mut add = |steps: Value, labels: [String; 3], sums: &Sums| {
            let times = kinds.iter().map(|&kind| sums.0[kind]).chain([sums.total()]);
            let cells = std::iter::once(steps).chain(labels.map(Value::text)).chain(times.map(Value::Time));
            table.row(cells.map(Into::into).collect());
        };
        for row in &rows {
            add(Value::Count(row.steps.len() as u64), row.labels(), &row.sums());
        }
        if let Some((steps, sums)) = &omitted {
            let name = format!("… {} more steps", format::grouped(*steps as u64));
            add(Value::Missing, [name, String::new(), String::new()], sums);
        }
        add(Value::Count(self.steps.len() as u64), ["sum".to_owned(), String::new(), String::new()], &totals);
        table.text(options)
    }
}

impl Step {
    /// Returns true if two consecutive steps may share a row: equal kinds of operation, and durations that differ by at
    /// most 2 % of the step's total.
    fn is_similar_to(&self, other: &Self) -> bool {
        let tolerance = self.timing.total().0 / 50;
        let mut pairs = durations(&self.timing).into_iter().zip(durations(&other.timing));
        self.operation.kind == other.operation.kind && pairs.all(|(a, b)| a.0.abs_diff(b.0) <= tolerance)
    }
}

/// Names of the kinds of duration, in the order of [`durations`].
const KINDS: [&str; 5] = ["software", "latency", "bandwidth", "sharing", "held back"];

fn durations(step: &CriticalStep) -> [Picos; 5] {
    [step.software, step.latency, step.bandwidth, step.sharing, step.held_back]
}

/// Sums of durations by kind, in the order of [`KINDS`].
#[derive(Clone, Copy, Default)]
struct Sums([Picos; 5]);

impl Sums {
    fn add(&mut self, other: [Picos; 5]) {
        for (sum, one) in self.0.iter_mut().zip(other) {
            *sum += one;
        }
    }

    fn sum_rows(rows: &[StepSeries<'_>]) -> Self {
        let mut sums = Self::default();
        for row in rows {
            sums.add(row.sums().0);
        }
        sums
    }

    fn total(&self) -> Picos {
        self.0.iter().copied().sum()
    }
}

/// Series of similar consecutive steps, or the launch overhead.
struct StepSeries<'a> {
    steps: &'a [Step],
    launch: Picos,
}

impl<'a> StepSeries<'a> {
    fn new(steps: &'a [Step]) -> Self {
        Self { steps, launch: Picos::ZERO }
    }

    fn sums(&self) -> Sums {
        let mut sums = Sums([self.launch, Picos::ZERO, Picos::ZERO, Picos::ZERO, Picos::ZERO]);
        for step in self.steps {
            sums.add(durations(&step.timing));
        }
        sums
    }

    /// Kind of operation, ranks and chunks as text, such as `put`, `3 → 4 … → 7`, `5 … 2`.
    fn labels(&self) -> [String; 3] {
        let [first, .., last] = self.steps else {
            let Some(Step { operation, .. }) = self.steps.first() else {
                return ["launch".to_owned(), String::new(), String::new()];
            };
            return [operation.kind.name().to_owned(), ends(operation), operation.chunks()];
        };
        let (first, last) = (&first.operation, &last.operation);
        let span = |a: String, b: String, between: &str| if a == b { a } else { format!("{a} …{between} {b}") };
        let ranks = if first.from == last.from && first.to == last.to {
            ends(first)
        } else if first.from == first.to {
            span(ends(first), ends(last), "")
        } else {
            format!("{} … → {}", ends(first), last.to.0)
        };
        [first.kind.name().to_owned(), ranks, span(first.chunks(), last.chunks(), "")]
    }
}

/// Ranks of an operation: `3 → 4`, or `3` for local operations.
fn ends(operation: &Operation) -> String {
    let Operation { from, to, .. } = operation;
    if from == to { from.0.to_string() } else { format!("{} → {}", from.0, to.0) }
}

/// Keeps the longest rows, in chronological order. Returns the number of steps and the duration sums of the removed
/// rows; `None` if no row was removed.
fn retain_longest_rows(rows: &mut Vec<StepSeries<'_>>) -> Option<(usize, Sums)> {
    if rows.len() <= MAX_ROWS {
        return None;
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let totals: Vec<Picos> = rows.iter().map(|row| row.sums().total()).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(totals[row]));
    let mut retained = vec![false; rows.len()];
    for &row in order.iter().take(MAX_ROWS) {
        retained[row] = true;
    }
    let (mut steps, mut sums, mut number) = (0, Sums::default(), 0);
    rows.retain(|row| {
        number += 1;
        if !retained[number - 1] {
            steps += row.steps.len();
            sums.add(row.sums().0);
        }
        retained[number - 1]
    });
    Some((steps, sums))
}

/// JSON of a step. The five durations fill the time from `start_us` to `end_us`, where the next step begins.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StepJson")]
pub struct CriticalStepJson {
    /// Kind of operation; `launch` for the launch overhead at the end.
    kind: &'static str,
    /// Rank that executes the operation; null for the launch.
    rank: Option<u32>,
    /// Channel of the operation; null for the launch.
    channel: Option<u16>,
    /// Rank that sends; null for the launch.
    from: Option<u32>,
    /// Rank that receives; null for the launch.
    to: Option<u32>,
    /// First chunk of the operation; null if it moves no data.
    chunk: Option<u32>,
    /// Number of chunks.
    chunks: u32,
    /// Start, in µs.
    start_us: f64,
    /// End, in µs.
    end_us: f64,
    /// Software time, in µs.
    software_us: f64,
    /// Latency of the path, in µs.
    latency_us: f64,
    /// Time of the bytes without contention, in µs.
    bandwidth_us: f64,
    /// Time added by contention, in µs.
    sharing_us: f64,
    /// Time added by a rank that starts late, in µs.
    held_back_us: f64,
}

impl CriticalStepJson {
    fn launch(end: Picos, launch: Picos) -> Self {
        Self {
            kind: "launch",
            rank: None,
            channel: None,
            from: None,
            to: None,
            chunk: None,
            chunks: 0,
            start_us: end.us(),
            end_us: (end + launch).us(),
            software_us: launch.us(),
            latency_us: 0.0,
            bandwidth_us: 0.0,
            sharing_us: 0.0,
            held_back_us: 0.0,
        }
    }
}

impl From<&Step> for CriticalStepJson {
    fn from(step: &Step) -> Self {
        let Step { operation, timing } = step;
        Self {
            kind: operation.kind.name(),
            rank: Some(operation.rank.0),
            channel: Some(operation.channel.0),
            from: Some(operation.from.0),
            to: Some(operation.to.0),
            chunk: (operation.chunks > 0).then_some(operation.chunk),
            chunks: operation.chunks,
            start_us: (timing.span.done - timing.total()).us(),
            end_us: timing.span.done.us(),
            software_us: timing.software.us(),
            latency_us: timing.latency.us(),
            bandwidth_us: timing.bandwidth.us(),
            sharing_us: timing.sharing.us(),
            held_back_us: timing.held_back.us(),
        }
    }
}
