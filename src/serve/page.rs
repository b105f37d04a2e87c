//! HTML of the page: the form with a control for each field, and the place of the answer.

use std::sync::Arc;

use fabricast_reports::markup::Markup;

use super::answer::StudyAnswer;
use super::form::{Field, Form, FormError, MachineField, NumberKind, Range, Slot, Values};

/// Style sheet of the form; the answer has that of reports.
pub const STYLE: &str = include_str!("serve.css");

/// Script of the form; the answer has that of reports.
pub const SCRIPT: &str = include_str!("serve.js");

/// Content below the form.
#[derive(Clone, Debug)]
pub enum Content {
    /// Nothing was asked yet.
    Empty,
    /// The answer.
    Answer(Arc<StudyAnswer>),
    /// The answer is still being computed.
    Running,
    /// The link holds no valid form, so that another form is shown.
    Invalid(FormError),
    /// The form is refused.
    Refused(FormError),
    /// The answer cannot be computed.
    Failed(String),
}

/// Returns the page with a form and its answer.
pub fn page(form: &Form, content: &Content) -> String {
    let mut markup = Markup::default();
    markup.open("html", &[("lang", "en")]);
    head(&mut markup);
    markup.open("body", &[]);
    markup.text("a", &[("class", "skip"), ("href", "#answer-title")], "Skip to the answer");
    markup.open("header", &[]);
    markup.text("h1", &[], "Which machine for this job?");
    markup.text("button", &[("type", "button"), ("id", "theme"), ("hidden", "")], "Dark");
    markup.close();
    markup.open("main", &[]);
    status(content, &mut markup);
    write_form(form, content, &mut markup);
    answer(form, content, &mut markup);
    markup.close();
    let note = "Written by fabricast. Figures are predictions with the intervals shown, not offers. This page loads \
                nothing from other servers.";
    markup.text("footer", &[], note);
    markup.empty_element("div", &[("id", "tip"), ("role", "tooltip"), ("hidden", "")]);
    format!("<!DOCTYPE html>\n{}", markup.finish())
}

/// Addresses of the style sheets and scripts, relative to the page, in the order in which they are loaded.
pub const ASSETS: [&str; 4] = ["report.css", "serve.css", "report.js", "serve.js"];

fn head(markup: &mut Markup) {
    markup.open("head", &[]);
    markup.empty("meta", &[("charset", "utf-8")]);
    markup.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    markup.text("title", &[], "Which machine for this job? – fabricast");
    // An empty icon, so that browsers request none.
    markup.empty("link", &[("rel", "icon"), ("href", "data:,")]);
    let [styles @ .., first_script, second_script] = ASSETS;
    for style in styles {
        markup.empty("link", &[("rel", "stylesheet"), ("href", style)]);
    }
    for script in [first_script, second_script] {
        markup.empty_element("script", &[("src", script), ("defer", "")]);
    }
    markup.close();
}

fn write_form(form: &Form, content: &Content, markup: &mut Markup) {
    let error = match content {
        Content::Invalid(error) | Content::Refused(error) => Some(error),
        _ => None,
    };
    // The script does not send a form whose answer is known to be an error.
    let refused: &[(&str, &str)] = if error.is_some() { &[("data-unanswered", "")] } else { &[] };
    let group = |title: &str, fields: &mut dyn Iterator<Item = Field>, markup: &mut Markup| {
        markup.open("fieldset", &[]);
        markup.text("legend", &[], title);
        for field in fields {
            control(form, field, error.filter(|error| error.field() == Some(field)), markup);
        }
        markup.close();
    };
    let attributes = [("id", "form"), ("method", "get"), ("action", "./"), ("autocomplete", "off")];
    markup.open("form", &[&attributes[..], refused].concat());
    markup.open("div", &[("class", "actions")]);
    for (id, label) in [("undo", "Undo"), ("redo", "Redo")] {
        markup.text("button", &[("type", "button"), ("id", id), ("hidden", "")], label);
    }
    markup.text("a", &[("id", "reset"), ("href", "./")], "Start over");
    markup.close();
    let job = Field::all().filter(|field| !matches!(field, Field::Machine(..)) && !is_assumption(*field));
    group("Job", &mut { job }, markup);
    for slot in Slot::ALL {
        group(&format!("Machine {}", slot.letter()), &mut Field::machine_fields(slot), markup);
    }
    group("Costs of purchases", &mut Field::all().filter(|field| is_assumption(*field)), markup);
    markup.text("button", &[("type", "submit"), ("id", "send")], "Answer");
    markup.close();
}

fn is_assumption(field: Field) -> bool {
    matches!(field, Field::Years | Field::Utilization | Field::Energy)
}

/// Writes the line that stays on the screen: the answer in a sentence, progress, or an error.
fn status(content: &Content, markup: &mut Markup) {
    let text = match content {
        Content::Empty => "Choose a job and machines, then press Answer.".to_owned(),
        Content::Answer(answered) => answered.sentence(),
        Content::Running => "The answer is being computed: reload the page in some seconds.".to_owned(),
        Content::Invalid(error) | Content::Refused(error) => error_text(error),
        Content::Failed(message) => message.clone(),
    };
    let class =
        if matches!(content, Content::Invalid(_) | Content::Refused(_) | Content::Failed(_)) { "bad" } else { "" };
    markup.text("p", &[("id", "status"), ("role", "status"), ("class", class)], &text);
}

