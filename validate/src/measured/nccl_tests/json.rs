//! JSON output of nccl-tests (`-J`). Versions 1 to 3 of the format differ only in keys that are not read here.

use fabricast_topologies::{Picos, SourceLocation};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::evidence::{Evidence, Factor, PrintedFigure};
use super::super::table::{Clock, Counting, Header, ListedDevice, Row, Spread, Table, Timing};
use super::super::{MeasuredError, MeasuredLibrary, Reason, RejectedRow, number};
use super::{check, count_ranks, launch_mode, process_layout, program_collective};

#[derive(Deserialize)]
struct NcclTestsDocument<'a> {
    #[serde(default)]
    args: Vec<String>,
    nccl_version: Option<u32>,
    config: Option<ConfigEntry>,
    #[serde(borrow)]
    results: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct ConfigEntry {
    nthreads: Option<u32>,
    ngpus: Option<u32>,
    iterations: Option<u32>,
    graph: Option<u64>,
    #[serde(default)]
    devices: Vec<DeviceEntry>,
}

#[derive(Deserialize)]
struct DeviceEntry {
    rank: u32,
    #[serde(default)]
    group: u32,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    hostname: String,
    device: u32,
    #[serde(default)]
    device_info: String,
}

/// A row. Figures may be strings (`"nan"`), so each one is converted separately.
#[derive(Deserialize)]
struct SizeEntry {
    size: u64,
    count: u64,
    r#type: String,
    redop: Option<String>,
    root: Option<Value>,
    out_of_place: Option<SideEntry>,
    in_place: Option<SideEntry>,
    out_of_place_per_iter: Option<Calls>,
    in_place_per_iter: Option<Calls>,
}

#[derive(Deserialize)]
struct SideEntry {
    alg_bw: Option<Value>,
    bus_bw: Option<Value>,
    time: Option<Value>,
    cpu_time: Option<Value>,
    nwrong: Option<f64>,
}

#[derive(Deserialize)]
struct Calls {
    min_us: f64,
    max_us: f64,
    p99_us: f64,
}

/// Reads the only table of a JSON log of nccl-tests. `source` names the log in errors.
pub(in crate::measured) fn read(text: &str, source: &str) -> Result<Vec<Table>, MeasuredError> {
    let document: NcclTestsDocument<'_> = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line() as u32, error.column() as u32);
        let location = SourceLocation { source: source.to_owned(), line, column, ..SourceLocation::default() };
        MeasuredError::invalid(location, format!("not the JSON of nccl-tests: {}", strip_location(&error)))
    })?;
    let header = header(&document);
    let mut lines = LineCounter::new(text);
    let mut table = Table { header, rows: Vec::new(), rejected: Vec::new(), line: 1 };
    for raw in &document.results {
        let line = lines.line_number(raw);
        match row(raw, line) {
            Ok(row) => table.rows.push(row),
            Err(reason) => table.rejected.push(RejectedRow { line, reason }),
        }
    }
    check(&mut table);
    Ok(vec![table])
}

/// Message of a JSON error, without the location at its end.
pub(in crate::measured) fn strip_location(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(message, _)| message.to_owned())
}

/// Counter that determines the line numbers of values. Values must be visited in the order of the text.
pub(in crate::measured) struct LineCounter<'a> {
    text: &'a str,
    offset: usize,
    line: u32,
}

impl<'a> LineCounter<'a> {
    /// Creates a counter at the start of a text.
    pub(in crate::measured) fn new(text: &'a str) -> Self {
        Self { text, offset: 0, line: 1 }
    }

    /// Returns the line, from 1, on which a value begins. `raw` must borrow from the text.
    pub(in crate::measured) fn line_number(&mut self, raw: &RawValue) -> u32 {
        // The raw value is a slice of the text.
        let start = (raw.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        let between = self.text.as_bytes().get(self.offset..start).unwrap_or_default();
        self.line += between.iter().filter(|&&byte| byte == b'\n').count() as u32;
        self.offset = start.max(self.offset);
        self.line
    }
}

fn header(document: &NcclTestsDocument<'_>) -> Header {
    let program = document.args.first().cloned();
    let mut header = Header {
        collective: program.as_deref().and_then(program_collective),
        program,
        library: document.nccl_version.map(MeasuredLibrary::from_nccl_code),
        counting: Counting::Blocks,
        ..Header::default()
    };
    if let Some(config) = &document.config {
        header.threads = config.nthreads;
        header.gpus_per_thread = config.ngpus;
        header.processes = config.ngpus.map(process_layout);
        header.launch = config.graph.map(launch_mode);
        header.iterations = config.iterations;
        let device = |entry: &DeviceEntry| ListedDevice {
            rank: entry.rank,
            group: entry.group,
            pid: entry.pid,
            host: entry.hostname.clone(),
            device: entry.device,
            model: entry.device_info.clone(),
            bus: None,
        };
        header.devices = config.devices.iter().map(device).collect();
    }
    header.ranks = count_ranks(&header);
    header
}

fn row(raw: &RawValue, line: u32) -> Result<Row, Reason> {
    // The file is truncated, and nccl-tests closed the open brackets.
    let entry: SizeEntry = serde_json::from_str(raw.get()).map_err(|_| Reason::CutOff)?;
    let dtype = entry.r#type.parse().map_err(|_| Reason::UnknownType(entry.r#type.clone()))?;
    let root = match &entry.root {
        Some(Value::String(text)) => text.trim().parse::<u32>().ok(),
        Some(Value::Number(number)) => number.as_u64().and_then(|root| u32::try_from(root).ok()),
        _ => None,
    };
    let of_side = |side: &Option<SideEntry>| {
        let side = side.as_ref()?;
        let printed = |value: &Option<Value>| PrintedFigure::read(&value.as_ref()?.to_string());
        Factor::from_printed(printed(&side.alg_bw)?, printed(&side.bus_bw)?)
    };
    let evidence = Evidence {
        factor: of_side(&entry.out_of_place).or_else(|| of_side(&entry.in_place)),
        reduces: entry.redop.as_deref().map(|op| op != "none"),
        rooted: entry.root.is_some().then_some(root.is_some()),
    };
    let row = Row {
        bytes: number::bytes(&entry.size.to_string())?,
        count: Some(entry.count),
        dtype: Some(dtype),
        op: entry.redop.as_deref().and_then(|op| op.parse().ok()),
        root,
        out_of_place: timing(entry.out_of_place, entry.out_of_place_per_iter)?,
        in_place: timing(entry.in_place, entry.in_place_per_iter)?,
        evidence,
        line,
    };
    if row.out_of_place.is_none() && row.in_place.is_none() { Err(Reason::NoTime) } else { Ok(row) }
}

fn timing(side: Option<SideEntry>, calls: Option<Calls>) -> Result<Option<Timing>, Reason> {
    let Some(side) = side else { return Ok(None) };
    if let Some(wrong) = side.nwrong.filter(|&wrong| wrong != 0.0) {
        return Err(Reason::WrongResults(wrong.abs().ceil() as u64));
    }
    let (clock, value) = match (side.time, side.cpu_time) {
        (Some(time), _) => (Clock::Collective, time),
        (None, Some(time)) => (Clock::Cpu, time),
        (None, None) => return Ok(None),
    };
    let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let time = number::time("time", &text)?;
    let spread = calls.and_then(|calls| {
        let [min, max, p99]: [Option<Picos>; 3] = [calls.min_us, calls.max_us, calls.p99_us].map(number::time_from_us);
        Some(Spread { min: min?, max: max?, p99: p99? })
    });
    Ok(Some(Timing { time, spread, clock }))
}
