//! Models from the configuration of Hugging Face transformers (`model = { hf = "config.json" }`).
//!
//! Keys and families are named after the configuration classes of transformers (`configuration_llama.py`,
//! `configuration_mixtral.py`, `configuration_qwen3_moe.py`, `configuration_deepseek_v3.py`,
//! `configuration_gpt_oss.py`, `configuration_gpt2.py`); they and the defaults of families were not compared with a
//! release. Keys that determine shapes are read. Keys that change neither shapes nor the amount of work are skipped.
//! The notes name all other keys, and properties that a job cannot express.

use std::ops::Range;

use serde_json::{Map, Value};
use toml::Spanned;

use super::model::{LatentText, ModelText};

/// Properties that a model's class fixes, if its configuration does not state them.
struct Family {
    /// `model_type` of the configuration.
    name: &'static str,
    /// Feed-forward networks have three matrices.
    gated: bool,
    /// Embedding and output matrix are the same unless `tie_word_embeddings` is false.
    tied: bool,
}

impl Family {
    /// Family with gated feed-forward networks and separate embeddings.
    const fn gated(name: &'static str) -> Self {
        Self { name, gated: true, tied: false }
    }

    /// Family with feed-forward networks of two matrices and separate embeddings.
    const fn ungated(name: &'static str) -> Self {
        Self { name, gated: false, tied: false }
    }

    /// The family with tied embeddings.
    const fn with_tied_embeddings(self) -> Self {
        Self { tied: true, ..self }
    }
}

/// Families of decoders, from the classes of the same name in transformers.
const FAMILIES: [Family; 22] = [
    Family::gated("llama"),
    Family::gated("mistral"),
    Family::gated("mixtral"),
    Family::gated("qwen2"),
    Family::gated("qwen2_moe"),
    Family::gated("qwen3"),
    Family::gated("qwen3_moe"),
    Family::gated("deepseek_v2"),
    Family::gated("deepseek_v3"),
    Family::gated("kimi_k2"),
    Family::gated("gpt_oss"),
    Family::gated("glm4_moe"),
    Family::gated("phi3"),
    Family::gated("olmo2"),
    Family::gated("gemma").with_tied_embeddings(),
    Family::gated("gemma2").with_tied_embeddings(),
    Family::gated("gemma3_text").with_tied_embeddings(),
    Family::gated("cohere").with_tied_embeddings(),
    Family::ungated("gpt2").with_tied_embeddings(),
    Family::ungated("gpt_neox"),
    Family::ungated("opt").with_tied_embeddings(),
    Family::ungated("falcon").with_tied_embeddings(),
];