/// Writes the control of a field with its label and its error message.
fn control(form: &Form, field: Field, error: Option<&FormError>, markup: &mut Markup) {
    let (key, value) = (field.key(), form.text(field));
    let (field_id, error_id) = (format!("field-{key}"), format!("error-{key}"));
    let applies = if form.applies(field) { "yes" } else { "no" };
    let is_wide = matches!(field, Field::Machine(_, MachineField::Preset | MachineField::Price));
    let class = if is_wide { "field wide" } else { "field" };
    markup.open("div", &[("class", class), ("id", &field_id), ("data-applies", applies)]);
    markup.text("label", &[("for", &key)], field.label());
    let invalid = if error.is_some() { "true" } else { "false" };
    let common = [("id", &*key), ("name", &key), ("aria-invalid", invalid), ("aria-describedby", &error_id)];
    match field.values() {
        Values::List { choices, default } => {
            markup.open("select", &[&common[..], &[("data-default", default)]].concat());
            for choice in choices {
                let selected: &[(&str, &str)] = if choice.value == value { &[("selected", "")] } else { &[] };
                markup.text("option", &[&[("value", &*choice.value)], selected].concat(), &choice.label);
            }
            markup.close();
        }
        Values::Number(range) => number(field, &range, &value, &common, markup),
    }
    let hidden: &[(&str, &str)] = if error.is_some() { &[] } else { &[("hidden", "")] };
    let attributes = [&[("class", "error"), ("id", &*error_id)], hidden].concat();
    markup.text("p", &attributes, &error.map(error_text).unwrap_or_default());
    if let Field::Machine(slot, MachineField::Price) = field {
        let note = form.price_note(slot);
        let hidden: &[(&str, &str)] = if note.is_some() { &[] } else { &[("hidden", "")] };
        let id = format!("note-{key}");
        markup.text("p", &[&[("class", "note"), ("id", &*id)], hidden].concat(), &note.unwrap_or_default());
    }
    markup.close();
}

/// Writes a slider and a number field. The slider is hidden until the script connects it to the number.
fn number(field: Field, range: &Range, value: &str, common: &[(&str, &str)], markup: &mut Markup) {
    let positions = range.positions();
    let last = positions.len().saturating_sub(1).to_string();
    let texts: Vec<String> = positions.iter().map(f64::to_string).collect();
    let slider_label = format!("{}, slider", field.title());
    let (min, max) = (range.min.to_string(), range.max.to_string());
    let step = if range.kind == NumberKind::Whole { "1" } else { "any" };
    markup.open("div", &[("class", "pair")]);
    markup.empty(
        "input",
        &[
            ("type", "range"),
            ("class", "slider"),
            ("data-for", &field.key()),
            ("data-positions", &texts.join(" ")),
            ("min", "0"),
            ("max", &last),
            ("step", "1"),
            ("aria-label", &slider_label),
            ("hidden", ""),
        ],
    );
    let (default, title) = (range.default.to_string(), format!("from {min} to {max}"));
    let limits =
        [("type", "number"), ("min", &*min), ("max", &max), ("step", step), ("required", ""), ("title", &title)];
    markup.empty("input", &[common, &limits, &[("value", value), ("data-default", &default)]].concat());
    markup.close();
}

/// Returns the message of an error with its suggested fix.
pub fn error_text(error: &FormError) -> String {
    match error.help() {
        Some(help) => format!("{error} ({help})"),
        None => error.to_string(),
    }
}

fn answer(form: &Form, content: &Content, markup: &mut Markup) {
    markup.open("section", &[("class", "result"), ("aria-labelledby", "answer-title")]);
    markup.text("h2", &[("id", "answer-title"), ("tabindex", "-1")], "Answer");
    markup.open("p", &[("id", "running"), ("hidden", "")]);
    markup.empty_element("progress", &[("id", "progress"), ("aria-label", "Runs of the study")]);
    markup.text("button", &[("type", "button"), ("id", "stop")], "Stop");
    markup.close();
    // The files are those of the link's form.
    let hidden: &[(&str, &str)] = if matches!(content, Content::Invalid(_)) { &[("hidden", "")] } else { &[] };
    markup.open("div", &[&[("class", "actions"), ("id", "take")], hidden].concat());
    markup.text("button", &[("type", "button"), ("id", "copy"), ("hidden", "")], "Copy link");
    let query = form.query();
    for (path, label) in DOWNLOADS {
        let address = format!("{path}?{query}");
        markup.text("a", &[("class", "download"), ("href", &address), ("data-path", path), ("download", "")], label);
    }
    markup.close();
    markup.open("p", &[("id", "link-line"), ("hidden", "")]);
    markup.text("label", &[("for", "link")], "Link to this form");
    markup.empty("input", &[("id", "link"), ("readonly", ""), ("type", "text")]);
    markup.close();
    markup.open("div", &[("id", "answer")]);
    if let Content::Answer(answered) = content {
        markup.raw(&answered.summary());
    }
    markup.close();
    markup.close();
}

/// Addresses, relative to the page, and labels of the files that the page offers.
pub const DOWNLOADS: [(&str, &str); 3] = [
    ("study.toml", "Download the TOML"),
    ("results.json", "Download the results (JSON)"),
    ("report.html", "Download this answer as a page"),
];
