//! Keys of a model and their validation.

use serde::Deserialize;
use toml::Spanned;

use super::super::{ExpertGroups, JobError, LatentAttention, Model, QueryKeyNorm};
use super::{JobText, MAX_COUNT, Validator};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct ModelText {
    /// Configuration of Hugging Face that has the other keys.
    pub hf: Option<Spanned<String>>,
    pub layers: Option<Spanned<u64>>,
    pub hidden: Option<Spanned<u64>>,
    pub heads: Option<Spanned<u64>>,
    pub kv_heads: Option<Spanned<u64>>,
    pub latent: Option<Spanned<LatentText>>,
    pub ffn: Option<Spanned<u64>>,
    #[serde(default)]
    pub gated: bool,
    pub biases: Option<bool>,
    pub tied: Option<bool>,
    pub vocab: Option<Spanned<u64>>,
    pub seq: Option<Spanned<u64>>,
    pub head_dim: Option<Spanned<u64>>,
    #[serde(default)]
    pub experts: u64,
    pub experts_per_token: Option<Spanned<u64>>,
    pub shared_experts: Option<Spanned<u64>>,
    pub expert_groups: Option<Spanned<u64>>,
    pub expert_groups_per_token: Option<Spanned<u64>>,
    pub qk_norm: Option<Spanned<QueryKeyNorm>>,
    /// Sequence length of training if neither the job nor the keys state one.
    #[serde(skip)]
    pub default_seq: Option<u64>,
}

/// Keys of latent attention, named as in models' `config.json` (transformers, `DeepseekV3Config`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct LatentText {
    pub q_lora_rank: Option<Spanned<u64>>,
    pub kv_lora_rank: Spanned<u64>,
    pub qk_nope_head_dim: Spanned<u64>,
    pub qk_rope_head_dim: Spanned<u64>,
    pub v_head_dim: Spanned<u64>,
}

/// Width of an attention head, number of KV heads, and latent attention.
struct Heads {
    width: u64,
    kv: u64,
    latent: Option<LatentAttention>,
}

impl JobText {
    /// Converts and validates the keys of the model; `seq` is the sequence length if the model states none.
    pub(super) fn model(&self, check: Validator<'_>, seq: Option<u64>) -> Result<Model, JobError> {
        let model = self.required_model_key("model", &self.model, check)?;
        let text = model.get_ref();
        let required = |name: &str, value: &Option<Spanned<u64>>| match value {
            Some(value) => check.count(name, value),
            None => Err(check.error(model.span(), format!("missing field `{name}`"))),
        };
        let layers = required("layers", &text.layers)?;
        let hidden = required("hidden", &text.hidden)?;
        let heads = required("heads", &text.heads)?;
        let default = |value: u64| Spanned::new(model.span(), value);
        let Heads { width, kv, latent } = match &text.latent {
            Some(latent) => text.latent_heads(check, heads, latent.get_ref())?,
            None => text.standard_heads(check, hidden, heads, model)?,
        };
        let shared_experts = text.shared_experts.as_ref().map_or(0, |count| *count.get_ref());
        if shared_experts > text.experts {
            let bytes = text.shared_experts.as_ref().map_or(model.span(), Spanned::span);
            let message = format!("shared_experts: {shared_experts} with {} experts; expected fewer", text.experts);
            return Err(check.error(bytes, message));
        }
        let experts_per_token = text.experts_per_token.as_ref().map_or(0, |count| *count.get_ref());
        if (text.experts > 0) != (experts_per_token > 0) || experts_per_token > text.experts {
            let bytes = text.experts_per_token.as_ref().map_or(model.span(), Spanned::span);
            let message =
                format!("experts_per_token: {experts_per_token} of {} experts; expected 1 to experts", text.experts);
            return Err(check.error(bytes, message));
        }
        if text.experts > MAX_COUNT {
            return Err(check.error(model.span(), format!("experts: {} is more than {MAX_COUNT}", text.experts)));
        }
        Ok(Model {
            layers,
            hidden,
            heads,
            head: width,
            kv_heads: kv,
            latent,
            ffn: check.count("ffn", text.ffn.as_ref().unwrap_or(&default(4 * hidden)))?,
            ffn_matrices: if text.gated { 3 } else { 2 },
            biases: u64::from(text.biases.unwrap_or(!text.gated)),
            vocab: required("vocab", &text.vocab)?,
            untied_embeddings: u64::from(text.tied == Some(false)),
            seq: match (&text.seq, self.stated_seq(), seq.or(text.default_seq)) {
                (Some(_), Some(stated), _) => {
                    return Err(check.error(stated.span(), "seq: the model states one already".to_owned()));
                }
                (Some(seq), None, _) | (None, Some(seq), _) => check.count("seq", seq)?,
                (None, None, Some(seq)) => seq,
                (None, None, None) => return Err(check.error(model.span(), "model: missing field `seq`".to_owned())),
            },
            experts: text.experts,
            experts_per_token,
            shared_experts,
            expert_groups: text.expert_groups(check, model, experts_per_token)?,
            query_key_norm: text.qk_norm.as_ref().map(|norm| *norm.get_ref()).unwrap_or_default(),
        })
    }
}

