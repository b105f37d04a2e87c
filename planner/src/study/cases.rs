//! Runs of a study: every job on every candidate, or on those that it names, as given and under every setting. Equal
//! runs execute once.

use fabricast_topologies::Fabric;
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::key::{self, Fingerprint, Key};
use super::setting::{Load, Setting, Under};
use super::{Study, StudyError};
use crate::job::{Job, JobError};

/// Run to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Index of the setting in [`Cases::settings`].
    pub setting: usize,
    /// Index of the candidate in the study.
    pub candidate: usize,
    /// Index of the job in the study.
    pub job: usize,
    /// Key of the run.
    pub key: Key,
}

/// A candidate's fabric under a setting.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    fabric: Key,
    unchanged: Option<String>,
}

/// Runs of a study.
#[derive(Clone, Debug)]
pub struct Cases {
    /// Settings: the unchanged study first, then those of `[sensitivity]` in order.
    pub settings: Vec<Setting>,
    /// Distinct runs, in the order of settings, candidates and jobs.
    pub cases: Vec<Case>,
    /// Fabrics by setting, then by candidate.
    places: Vec<Vec<Place>>,
    /// Keys by setting, candidate and job; `None` if the job does not run on the candidate.
    keys: Vec<Vec<Vec<Option<Key>>>>,
}

impl Cases {
    /// Determines the runs of a study; `fabrics` are those of its candidates, unchanged.
    ///
    /// # Errors
    /// [`StudyError`]: a `fail` setting names devices that no candidate has.
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
                // (GPUs that a setting removes do not affect the curve of the remaining ones.)
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

    /// Returns the key of a job on a candidate under a setting; `None` if it does not run there.
    #[must_use]
    pub fn key(&self, setting: usize, candidate: usize, job: usize) -> Option<Key> {
        *self.keys.get(setting)?.get(candidate)?.get(job)?
    }

    /// Returns the reason why a setting does not apply to a candidate; `None` if it applies.
    #[must_use]
    pub fn unchanged(&self, setting: usize, candidate: usize) -> Option<&str> {
        self.places.get(setting)?.get(candidate)?.unchanged.as_deref()
    }

    /// Fingerprint of all runs, which identifies the study except for prices and names.
    #[must_use]
    pub fn study(&self) -> Key {
        let mut print = Fingerprint::new();
        for case in &self.cases {
            print.take(&case.key);
        }
        print.key()
    }

    /// Display name of a run: job, candidate and setting.
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
