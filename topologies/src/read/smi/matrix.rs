//! Parser of the matrix of `nvidia-smi topo -m`, which may be anywhere in a text.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::error::{Origin, Result};

/// Maximum number of columns of a matrix; the largest hosts have about 40.
const MAX_COLUMNS: usize = 1024;

/// Relation between two devices, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// `X`: the device itself.
    Itself,
    /// `NV#`: this number of bonded NVLinks.
    NvLink(u16),
    /// `PIX`: one PCIe switch.
    OneSwitch,
    /// `PXB`: several PCIe switches, no host bridge.
    Switches,
    /// `PHB`: a PCIe host bridge.
    HostBridge,
    /// `NODE`: several host bridges of one NUMA node.
    Node,
    /// `SYS`: between NUMA nodes.
    System,
}

impl Relation {
    fn read(cell: &str) -> Option<Self> {
        Some(match cell {
            "X" => Self::Itself,
            "PIX" => Self::OneSwitch,
            "PXB" => Self::Switches,
            "PHB" => Self::HostBridge,
            "NODE" => Self::Node,
            // Versions before 390 printed `SOC`.
            "SYS" | "SOC" => Self::System,
            _ => Self::NvLink(cell.strip_prefix("NV")?.parse().ok().filter(|&count| count > 0)?),
        })
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Itself => f.write_str("X"),
            Self::NvLink(count) => write!(f, "NV{count}"),
            Self::OneSwitch => f.write_str("PIX"),
            Self::Switches => f.write_str("PXB"),
            Self::HostBridge => f.write_str("PHB"),
            Self::Node => f.write_str("NODE"),
            Self::System => f.write_str("SYS"),
        }
    }
}

/// A GPU or NIC that has a column in the matrix.
#[derive(Clone, Debug, Default)]
pub(super) struct MatrixDevice {
    /// Label of its column.
    pub label: String,
    pub is_gpu: bool,
    /// The number in the label of a GPU or `NIC#`; `None` for other names.
    pub number: Option<u32>,
    /// The name in the NIC legend, or the label if it is itself a name (`mlx5_0`).
    pub name: Option<String>,
    /// CPU cores near the device, from the column `CPU Affinity`.
    pub cpu_affinity: Option<String>,
    /// First NUMA node near the device, from the column `NUMA Affinity`.
    pub numa: Option<i32>,
    /// True if its memory is a NUMA node (GPUs attached to Grace).
    pub memory_is_numa: bool,
}

/// Parsed matrix of `nvidia-smi topo -m`.
#[derive(Debug, Default)]
pub(super) struct Matrix {
    pub devices: Vec<MatrixDevice>,
    /// Relations by row and column, lower index first. One of the two cells suffices; both are missing for two devices
    /// without rows.
    relations: FxHashMap<(usize, usize), Relation>,
    /// Labels of columns that have no row.
    pub without_row: Vec<String>,
}

impl Matrix {
    /// The relation between two devices; `None` if the text does not state it.
    pub fn relation(&self, a: usize, b: usize) -> Option<Relation> {
        self.relations.get(&(a.min(b), a.max(b))).copied()
    }
}

/// Cells of `nvidia-smi topo -p2p`, which show peer-to-peer capabilities and not the topology.
const P2P_CELLS: [&str; 7] = ["OK", "CNS", "GNS", "TNS", "NS", "DR", "U"];

/// A word of a line and its byte range.
type Word<'a> = (&'a str, Range<usize>);

/// The words of a line that starts at byte `start` of the text.
fn tokens(line: &str, start: usize) -> Vec<Word<'_>> {
    line.split_whitespace()
        .map(|word| {
            let at = start + (word.as_ptr() as usize - line.as_ptr() as usize);
            (word, at..at + word.len())
        })
        .collect()
}