/// Keys that do not affect shapes and work, or whose effect a job states in other keys.
const IRRELEVANT: [&str; 76] = [
    "_name_or_path",
    "activation_function",
    "architectures",
    "attention_bias",
    "attention_dropout",
    "attn_logit_softcapping",
    "attn_pdrop",
    "auto_map",
    "aux_loss_alpha",
    "bos_token_id",
    "cache_implementation",
    "clip_qkv",
    "decoder_start_token_id",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "eos_token_id",
    "ep_size",
    "expert_bias",
    "experts_implementation",
    "final_logit_softcapping",
    "hidden_act",
    "hidden_activation",
    "hidden_dropout",
    "id2label",
    "initial_context_length",
    "initializer_range",
    "label2id",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "logits_soft_cap",
    "max_length",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "model_max_length",
    "moe_layer_freq",
    "n_ctx",
    "n_positions",
    "norm_topk_prob",
    "original_max_position_embeddings",
    "output_attentions",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "qk_layernorm",
    "query_pre_attn_scalar",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "rms_norm_eps",
    "rope_interleave",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rotary_emb_base",
    "rotary_pct",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "scoring_func",
    "seq_aux",
    "swiglu_limit",
    "sub_configs",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "topk_method",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Configuration whose keys are removed as they are read.
struct Configuration {
    keys: Map<String, Value>,
    notes: Vec<String>,
}

/// Converts a configuration to the keys of a model. `span`: byte range of the file name in the job file.
///
/// # Errors
/// The text is not a JSON object, or a key that determines shapes is missing or is not a whole number.
pub(super) fn model_text(text: &str, span: &Range<usize>) -> Result<ModelText, String> {
    Configuration::new(text)?.read(span)
}

/// Notes on a Hugging Face configuration that a job refers to: keys that are not known and may matter, and properties
/// that a job cannot express. Empty if there are none.
///
/// # Errors
/// Errors of a job that is read with this configuration.
pub fn configuration_notes(text: &str) -> Result<Vec<String>, String> {
    let mut configuration = Configuration::new(text)?;
    configuration.read(&(0..0))?;
    let unknown: Vec<String> = configuration
        .keys
        .iter()
        .filter(|(key, value)| !value.is_null() && !IRRELEVANT.contains(&key.as_str()))
        .map(|(key, _)| format!("`{key}`"))
        .collect();
    let mut notes = configuration.notes;
    if !unknown.is_empty() {
        notes.push(format!("keys that are not known and do not count: {}", unknown.join(", ")));
    }
    Ok(notes)
}

impl Configuration {
    fn new(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(mut keys) = value else {
            return Err("expected an object of keys, as in config.json of transformers".to_owned());
        };
        let mut notes = Vec::new();
        // Multimodal models have the decoder's keys in a separate table.
        if let Some(Value::Object(decoder)) = keys.remove("text_config") {
            keys = decoder;
            notes.push("only the language model counts (`text_config`), not encoders of images or sound".to_owned());
        }
        Ok(Self { keys, notes })
    }

    /// Returns the number under the first of several names that the configuration contains.
    fn number(&mut self, names: &[&str]) -> Result<Option<u64>, String> {
        let mut found = None;
        for &name in names {
            match self.keys.remove(name) {
                None | Some(Value::Null) => {}
                Some(value) => match value.as_u64() {
                    Some(number) => found = found.or(Some(number)),
                    None => return Err(format!("{name}: expected a whole number, not {value}")),
                },
            }
        }
        Ok(found)
    }

    fn required(&mut self, names: &[&str]) -> Result<u64, String> {
        let missing = || format!("missing key `{}`", names.join("` or `"));
        self.number(names)?.ok_or_else(missing)
    }

    fn flag(&mut self, name: &str) -> Option<bool> {
        self.keys.remove(name).and_then(|value| value.as_bool())
    }

    fn read(&mut self, span: &Range<usize>) -> Result<ModelText, String> {
        let spanned = |number: u64| Spanned::new(span.clone(), number);
        let kind = self.keys.remove("model_type");
        let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
        let known = FAMILIES.iter().find(|family| family.name == kind);
        if known.is_none() {
            self.notes.push(format!(
                "model_type `{kind}` is not known: read as a decoder with gated feed-forward networks and separate \
                 embeddings"
            ));
        }
        let (gated, tied) = known.map_or((true, false), |family| (family.gated, family.tied));
        let layers = self.required(&["num_hidden_layers", "n_layer"])?;
        let hidden = self.required(&["hidden_size", "n_embd"])?;
        let heads = self.required(&["num_attention_heads", "n_head"])?;
        let vocab = self.required(&["vocab_size"])?;
        let experts = self.number(&["num_local_experts", "num_experts", "n_routed_experts"])?.unwrap_or(0);
        let experts_per_token = self.number(&["num_experts_per_tok", "experts_per_token", "moe_topk"])?;
        let dense = self.number(&["intermediate_size", "n_inner", "ffn_dim"])?;
        let expert = self.number(&["moe_intermediate_size"])?;
        let shared = self.shared_experts(expert)?;
        let latent = self.latent(span)?;
        let kv_heads = self.number(&["num_key_value_heads"])?;
        let head_dim = self.number(&["head_dim"])?;
        self.note_simplifications()?;
        let has_experts = experts > 1;
        // Some models state one group of all experts, which is not a limit.
        let groups = self.number(&["n_group"])?.zip(self.number(&["topk_group"])?);
        let groups = groups.filter(|&(groups, limit)| has_experts && limit < groups);
        let standard = |value: Option<u64>| value.filter(|_| latent.is_none()).map(spanned);
        Ok(ModelText {
            layers: Some(spanned(layers)),
            hidden: Some(spanned(hidden)),
            heads: Some(spanned(heads)),
            kv_heads: standard(kv_heads),
            head_dim: standard(head_dim),
            ffn: if has_experts { expert.or(dense) } else { dense }.map(spanned),
            gated,
            tied: Some(self.flag("tie_word_embeddings").unwrap_or(tied)),
            vocab: Some(spanned(vocab)),
            experts: if has_experts { experts } else { 0 },
            experts_per_token: experts_per_token.filter(|_| has_experts).map(spanned),
            shared_experts: shared.filter(|_| has_experts).map(spanned),
            expert_groups: groups.map(|(groups, _)| spanned(groups)),
            expert_groups_per_token: groups.map(|(_, limit)| spanned(limit)),
            latent: latent.map(|latent| Spanned::new(span.clone(), latent)),
            ..ModelText::default()
        })
    }

    /// Number of shared experts; Qwen2-MoE has one, whose width it states.
    fn shared_experts(&mut self, expert: Option<u64>) -> Result<Option<u64>, String> {
        let count = self.number(&["n_shared_experts"])?;
        let width = self.number(&["shared_expert_intermediate_size"])?.filter(|&width| width > 0);
        match (count, width, expert) {
            (None, Some(width), Some(expert)) => {
                if width % expert != 0 {
                    self.notes
                        .push(format!("the shared expert of width {width} counts as one of a multiple of {expert}"));
                }
                Ok(Some(width.div_ceil(expert)))
            }
            _ => Ok(count),
        }
    }

    fn latent(&mut self, span: &Range<usize>) -> Result<Option<LatentText>, String> {
        let Some(rank) = self.number(&["kv_lora_rank"])? else { return Ok(None) };
        let spanned = |number: u64| Spanned::new(span.clone(), number);
        Ok(Some(LatentText {
            q_lora_rank: self.number(&["q_lora_rank"])?.map(spanned),
            kv_lora_rank: spanned(rank),
            qk_nope_head_dim: spanned(self.required(&["qk_nope_head_dim"])?),
            qk_rope_head_dim: spanned(self.required(&["qk_rope_head_dim"])?),
            v_head_dim: spanned(self.required(&["v_head_dim"])?),
        }))
    }

    /// Notes properties that a job cannot express.
    fn note_simplifications(&mut self) -> Result<(), String> {
        self.keys.remove("qk_head_dim");
        let dense = self.number(&["first_k_dense_replace"])?.unwrap_or(0);
        if dense > 0 {
            self.notes.push(format!("the first {dense} layers, which are dense, count as layers with experts"));
        }
        let listed = self.keys.remove("mlp_only_layers");
        let is_listed = listed.as_ref().and_then(Value::as_array).is_some_and(|layers| !layers.is_empty());
        if is_listed || self.number(&["decoder_sparse_step"])?.is_some_and(|step| step > 1) {
            self.notes.push("layers without experts count as layers with experts".to_owned());
        }
        let types = self.keys.remove("layer_types");
        let has_windows = types
            .as_ref()
            .and_then(Value::as_array)
            .is_some_and(|types| types.iter().filter_map(Value::as_str).any(|kind| kind != "full_attention"));
        let window = self.keys.remove("sliding_window").filter(|window| !window.is_null());
        let uses_window = self.flag("use_sliding_window").unwrap_or(true) && window.is_some();
        self.keys.remove("sliding_window_pattern");
        if has_windows || (types.is_none() && uses_window) {
            self.notes.push("layers with attention over a window count as full attention".to_owned());
        }
        if self.number(&["num_nextn_predict_layers"])?.is_some_and(|layers| layers > 0) {
            self.notes.push("layers for multi-token prediction do not count".to_owned());
        }
        if self.keys.remove("quantization_config").is_some() {
            self.notes.push("the job's `precision` decides the precision, not `quantization_config`".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Job, JobError, Model, named_models};
    use super::super::{FileResolver, JobText};
    use super::*;
    use fabricast_topologies::Origin;

    const LLAMA: &str = include_str!("../../../tests/data/llama-3-70b.config.json");
    const MIXTRAL: &str = include_str!("../../../tests/data/mixtral-8x7b.config.json");
    const QWEN: &str = include_str!("../../../tests/data/qwen3-235b-a22b.config.json");
    const DEEPSEEK: &str = include_str!("../../../tests/data/deepseek-v3.config.json");

    fn job(keys: &str, configuration: &str) -> Result<Model, JobError> {
        let text = format!("name = \"j\"\n{keys}\nglobal_batch = 1\nmicro_batch = 1\nparallel = \"auto\"\n");
        let parsed: JobText = toml::from_str(&text).unwrap();
        let origin = Origin::new("job.toml", &text);
        let texts = |name: &str| match name {
            "config.json" => Ok((name.to_owned(), configuration.to_owned())),
            other => Err(format!("{other}: no such file")),
        };
        let files = FileResolver { texts: &texts, ..FileResolver::NONE };
        match parsed.job(origin, origin.locate(0..0), files)? {
            Job::Training(job) => Ok(job.model),
            other => panic!("{other:?}"),
        }
    }

    /// Configurations in the form that transformers uses yield the models of the catalogue.
    #[test]
    fn configurations_give_the_models_of_the_catalogue() {
        for (name, configuration) in
            [("llama-3-70b", LLAMA), ("mixtral-8x7b", MIXTRAL), ("qwen3-235b-a22b", QWEN), ("deepseek-v3", DEEPSEEK)]
        {
            let named = named_models().unwrap().into_iter().find(|model| model.name == name).unwrap();
            let keys = format!("model = {{ hf = \"config.json\" }}\nseq = {}", named.model.seq);
            assert_eq!(job(&keys, configuration).unwrap(), named.model, "{name}");
        }
    }

    #[test]
    fn simplifications_and_unknown_keys_are_named() {
        assert_eq!(configuration_notes(LLAMA).unwrap(), Vec::<String>::new());
        assert_eq!(configuration_notes(MIXTRAL).unwrap(), Vec::<String>::new());
        let notes = configuration_notes(DEEPSEEK).unwrap();
        assert!(notes[0].starts_with("the first 3 layers, which are dense"), "{notes:?}");
        let strange = LLAMA.replacen('{', "{\"mamba_layers\": 4, ", 1).replace("\"llama\"", "\"jamba\"");
        let notes = configuration_notes(&strange).unwrap();
        assert!(notes[0].starts_with("model_type `jamba` is not known"), "{notes:?}");
        assert_eq!(notes[1], "keys that are not known and do not count: `mamba_layers`");
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        let message = |keys: &str, text: &str| job(keys, text).unwrap_err().to_string();
        let hf = "model = { hf = \"config.json\" }\nseq = 4096";
        let missing = message(hf, &LLAMA.replace("num_attention_heads", "heads"));
        assert!(missing.ends_with("config.json: missing key `num_attention_heads` or `n_head`"), "{missing}");
        assert!(missing.starts_with("job.toml:2:16"), "{missing}");
        assert!(message(hf, "[]").contains("expected an object"));
        assert!(message(hf, &LLAMA.replace("8192", "8192.5")).contains("expected a whole number"));
        let both = message("model = { hf = \"config.json\", layers = 3 }", LLAMA);
        assert!(both.contains("layers: the configuration has it"), "{both}");
        let unread = message("model = { hf = \"other.json\" }", LLAMA);
        assert!(unread.contains("other.json: no such file"), "{unread}");
        let no_length = message("model = { hf = \"config.json\" }", LLAMA);
        assert!(no_length.contains("missing field `seq`"), "{no_length}");
    }
}
