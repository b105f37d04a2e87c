//! `schema`: JSON Schemas of the JSON documents, made from the types that the commands serialize.

use fabricast_reports::table::{Cell, Column, Table, Unit, Value};
use fabricast_study::answer::Answer as Study;
use fabricast_validate::gpu::doctor::Diagnosis;
use fabricast_validate::gpu::probe::Probe;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::breakdown::BreakdownRowJson as BreakdownRow;
use super::calibrate::curve::CurveCalibrationJson as EfficiencyFit;
use super::calibrate::json::CalibrationJson;
use super::calibrate::physical::PhysicalCalibrationJson as BenchmarkParameters;
use super::compare::exchange::ExchangeComparisonJson;
use super::compare::json::ComparisonJson;
use super::experts::ExchangeJson;
use super::fabric::{FindingJson, PresetJson};
use super::flows::FlowsJson;
use super::gpu::prove::answer::ProveAnswer as AbTest;
use super::gpu::run::answer::AnswerJson as RunJson;
use super::gpu::run::pairs::PairsJson;
use super::groups::ConcurrentCallsAnswer as ConcurrentCalls;
use super::job::JobJson;
use super::list::{GpuJson, ModelJson, PriceJson};
use super::plan_diff::Diff;
use super::plan_job::PlanJobJson;
use super::plan_json::PlanJson;
use super::schedule::{CertificateJson, VerificationJson};
use super::simulation_result::SimulationAnswer as Simulation;
use super::table::explain::TableExplanationJson;
use super::table::report::CheckedJson;
use crate::args::SchemaArgs;
use crate::document::{Document, Rows, TaggedDocument};
use crate::failure::Failure;
use crate::output::Output;
use crate::output_format::Format;

/// Prints the schema of a document, or lists the documents.
pub fn run(args: &SchemaArgs, output: &Output) -> Result<(), Failure> {
    if let Some(document) = args.document {
        return output.write_json(&document.schema());
    }
    let rows = Document::ALL.map(DocumentJson::new);
    if output.format == Format::Json {
        return output.write_json(&Document::Schemas.with_rows(&rows));
    }
    let mut table = Table::new(vec![
        Column::new("name", "name", Unit::Text),
        Column::new("format", "format", Unit::Text),
        Column::new("command", "command", Unit::Text),
    ]);
    for DocumentJson { name, format, command } in rows {
        table.row(Vec::from([name, format, command].map(|text| Cell::from(Value::text(text)))));
    }
    match output.format {
        Format::Csv => output.write(&super::csv(&table)?),
        Format::Text | Format::Json => output.write(&table.text(&output.text_options())),
    }
}

/// JSON of a document in the list.
#[derive(Serialize, JsonSchema)]
struct DocumentJson {
    /// Name, as `schema` accepts it.
    name: &'static str,
    /// Name and number of the format.
    format: &'static str,
    /// Command that writes the document.
    command: &'static str,
}

impl DocumentJson {
    fn new(document: Document) -> Self {
        Self { name: document.name(), format: document.format(), command: document.command() }
    }
}

impl Document {
    /// JSON Schema (draft 2020-12) of the document as written. Readers must accept further keys, so none are excluded.
    pub fn schema(self) -> Schema {
        match self {
            Self::Breakdown => self.rows::<BreakdownRow<'_>>(),
            Self::EfficiencyFit => self.object::<EfficiencyFit>(),
            Self::Calibration => self.object::<CalibrationJson>(),
            Self::BenchmarkParameters => self.object::<BenchmarkParameters<'_>>(),
            Self::Comparison => self.object::<ComparisonJson<'_>>(),
            Self::Presets => self.rows::<PresetJson>(),
            Self::FabricCheck => self.rows::<FindingJson>(),
            Self::Exchange => self.object::<ExchangeJson>(),
            Self::ExchangeComparison => self.object::<ExchangeComparisonJson<'_>>(),
            Self::Flows => self.object::<FlowsJson<'_>>(),
            Self::Diagnosis => self.object::<Diagnosis>(),
            Self::Probe => self.object::<Probe>(),
            Self::Run => self.object::<RunJson<'_>>(),
            Self::Pairs => self.object::<PairsJson>(),
            Self::AbTest => self.object::<AbTest>(),
            Self::ConcurrentCalls => self.object::<ConcurrentCalls>(),
            Self::Replay => self.object::<JobJson<'_>>(),
            Self::List => self.rows::<GpuJson<'_>>(),
            Self::Models => self.rows::<ModelJson>(),
            Self::Prices => self.rows::<PriceJson>(),
            Self::Plan => self.object::<PlanJson<'_>>(),
            Self::PlanDiff => self.object::<Diff<'_>>(),
            Self::JobPlan => self.object::<PlanJobJson<'_>>(),
            Self::Verification => self.object::<VerificationJson<'_>>(),
            Self::Certificate => self.object::<CertificateJson>(),
            Self::Simulation => self.object::<Simulation>(),
            Self::Simulations => self.rows::<Simulation>(),
            Self::Explanation => self.object::<TableExplanationJson<'_>>(),
            Self::TableCheck => self.object::<CheckedJson<'_>>(),
            // A study's content already has the key `format`.
            Self::Study => self.document::<Study>(),
            Self::Schemas => self.rows::<DocumentJson>(),
        }
    }