impl ModelText {
    /// Returns the first stated key that a configuration determines. Such a key must not be stated in addition to `hf`.
    pub(super) fn first_key(&self) -> Option<&'static str> {
        let keys = [
            ("layers", self.layers.is_some()),
            ("hidden", self.hidden.is_some()),
            ("heads", self.heads.is_some()),
            ("kv_heads", self.kv_heads.is_some()),
            ("head_dim", self.head_dim.is_some()),
            ("latent", self.latent.is_some()),
            ("ffn", self.ffn.is_some()),
            ("gated", self.gated),
            ("tied", self.tied.is_some()),
            ("vocab", self.vocab.is_some()),
            ("experts", self.experts > 0),
            ("experts_per_token", self.experts_per_token.is_some()),
            ("shared_experts", self.shared_experts.is_some()),
            ("expert_groups", self.expert_groups.is_some()),
            ("expert_groups_per_token", self.expert_groups_per_token.is_some()),
            ("qk_norm", self.qk_norm.is_some()),
        ];
        keys.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }

    /// Returns the keys of a configuration, with the sequence length and biases that the job states in addition.
    pub(super) fn completed_from(&self, configuration: Self) -> Self {
        Self { seq: self.seq.clone(), biases: self.biases, ..configuration }
    }

    /// Sets the sequence length of training if neither the job nor the keys state one.
    pub(super) fn with_default_seq(self, seq: u64) -> Self {
        Self { default_seq: Some(seq), ..self }
    }

    /// Returns the limit of the groups of experts that a token may use. A limit of all groups has no effect and yields
    /// `None`.
    fn expert_groups(
        &self,
        check: Validator<'_>,
        model: &Spanned<Self>,
        experts_per_token: u64,
    ) -> Result<Option<ExpertGroups>, JobError> {
        let (groups, limit) = match (&self.expert_groups, &self.expert_groups_per_token) {
            (None, None) => return Ok(None),
            (Some(groups), Some(limit)) => (groups, limit),
            (Some(_), None) => {
                return Err(check.error(model.span(), "missing field `expert_groups_per_token`".to_owned()));
            }
            (None, Some(_)) => return Err(check.error(model.span(), "missing field `expert_groups`".to_owned())),
        };
        let counts = ExpertGroups {
            groups: check.count("expert_groups", groups)?,
            limit: check.count("expert_groups_per_token", limit)?,
        };
        if !self.experts.is_multiple_of(counts.groups) || self.experts == 0 {
            let message = format!("expert_groups: {} experts cannot be divided by {}", self.experts, counts.groups);
            return Err(check.error(groups.span(), message));
        }
        if counts.limit > counts.groups || experts_per_token > self.experts / counts.groups * counts.limit {
            let message = format!(
                "expert_groups_per_token: {} of {} groups; expected at most all, with {experts_per_token} experts in them",
                counts.limit, counts.groups
            );
            return Err(check.error(limit.span(), message));
        }
        Ok((counts.limit < counts.groups).then_some(counts))
    }

    fn standard_heads(
        &self,
        check: Validator<'_>,
        hidden: u64,
        heads: u64,
        model: &Spanned<Self>,
    ) -> Result<Heads, JobError> {
        let default = |value: u64| Spanned::new(model.span(), value);
        let kv = check.count("kv_heads", self.kv_heads.as_ref().unwrap_or(&default(heads)))?;
        if self.head_dim.is_none() && !hidden.is_multiple_of(heads) {
            let bytes = self.heads.as_ref().map_or(model.span(), Spanned::span);
            return Err(check.error(bytes, format!("heads: hidden {hidden} cannot be divided by {heads}")));
        }
        if !heads.is_multiple_of(kv) {
            let bytes = self.kv_heads.as_ref().map_or(model.span(), Spanned::span);
            return Err(check.error(bytes, format!("kv_heads: heads {heads} cannot be divided by {kv}")));
        }
        let width = check.count("head_dim", self.head_dim.as_ref().unwrap_or(&default(hidden / heads)))?;
        Ok(Heads { width, kv, latent: None })
    }

    fn latent_heads(&self, check: Validator<'_>, heads: u64, text: &LatentText) -> Result<Heads, JobError> {
        for (name, value) in [("kv_heads", &self.kv_heads), ("head_dim", &self.head_dim)] {
            if let Some(value) = value {
                let message =
                    format!("{name}: not allowed with `latent`: latent attention has keys and values for every head");
                return Err(check.error(value.span(), message));
            }
        }
        let latent = LatentAttention {
            query: text.q_lora_rank.as_ref().map(|rank| check.count("q_lora_rank", rank)).transpose()?,
            kv: check.count("kv_lora_rank", &text.kv_lora_rank)?,
            rope: check.count("qk_rope_head_dim", &text.qk_rope_head_dim)?,
            value: check.count("v_head_dim", &text.v_head_dim)?,
        };
        let width = check.count("qk_nope_head_dim", &text.qk_nope_head_dim)?;
        Ok(Heads { width, kv: heads, latent: Some(latent) })
    }
}

