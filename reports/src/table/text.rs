//! Tables as aligned text.

use comfy_table::{
    Attribute, CellAlignment, Color, ColumnConstraint, ContentArrangement, LineStyle, TableStyle, Width,
};

use fabricast_topologies::fabric::suggest_names;
use fabricast_topologies::visible::{mark_colours, visible_lines};

use super::{Cell, Column, Emphasis, Table, Unit};
use crate::format::Glyphs;

/// Colour mode of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Text without escape sequences.
    #[default]
    Plain,
    /// Text with ANSI colours, or without if `NO_COLOR` is set.
    Colour,
}

/// Options for the text output of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// Colour mode of the text.
    pub style: Style,
    /// Character set of rules and units.
    pub glyphs: Glyphs,
    /// Number of columns of the terminal; `None` for unlimited width.
    pub width: Option<u16>,
    /// Columns to show, by key or title; empty for all columns. A table that has none of them is shown as a whole.
    pub columns: Vec<String>,
}

impl TextOptions {
    /// Breaks a line between words so that it fits the terminal. Further lines are indented by two columns more than
    /// the first. Words that are longer than a line are not broken.
    #[must_use]
    pub fn wrap(&self, line: &str) -> String {
        let Some(width) = self.width.map(usize::from) else { return line.to_owned() };
        if line.chars().count() <= width {
            return line.to_owned();
        }
        let margin: String = line.chars().take_while(|character| *character == ' ').collect();
        let (mut text, mut column) = (margin.clone(), margin.len());
        let mut is_first = true;
        for word in line.trim_start().split(' ') {
            let length = word.chars().count();
            if !is_first && column + 1 + length > width {
                text.push_str(&format!("\n{margin}  "));
                column = margin.len() + 2;
            } else if !is_first {
                text.push(' ');
                column += 1;
            }
            text.push_str(word);
            column += length;
            is_first = false;
        }
        text
    }

    /// Applies [`Self::wrap`] to each line of a text. A final line break is preserved.
    #[must_use]
    pub fn wrap_lines(&self, text: &str) -> String {
        text.split('\n').map(|line| self.wrap(line)).collect::<Vec<_>>().join("\n")
    }
}

/// Number of blanks between two columns: one in place of a vertical rule, the other as padding.
const GAP: u16 = 2;

/// Maximum number of characters of a word that is never broken over lines.
const MAX_UNBROKEN_WORD: u16 = 16;

impl Table {
    /// Returns the table as text that ends with a line break: heading, a header with units, rows, notes.
    ///
    /// If the table is too wide, columns marked by [`Column::spare`](super::Column::spare) are hidden (and named in a
    /// note), then text columns are wrapped between words. Numbers are never wrapped.
    #[must_use]
    pub fn text(&self, look: &TextOptions) -> String {
        stacked(std::slice::from_ref(self), look)
    }

    fn title(&self, number: usize) -> &str {
        self.columns.get(number).map_or("", |column| &column.title)
    }

