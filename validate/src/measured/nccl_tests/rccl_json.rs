//! Reader of the output of rccl-tests with `-Z json`: a list of rows, one per side, each with its collective, ranks and
//! hosts.

use fabricast_topologies::SourceLocation;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::evidence::{Evidence, Factor, PrintedFigure};
use super::super::table::{Clock, Counting, Header, Row, Table, Timing};
use super::super::{LibraryName, MeasuredError, MeasuredLibrary, Reason, RejectedRow, number};
use super::check;
use super::json::{LineCounter, strip_location};

/// A row: one size, out of place or in place.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RcclEntry {
    #[serde(default)]
    num_cycle: u64,
    name: String,
    nodes: Option<u32>,
    ranks: Option<u32>,
    gpus_per_rank: Option<u32>,
    size: u64,
    r#type: Option<String>,
    redop: Option<String>,
    #[serde(default)]
    in_place: u32,
    time: Value,
    alg_bw: Option<Value>,
    bus_bw: Option<Value>,
    wrong: Option<Value>,
}

/// Reads the tables of a file: consecutive rows with the same collective, ranks and hosts form a table.
pub(in crate::measured) fn read(text: &str, source: &str) -> Result<Vec<Table>, MeasuredError> {
    let raws: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line() as u32, error.column() as u32);
        let location = SourceLocation { source: source.to_owned(), line, column, ..SourceLocation::default() };
        MeasuredError::invalid(location, format!("not the JSON of rccl-tests: {}", strip_location(&error)))
    })?;
    let mut lines = LineCounter::new(text);
    let mut tables: Vec<Table> = Vec::new();
    // Cycle and size of the previous entry, if it is the last row of the last table; otherwise `None`.
    let mut before: Option<(u64, u64)> = None;
    for raw in raws {
        let line = lines.line_number(raw);
        let entry: RcclEntry = serde_json::from_str(raw.get()).map_err(|error| {
            let location = SourceLocation { source: source.to_owned(), line, ..SourceLocation::default() };
            MeasuredError::invalid(location, format!("not a row of rccl-tests: {}", strip_location(&error)))
        })?;
        let header = header(&entry);
        if tables.last().is_none_or(|table| table.header != header) {
            tables.push(Table { header, rows: Vec::new(), rejected: Vec::new(), line });
            before = None;
        }
        let Some(table) = tables.last_mut() else { continue };
        let key = (entry.num_cycle, entry.size);
        match row(&entry, line) {
            // The entries of both sides of a size are consecutive.
            Ok(row) => {
                match (table.rows.last_mut().filter(|_| before == Some(key)), row.in_place) {
                    (Some(last), Some(in_place)) if last.in_place.is_none() => last.in_place = Some(in_place),
                    (Some(last), None) if last.out_of_place.is_none() => last.out_of_place = row.out_of_place,
                    _ => table.rows.push(row),
                }
                before = Some(key);
            }
            Err(reason) => {
                table.rejected.push(RejectedRow { line, reason });
                before = None;
            }
        }
    }
    if tables.is_empty() {
        return Err(MeasuredError::invalid(
            SourceLocation::from_source(source),
            "no row of rccl-tests: the list is empty",
        ));
    }
    tables.iter_mut().for_each(check);
    Ok(tables)
}

fn header(entry: &RcclEntry) -> Header {
    Header {
        program: Some(entry.name.clone()),
        collective: entry.name.parse().ok(),
        library: Some(MeasuredLibrary { name: LibraryName::Rccl, version: String::new() }),
        ranks: entry.ranks,
        gpus_per_thread: entry.gpus_per_rank,
        processes: entry.gpus_per_rank.map(super::process_layout),
        nodes: entry.nodes,
        counting: Counting::Blocks,
        ..Header::default()
    }
}

fn row(entry: &RcclEntry, line: u32) -> Result<Row, Reason> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_owned());
    let wrong = entry.wrong.as_ref().map(text).and_then(|wrong| wrong.parse::<f64>().ok()).unwrap_or(0.0);
    if wrong != 0.0 {
        return Err(Reason::WrongResults(wrong.abs().ceil() as u64));
    }
    let printed = |value: &Option<Value>| PrintedFigure::read(&text(value.as_ref()?));
    let evidence = Evidence {
        factor: printed(&entry.alg_bw)
            .zip(printed(&entry.bus_bw))
            .and_then(|(alg, bus)| Factor::from_printed(alg, bus)),
        reduces: entry.redop.as_deref().map(|op| op != "none"),
        rooted: None,
    };
    let dtype = entry.r#type.as_deref();
    let dtype = dtype.map(|name| name.parse().map_err(|_| Reason::UnknownType(name.to_owned()))).transpose()?;
    let time = number::time("time", &text(&entry.time))?;
    let timing = Some(Timing { time, spread: None, clock: Clock::Collective });
    let bytes = number::bytes(&entry.size.to_string())?;
    let sides = if entry.in_place == 0 { (timing, None) } else { (None, timing) };
    Ok(Row {
        dtype,
        op: entry.redop.as_deref().and_then(|op| op.parse().ok()),
        out_of_place: sides.0,
        in_place: sides.1,
        evidence,
        ..Row::new(bytes, time, line)
    })
}
