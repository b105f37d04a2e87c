//! Speculative decoding: a drafter proposes tokens, and a step of the model verifies all of them and adds one of its own.

use serde::Deserialize;

/// Drafter of speculative decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DraftMethod {
    /// One dense layer on the hidden states of the model, run once per step of the draft (Li et al., EAGLE, arXiv
    /// 2401.15077).
    Eagle,
    /// One layer of the model itself, run once per step of the draft: multi-token prediction (DeepSeek-V3, arXiv 2412.19437,
    /// section 2.2).
    Mtp,
    /// Lookup of the last tokens in the text so far, on the CPU.
    Ngram,
}

/// Speculative decoding of an inference job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// Drafter.
    pub method: DraftMethod,
    /// Tokens that are proposed and verified in a step, at least 1.
    pub draft_tokens: u64,
    /// Passes of the drafter in a step: fewer than the tokens if they are a tree, of which a pass proposes a level.
    pub draft_steps: u64,
    /// Mean number of tokens that a step yields, 1 to `draft_tokens + 1`: accepted ones and one of the model's own.
    pub tokens_per_step: f64,
}

impl Speculation {
    /// Returns the mean number of tokens that a step yields if each proposed token is accepted with this probability, 0 to 1,
    /// provided that those before it are: `(1 - a^(k + 1)) / (1 - a)` (Leviathan et al., arXiv 2211.17192, equation 1).
    #[must_use]
    pub fn expected_tokens(acceptance: f64, draft_tokens: u64) -> f64 {
        let accepted = (1..=draft_tokens.min(MAX_DRAFT_TOKENS)).scan(1.0, |probability, _| {
            *probability *= acceptance;
            Some(*probability)
        });
        1.0 + accepted.sum::<f64>()
    }
}

/// Largest number of tokens that a step may verify for a request.
pub(super) const MAX_DRAFT_TOKENS: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_tokens_match_the_closed_form() {
        for (acceptance, count) in [(0.0, 3), (0.5, 1), (0.7, 4), (0.9, 7)] {
            let closed = (1.0 - f64::powi(acceptance, count + 1)) / (1.0 - acceptance);
            assert!((Speculation::expected_tokens(acceptance, count as u64) - closed).abs() < 1e-12);
        }
        assert_eq!(Speculation::expected_tokens(1.0, 3), 4.0);
    }
}
