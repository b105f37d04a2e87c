//! Conversion of the keys `lora` of a training job and of the shape of adapters.

use std::fmt;

use serde::Deserialize;
use serde::de::{SeqAccess, Visitor};
use toml::Spanned;

use super::super::{Adapter, AdapterTarget, BaseWeights, JobError, Lora, Model, Precision};
use super::{Validator, nearest};

/// Targets of an adapter as written in the job file: `"attention"`, `"all"` or a list of names.
#[derive(Clone, Debug)]
pub(super) enum TargetsText {
    Group(String),
    Names(Vec<Spanned<String>>),
}

impl<'de> Deserialize<'de> for TargetsText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct GroupOrNames;
        impl<'de> Visitor<'de> for GroupOrNames {
            type Value = TargetsText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"attention\", \"all\", or a list of q, k, v, o, gate, up and down")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TargetsText, E> {
                Ok(TargetsText::Group(text.to_owned()))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut names: S) -> Result<TargetsText, S::Error> {
                let mut list = Vec::new();
                while let Some(name) = names.next_element()? {
                    list.push(name);
                }
                Ok(TargetsText::Names(list))
            }
        }
        deserializer.deserialize_any(GroupOrNames)
    }
}

/// Shape of an adapter as written in the job file.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdapterText<'a> {
    /// Key of the table, for messages.
    pub key: &'static str,
    pub rank: &'a Spanned<u64>,
    pub targets: Option<&'a Spanned<TargetsText>>,
}

impl AdapterText<'_> {
    /// Returns the validated shape of the adapter.
    pub(super) fn adapter(self, check: Validator<'_>, model: &Model) -> Result<Adapter, JobError> {
        let Self { key, rank, targets } = self;
        let wrong = |message: String| check.error(rank.span(), format!("{key}: {message}"));
        let adapter_rank = match *rank.get_ref() {
            0 => return Err(wrong("rank 0 has no parameters: expected 1 or more".to_owned())),
            rank if rank > model.hidden => {
                let hidden = model.hidden;
                return Err(wrong(format!("rank {rank} is above the hidden size {hidden} of the model")));
            }
            rank => rank,
        };
        let named = |name: &str, span: std::ops::Range<usize>| {
            AdapterTarget::from_name(name).ok_or_else(|| {
                let names = AdapterTarget::ALL.map(AdapterTarget::name);
                let message = format!("{key}: unknown target `{name}`: expected {}", names.join(", "));
                // Modules of transformers have names such as `q_proj`.
                let name = name.strip_suffix("_proj").unwrap_or(name);
                let module = names.contains(&name).then(|| format!("did you mean `{name}`?"));
                JobError { help: module.or_else(|| nearest(name, names)), ..check.error(span, message) }
            })
        };
        let place = targets.map_or_else(|| rank.span(), Spanned::span);
        let mut list: Vec<AdapterTarget> = match targets.map(Spanned::get_ref) {
            None => AdapterTarget::ATTENTION.to_vec(),
            Some(TargetsText::Group(group)) if group == "attention" => AdapterTarget::ATTENTION.to_vec(),
            Some(TargetsText::Group(group)) if group == "all" => {
                AdapterTarget::ALL.into_iter().filter(|target| target.exists_in(model)).collect()
            }
            Some(TargetsText::Group(group)) => {
                let message =
                    format!("{key}: `{group}` is no group of targets: expected \"attention\", \"all\" or a list");
                return Err(JobError { help: nearest(group, ["attention", "all"]), ..check.error(place, message) });
            }
            Some(TargetsText::Names(names)) => {
                let targets = names.iter().map(|name| named(name.get_ref(), name.span()));
                targets.collect::<Result<_, JobError>>()?
            }
        };
        list.sort_by_key(|&target| target as usize);
        list.dedup();
        if list.is_empty() {
            return Err(check.error(place, format!("{key}: no targets: expected one or more")));
        }
        let missing = list.iter().find(|target| !target.exists_in(model));
        if let Some(target) = missing {
            let message = format!("{key}: the model has no `{}`, since its feed-forward is not gated", target.name());
            return Err(check.error(place, message));
        }
        let attention = |target: &AdapterTarget| AdapterTarget::ATTENTION.contains(target);
        if model.experts > 0 && !list.iter().all(attention) {
            let message = format!(
                "{key}: adapters of experts are not modelled: expected targets among q, k, v and o for a model with experts"
            );
            return Err(check.error(place, message));
        }
        if model.latent.is_some() && list.iter().any(|target| attention(target) && *target != AdapterTarget::Output) {
            let message = format!(
                "{key}: adapters of latent attention's projections are not modelled: expected targets without q, k and v"
            );
            return Err(check.error(place, message));
        }
        Ok(Adapter { rank: adapter_rank, targets: list })
    }
}