/// The number in a label like `GPU7` or `NIC3`.
fn number(label: &str, prefix: &str) -> Option<u32> {
    let digits = label.strip_prefix(prefix)?;
    if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// Notations of the escape character in editors, terminals and logs.
const ESCAPE_NOTATIONS: [&str; 7] = ["\u{1b}", "^[", "\\033", "\\x1b", "\\u001b", "\\e", "␛"];

/// Byte ranges of the colour sequences (`[4m`, `[0;1m`) whose escape character is missing or spelled out.
fn bare_sequences(text: &str) -> Vec<Range<usize>> {
    let sequences = text.match_indices('[').filter_map(|(at, _)| {
        let rest = text.get(at + 1..)?;
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == ';'))?;
        let is_colour = end > 0 && rest.get(end..)?.starts_with('m');
        if !is_colour {
            return None;
        }
        let before = text.as_bytes().get(..at)?;
        let is_before = |written: &&&str| {
            before
                .len()
                .checked_sub(written.len())
                .is_some_and(|from| before[from..].eq_ignore_ascii_case(written.as_bytes()))
        };
        let escape = ESCAPE_NOTATIONS.iter().find(is_before);
        Some(at - escape.map_or(0, |written| written.len())..at + 1 + end + 1)
    });
    sequences.collect()
}

/// Replaces terminal escape sequences (`ESC [ … letter`) by spaces, which preserves byte offsets. Colour sequences
/// (`[4m`) are replaced even if the escape character is missing.
pub(in crate::read) fn blank_escapes(text: &str) -> Cow<'_, str> {
    let text = match bare_sequences(text) {
        bare if bare.is_empty() => Cow::Borrowed(text),
        bare => {
            let mut clean = text.to_owned();
            for bytes in bare {
                let blanks = " ".repeat(bytes.len());
                clean.replace_range(bytes, &blanks);
            }
            Cow::Owned(clean)
        }
    };
    if !text.contains('\u{1b}') {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut in_escape = false;
    for c in text.chars() {
        if c == '\u{1b}' {
            in_escape = true;
            out.push(' ');
        } else if in_escape && c.is_ascii() && c != '\n' {
            in_escape = !c.is_ascii_alphabetic();
            out.push(' ');
        } else {
            in_escape = false;
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// The lines of a text with the byte offset of each.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    text.split_inclusive('\n').map(move |line| {
        let at = start;
        start += line.len();
        (at, line)
    })
}

