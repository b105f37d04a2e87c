//! Models by name: the catalogue `data/models.toml`, and the value of `model` in a job, which is a name or a table of
//! keys.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::super::{Job, JobError, Model};
use super::JobText;
use super::model::ModelText;

/// Text of the catalogue.
const MODELS: &str = include_str!("../../../data/models.toml");

/// Model of the catalogue.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedModel {
    /// Name by which jobs refer to the model.
    pub name: String,
    /// Sources of the model's figures.
    pub source: String,
    /// Simplification of the model compared with the published one; `None` if there is none.
    pub note: Option<String>,
    /// Parameters of the model, with the sequence length of its pre-training.
    pub model: Model,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    model: Vec<Entry>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    source: String,
    note: Option<String>,
    seq: u64,
    keys: ModelText,
}

/// Returns the entries of the catalogue.
fn entries() -> Vec<Entry> {
    toml::from_str::<Catalogue>(MODELS).map(|catalogue| catalogue.model).unwrap_or_default()
}

/// Returns all models that jobs can name, in the order of the catalogue.
///
/// # Errors
/// [`JobError`] if the shipped catalogue is invalid.
pub fn named_models() -> Result<Vec<NamedModel>, JobError> {
    let build = |entry: Entry| {
        let text = format!(
            "name = \"{0}\"\nmodel = \"{0}\"\nglobal_batch = 1\nmicro_batch = 1\nparallel = \"auto\"\n",
            entry.name
        );
        let Entry { name, source, note, .. } = entry;
        match super::read_job(&text, "models.toml")? {
            Job::Training(job) => Ok(Some(NamedModel { name, source, note, model: job.model })),
            Job::Inference(_) | Job::Trace(_) => Ok(None),
        }
    };
    entries().into_iter().filter_map(|entry| build(entry).transpose()).collect()
}

/// Value of `model`: a name in the catalogue, or a table of keys.
struct ModelChoice(ModelText);

/// Reads the value of `model`.
///
/// # Errors
/// Errors of the deserializer, and an unknown name.
pub(super) fn model<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Spanned<ModelText>>, D::Error> {
    let choice = Spanned::<ModelChoice>::deserialize(deserializer)?;
    let span = choice.span();
    Ok(Some(Spanned::new(span, choice.into_inner().0)))
}

impl<'de> Deserialize<'de> for ModelChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrKeys;
        impl<'de> Visitor<'de> for NameOrKeys {
            type Value = ModelChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of keys or a name as \"llama-3-70b\"")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<ModelChoice, E> {
                let entries = entries();
                if let Some(entry) = entries.iter().find(|entry| entry.name == name) {
                    return Ok(ModelChoice(entry.keys.clone().with_default_seq(entry.seq)));
                }
                let names: Vec<String> = entries.iter().map(|entry| format!("`{}`", entry.name)).collect();
                Err(E::custom(format!("unknown model `{name}`, expected one of {}", names.join(", "))))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<ModelChoice, M::Error> {
                ModelText::deserialize(MapAccessDeserializer::new(map)).map(ModelChoice)
            }
        }
        deserializer.deserialize_any(NameOrKeys)
    }
}

impl JobText {
    /// Returns the sequence length of training if the job states it in addition to the name of its model.
    pub(super) fn stated_seq(&self) -> Option<&Spanned<u64>> {
        self.seq.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(model: &str) -> Result<Model, JobError> {
        let text = format!("name = \"j\"\nmodel = {model}\nglobal_batch = 1\nmicro_batch = 1\nparallel = \"auto\"\n");
        match super::super::read_job(&text, "job.toml")? {
            Job::Training(job) => Ok(job.model),
            other => panic!("{other:?}"),
        }
    }

    /// Numbers of parameters equal the published ones, in 10⁹ (papers and model cards), within the tolerance that a
    /// simplification needs.
    #[test]
    fn named_models_have_their_published_size() {
        let models = named_models().unwrap();
        let sizes = [
            ("gpt-3-175b", 175.0, 0.01),
            ("llama-2-7b", 6.74, 0.01),
            ("llama-2-13b", 13.02, 0.01),
            ("llama-2-70b", 68.98, 0.01),
            ("llama-3-8b", 8.03, 0.01),
            ("llama-3-70b", 70.55, 0.01),
            ("llama-3-405b", 405.85, 0.01),
            ("mixtral-8x7b", 46.7, 0.01),
            ("qwen3-30b-a3b", 30.5, 0.01),
            ("qwen3-235b-a22b", 235.1, 0.01),
            ("deepseek-v3", 671.0, 0.06),
            ("gpt-oss-120b", 116.8, 0.01),
        ];
        assert_eq!(models.len(), sizes.len());
        for (named, (name, billions, share)) in models.iter().zip(sizes) {
            assert_eq!(named.name, name);
            let parameters = named.model.parameters() as f64 / 1e9;
            assert!((parameters / billions - 1.0).abs() <= share, "{name}: {parameters}");
            assert!(!named.source.is_empty());
        }
    }

    #[test]
    fn names_stand_for_the_keys() {
        let keys = "{ layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 128256, \
                    tied = false, seq = 8192 }";
        assert_eq!(training("\"llama-3-70b\"").unwrap(), training(keys).unwrap());
        let longer = training("\"llama-3-70b\"\nseq = 32768").unwrap();
        assert_eq!(longer.seq, 32768);
    }

    #[test]
    fn misspelt_names_get_a_suggestion() {
        let error = training("\"llama-3-70\"").unwrap_err();
        assert!(error.to_string().starts_with("job.toml:2:9: unknown model `llama-3-70`"), "{error}");
        assert_eq!(error.help.as_deref(), Some("did you mean `llama-3-70b`?"));
        let both = training(&format!("{}\nseq = 4096", "{ layers = 1, hidden = 8, heads = 1, vocab = 8, seq = 8 }"));
        assert!(both.unwrap_err().to_string().contains("seq: the model states one"));
    }
}