/// Key `lora` as written in the job file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table as `{ rank = 16, targets = \"all\" }`")]
pub(super) struct LoraText {
    rank: Spanned<u64>,
    targets: Option<Spanned<TargetsText>>,
    base: Option<Spanned<BaseText>>,
}

/// Storage of frozen weights as written in the job file.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BaseText {
    Nf4,
}

impl LoraText {
    /// Returns the training of an adapter of a model in a precision.
    pub(super) fn lora(
        text: &Spanned<Self>,
        check: Validator<'_>,
        model: &Model,
        precision: Precision,
    ) -> Result<Lora, JobError> {
        let Self { rank, targets, base } = text.get_ref();
        let adapter = AdapterText { key: "lora", rank, targets: targets.as_ref() }.adapter(check, model)?;
        let base = match base {
            None => BaseWeights::Unquantized,
            Some(base) if !matches!(precision, Precision::Bf16 | Precision::Fp16) => {
                let message = "lora: a base in nf4 is converted to 16 bits: expected precision = \"bf16\" or \"fp16\"";
                return Err(check.error(base.span(), message.to_owned()));
            }
            Some(base) => match base.get_ref() {
                BaseText::Nf4 => BaseWeights::Nf4,
            },
        };
        Ok(Lora { adapter, base })
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_job;
    use super::super::tests::{job, text};
    use super::*;

    #[test]
    fn lora_is_read() {
        let read = |value: &str| job(&format!("lora = {value}\n")).lora.unwrap();
        let lora = read("{ rank = 16 }");
        assert_eq!((lora.adapter.rank, lora.base), (16, BaseWeights::Unquantized));
        assert_eq!(lora.adapter.targets, AdapterTarget::ATTENTION);
        assert_eq!(read("{ rank = 16, targets = \"attention\" }"), lora);
        assert_eq!(read("{ rank = 16, targets = [\"v\", \"o\", \"q\", \"k\", \"q\"] }"), lora);
        // The feed-forward of the model is not gated.
        assert_eq!(read("{ rank = 1, targets = \"all\" }").adapter.targets.len(), 6);
        assert_eq!(read("{ rank = 1, base = \"nf4\" }").base, BaseWeights::Nf4);
        assert_eq!(job("").lora, None);
    }

    #[test]
    fn names_of_modules_suggest_targets() {
        for (name, target) in [("q_proj", "q"), ("gate_proj", "gate"), ("dwn", "down")] {
            let lines = text(&format!("lora = {{ rank = 8, targets = [\"{name}\"] }}\n"));
            let help = read_job(&lines, "job.toml").unwrap_err().help;
            assert_eq!(help, Some(format!("did you mean `{target}`?")));
        }
    }

    #[test]
    fn invalid_adapters_are_rejected_with_location() {
        for (value, column, expected) in [
            ("{ rank = 0 }", 17, "rank 0 has no parameters"),
            ("{ rank = 100000 }", 17, "rank 100000 is above the hidden size"),
            ("{ rank = 8, targets = \"attn\" }", 30, "expected \"attention\", \"all\" or a list"),
            ("{ rank = 8, targets = [\"q\", \"qq\"] }", 36, "unknown target `qq`: expected q, k"),
            ("{ rank = 8, targets = [\"q_proj\"] }", 31, "unknown target `q_proj`"),
            ("8", 8, "a table as `{ rank = 16, targets = \"all\" }`"),
            ("{ rank = 8, targets = [] }", 30, "no targets"),
            ("{ rank = 8, targets = [\"gate\"] }", 30, "not gated"),
            ("{ rank = 8, base = \"int3\" }", 27, "nf4"),
            ("{ targets = \"all\" }", 8, "rank"),
        ] {
            let lines = text(&format!("lora = {value}\n"));
            let line = lines.lines().position(|line| line.starts_with("lora")).unwrap() + 1;
            let error = read_job(&lines, "job.toml").unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("job.toml:{line}:{column}: ")) && error.contains(expected),
                "{value}: {error}"
            );
        }
    }
}
