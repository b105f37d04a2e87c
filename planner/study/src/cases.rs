//! Runs of a study: every job on every candidate, or on the candidates that the job names, without changes and under
//! every setting. Runs with equal inputs are executed once.

use fabricast_topologies::Fabric;
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::key::{self, Fingerprint, Key};
use super::setting::{Load, Setting, SettingEffect};
use super::{Study, StudyError};
use fabricast_workload::job::{Job, JobError};

/// Run to execute: a job on a candidate under a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSpec {
    /// Index of the setting in [`Cases::settings`].
    pub setting: usize,
    /// Index of the candidate in the study.
    pub candidate: usize,
    /// Index of the job in the study.
    pub job: usize,
    /// Key of the run: a fingerprint of its inputs.
    pub key: Key,
}

/// Fabric of a candidate under a setting, identified by its key.
#[derive(Clone, Debug, PartialEq)]
struct SettingFabric {
    fabric: Key,
    unchanged: Option<String>,
}

/// Distinct runs of a study, by setting, candidate and job.
#[derive(Clone, Debug)]
pub struct Cases {
    /// Settings. The unchanged study is first, then the settings of `[sensitivity]` in order.
    pub settings: Vec<Setting>,
    /// Distinct runs, in the order of settings, candidates and jobs.
    pub runs: Vec<RunSpec>,
    /// Fabrics under each setting, indexed by setting, then by candidate.
    fabrics: Vec<Vec<SettingFabric>>,
    /// Keys of runs, indexed by setting, candidate and job; `None` if the job does not run on the candidate.
    keys: Vec<Vec<Vec<Option<Key>>>>,
}

impl Cases {
    /// Determines the runs of a study. `fabrics`: unchanged fabrics of its candidates.
    ///
    /// # Errors
    /// [`StudyError`]: a `fail` setting names devices that no candidate has.
    pub fn new(study: &Study, fabrics: &[Fabric], load: Load<'_>) -> Result<Self, StudyError> {
        let settings: Vec<Setting> =
            std::iter::once(Setting::AsGiven).chain(study.sensitivities.iter().cloned()).collect();
        let base_keys: Vec<Key> = fabrics.par_iter().with_max_len(1).map(key::fabric_key).collect();
        let mut setting_fabrics = Vec::with_capacity(settings.len());
        for setting in &settings {
            let setting_fabric = |((candidate, fabric), &base_key): ((&super::Candidate, &Fabric), &Key)| match setting
                .fabric(candidate, fabric, load)
            {
                SettingEffect::Same => SettingFabric { fabric: base_key, unchanged: None },
                SettingEffect::Unchanged { reason } => SettingFabric { fabric: base_key, unchanged: Some(reason) },
                SettingEffect::Changed(changed) => SettingFabric { fabric: key::fabric_key(&changed), unchanged: None },
            };
            let row: Vec<SettingFabric> =
                study.candidates.par_iter().zip(fabrics).zip(&base_keys).with_max_len(1).map(setting_fabric).collect();
            if let (Setting::Failed { location: place, .. }, true) =
                (setting, row.iter().all(|entry| entry.unchanged.is_some()))
            {
                let reason = row.first().and_then(|entry| entry.unchanged.clone()).unwrap_or_default();
                let error =
                    JobError::at(place, format!("fail: no candidate has all of `{}`: {reason}", setting.value()));
                return Err(StudyError::Study(error.into()));
            }
            setting_fabrics.push(row);
        }
        let jobs: Vec<Key> = study.jobs.par_iter().with_max_len(1).map(key::job_key).collect();
        let keys: Vec<Vec<Vec<Option<Key>>>> = setting_fabrics
            .iter()
            .map(|row| {
                // GPUs that a setting removes do not affect the efficiency curve of the remaining GPUs.
                let candidate_keys = |(candidate, (setting_fabric, fabric)): (usize, (&SettingFabric, &Fabric))| {
                    let curve = study.curve(candidate, fabric);
                    let listed_count = |job: &Job| job.placement().listed_count(fabric.gpus().len());
                    let jobs = jobs
                        .iter()
                        .zip(&study.jobs)
                        .map(|(&key, job)| key::ListedJob { key, listed_count: listed_count(job) });
                    let job_run_key = |(number, job)| {
                        study
                            .assignment
                            .is_assigned(candidate, number)
                            .then(|| key::run_key(setting_fabric.fabric, job, &curve))
                    };
                    jobs.enumerate().map(job_run_key).collect()
                };
                row.iter().zip(fabrics).enumerate().map(candidate_keys).collect()
            })
            .collect();
        let mut seen = FxHashSet::default();
        let mut cases = Vec::new();
        for (setting, row) in keys.iter().enumerate() {
            for (candidate, jobs) in row.iter().enumerate() {
                for (job, key) in jobs.iter().enumerate().filter_map(|(job, key)| Some((job, (*key)?))) {
                    if seen.insert(key) {
                        cases.push(RunSpec { setting, candidate, job, key });
                    }
                }
            }
        }
        Ok(Self { settings, runs: cases, fabrics: setting_fabrics, keys })
    }

    /// Returns the key of a job on a candidate under a setting; `None` if the job does not run on the candidate.
    #[must_use]
    pub fn key(&self, setting: usize, candidate: usize, job: usize) -> Option<Key> {
        *self.keys.get(setting)?.get(candidate)?.get(job)?
    }

    /// Returns the reason why a setting does not apply to a candidate; `None` if it applies.
    #[must_use]
    pub fn unchanged(&self, setting: usize, candidate: usize) -> Option<&str> {
        self.fabrics.get(setting)?.get(candidate)?.unchanged.as_deref()
    }

    /// Returns the fingerprint of all runs. It identifies the study, except for prices and names.
    #[must_use]
    pub fn study(&self) -> Key {
        let mut fingerprint = Fingerprint::new();
        for case in &self.runs {
            fingerprint.hash(&case.key);
        }
        fingerprint.key()
    }

    /// Returns the display name of a run: job, candidate and setting.
    #[must_use]
    pub fn title(&self, study: &Study, case: &RunSpec) -> String {
        let candidate = study.candidates.get(case.candidate).map_or("", |candidate| candidate.name.as_str());
        let job = study.jobs.get(case.job).map_or("", |job| job.name());
        match self.settings.get(case.setting) {
            None | Some(Setting::AsGiven) => format!("job `{job}` on `{candidate}`"),
            Some(setting) => format!("job `{job}` on `{candidate}`, {}", setting.title()),
        }
    }
}
