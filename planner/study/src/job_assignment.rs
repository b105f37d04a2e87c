//! Assignment of jobs to candidates. Jobs run on all candidates, except those that name their candidates: published
//! steps, for example, belong to one machine each.

/// Assignment of jobs to candidates, by the candidates that each job names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobAssignment {
    /// Candidate indices, indexed by job; `None` if the job runs on all candidates.
    candidates: Vec<Option<Vec<usize>>>,
}

impl JobAssignment {
    /// Creates the assignment from the candidate indices that each job names; `None` if the job runs on all candidates.
    #[must_use]
    pub fn new(candidates: Vec<Option<Vec<usize>>>) -> Self {
        Self { candidates }
    }

    /// Returns true if a job runs on a candidate; both are indices in the study.
    #[must_use]
    pub fn is_assigned(&self, candidate: usize, job: usize) -> bool {
        self.candidates(job).is_none_or(|candidates| candidates.contains(&candidate))
    }

    /// Returns the indices of the candidates that a job names; `None` if it runs on all candidates.
    #[must_use]
    pub fn candidates(&self, job: usize) -> Option<&[usize]> {
        self.candidates.get(job)?.as_deref()
    }

    /// Returns the index of the first candidate with the same jobs as this one. Candidates with the same result are
    /// compared with each other.
    #[must_use]
    pub fn first_with_same_jobs(&self, candidate: usize) -> usize {
        let has_same_jobs = |other: &usize| {
            (0..self.candidates.len()).all(|job| self.is_assigned(*other, job) == self.is_assigned(candidate, job))
        };
        (0..candidate).find(has_same_jobs).unwrap_or(candidate)
    }

    /// Returns true if any of the first `candidates` candidates have different jobs, so that their scores are not
    /// comparable.
    #[must_use]
    pub fn has_different_jobs(&self, candidates: usize) -> bool {
        (0..self.candidates.len()).any(|job| !(0..candidates).all(|candidate| self.is_assigned(candidate, job)))
    }
}
