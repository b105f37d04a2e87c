//! Tables of typed values, as aligned text for people or CSV for programs.
//!
//! Both are produced from one [`Table`], so that they cannot differ: text shows `118.3` under `time µs`, CSV has
//! `118.337` under `time_us`.
//!
//! ```
//! use fabricast_reports::table::{Column, TextOptions, Table, Unit, Value};
//! use fabricast_topologies::{Bytes, Picos};
//!
//! let mut table = Table::new(vec![
//!     Column::new("bytes", "size", Unit::Bytes),
//!     Column::new("algorithm", "algorithm", Unit::Text),
//!     Column::new("time_us", "time", Unit::Micros),
//! ]);
//! table.row(vec![Value::Bytes(Bytes(1 << 20)).into(), Value::text("ring").into(), Value::Time(Picos(48_620_000)).into()]);
//! table.note("nodes 1 · profile ideal");
//! let text = table.text(&TextOptions::default());
//! assert!(text.contains("1 MiB  ring"));
//! # let mut csv = Vec::new();
//! # table.csv(&mut csv)?;
//! # assert_eq!(csv, b"bytes,algorithm,time_us\n1048576,ring,48.62\n");
//! # Ok::<(), csv::Error>(())
//! ```

mod delimited;
mod html;
mod text;
mod value;

pub use text::{Style, TextOptions, stacked};
pub use value::{Unit, Value};

/// Column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    key: String,
    title: String,
    unit: Unit,
    spare: bool,
}

impl Column {
    /// Creates a column that is named `key` in CSV and `title`, followed by the unit, in text.
    #[must_use]
    pub fn new(key: &str, title: &str, unit: Unit) -> Self {
        Self { key: key.to_owned(), title: title.to_owned(), unit, spare: false }
    }

    /// Marks the column as one that is hidden if text output is too wide. The last of such columns is hidden first.
    #[must_use]
    pub fn spare(self) -> Self {
        Self { spare: true, ..self }
    }
}

/// Emphasis of a cell, shown as a colour if colours are enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emphasis {
    /// Normal text, without a colour.
    #[default]
    Plain,
    /// Highlighted: the selected strategy.
    Strong,
    /// Favourable value, such as a small error.
    Good,
    /// Value that needs attention.
    Doubtful,
    /// Unfavourable value.
    Bad,
    /// Context that is less important than the other cells.
    Faint,
}

/// Cell of a table: a value and its emphasis.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    value: Value,
    tone: Emphasis,
}

impl Cell {
    /// Returns the cell with an emphasis.
    #[must_use]
    pub fn tone(self, tone: Emphasis) -> Self {
        Self { tone, ..self }
    }

    /// Returns true if the cell has a value.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.value != Value::Missing
    }
}

impl From<Value> for Cell {
    fn from(value: Value) -> Self {
        Self { value, tone: Emphasis::Plain }
    }
}

/// Table with typed values, headings and notes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    heading: Vec<String>,
    notes: Vec<String>,
}

impl Table {
    /// Creates a table without rows.
    #[must_use]
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns, ..Self::default() }
    }

    /// Adds a line above the table, in text output only.
    pub fn heading(&mut self, line: impl Into<String>) {
        self.heading.push(line.into());
    }

    /// Adds a line below the table, in text output only.
    pub fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// Adds a row. Missing cells become missing values, and cells beyond the columns are dropped.
    pub fn row(&mut self, mut cells: Vec<Cell>) {
        cells.resize_with(self.columns.len(), || Value::Missing.into());
        self.rows.push(cells);
    }

    /// Returns the number of rows, not counting the header.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}
