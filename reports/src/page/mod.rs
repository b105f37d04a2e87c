//! Self-contained HTML page: the question, with answers in sentences, tables and charts.
//!
//! A [`Page`] is sections of [`Block`]s; [`Page::html`] writes it with an embedded style sheet (`page.css`) and script
//! (`page.js`). The page can be opened from a file. It loads no resources (its content security policy forbids it), and
//! its content is complete without the script, which only sorts tables, hides series, shows tooltips and exports CSV.
//! Texts from users' files are escaped on output and never appear in the script. The output is deterministic and
//! contains no date.
//!
//! | file | content |
//! |---|---|
//! | `lines`, `bars`, `spans` | interactive charts; the first two draw the same [`LineChart`] and [`BarChart`] as SVG |
//! | `frame` | common parts of these charts |
//! | `input` | detection of a file's content, and errors for unknown files |
//! | `study`, `plan`, `comparison`, `run`, `timeline`, `picture` | sections of each kind of file |

mod bars;
mod comparison;
mod frame;
mod input;
mod lines;
mod picture;
mod plan;
mod run;
mod spans;
mod study;
#[cfg(test)]
mod tests;
mod timeline;

pub use input::{Input, InputError, report};
pub use picture::Picture;
pub use study::{
    bandwidths, breakdown, costs, interval_name, links, measured, memory, opening_lines, page as study_page,
    page_with_library_defaults as study_page_with_details, pareto, step_title, timelines,
};

use crate::chart::{BarChart, LineChart};
pub use crate::chart::{Spans, TimeSpan};
use crate::markup::Markup;
use crate::table::Table;

const STYLE: &str = include_str!("page.css");

/// Script of pages. It enhances the whole document, and later each [`Page::summary`] that the document passes to it
/// as the `detail` of an event named `content`.
pub const SCRIPT: &str = include_str!("page.js");

/// Content of an HTML page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Title of the page, which is the question that it answers.
    pub title: String,
    /// Answer to the question, one sentence per element.
    pub answer: Vec<String>,
    /// Sections below the answer, in order.
    pub sections: Vec<Section>,
}

/// Section of a page, with a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Heading of the section.
    pub title: String,
    /// Content below the heading, in order.
    pub blocks: Vec<Block>,
    /// Extent to which the section is shown when the page is opened.
    pub display: Display,
}

/// Extent to which a section of a page is shown when the page is opened, and on paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Display {
    /// The section is shown.
    #[default]
    Open,
    /// Only the heading is shown, which opens the section. Paper omits it unless it was opened.
    Collapsed,
}

impl Section {
    /// Creates a section from its heading and content.
    #[must_use]
    pub fn new(title: impl Into<String>, blocks: Vec<Block>) -> Self {
        Self { title: title.into(), blocks, display: Display::Open }
    }

    /// Returns the section with only its heading shown.
    #[must_use]
    pub fn collapsed(self) -> Self {
        Self { display: Display::Collapsed, ..self }
    }
}

/// Element of a section: text, table, chart, picture or selection.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Paragraph of text.
    Text(String),
    /// List of sentences.
    List(Vec<String>),
    /// Table, preceded by its caption.
    Table(String, Table),
    /// Chart of lines and points over two axes.
    Lines(LinesWithTooltips),
    /// Chart of stacked bars.
    Bars(BarChart),
    /// Chart of spans of time in rows.
    Spans(Spans),
    /// Picture of a fabric or a schedule.
    Picture(Picture),
    /// Selection of one of several options by name. The page contains all options, shows one, and prints all.
    Choice(Choice),
}

/// Chart of lines with tooltips.
#[derive(Clone, Debug, PartialEq)]
pub struct LinesWithTooltips {
    /// Chart that is shown: axes, lines and bands.
    pub chart: LineChart,
    /// Additional tooltip texts by line and by point; may be shorter than the lists of lines and points.
    pub tooltips: Vec<Vec<String>>,
    /// Line below the chart; may be empty.
    pub remark: String,
}

/// Selection control of a page, with the content of each option.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Subject of the selection, such as `Job`.
    pub subject: String,
    /// Names of the options, with the content of each.
    pub options: Vec<(String, Vec<Block>)>,
}

impl Choice {
    /// Creates a selection. The content of a single option is returned without a selection.
    #[must_use]
    pub fn blocks(label: impl Into<String>, mut options: Vec<(String, Vec<Block>)>) -> Vec<Block> {
        if options.len() == 1 {
            return options.pop().map(|(_, blocks)| blocks).unwrap_or_default();
        }
        if options.is_empty() { Vec::new() } else { vec![Block::Choice(Self { subject: label.into(), options })] }
    }
}