/// Returns true for the words of the line that names the columns: `GPU0 GPU1 … CPU Affinity`.
fn is_header(tokens: &[Word<'_>]) -> bool {
    let gpu = |word: Option<&Word<'_>>| word.is_some_and(|(word, _)| number(word, "GPU").is_some());
    gpu(tokens.first()) && tokens.get(1).is_none_or(|(word, _)| Relation::read(word).is_none())
}

/// Returns true for the words of a row: a label followed by a relation.
fn is_row(tokens: &[Word<'_>]) -> bool {
    matches!(tokens, [(label, _), (cell, _), ..] if label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && Relation::read(cell).is_some())
}

/// Returns true if a line is the header or a row of a matrix.
pub(in crate::read) fn is_matrix_line(line: &str) -> bool {
    let tokens = tokens(line, 0);
    is_header(&tokens) || is_row(&tokens)
}

/// Finds and parses the matrix in a text without escape sequences.
pub(super) fn read(origin: Origin<'_>) -> Result<Matrix> {
    let mut rest = lines(origin.text);
    let header = loop {
        let Some((start, line)) = rest.next() else {
            let message = "no matrix of `nvidia-smi topo -m`: no line names the columns (GPU0 GPU1 …)";
            return Err(origin.syntax(0..0, message));
        };
        let tokens = tokens(line, start);
        if is_header(&tokens) {
            break tokens;
        }
        if is_row(&tokens) {
            let end = start + line.trim_end().len();
            let message = "a row of the matrix, but the line that names its columns (GPU0 GPU1 …) is missing above it";
            return Err(origin.syntax(start..end, message));
        }
    };
    let labels = row_labels(origin.text);
    let mut matrix = Matrix { devices: columns(origin, &header, &labels)?, ..Matrix::default() };
    let index: FxHashMap<String, usize> =
        matrix.devices.iter().enumerate().map(|(i, device)| (device.label.clone(), i)).collect();
    let mut rows: Vec<bool> = vec![false; matrix.devices.len()];
    for (start, line) in rest {
        let tokens = tokens(line, start);
        let Some(((label, label_bytes), cells)) = tokens.split_first() else { continue };
        if let Some((label, name)) = legend(label, cells) {
            if let Some(device) = index.get(label).and_then(|&row| matrix.devices.get_mut(row)) {
                device.name = Some(name.to_owned());
            }
            continue;
        }
        let Some(&row) = index.get(label.trim_end_matches(':')) else {
            if is_row(&tokens) && (number(label, "GPU").is_some() || number(label, "NIC").is_some()) {
                let message =
                    format!("a row of `{label}`, but the header has no column of it: its columns are shifted");
                return Err(origin.invalid(label_bytes.clone(), message));
            }
            continue;
        };
        match rows.get_mut(row) {
            Some(seen) if *seen => return Err(origin.invalid(label_bytes.clone(), format!("a second row of {label}"))),
            Some(seen) => *seen = true,
            None => continue,
        }
        read_row(origin, &mut matrix, row, cells, label_bytes)?;
    }
    check_rows(origin, &mut matrix, &rows, &header)?;
    Ok(matrix)
}

/// Parses a legend line like `NIC0: mlx5_0`, which may be anywhere and may be followed by other text.
fn legend<'a>(label: &'a str, cells: &[Word<'a>]) -> Option<(&'a str, &'a str)> {
    let (label, name) = match (label.strip_suffix([':', '=']), cells) {
        (Some(label), [(name, _), ..]) => (label, *name),
        (None, [(":" | "=" | "->", _), (name, _), ..]) => (label, *name),
        _ => return None,
    };
    Relation::read(name).is_none().then_some((label, name))
}

/// The labels of all rows of the matrix in a text.
fn row_labels(text: &str) -> rustc_hash::FxHashSet<&str> {
    let rows = text.lines().filter_map(|line| {
        let tokens = tokens(line, 0);
        let &(label, _) = tokens.first().filter(|_| is_row(&tokens))?;
        Some(label)
    });
    rows.collect()
}

/// Returns true if a word consists of two or more names without a space between them: labels of rows, or numbered GPUs
/// and NICs.
fn is_glued(word: &str, labels: &rustc_hash::FxHashSet<&str>) -> bool {
    let is_label = |part: &str| {
        labels.contains(part)
            || number(part, "GPU").is_some()
            || number(part, "NIC").is_some()
            || number(part, "mlx5_").is_some()
    };
    // Positions at which names can end, from the start of the word.
    let mut ends = vec![0];
    for end in (1..=word.len()).filter(|&end| word.is_char_boundary(end)) {
        let is_end = |&start: &usize| word.get(start..end).is_some_and(is_label) && (start > 0 || end < word.len());
        if ends.iter().any(is_end) {
            ends.push(end);
        }
    }
    ends.contains(&word.len())
}

/// The devices that a header names.
fn columns(origin: Origin<'_>, header: &[Word<'_>], labels: &rustc_hash::FxHashSet<&str>) -> Result<Vec<MatrixDevice>> {
    let mut devices: Vec<MatrixDevice> = Vec::new();
    let mut seen = rustc_hash::FxHashSet::default();
    for (label, bytes) in header.iter().take_while(|(word, _)| !matches!(*word, "CPU" | "NUMA" | "GPU")) {
        let glued_to_next = label.strip_suffix("CPU").is_some_and(|label| !label.is_empty());
        if glued_to_next || (!labels.contains(label) && is_glued(label, labels)) {
            let message = format!("`{label}` is several names without blanks between them in the header");
            return Err(origin.invalid(bytes.clone(), message));
        }
        if !seen.insert(*label) {
            return Err(origin.invalid(bytes.clone(), format!("a second column of {label}")));
        }
        if devices.len() == MAX_COLUMNS {
            return Err(origin.invalid(bytes.clone(), format!("more than {MAX_COLUMNS} columns")));
        }
        let is_gpu = number(label, "GPU").is_some();
        let numbered = number(label, "GPU").or_else(|| number(label, "NIC"));
        devices.push(MatrixDevice {
            label: (*label).to_owned(),
            is_gpu,
            number: numbered,
            name: numbered.is_none().then(|| (*label).to_owned()),
            ..MatrixDevice::default()
        });
    }
    Ok(devices)
}

fn read_row(
    origin: Origin<'_>,
    matrix: &mut Matrix,
    row: usize,
    cells: &[Word<'_>],
    label: &Range<usize>,
) -> Result<()> {
    let columns = matrix.devices.len();
    for column in 0..columns {
        let name = |i: usize| matrix.devices.get(i).map_or("", |device| device.label.as_str());
        let Some((cell, bytes)) = cells.get(column) else {
            let message = format!("the row of {} has {} cells; the header names {columns}", name(row), cells.len());
            return Err(origin.syntax(label.clone(), message));
        };
        let Some(relation) = Relation::read(cell) else {
            if P2P_CELLS.contains(cell) {
                let message = format!(
                    "`{cell}`: this is the output of `nvidia-smi topo -p2p`, which does not say how devices are joined"
                );
                return Err(origin.invalid_with_help(
                    bytes.clone(),
                    message,
                    "give the output of `nvidia-smi topo -m`",
                ));
            }
            let message = format!("`{cell}` is none of X, NV#, PIX, PXB, PHB, NODE, SYS");
            return Err(origin.invalid(bytes.clone(), message));
        };
        if (relation == Relation::Itself) != (row == column) {
            let message = format!("`{cell}` in the row of {} and the column of {}", name(row), name(column));
            return Err(origin.invalid(bytes.clone(), message));
        }
        let pair = (row.min(column), row.max(column));
        if let Some(&other) = matrix.relations.get(&pair).filter(|&&other| other != relation) {
            let message = format!("`{cell}` between {} and {}, but {other} above", name(row), name(column));
            return Err(origin.invalid(bytes.clone(), message));
        }
        matrix.relations.insert(pair, relation);
    }
    if let Some((cell, bytes)) = cells.get(columns).filter(|(cell, _)| Relation::read(cell).is_some()) {
        let label = matrix.devices.get(row).map_or("", |device| device.label.as_str());
        let last = matrix.devices.last().map_or("", |device| device.label.as_str());
        let message = format!("`{cell}` is in the row of {label} after the last column, {last}: the header is shifted");
        return Err(origin.invalid(bytes.clone(), message));
    }
    if let Some(device) = matrix.devices.get_mut(row).filter(|device| device.is_gpu) {
        let mut affinities = cells.iter().skip(columns).map(|(word, _)| *word).filter(|word| *word != "N/A");
        device.cpu_affinity = affinities.next().map(str::to_owned);
        device.numa = affinities.next().and_then(|numa| numa.split([',', '-']).next()?.parse().ok());
        device.memory_is_numa = affinities.next().is_some_and(|id| id.parse::<u32>().is_ok());
    }
    Ok(())
}

/// Returns an error for a GPU without a row; records NICs without one.
fn check_rows(origin: Origin<'_>, matrix: &mut Matrix, rows: &[bool], header: &[Word<'_>]) -> Result<()> {
    for (i, device) in matrix.devices.iter().enumerate() {
        if rows.get(i).copied().unwrap_or_default() {
            continue;
        }
        if device.is_gpu {
            let bytes = header.get(i).map_or(0..0, |(_, bytes)| bytes.clone());
            return Err(origin.invalid(bytes, format!("there is no row of {}", device.label)));
        }
        matrix.without_row.push(device.label.clone());
    }
    Ok(())
}
