//! Parser of a job's `candidates = ["…"]`, and lookup of names.

use toml::Spanned;

use super::Reader;
use crate::job::{JobError, JobText, nearest};
use crate::study::{Candidate, Pairs};

impl Reader<'_> {
    /// Reads the assignment of jobs to candidates; every candidate needs at least one job.
    pub(super) fn pairs(self, jobs: &[Spanned<JobText>], candidates: &[Candidate]) -> Result<Pairs, JobError> {
        let names = || candidates.iter().map(|one| one.name.as_str());
        let of_job = |job: &Spanned<JobText>| -> Result<Option<Vec<usize>>, JobError> {
            let Some(said) = &job.get_ref().candidates else { return Ok(None) };
            if said.get_ref().is_empty() {
                return Err(self.wrong(said.span(), "candidates: none is named; without the key a job runs on all"));
            }
            let mut named = Vec::new();
            for name in said.get_ref() {
                let one = self.named("candidates", name, names())?;
                if named.contains(&one) {
                    return Err(self.wrong(name.span(), format!("candidates: `{}` stands twice", name.get_ref())));
                }
                named.push(one);
            }
            Ok(Some(named))
        };
        let pairs = Pairs::new(jobs.iter().map(of_job).collect::<Result<_, _>>()?);
        let has_none = |candidate: usize| !(0..jobs.len()).any(|job| pairs.has(candidate, job));
        match candidates.iter().enumerate().find(|(number, _)| has_none(*number)) {
            Some((_, idle)) => {
                let message = format!("`{}` has nothing to do: every job names other `candidates`", idle.name);
                Err(JobError::at(&idle.place, message))
            }
            None => Ok(pairs),
        }
    }

    /// Returns the index of a name among the known ones.
    pub(super) fn named<'n>(
        self,
        what: &str,
        name: &Spanned<String>,
        mut known: impl Iterator<Item = &'n str> + Clone,
    ) -> Result<usize, JobError> {
        let help = nearest(name.get_ref(), known.clone());
        known.position(|one| one == name.get_ref()).ok_or_else(|| {
            let error = self.wrong(name.span(), format!("{what}: there is no `{}`", name.get_ref()));
            JobError { help, ..error }
        })
    }
}
