//! Conversion of the keys of a trace job.

use toml::Spanned;

use super::super::{JobError, JobSpans, TraceJob};
use super::{FileResolver, JobText, KindKey, Validator, kind_key};
use crate::trace;

impl JobText {
    /// Returns the keys that only trace jobs have.
    pub(super) fn trace_keys(&self) -> Vec<KindKey> {
        vec![kind_key("file", &self.file), kind_key("ranks", &self.ranks)]
    }

    /// Returns the keys that only jobs with a model have.
    pub(super) fn model_keys(&self) -> Vec<KindKey> {
        let keys = [
            kind_key("model", &self.model),
            kind_key("precision", &self.precision),
            kind_key("parallel", &self.parallel),
            kind_key("placement", &self.placement),
            kind_key("expert_skew", &self.expert_skew),
            kind_key("framework", &self.framework),
        ];
        keys.into_iter().chain(self.expert_keys()).collect()
    }

    pub(super) fn trace(
        &self,
        check: Validator<'_>,
        spans: JobSpans,
        files: FileResolver<'_>,
    ) -> Result<TraceJob, JobError> {
        let file = check.required("file", &self.file, &spans.job)?;
        let ranks = self.ranks.as_ref().map(|ranks| check.count("ranks", ranks)).transpose()?;
        let file_error = |reason: String| check.error(file.span(), format!("file: {reason}"));
        let contents = (files.traces)(file.get_ref()).map_err(file_error)?;
        let trace = trace::read(&contents, ranks.map(|ranks| ranks as u32))?;
        Ok(TraceJob {
            name: self.name.get_ref().clone(),
            file: file.get_ref().clone(),
            trace: trace.into(),
            collectives: self.collectives,
            weight: check.number_in_range("weight", &self.weight, 1e-9..=1e9, 1.0)?,
            spans,
        })
    }

    /// Returns the value of a key that jobs with a model require.
    pub(super) fn required_model_key<'v, T>(
        &self,
        name: &str,
        value: &'v Option<Spanned<T>>,
        check: Validator<'_>,
    ) -> Result<&'v Spanned<T>, JobError> {
        check.required(name, value, &check.origin.locate(self.name.span()))
    }
}
