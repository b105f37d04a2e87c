//! Tables in HTML, which a click on a column's title sorts, and which can be downloaded as CSV with the exact values.

use super::{Cell, Column, Emphasis, Table, Unit};
use crate::format::Glyphs;
use crate::markup::Markup;

impl Table {
    /// Writes the table with its caption. `page.js` sorts it and creates the CSV. Headings and notes are part of text
    /// output only.
    pub(crate) fn html(&self, caption: &str, markup: &mut Markup) {
        markup.open("div", &[("class", "data")]);
        let csv = format!("Download as CSV: {caption}");
        markup.text("button", &[("type", "button"), ("class", "csv"), ("aria-label", &csv)], "CSV");
        markup.open("div", &[("class", "scroll"), ("role", "region"), ("aria-label", caption), ("tabindex", "0")]);
        markup.open("table", &[]);
        markup.text("caption", &[], caption);
        markup.open("thead", &[]);
        markup.open("tr", &[]);
        for column in &self.columns {
            column.html(markup);
        }
        markup.close();
        markup.close();
        markup.open("tbody", &[]);
        for row in &self.rows {
            markup.open("tr", &[]);
            for (number, (cell, column)) in row.iter().zip(&self.columns).enumerate() {
                cell.html(column, number, markup);
            }
            markup.close();
        }
        for _ in 0..4 {
            markup.close();
        }
    }
}

impl Column {
    fn html(&self, markup: &mut Markup) {
        let sign = self.unit.sign(Glyphs::Unicode);
        let title = if sign.is_empty() { self.title.clone() } else { format!("{} {sign}", self.title) };
        let class = self.unit.class();
        markup.open("th", &[("scope", "col"), ("class", class), ("aria-sort", "none"), ("data-key", &self.key)]);
        markup.text("button", &[("type", "button"), ("class", "sort")], &title);
        markup.close();
    }
}

impl Unit {
    fn class(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Bytes | Self::Micros | Self::GbPerS | Self::Percent | Self::Number => "number",
        }
    }
}

impl Cell {
    fn html(&self, column: &Column, number: usize, markup: &mut Markup) {
        let (shown, exact) = (self.value.shown(Glyphs::Unicode), self.value.exact());
        let tone = match self.tone {
            Emphasis::Plain => None,
            Emphasis::Strong => Some("strong"),
            Emphasis::Good => Some("good"),
            Emphasis::Doubtful => Some("doubtful"),
            Emphasis::Bad => Some("bad"),
            Emphasis::Faint => Some("faint"),
        };
        let class = match (column.unit.class(), tone) {
            ("number", Some(tone)) => format!("number {tone}"),
            ("number", None) => "number".to_owned(),
            (_, tone) => tone.unwrap_or_default().to_owned(),
        };
        let mut attributes: Vec<(&str, &str)> = Vec::new();
        if !class.is_empty() {
            attributes.push(("class", &class));
        }
        if exact != shown {
            attributes.push(("data-v", &exact));
        }
        // The first column contains the name of the row.
        if number == 0 {
            attributes.push(("scope", "row"));
            markup.text("th", &attributes, &shown);
        } else {
            markup.text("td", &attributes, &shown);
        }
    }
}
