//! Conversion of the keys of a trace job.

use toml::Spanned;

use super::super::{JobError, Places, Traced};
use super::{Beside, Checked, JobText, Own, own};
use crate::trace;

impl JobText {
    /// Returns the keys that only trace jobs have.
    pub(super) fn keys_of_traces(&self) -> Vec<Own> {
        vec![own("file", &self.file), own("ranks", &self.ranks)]
    }

    /// Returns the keys that only jobs with a model have.
    pub(super) fn keys_of_models(&self) -> Vec<Own> {
        vec![
            own("model", &self.model),
            own("precision", &self.precision),
            own("parallel", &self.parallel),
            own("placement", &self.placement),
            own("expert_skew", &self.expert_skew),
        ]
    }

    pub(super) fn traced(&self, check: Checked<'_>, places: Places, beside: Beside<'_>) -> Result<Traced, JobError> {
        let file = check.needed("file", &self.file, &places.job)?;
        let ranks = self.ranks.as_ref().map(|ranks| check.count("ranks", ranks)).transpose()?;
        let refused = |why: String| check.wrong(file.span(), format!("file: {why}"));
        let found = (beside.traces)(file.get_ref()).map_err(refused)?;
        let trace = trace::read(&found, ranks.map(|ranks| ranks as u32))?;
        Ok(Traced {
            name: self.name.get_ref().clone(),
            file: file.get_ref().clone(),
            trace: trace.into(),
            collectives: self.collectives,
            weight: check.within("weight", &self.weight, (1e-9, 1e9), 1.0)?,
            places,
        })
    }

    /// Returns a required key of jobs with a model.
    pub(super) fn of_model<'v, T>(
        &self,
        name: &str,
        value: &'v Option<Spanned<T>>,
        check: Checked<'_>,
    ) -> Result<&'v Spanned<T>, JobError> {
        check.needed(name, value, &check.origin.place(self.name.span()))
    }
}
