//! Parser of a job's `candidates = ["…"]`, and look-up of names.

use toml::Spanned;

use super::Reader;
use crate::{Candidate, JobAssignment};
use fabricast_workload::job::{JobError, JobText, nearest};

impl Reader<'_> {
    /// Reads the assignment of jobs to candidates.
    ///
    /// # Errors
    /// [`JobError`] for unknown candidates, and for a candidate without jobs.
    pub(super) fn job_assignment(
        self,
        jobs: &[Spanned<JobText>],
        candidates: &[Candidate],
    ) -> Result<JobAssignment, JobError> {
        // The name of a machine with several sizes means all of them.
        let machines = || candidates.iter().filter_map(|candidate| candidate.machine.as_deref());
        let names = || candidates.iter().map(|candidate| candidate.name.as_str()).chain(machines());
        let named_candidates = |job: &Spanned<JobText>| -> Result<Option<Vec<usize>>, JobError> {
            let Some(listed) = &job.get_ref().candidates else { return Ok(None) };
            if listed.get_ref().is_empty() {
                return Err(
                    self.error_at(listed.span(), "candidates: none is named; without the key a job runs on all")
                );
            }
            let mut indices = Vec::new();
            for name in listed.get_ref() {
                self.find_name("candidates", name, names())?;
                let is_named = |candidate: &Candidate| {
                    candidate.name == *name.get_ref() || candidate.machine.as_ref() == Some(name.get_ref())
                };
                for (index, _) in candidates.iter().enumerate().filter(|(_, candidate)| is_named(candidate)) {
                    if indices.contains(&index) {
                        let message = format!("candidates: `{}` is given twice", name.get_ref());
                        return Err(self.error_at(name.span(), message));
                    }
                    indices.push(index);
                }
            }
            Ok(Some(indices))
        };
        let pairs = JobAssignment::new(jobs.iter().map(named_candidates).collect::<Result<_, _>>()?);
        let has_no_job = |candidate: usize| !(0..jobs.len()).any(|job| pairs.is_assigned(candidate, job));
        match candidates.iter().enumerate().find(|(number, _)| has_no_job(*number)) {
            Some((_, idle)) => {
                let message = format!("`{}` has no job: every job names other `candidates`", idle.name);
                Err(JobError::at(&idle.location, message))
            }
            None => Ok(pairs),
        }
    }

    /// Returns the index of a name among the known names. `key`: the key whose value is the name, for errors.
    ///
    /// # Errors
    /// [`JobError`] if the name is unknown.
    pub(super) fn find_name<'n>(
        self,
        key: &str,
        name: &Spanned<String>,
        mut known: impl Iterator<Item = &'n str> + Clone,
    ) -> Result<usize, JobError> {
        let help = nearest(name.get_ref(), known.clone());
        known.position(|entry| entry == name.get_ref()).ok_or_else(|| {
            let error = self.error_at(name.span(), format!("{key}: there is no `{}`", name.get_ref()));
            JobError { help, ..error }
        })
    }
}
