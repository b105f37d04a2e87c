//! Conversion of the key `speculation` of an inference job.

use serde::Deserialize;
use toml::Spanned;

use super::super::speculation::MAX_DRAFT_TOKENS;
use super::super::{DraftMethod, JobError, Speculation};
use super::Validator;

/// Speculative decoding as written in the job file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct SpeculationText {
    method: DraftMethod,
    draft_tokens: Spanned<u64>,
    draft_steps: Option<Spanned<u64>>,
    acceptance: Option<Spanned<f64>>,
    tokens_per_step: Option<Spanned<f64>>,
}

impl SpeculationText {
    /// Returns the speculation of a table, which states its acceptance or the tokens of a step.
    pub(super) fn speculation(text: &Spanned<Self>, check: Validator<'_>) -> Result<Speculation, JobError> {
        let Self { method, draft_tokens, draft_steps, acceptance, tokens_per_step } = text.get_ref();
        let count = check.count_up_to("draft_tokens", draft_tokens, MAX_DRAFT_TOKENS)?;
        let draft_steps = match draft_steps {
            None => count,
            Some(steps) => check.count_up_to("draft_steps", steps, count)?,
        };
        let tokens_per_step = match (acceptance, tokens_per_step) {
            (Some(_), None) => {
                let acceptance = check.number_in_range("acceptance", acceptance, 0.0..=1.0, 0.0)?;
                Speculation::expected_tokens(acceptance, count)
            }
            (None, Some(_)) => {
                check.number_in_range("tokens_per_step", tokens_per_step, 1.0..=(count + 1) as f64, 1.0)?
            }
            (None, None) | (Some(_), Some(_)) => {
                let message = "speculation: expected either `acceptance` or `tokens_per_step`";
                return Err(check.error(text.span(), message.to_owned()));
            }
        };
        Ok(Speculation { method: *method, draft_tokens: count, draft_steps, tokens_per_step })
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_job;
    use super::super::serving_tests::{served, text};
    use super::*;

    #[test]
    fn speculation_is_read() {
        let job = served("speculation = { method = \"eagle\", draft_tokens = 3, tokens_per_step = 2.5 }\n");
        let expected =
            Speculation { method: DraftMethod::Eagle, draft_tokens: 3, draft_steps: 3, tokens_per_step: 2.5 };
        assert_eq!(job.speculation, Some(expected));
        let job = served("speculation = { method = \"mtp\", draft_tokens = 1, acceptance = 0.9 }\n");
        assert_eq!(job.speculation.unwrap().tokens_per_step, 1.9);
        assert_eq!(served("").speculation, None);
    }

    #[test]
    fn invalid_speculation_is_rejected_with_location() {
        for (value, location, expected) in [
            ("{ method = \"eagle\", draft_tokens = 0, acceptance = 0.5 }", "job.toml:2:50", "from 1 to 1024"),
            ("{ method = \"eagle\", draft_tokens = 3, draft_steps = 4 }", "job.toml:2:67", "from 1 to 3"),
            ("{ method = \"eagle\", draft_tokens = 3 }", "job.toml:2:15", "either `acceptance` or `tokens_per_step`"),
            ("{ method = \"eagle\", draft_tokens = 3, tokens_per_step = 5 }", "job.toml:2:71", "from 1 to 4"),
            ("{ method = \"eagle\", draft_tokens = 3, acceptance = 1.5 }", "job.toml:2:66", "from 0 to 1"),
            ("{ method = \"medusa\", draft_tokens = 3 }", "job.toml:2:26", "ngram"),
        ] {
            let error = read_job(&text(&format!("speculation = {value}\n")), "job.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{value}: {error}");
        }
    }
}
