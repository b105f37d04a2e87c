//! Keys of a model and their validation.

use serde::Deserialize;
use toml::Spanned;

use super::super::{JobError, Latent, Model};
use super::{Checked, JobText, MOST};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct ModelText {
    layers: Spanned<u64>,
    hidden: Spanned<u64>,
    heads: Spanned<u64>,
    kv_heads: Option<Spanned<u64>>,
    latent: Option<Spanned<LatentText>>,
    ffn: Option<Spanned<u64>>,
    #[serde(default)]
    gated: bool,
    biases: Option<bool>,
    tied: Option<bool>,
    vocab: Spanned<u64>,
    seq: Option<Spanned<u64>>,
    head_dim: Option<Spanned<u64>>,
    #[serde(default)]
    experts: u64,
    experts_per_token: Option<Spanned<u64>>,
    shared_experts: Option<Spanned<u64>>,
}

/// Keys of latent attention, named as in models' `config.json` (transformers, `DeepseekV3Config`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
struct LatentText {
    q_lora_rank: Option<Spanned<u64>>,
    kv_lora_rank: Spanned<u64>,
    qk_nope_head_dim: Spanned<u64>,
    qk_rope_head_dim: Spanned<u64>,
    v_head_dim: Spanned<u64>,
}

/// Width and number of attention heads.
struct Heads {
    width: u64,
    kv: u64,
    latent: Option<Latent>,
}

impl JobText {
    /// Converts and validates the model; `seq` is the default sequence length.
    pub(super) fn model(&self, check: Checked<'_>, seq: Option<u64>) -> Result<Model, JobError> {
        let model = self.of_model("model", &self.model, check)?;
        let text = model.get_ref();
        let hidden = check.count("hidden", &text.hidden)?;
        let heads = check.count("heads", &text.heads)?;
        let absent = |value: u64| Spanned::new(model.span(), value);
        let Heads { width, kv, latent } = match &text.latent {
            Some(latent) => text.compressed(check, heads, latent.get_ref())?,
            None => text.plain(check, hidden, heads, model)?,
        };
        let shared = text.shared_experts.as_ref().map_or(0, |shared| *shared.get_ref());
        if shared > text.experts {
            let bytes = text.shared_experts.as_ref().map_or(model.span(), Spanned::span);
            let message = format!("shared_experts: {shared} beside {} experts; expected fewer", text.experts);
            return Err(check.wrong(bytes, message));
        }
        let per_token = text.experts_per_token.as_ref().map_or(0, |each| *each.get_ref());
        if (text.experts > 0) != (per_token > 0) || per_token > text.experts {
            let bytes = text.experts_per_token.as_ref().map_or(model.span(), Spanned::span);
            let message = format!("experts_per_token: {per_token} of {} experts; expected 1 to experts", text.experts);
            return Err(check.wrong(bytes, message));
        }
        if text.experts > MOST {
            return Err(check.wrong(model.span(), format!("experts: {} is more than {MOST}", text.experts)));
        }
        Ok(Model {
            layers: check.count("layers", &text.layers)?,
            hidden,
            heads,
            head: width,
            kv_heads: kv,
            latent,
            ffn: check.count("ffn", text.ffn.as_ref().unwrap_or(&absent(4 * hidden)))?,
            ffn_matrices: if text.gated { 3 } else { 2 },
            biases: u64::from(text.biases.unwrap_or(!text.gated)),
            vocab: check.count("vocab", &text.vocab)?,
            untied: u64::from(text.tied == Some(false)),
            seq: match (&text.seq, seq) {
                (Some(given), _) => check.count("seq", given)?,
                (None, Some(seq)) => seq,
                (None, None) => return Err(check.wrong(model.span(), "model: missing field `seq`".to_owned())),
            },
            experts: text.experts,
            experts_per_token: per_token,
            shared_experts: shared,
        })
    }
}

impl ModelText {
    fn plain(&self, check: Checked<'_>, hidden: u64, heads: u64, model: &Spanned<Self>) -> Result<Heads, JobError> {
        let absent = |value: u64| Spanned::new(model.span(), value);
        let kv = check.count("kv_heads", self.kv_heads.as_ref().unwrap_or(&absent(heads)))?;
        if self.head_dim.is_none() && !hidden.is_multiple_of(heads) {
            return Err(check.wrong(self.heads.span(), format!("heads: hidden {hidden} cannot be divided by {heads}")));
        }
        if !heads.is_multiple_of(kv) {
            let bytes = self.kv_heads.as_ref().map_or(model.span(), Spanned::span);
            return Err(check.wrong(bytes, format!("kv_heads: heads {heads} cannot be divided by {kv}")));
        }
        let width = check.count("head_dim", self.head_dim.as_ref().unwrap_or(&absent(hidden / heads)))?;
        Ok(Heads { width, kv, latent: None })
    }

    fn compressed(&self, check: Checked<'_>, heads: u64, text: &LatentText) -> Result<Heads, JobError> {
        for (name, said) in [("kv_heads", &self.kv_heads), ("head_dim", &self.head_dim)] {
            if let Some(said) = said {
                let message = format!("{name}: not beside `latent`, which gives every head its own");
                return Err(check.wrong(said.span(), message));
            }
        }
        let latent = Latent {
            query: text.q_lora_rank.as_ref().map(|rank| check.count("q_lora_rank", rank)).transpose()?,
            kv: check.count("kv_lora_rank", &text.kv_lora_rank)?,
            rope: check.count("qk_rope_head_dim", &text.qk_rope_head_dim)?,
            value: check.count("v_head_dim", &text.v_head_dim)?,
        };
        let width = check.count("qk_nope_head_dim", &text.qk_nope_head_dim)?;
        Ok(Heads { width, kv: heads, latent: Some(latent) })
    }
}

/// Upper bound of all bytes and operations that are computed with 64-bit integers: activations of `tokens` tokens, each
/// of which attends to `others` tokens, and weights of all layers.
pub(super) fn largest(model: &Model, tokens: f64, others: u64, skew: f64) -> f64 {
    let of = |count: u64| count.max(1) as f64;
    let ffn = of(model.ffn) * of(model.ffns_per_token()) * skew;
    let attention = match model.latent {
        None => of(model.query_width()),
        Some(latent) => {
            of(model.attention_width()) + of(latent.short()) + of(model.heads) * of(latent.kept() + latent.kv)
        }
    };
    let width = of(model.hidden) + attention;
    let wide = 8.0 * width + 4.0 * ffn + of(model.heads) * of(others) + of(model.vocab) + of(model.experts);
    let ffns = of(model.experts + model.shared_experts);
    // Latent vectors are multiplied by matrices of their own width, not of the hidden size.
    let meets = of(model.hidden).max(model.latent.map_or(1.0, |_| attention));
    let layer = 4.0 * meets * width + 3.0 * ffns * of(model.hidden) * of(model.ffn + 1);
    let weights = of(model.layers) * layer + of(model.hidden) * of(2 * model.vocab + model.seq);
    64.0 * (tokens * wide * of(model.layers)).max(weights)
}
