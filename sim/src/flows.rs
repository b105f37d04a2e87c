//! Timed flows: arbitrary traffic between devices, alone or concurrent with a collective.
//!
//! The input is CSV with the header `src,dst,bytes,start_us`; bytes may have a unit. A flow starts at its time, arrives
//! after the latency of its path, and transfers at its share of the path's capacities.

use fabricast_topologies::{Bytes, Fabric, NodeId, Picos, SourceLocation};

use crate::engine::{self, EngineError, Pace, Recording, Watch, Workload};
use crate::load::{LoadOverTime, load_over_time};
use crate::lower::{Devices, Environment, LowerError, LoweredWorkload};
use crate::quantity::Work;
use crate::simulate_error::SimulateError;
use crate::utilization::{LOAD_SLICES, Utilization, utilization};

/// Flow between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Device that sends the data.
    pub src: NodeId,
    /// Device that receives the data.
    pub dst: NodeId,
    /// Amount of data that the flow transfers.
    pub bytes: Bytes,
    /// Start time, counted from the start of the simulation.
    pub start: Picos,
}

/// Error in a flow file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct FlowError {
    /// File, line and column of the error.
    pub location: SourceLocation,
    /// Description of the problem and of the expected input.
    pub message: String,
}

/// Columns of a flow file, in the order that its header must have.
const COLUMNS: [&str; 4] = ["src", "dst", "bytes", "start_us"];

/// Latest start that is accepted, in µs: 1,000 seconds.
const LATEST_US: f64 = 1e9;

/// Reads flows between devices of `fabric`. Ignores blank lines and lines that begin with `#`.
///
/// # Errors
/// [`FlowError`] with the line and column: a header that is not `src,dst,bytes,start_us`, an unknown device, an invalid
/// size or time.
pub fn parse(text: &str, source: &str, fabric: &Fabric) -> Result<Vec<Flow>, FlowError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let mut flows = Vec::new();
    let mut record = csv::StringRecord::new();
    let mut has_header = false;
    loop {
        let fields = FlowFields { text, source, start: reader.position().byte() as usize };
        match reader.read_record(&mut record) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) => return Err(fields.error("", error.to_string())),
        }
        if has_header {
            flows.push(fields.flow(&record, fabric)?);
        } else if record.iter().eq(COLUMNS) {
            has_header = true;
        } else {
            return Err(fields.error("", format!("expected the header `{}`", COLUMNS.join(","))));
        }
    }
    if has_header {
        Ok(flows)
    } else {
        let location = SourceLocation::locate(source, text, 0..0);
        Err(FlowError { location, message: format!("no flows: expected the header `{}`", COLUMNS.join(",")) })
    }
}

/// Line of a flow file, with its position in the text, to locate errors in its fields.
struct FlowFields<'a> {
    text: &'a str,
    source: &'a str,
    start: usize,
}

impl FlowFields<'_> {
    fn flow(&self, record: &csv::StringRecord, fabric: &Fabric) -> Result<Flow, FlowError> {
        let mut fields = record.iter();
        let (Some(src), Some(dst), Some(bytes), Some(start), None) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            let message = format!("fields on this line: {}; expected 4, `{}`", record.len(), COLUMNS.join(","));
            return Err(self.error("", message));
        };
        let device = |name: &str| fabric.device(name).map_err(|error| self.error(name, error.to_string()));
        let microseconds = start.parse::<f64>().ok().filter(|us| (0.0..=LATEST_US).contains(us));
        Ok(Flow {
            src: device(src)?,
            dst: device(dst)?,
            bytes: bytes
                .parse()
                .map_err(|error: fabricast_topologies::UnitError| self.error(bytes, error.to_string()))?,
            start: microseconds.map(Picos::from_us).ok_or_else(|| {
                self.error(start, format!("`{start}` is not a start: expected microseconds from 0 to {LATEST_US:e}"))
            })?,
        })
    }

    /// Creates an error at a field of this line (at its start if the field is empty).
    fn error(&self, field: &str, message: impl Into<String>) -> FlowError {
        FlowError {
            location: SourceLocation::locate_field(self.source, self.text, self.start, [], field),
            message: message.into(),
        }
    }
}

/// Result of a simulation of flows.
#[derive(Clone, Debug)]
pub struct FlowOutcome {
    /// End of each flow, in the order given.
    pub ends: Vec<Picos>,
    /// Number of events that the engine handled.
    pub events: u64,
    /// Utilization of every used capacity.
    pub utilization: Vec<Utilization>,
    /// Used fraction of each capacity over time, in the order of `utilization`.
    pub load: LoadOverTime,
}

/// Simulates flows without a collective. Ignores `setting.placement`, and uses only the link efficiencies of the
/// profile.
///
/// # Errors
/// [`SimulateError`]: devices without a path between them, flows of over 213 days, an interrupt.
pub fn simulate(flows: &[Flow], setting: Environment<'_>, watch: Watch<'_>) -> Result<FlowOutcome, SimulateError> {
    let mut lowered = LoweredWorkload { workload: Workload::new(), ..LoweredWorkload::default() };
    add(flows, setting, &mut lowered)?;
    let outcome = engine::run(&lowered.workload, Watch { recording: Recording::Spans, ..watch })?;
    let end = outcome.spans.iter().map(|span| span.done).max().unwrap_or_default();
    Ok(FlowOutcome {
        ends: outcome.spans.iter().map(|span| span.done).collect(),
        events: outcome.events,
        utilization: utilization(&lowered.workload.system, &lowered.resources, &lowered.traffic, end),
        load: load_over_time(&lowered.workload, &outcome.rates, end, LOAD_SLICES),
    })
}

/// Adds flows to a lowered schedule, after its runs. They share its capacities, but do not count towards its end.
///
/// # Errors
/// [`LowerError::Unreachable`] if two devices have no path between them.
pub(crate) fn add(flows: &[Flow], setting: Environment<'_>, lowered: &mut LoweredWorkload) -> Result<(), LowerError> {
    let mut devices = Devices::new(setting, std::mem::take(&mut lowered.resources));
    for (flow, label) in flows.iter().zip(labels(flows)) {
        let workload = &mut lowered.workload;
        let passage = devices.passage(flow.src, flow.dst, label, &mut workload.system)?;
        let work = Work::from_bytes(flow.bytes.0);
        if let Some(route) = passage.route {
            lowered.traffic.add(route, work, &workload.system);
        }
        workload.add_uniform_run(1, passage, work, Pace { not_before: flow.start, ..Pace::default() }, &[]);
    }
    lowered.resources = devices.into_resources();
    Ok(())
}

/// Returns labels by which hashed routing distinguishes flows between the same devices: the position of a flow when
/// ordered by start and size, so that the order of the list does not matter.
fn labels(flows: &[Flow]) -> Vec<u64> {
    let key = |index: usize| flows.get(index).map(|flow| (flow.src, flow.dst, flow.start, flow.bytes));
    let mut order: Vec<usize> = (0..flows.len()).collect();
    order.sort_by_key(|&index| key(index));
    let mut labels = vec![0; flows.len()];
    let ends = |index: usize| key(index).map(|(src, dst, ..)| (src, dst));
    for group in order.chunk_by(|&a, &b| ends(a) == ends(b)) {
        for (label, &index) in (0..).zip(group) {
            labels[index] = label;
        }
    }
    labels
}

/// Returns the index of the flow for which the engine reports a duration of over 213 days; `None` for other errors.
#[must_use]
pub fn overlong_flow(error: &EngineError) -> Option<u32> {
    match error {
        EngineError::TooLong { run, .. } => Some(*run),
        _ => None,
    }
}