    fn natural_width(&self, number: usize, glyphs: Glyphs) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(number)).map(|cell| cell.value.shown(glyphs));
        let header = self.columns.get(number).map(|column| header(column, glyphs)).unwrap_or_default();
        cells.chain([header]).map(|text| text.chars().count()).max().unwrap_or(0)
    }

    /// Returns the minimum width of a text column, which is that of its longest word, up to [`MAX_UNBROKEN_WORD`], so
    /// that ids and names are not broken.
    fn min_width(&self, number: usize, glyphs: Glyphs) -> u16 {
        let cells = self.rows.iter().filter_map(|row| row.get(number)).map(|cell| cell.value.shown(glyphs));
        let longest = |text: &str| text.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
        let longest = cells.chain([self.title(number).to_owned()]).map(|text| longest(&text)).max().unwrap_or(0);
        (longest.min(usize::from(MAX_UNBROKEN_WORD)) as u16).max(1)
    }

    /// Returns the header and the rows of the table, with the planned column widths, or wrapped if those are too wide.
    fn body(&self, layout: &ColumnLayout, look: &TextOptions) -> String {
        let columns: Vec<(usize, &Column)> =
            layout.shown.iter().filter_map(|&number| Some((number, self.columns.get(number)?))).collect();
        if columns.is_empty() {
            return String::new();
        }
        let mut table = comfy_table::Table::new();
        table.load_style(rules(look.glyphs)).force_no_tty();
        if look.style == Style::Colour {
            table.enforce_styling();
        }
        if let (false, Some(width)) = (layout.fits, look.width) {
            table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
        }
        table.set_header(columns.iter().map(|(_, column)| {
            let cell = comfy_table::Cell::new_owned(header(column, look.glyphs)).set_alignment(alignment(column));
            if look.style == Style::Colour { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        for row in &self.rows {
            let cells = columns.iter().filter_map(|(number, column)| Some((row.get(*number)?, column)));
            table.add_row(cells.map(|(cell, column)| drawn(cell, look).set_alignment(alignment(column))));
        }
        for (position, &(number, column)) in columns.iter().enumerate() {
            let padding = if position + 1 == columns.len() { 0 } else { GAP - 1 };
            let Some(drawn) = table.column_mut(position) else { continue };
            drawn.set_padding((0, padding));
            drawn.set_constraint(match layout.widths.get(number) {
                Some(&width) if layout.fits => {
                    ColumnConstraint::Absolute(Width::Fixed((width as u16).saturating_add(padding)))
                }
                _ if column.unit == Unit::Text => {
                    ColumnConstraint::LowerBoundary(Width::Fixed(self.min_width(number, look.glyphs) + padding))
                }
                _ => ColumnConstraint::ContentWidth,
            });
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if look.style == Style::Colour { mark_colours(&text) } else { text }
    }
}

/// Formats tables with the same columns as one text, each with its heading and notes. Columns are aligned across
/// tables, and hidden columns are named once at the end.
#[must_use]
pub fn stacked(tables: &[Table], look: &TextOptions) -> String {
    let layout = ColumnLayout::new(tables, look);
    let mut text = String::new();
    for table in tables {
        for line in &table.heading {
            text.push_str(&look.wrap_lines(&visible_lines(line)));
            text.push('\n');
        }
        text.push_str(&table.body(&layout, look));
        for line in &table.notes {
            text.push_str(&look.wrap_lines(&visible_lines(line)));
            text.push('\n');
        }
    }
    if let (false, Some(first)) = (layout.unknown.is_empty(), tables.first()) {
        let known: Vec<&str> = first.columns.iter().map(|column| column.key.as_str()).collect();
        let titles = first.columns.iter().map(|column| column.title.as_str());
        let names_and_keys: Vec<&str> = titles.chain(known.iter().copied()).collect();
        let names =
            layout.unknown.iter().map(|name| match suggest_names(name, names_and_keys.iter().copied()).first() {
                Some(near) => format!("{name} (did you mean {near}?)"),
                None => name.clone(),
            });
        let names: Vec<String> = names.collect();
        let line = format!("no such column: {}; columns: {}", names.join(", "), known.join(", "));
        text.push_str(&look.wrap(&visible_lines(&line)));
        text.push('\n');
    }
    if let (false, Some(first)) = (layout.hidden.is_empty(), tables.first()) {
        let titles: Vec<&str> = layout.hidden.iter().map(|&number| first.title(number)).collect();
        text.push_str(&look.wrap(&format!("hidden columns (--wide shows them): {}", titles.join(", "))));
        text.push('\n');
    }
    text
}

/// Shown columns and their widths.
struct ColumnLayout {
    /// Indices of the columns that are shown, in order.
    shown: Vec<usize>,
    /// Indices of the columns that are hidden because they do not fit, in order.
    hidden: Vec<usize>,
    /// Requested columns that the tables do not have.
    unknown: Vec<String>,
    /// Width in characters that every column needs without wrapping, by column index.
    widths: Vec<usize>,
    /// True if the shown columns have these widths, without wrapping.
    fits: bool,
}

impl ColumnLayout {
    fn new(tables: &[Table], look: &TextOptions) -> Self {
        let columns = tables.first().map(|table| table.columns.as_slice()).unwrap_or_default();
        let widest = |number: usize| tables.iter().map(|table| table.natural_width(number, look.glyphs)).max();
        let widths: Vec<usize> = (0..columns.len()).map(|number| widest(number).unwrap_or(0)).collect();
        let position = |name: &String| {
            columns
                .iter()
                .position(|column| column.key == *name)
                .or_else(|| columns.iter().position(|column| column.title.eq_ignore_ascii_case(name)))
        };
        let selected: Vec<usize> = look.columns.iter().filter_map(position).collect();
        let unknown = look.columns.iter().filter(|name| position(name).is_none()).cloned().collect();
        // Columns that the user names are not hidden.
        let is_selected = !selected.is_empty();
        let shown = if is_selected { selected } else { (0..columns.len()).collect() };
        let mut layout = Self { shown, hidden: Vec::new(), unknown, widths, fits: true };
        let Some(width) = look.width else { return layout };
        let is_spare = |&number: &usize| !is_selected && columns.get(number).is_some_and(|column| column.spare);
        while layout.width() > usize::from(width) {
            let Some(position) = layout.shown.iter().rposition(is_spare) else { break };
            layout.hidden.insert(0, layout.shown.remove(position));
        }
        layout.fits = layout.width() <= usize::from(width);
        layout
    }

    /// Returns the number of terminal columns that the shown columns need.
    fn width(&self) -> usize {
        let columns: usize = self.shown.iter().filter_map(|&number| self.widths.get(number)).sum();
        columns + usize::from(GAP) * self.shown.len().saturating_sub(1)
    }
}

/// Returns the title of a column with its unit.
fn header(column: &Column, glyphs: Glyphs) -> String {
    let title = visible_lines(&column.title);
    match column.unit.sign(glyphs) {
        "" => title.into_owned(),
        sign => format!("{title} {sign}"),
    }
}

fn alignment(column: &Column) -> CellAlignment {
    if column.unit == Unit::Text { CellAlignment::Left } else { CellAlignment::Right }
}

/// Returns the table style, which has a single rule below the header.
fn rules(glyphs: Glyphs) -> TableStyle {
    let rule = match glyphs {
        Glyphs::Unicode => '─',
        Glyphs::Ascii => '-',
    };
    TableStyle::new().header_separator(LineStyle::none().fill(rule).junction(rule))
}

fn drawn(cell: &Cell, look: &TextOptions) -> comfy_table::Cell {
    let drawn = comfy_table::Cell::new_owned(cell.value.shown(look.glyphs));
    if look.style == Style::Plain {
        return drawn;
    }
    match cell.tone {
        Emphasis::Plain => drawn,
        Emphasis::Strong => drawn.add_attribute(Attribute::Bold),
        Emphasis::Good => drawn.fg(Color::Green),
        Emphasis::Doubtful => drawn.fg(Color::Yellow),
        Emphasis::Bad => drawn.fg(Color::Red),
        Emphasis::Faint => drawn.add_attribute(Attribute::Dim),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Value;
    use fabricast_topologies::visible::visible_marked;
    use fabricast_topologies::{Bytes, Picos};
    use proptest::prelude::*;

    fn plan() -> Table {
        let mut table = Table::new(vec![
            Column::new("bytes", "size", Unit::Bytes),
            Column::new("algorithm", "algorithm", Unit::Text),
            Column::new("time_us", "time", Unit::Micros),
            Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS),
            Column::new("bound_share", "of peak", Unit::Percent),
            Column::new("error", "against default", Unit::Percent).spare(),
            Column::new("bottleneck", "bottleneck", Unit::Text).spare(),
        ]);
        let rows = [
            (1 << 10, "one_shot", 4_860_000, 0.37, 0.042, -0.31, Value::text("launch")),
            (1 << 20, "two_shot", 48_620_000, 37.7, 0.62, 0.0, Value::text("gpu0->nvswitch1")),
            (1 << 30, "ring", 3_930_400_000, 478.07, 0.981, 0.021, Value::Missing),
        ];
        for (bytes, algorithm, time, rate, share, error, bottleneck) in rows {
            table.row(vec![
                Value::Bytes(Bytes(bytes)).into(),
                Cell::from(Value::text(algorithm)).tone(Emphasis::Strong),
                Value::Time(Picos(time)).into(),
                Value::Rate(rate).into(),
                Value::Share(share).into(),
                Value::Deviation(error).into(),
                bottleneck.into(),
            ]);
        }
        table.heading("all_reduce · hgx-h200 · 8 ranks");
        table.note("profile ideal");
        table
    }

    #[test]
    fn numbers_are_right_aligned_and_text_left_aligned() {
        insta::assert_snapshot!(plan().text(&TextOptions::default()), @r"
        all_reduce · hgx-h200 · 8 ranks
         size  algorithm  time µs  busbw GB/s  of peak %  against default %  bottleneck
        ────────────────────────────────────────────────────────────────────────────────────
        1 KiB  one_shot      4.86       0.370        4.2                -31  launch
        1 MiB  two_shot     48.62       37.70         62                  0  gpu0->nvswitch1
        1 GiB  ring         3,930       478.1         98               +2.1  –
        profile ideal
        ");
        let ascii = TextOptions { glyphs: Glyphs::Ascii, ..TextOptions::default() };
        let text = plan().text(&ascii);
        assert!(text.lines().skip(1).all(str::is_ascii), "{text}");
    }

    #[test]
    fn narrow_terminals_hide_spare_columns_first() {
        let look = TextOptions { width: Some(60), ..TextOptions::default() };
        insta::assert_snapshot!(plan().text(&look), @r"
        all_reduce · hgx-h200 · 8 ranks
         size  algorithm  time µs  busbw GB/s  of peak %
        ────────────────────────────────────────────────
        1 KiB  one_shot      4.86       0.370        4.2
        1 MiB  two_shot     48.62       37.70         62
        1 GiB  ring         3,930       478.1         98
        profile ideal
        hidden columns (--wide shows them): against default,
          bottleneck
        ");
    }

    #[test]
    fn stacked_tables_align_their_columns() {
        let mut short = Table::new(plan().columns);
        short.row(vec![Value::Bytes(Bytes(1)).into(), Value::text("x").into()]);
        short.heading("second");
        let look = TextOptions { width: Some(60), ..TextOptions::default() };
        let text = stacked(&[plan(), short], &look);
        let headers: Vec<&str> = text.lines().filter(|line| line.contains("algorithm")).collect();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers[0], headers[1]);
        assert_eq!(text.matches("hidden columns").count(), 1);
    }

    #[test]
    fn colours_are_written_only_on_request() {
        assert!(!plan().text(&TextOptions::default()).contains('\u{1b}'));
        let colour = plan().text(&TextOptions { style: Style::Colour, ..TextOptions::default() });
        assert!(visible_marked(&colour).contains('\u{1b}') || std::env::var_os("NO_COLOR").is_some());
    }

    #[test]
    fn csv_is_exact_and_complete() {
        let mut output = Vec::new();
        plan().csv(&mut output).unwrap();
        insta::assert_snapshot!(String::from_utf8(output).unwrap(), @r"
        bytes,algorithm,time_us,busbw_gb_per_s,bound_share,error,bottleneck
        1024,one_shot,4.86,0.37,0.042,-0.31,launch
        1048576,two_shot,48.62,37.7,0.62,0,gpu0->nvswitch1
        1073741824,ring,3930.4,478.07,0.981,0.021,
        ");
    }

    #[test]
    fn words_are_not_broken_on_too_narrow_terminals() {
        let look = TextOptions { width: Some(30), ..TextOptions::default() };
        let text = plan().text(&look);
        assert!(text.contains("one_shot") && text.contains("two_shot"), "{text}");
    }

    #[test]
    fn named_columns_are_shown_in_their_order() {
        let columns = |names: &[&str]| TextOptions {
            columns: names.iter().map(|&name| name.to_owned()).collect(),
            ..TextOptions::default()
        };
        let header = |look: &TextOptions| plan().text(look).lines().nth(1).unwrap_or_default().trim().to_owned();
        assert_eq!(header(&columns(&["time_us", "Size"])), "time µs   size");
        let text = plan().text(&columns(&["size", "busbw_gb_per"]));
        assert!(
            text.contains("no such column: busbw_gb_per (did you mean busbw_gb_per_s?); columns: bytes, "),
            "{text}"
        );
        assert_eq!(header(&columns(&["nothing"])), header(&TextOptions::default()));
    }

    #[test]
    fn lines_wrap_between_words() {
        let look = TextOptions { width: Some(20), ..TextOptions::default() };
        assert_eq!(look.wrap("as expected"), "as expected");
        assert_eq!(look.wrap("  slow at 1 KiB to 4 MiB"), "  slow at 1 KiB to 4\n    MiB");
        assert_eq!(look.wrap_lines("one\naverylongwordthatdoesnotfit x\n"), "one\naverylongwordthatdoesnotfit\n  x\n");
        assert_eq!(TextOptions::default().wrap(&"word ".repeat(40)), "word ".repeat(40));
    }

    proptest! {
        /// Wrapped lines contain all words in order, and only a word that is too long exceeds the width.
        #[test]
        fn wrapped_lines_keep_their_words(words in prop::collection::vec("[a-z]{1,12}", 1..30), width in 16_u16..80) {
            let look = TextOptions { width: Some(width), ..TextOptions::default() };
            let text = look.wrap(&words.join(" "));
            prop_assert_eq!(text.split_whitespace().collect::<Vec<_>>(), words);
            prop_assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)));
        }

        #[test]
        fn rows_fit_the_width_without_breaking_numbers(
            words in prop::collection::vec("[a-z ]{0,40}|\\PC{0,12}", 1..6), width in 40_u16..120
        ) {
            let mut table = Table::new(vec![
                Column::new("n", "number", Unit::Number),
                Column::new("a", "some words", Unit::Text),
                Column::new("b", "more", Unit::Text).spare(),
            ]);
            for word in &words {
                table.row(vec![Value::Count(1_234_567).into(), Value::text(word).into(), Value::text(word).into()]);
            }
            let text = table.text(&TextOptions { width: Some(width), ..TextOptions::default() });
            for line in text.lines() {
                prop_assert!(unicode_width(line) <= usize::from(width), "{:?}", line);
            }
            prop_assert_eq!(text.matches("1,234,567").count(), words.len());
        }
    }

    /// Returns an upper bound on the terminal columns of a line.
    fn unicode_width(line: &str) -> usize {
        line.chars().count()
    }
}
