//! Which jobs run on which candidates: all on all, but for those that name theirs. Steps that others published are each of one machine.

/// What each job names of the candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// By the job's place; `None`: all. Places of candidates otherwise.
    named: Vec<Option<Vec<usize>>>,
}

impl Pairs {
    /// Of jobs in their order, each with the places of the candidates that it names; `None`: it names none, and runs on all.
    #[must_use]
    pub fn new(named: Vec<Option<Vec<usize>>>) -> Self {
        Self { named }
    }

    /// Whether a job runs on a candidate, by their places in the study.
    #[must_use]
    pub fn has(&self, candidate: usize, job: usize) -> bool {
        self.of_job(job).is_none_or(|named| named.contains(&candidate))
    }

    /// The candidates that a job names; `None` where it runs on all.
    #[must_use]
    pub fn of_job(&self, job: usize) -> Option<&[usize]> {
        self.named.get(job)?.as_deref()
    }

    /// The first of the candidates that have the same jobs as this one, with which it is compared.
    #[must_use]
    pub fn first_like(&self, candidate: usize) -> usize {
        let has_same =
            |other: &usize| (0..self.named.len()).all(|job| self.has(*other, job) == self.has(candidate, job));
        (0..candidate).find(has_same).unwrap_or(candidate)
    }

    /// Whether candidates have different jobs, so that what each is ranked by is not of the same.
    #[must_use]
    pub fn differ(&self, candidates: usize) -> bool {
        (0..self.named.len()).any(|job| !(0..candidates).all(|candidate| self.has(candidate, job)))
    }
}