    fn object<T: JsonSchema>(self) -> Schema {
        self.document::<TaggedDocument<'_, T>>()
    }

    fn rows<T: JsonSchema>(self) -> Schema {
        self.document::<Rows<'_, T>>()
    }

    /// Schema of a type with the key `format`, whose value is fixed to that of the document.
    fn document<T: JsonSchema>(self) -> Schema {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let settings = settings.with_transform(RecursiveTransform(simplify_description));
        let mut schema = settings.into_generator().into_root_schema_for::<T>();
        schema.insert("title".to_owned(), self.format().into());
        let description = format!("Output of `fabricast {}` with `--format json`.", self.command());
        schema.insert("description".to_owned(), description.into());
        if let Some(Json::Object(properties)) = schema.get_mut("properties") {
            let format = json!({ "description": "Name and number of the format.", "const": self.format() });
            properties.insert("format".to_owned(), format);
        }
        schema
    }
}

/// Replaces links to Rust items in a description by their text, and Rust's `None` by `null`.
fn simplify_description(schema: &mut Schema) {
    if let Some(Json::String(description)) = schema.get_mut("description") {
        *description = without_links(description).replace("`None`", "`null`");
    }
}

/// Replaces ``[`name`]`` and ``[text](target)`` by their text.
fn without_links(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        result.push_str(before);
        let link = after.split_once(']').map(|(name, after)| {
            let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
            (name, target.map(|(_, after)| after), after)
        });
        rest = match link {
            Some((name, Some(after), _)) => {
                result.push_str(name);
                after
            }
            Some((name, None, after)) if name.starts_with('`') => {
                result.push_str(name);
                after
            }
            _ => {
                result.push('[');
                after
            }
        };
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `visit` with the path and schema of every property, at any depth. Properties that are names of enum
    /// variants are skipped, because the enum as a whole has the description.
    fn visit_properties(schema: &Json, path: &str, visit: &mut impl FnMut(&str, &Json)) {
        match schema {
            Json::Object(keys) => {
                let is_variant = keys.get("additionalProperties") == Some(&Json::Bool(false));
                if let (false, Some(Json::Object(properties))) = (is_variant, keys.get("properties")) {
                    properties.iter().for_each(|(name, property)| visit(&format!("{path}/{name}"), property));
                }
                keys.iter().for_each(|(key, value)| visit_properties(value, &format!("{path}/{key}"), visit));
            }
            Json::Array(values) => values.iter().for_each(|value| visit_properties(value, path, visit)),
            _ => {}
        }
    }

    #[test]
    fn every_key_of_every_document_is_described() {
        for document in Document::ALL {
            let schema = document.schema().to_value();
            assert_eq!(schema["properties"]["format"]["const"], document.format());
            assert!(schema["required"].as_array().unwrap().contains(&"format".into()), "{schema:#}");
            visit_properties(&schema, document.name(), &mut |path, property| {
                let description = property["description"].as_str().unwrap_or_default();
                assert!(!description.is_empty() && !description.contains("[`"), "{path}: {property}");
            });
        }
    }

    #[test]
    fn links_become_their_text() {
        let text = "Amounts of a [`TrafficMatrix`](super::TrafficMatrix), [`FORMAT`], [0, 1] and [the text](a/b).";
        let expected = "Amounts of a `TrafficMatrix`, `FORMAT`, [0, 1] and the text.";
        assert_eq!(without_links(text), expected);
    }
}