impl Page {
    /// Returns the page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        let mut writer = Writer::default();
        writer.page(self);
        format!("<!DOCTYPE html>\n{}", writer.markup.finish())
    }

    /// Returns the content of the page as HTML without a document around it, for a document with [`style`] and
    /// [`SCRIPT`]. Each section can be collapsed by its heading; the first `open_sections` are open.
    #[must_use]
    pub fn summary(&self, open_sections: usize) -> String {
        let mut writer = Writer::default();
        writer.answer(&self.answer);
        for (number, section) in self.sections.iter().enumerate() {
            let open: &[(&str, &str)] = if number < open_sections { &[("open", "")] } else { &[] };
            writer.markup.open("details", open);
            writer.markup.open("summary", &[]);
            writer.markup.text("h2", &[], &section.title);
            writer.markup.close();
            writer.blocks(&section.blocks);
            writer.markup.close();
        }
        writer.markup.finish()
    }
}

/// Returns the style sheet of pages.
#[must_use]
pub fn style() -> String {
    format!("{STYLE}{}", picture::style())
}

/// Content security policy: only inline styles and scripts are allowed.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Writer of blocks. It numbers elements that need a unique name.
#[derive(Debug, Default)]
struct Writer {
    markup: Markup,
    named: usize,
}

impl Writer {
    /// Returns a name with this prefix that is unique on the page.
    fn name(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}-{}", self.named)
    }

    fn page(&mut self, page: &Page) {
        self.markup.open("html", &[("lang", "en")]);
        self.markup.open("head", &[]);
        self.markup.empty("meta", &[("charset", "utf-8")]);
        self.markup.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
        self.markup.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
        self.markup.text("title", &[], &page.title);
        // The style sheet is a fixed text that closes no style or script element, as a test verifies.
        self.markup.raw(&format!("<style>\n{}</style>\n", style()));
        self.markup.close();
        self.markup.open("body", &[]);
        self.markup.open("header", &[]);
        self.markup.text("h1", &[], &page.title);
        self.markup.text("button", &[("type", "button"), ("id", "theme"), ("hidden", "")], "Dark");
        self.markup.close();
        let sections: Vec<(String, &Section)> =
            page.sections.iter().map(|section| (self.name("section"), section)).collect();
        self.markup.open("main", &[]);
        self.answer(&page.answer);
        if sections.len() > 2 {
            self.markup.open("nav", &[("aria-label", "On this page")]);
            for (name, section) in &sections {
                self.markup.text("a", &[("href", &format!("#{name}"))], &section.title);
            }
            self.markup.close();
        }
        for (name, section) in &sections {
            self.markup.open("section", &[("aria-labelledby", name)]);
            match section.display {
                Display::Open => {
                    self.markup.text("h2", &[("id", name)], &section.title);
                    self.blocks(&section.blocks);
                }
                Display::Collapsed => {
                    self.markup.open("details", &[]);
                    self.markup.open("summary", &[]);
                    self.markup.text("h2", &[("id", name)], &section.title);
                    self.markup.close();
                    self.blocks(&section.blocks);
                    self.markup.close();
                }
            }
            self.markup.close();
        }
        self.markup.close();
        self.markup.text(
            "footer",
            &[],
            "Written by fabricast. Figures are predictions with the intervals shown, not offers.",
        );
        self.markup.empty_element("div", &[("id", "tip"), ("role", "tooltip"), ("hidden", "")]);
        self.markup.raw(&format!("<script>\n{SCRIPT}</script>\n"));
        self.markup.close();
        self.markup.close();
    }

    fn answer(&mut self, sentences: &[String]) {
        if !sentences.is_empty() {
            self.markup.open("div", &[("class", "answer")]);
            for sentence in sentences {
                self.markup.text("p", &[], sentence);
            }
            self.markup.close();
        }
    }

    fn blocks(&mut self, blocks: &[Block]) {
        for block in blocks {
            match block {
                Block::Text(text) => self.markup.text("p", &[], text),
                Block::List(items) => {
                    self.markup.open("ul", &[]);
                    items.iter().for_each(|item| self.markup.text("li", &[], item));
                    self.markup.close();
                }
                Block::Table(caption, table) => table.html(caption, &mut self.markup),
                Block::Lines(lines) => lines::write(lines, &mut self.markup),
                Block::Bars(chart) => bars::write(chart, &mut self.markup),
                Block::Spans(spans) => spans::write(spans, &mut self.markup),
                Block::Picture(picture) => picture.write(&mut self.markup),
                Block::Choice(choice) => self.choice(choice),
            }
        }
    }

    fn choice(&mut self, choice: &Choice) {
        self.markup.open("div", &[("class", "choice")]);
        let name = self.name("choice");
        self.markup.open("p", &[("class", "chooser"), ("hidden", "")]);
        self.markup.text("label", &[("for", &name)], &choice.subject);
        self.markup.open("select", &[("id", &name)]);
        for (number, (option, _)) in choice.options.iter().enumerate() {
            self.markup.text("option", &[("value", &number.to_string())], option);
        }
        self.markup.close();
        self.markup.close();
        for (option, blocks) in &choice.options {
            self.markup.open("div", &[("class", "option")]);
            self.markup.text("h3", &[], &format!("{}: {option}", choice.subject));
            self.blocks(blocks);
            self.markup.close();
        }
        self.markup.close();
    }
}