/// Upper bound of all numbers of bytes and operations that are computed with 64-bit integers: activations of `tokens`
/// tokens, each of which attends to `others` tokens, and weights of all layers.
pub(super) fn overflow_bound(model: &Model, tokens: f64, others: u64, skew: f64) -> f64 {
    let float = |count: u64| count.max(1) as f64;
    let ffn = float(model.ffn) * float(model.ffns_per_token()) * skew;
    let attention = match model.latent {
        None => float(model.query_width()),
        Some(latent) => {
            float(model.attention_width())
                + float(latent.latent_width())
                + float(model.heads) * float(latent.cached_width() + latent.kv)
        }
    };
    let width = float(model.hidden) + attention;
    let token_elements =
        8.0 * width + 4.0 * ffn + float(model.heads) * float(others) + float(model.vocab) + float(model.experts);
    let ffns = float(model.experts + model.shared_experts);
    // Latent vectors are multiplied by matrices of their own width, not of the hidden size.
    let input_width = float(model.hidden).max(model.latent.map_or(1.0, |_| attention));
    let layer = 4.0 * input_width * width + 3.0 * ffns * float(model.hidden) * float(model.ffn + 1);
    let weights = float(model.layers) * layer + float(model.hidden) * float(2 * model.vocab + model.seq);
    64.0 * (tokens * token_elements * float(model.layers)).max(weights)
}
