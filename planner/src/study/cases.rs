//! All runs of a study: every job on every candidate, or on those that it names, as given and under every setting, each that is the same once.

use fabricast_topologies::Fabric;
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::key::{self, Fingerprint, Key};
use super::setting::{Load, Setting, Under};
use super::{Study, StudyError};
use crate::job::{Job, JobError};

/// A run that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Number of the setting in [`Cases::settings`].
    pub setting: usize,
    /// Number of the candidate in the study.
    pub candidate: usize,
    /// Number of the job.
    pub job: usize,
    /// What tells it from others.
    pub key: Key,
}

/// What a setting makes of a candidate.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    fabric: Key,
    unchanged: Option<String>,
}

/// The runs of a study.
#[derive(Clone, Debug)]
pub struct Cases {
    /// What is changed: nothing first, then in the order of the study's keys.
    pub settings: Vec<Setting>,
    /// Each run once, in the order of settings, candidates and jobs.
    pub cases: Vec<Case>,
    /// By setting, then by candidate.
    places: Vec<Vec<Place>>,
    /// By setting, candidate, job; `None` where the job does not run on the candidate.
    keys: Vec<Vec<Vec<Option<Key>>>>,
}

impl Cases {
    /// Those of a study, whose candidates' fabrics as given are `fabrics`.
    ///
    /// # Errors
    /// [`StudyError`]: devices that fail and that no candidate has.
    pub fn of(study: &Study, fabrics: &[Fabric], load: Load<'_>) -> Result<Self, StudyError> {
        let settings: Vec<Setting> =
            std::iter::once(Setting::AsGiven).chain(study.sensitivities.iter().cloned()).collect();
        let given: Vec<Key> = fabrics.par_iter().with_max_len(1).map(key::of_fabric).collect();
        let mut places = Vec::with_capacity(settings.len());
        for setting in &settings {
            let of = |((candidate, fabric), &given): ((&super::Candidate, &Fabric), &Key)| match setting
                .fabric(candidate, fabric, load)
            {
                Under::Same => Place { fabric: given, unchanged: None },
                Under::Unchanged { why } => Place { fabric: given, unchanged: Some(why) },
                Under::Changed(other) => Place { fabric: key::of_fabric(&other), unchanged: None },
            };
            let row: Vec<Place> =
                study.candidates.par_iter().zip(fabrics).zip(&given).with_max_len(1).map(of).collect();
            if let (Setting::Failed { place, .. }, true) = (setting, row.iter().all(|one| one.unchanged.is_some())) {
                let why = row.first().and_then(|one| one.unchanged.clone()).unwrap_or_default();
                let error = JobError::at(place, format!("fail: no candidate has all of `{}`: {why}", setting.value()));
                return Err(StudyError::Study(error.into()));
            }
            places.push(row);
        }
        let jobs: Vec<Key> = study.jobs.par_iter().with_max_len(1).map(key::of_job).collect();
        let keys: Vec<Vec<Vec<Option<Key>>>> = places
            .iter()
            .map(|row| {
                // (Of GPUs that a setting takes away nothing is in the curve of those that are left.)
                let of = |(candidate, (place, fabric)): (usize, (&Place, &Fabric))| {
                    let curve = study.curve(candidate, fabric);
                    let named = |job: &Job| job.placement().named_of(fabric.gpus().len());
                    let jobs = jobs.iter().zip(&study.jobs).map(|(&key, job)| (key, named(job)));
                    let of_job = |(number, job)| {
                        study.pairs.has(candidate, number).then(|| key::of_run(place.fabric, job, &curve))
                    };
                    jobs.enumerate().map(of_job).collect()
                };
                row.iter().zip(fabrics).enumerate().map(of).collect()
            })
            .collect();
        let mut seen = FxHashSet::default();
        let mut cases = Vec::new();
        for (setting, row) in keys.iter().enumerate() {
            for (candidate, jobs) in row.iter().enumerate() {
                for (job, key) in jobs.iter().enumerate().filter_map(|(job, key)| Some((job, (*key)?))) {
                    if seen.insert(key) {
                        cases.push(Case { setting, candidate, job, key });
                    }
                }
            }
        }
        Ok(Self { settings, cases, places, keys })
    }

    /// The run of a job on a candidate under a setting; `None` where it does not run there.
    #[must_use]
    pub fn key(&self, setting: usize, candidate: usize, job: usize) -> Option<Key> {
        *self.keys.get(setting)?.get(candidate)?.get(job)?
    }

    /// Why a setting does not apply to a candidate; `None` where it does.
    #[must_use]
    pub fn unchanged(&self, setting: usize, candidate: usize) -> Option<&str> {
        self.places.get(setting)?.get(candidate)?.unchanged.as_deref()
    }

    /// The fingerprint of all runs: that of the study, as far as runs go.
    #[must_use]
    pub fn study(&self) -> Key {
        let mut print = Fingerprint::new();
        for case in &self.cases {
            print.take(&case.key);
        }
        print.key()
    }

    /// The name of a run for people: candidate, job, setting.
    #[must_use]
    pub fn title(&self, study: &Study, case: &Case) -> String {
        let candidate = study.candidates.get(case.candidate).map_or("", |one| one.name.as_str());
        let job = study.jobs.get(case.job).map_or("", |one| one.name());
        match self.settings.get(case.setting) {
            None | Some(Setting::AsGiven) => format!("job `{job}` on `{candidate}`"),
            Some(setting) => format!("job `{job}` on `{candidate}`, {}", setting.title()),
        }
    }
}
