//! One self-contained HTML page: what was asked, answered in sentences, tables and charts.
//!
//! A [`Page`] is sections of [`Block`]s; [`Page::html`] writes it with one style sheet (`page.css`) and one script
//! (`page.js`) in it. It opens from a file, asks the network for nothing (its content security policy forbids it), and is
//! whole without its script, which only sorts tables, hides series, shows what a point says and hands out CSV. Texts come
//! from users' files: they are escaped where they are written, and none of them ever stands in the script. The same page
//! is the same bytes; there is no date in it.
//!
//! | file | makes |
//! |---|---|
//! | `lines`, `bars`, `spans` | charts that can be pointed at; the first two of the same [`LineChart`] and [`BarChart`] that SVG and PNG are drawn of |
//! | `frame` | what those charts have in common |
//! | `input` | tells what a file holds, and refuses what is none of it |
//! | `study`, `plan`, `comparison`, `run`, `timeline`, `picture` | the sections of each kind of file |

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
    bandwidths, breakdown, courses, links, measured, memory, page as of_study, page_beside as of_study_beside, pareto,
};

use crate::chart::{BarChart, LineChart};
pub use crate::chart::{Span, Spans};
use crate::markup::Markup;
use crate::table::Table;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Its title: what was asked.
    pub title: String,
    /// The answer in a few sentences.
    pub answer: Vec<String>,
    /// What follows.
    pub sections: Vec<Section>,
}

/// A part of a page under a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// What stands under it.
    pub blocks: Vec<Block>,
}

impl Section {
    /// A section.
    #[must_use]
    pub fn new(title: impl Into<String>, blocks: Vec<Block>) -> Self {
        Self { title: title.into(), blocks }
    }
}

/// Something to read or to look at.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// Sentences as a list.
    List(Vec<String>),
    /// A table with its caption.
    Table(String, Table),
    /// Lines and points over two axes.
    Lines(Lines),
    /// Bars.
    Bars(BarChart),
    /// Spans of time.
    Spans(Spans),
    /// A picture that is drawn already.
    Picture(Picture),
    /// One of several, by name: all are in the page, one is shown, all are printed.
    Choice(Choice),
}

/// A chart whose points say what they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// The chart.
    pub chart: LineChart,
    /// What the horizontal axis counts.
    pub x_title: String,
    /// What points say besides their place, by line and by point; may be shorter.
    pub words: Vec<Vec<String>>,
    /// A line under it. May be empty.
    pub remark: String,
}

/// One of several.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// What is chosen: `Job`.
    pub of: String,
    /// The names, with what stands under each.
    pub options: Vec<(String, Vec<Block>)>,
}

impl Choice {
    /// A choice; where there is only one, what stands under it.
    #[must_use]
    pub fn blocks(of: impl Into<String>, mut options: Vec<(String, Vec<Block>)>) -> Vec<Block> {
        if options.len() == 1 {
            return options.pop().map(|(_, blocks)| blocks).unwrap_or_default();
        }
        if options.is_empty() { Vec::new() } else { vec![Block::Choice(Self { of: of.into(), options })] }
    }
}

impl Page {
    /// Writes the page.
    #[must_use]
    pub fn html(&self) -> String {
        let mut writer = Writer::default();
        writer.page(self);
        format!("<!DOCTYPE html>\n{}", writer.markup.finish())
    }
}

/// What nothing but the page itself may be loaded by.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Writes blocks; numbers what needs a name of its own.
#[derive(Debug, Default)]
struct Writer {
    markup: Markup,
    named: usize,
}

impl Writer {
    /// A name that nothing else on the page has.
    fn name(&mut self, of: &str) -> String {
        self.named += 1;
        format!("{of}-{}", self.named)
    }

    fn page(&mut self, page: &Page) {
        self.markup.open("html", &[("lang", "en")]);
        self.markup.open("head", &[]);
        self.markup.empty("meta", &[("charset", "utf-8")]);
        self.markup.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
        self.markup.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
        self.markup.text("title", &[], &page.title);
        // Ours, with nothing in it that ends an element of style or script; a test looks.
        self.markup.raw(&format!("<style>\n{STYLE}{}</style>\n", picture::style()));
        self.markup.close();
        self.markup.open("body", &[]);
        self.markup.open("header", &[]);
        self.markup.text("h1", &[], &page.title);
        self.markup.text("button", &[("type", "button"), ("id", "theme"), ("hidden", "")], "Dark");
        self.markup.close();
        let sections: Vec<(String, &Section)> =
            page.sections.iter().map(|section| (self.name("section"), section)).collect();
        self.markup.open("main", &[]);
        if !page.answer.is_empty() {
            self.markup.open("div", &[("class", "answer")]);
            for sentence in &page.answer {
                self.markup.text("p", &[], sentence);
            }
            self.markup.close();
        }
        if sections.len() > 2 {
            self.markup.open("nav", &[("aria-label", "On this page")]);
            for (name, section) in &sections {
                self.markup.text("a", &[("href", &format!("#{name}"))], &section.title);
            }
            self.markup.close();
        }
        for (name, section) in &sections {
            self.markup.open("section", &[("aria-labelledby", name)]);
            self.markup.text("h2", &[("id", name)], &section.title);
            self.blocks(&section.blocks);
            self.markup.close();
        }
        self.markup.close();
        self.markup.text(
            "footer",
            &[],
            "Written by fabricast. Figures are forecasts with the bands that are shown, not offers.",
        );
        self.markup.empty_element("div", &[("id", "tip"), ("role", "tooltip"), ("hidden", "")]);
        self.markup.raw(&format!("<script>\n{SCRIPT}</script>\n"));
        self.markup.close();
        self.markup.close();
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
        self.markup.text("label", &[("for", &name)], &choice.of);
        self.markup.open("select", &[("id", &name)]);
        for (number, (option, _)) in choice.options.iter().enumerate() {
            self.markup.text("option", &[("value", &number.to_string())], option);
        }
        self.markup.close();
        self.markup.close();
        for (option, blocks) in &choice.options {
            self.markup.open("div", &[("class", "option")]);
            self.markup.text("h3", &[], &format!("{}: {option}", choice.of));
            self.blocks(blocks);
            self.markup.close();
        }
        self.markup.close();
    }
}
