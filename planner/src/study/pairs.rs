//! Assignment of jobs to candidates: all jobs on all candidates, except for jobs that name theirs. Published steps, for
//! example, belong to one machine each.

/// Candidates that each job names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Candidate indices by job; `None`: all candidates.
    named: Vec<Option<Vec<usize>>>,
}

impl Pairs {
    /// Creates the assignment from the candidate indices that each job names; `None`: the job runs on all.
    #[must_use]
    pub fn new(named: Vec<Option<Vec<usize>>>) -> Self {
        Self { named }
    }

    /// Returns true if a job runs on a candidate; both are indices in the study.
    #[must_use]
    pub fn has(&self, candidate: usize, job: usize) -> bool {
        self.of_job(job).is_none_or(|named| named.contains(&candidate))
    }

    /// Returns the candidates that a job names; `None` if it runs on all.
    #[must_use]
    pub fn of_job(&self, job: usize) -> Option<&[usize]> {
        self.named.get(job)?.as_deref()
    }

    /// Returns the first candidate with the same jobs as this one. Candidates with the same first candidate are
    /// compared.
    #[must_use]
    pub fn first_like(&self, candidate: usize) -> usize {
        let has_same =
            |other: &usize| (0..self.named.len()).all(|job| self.has(*other, job) == self.has(candidate, job));
        (0..candidate).find(has_same).unwrap_or(candidate)
    }

    /// Returns true if candidates have different jobs, so that their scores are not comparable.
    #[must_use]
    pub fn differ(&self, candidates: usize) -> bool {
        (0..self.named.len()).any(|job| !(0..candidates).all(|candidate| self.has(candidate, job)))
    }
}
