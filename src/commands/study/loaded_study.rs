//! Study from the command line, with the fabrics of its candidates.

use std::path::Path;

use fabricast_sim::profile::Profile;
use fabricast_study::answer::Answer;
use fabricast_study::{MachineSize, Study, read_study_with};
use fabricast_topologies::read::Limit;
use fabricast_topologies::{Error, Fabric, FabricRequest, SourceLocation};
use fabricast_workload::job::Job;
use rayon::prelude::*;

use crate::commands::job_file;
use crate::failure::Failure;
use crate::output::Output;

/// Study whose fabrics are loaded.
pub struct LoadedStudy<'a> {
    /// Study with its candidates, jobs and constraints.
    pub study: Study,
    /// Fabric of each candidate, in the order of the study's candidates.
    pub fabrics: Vec<Fabric>,
    /// Folder to which file names in the study are relative.
    folder: &'a Path,
}

impl<'a> LoadedStudy<'a> {
    /// Reads a study and the fabrics of its candidates.
    ///
    /// # Errors
    /// [`Failure`]: the study, a file that it refers to, or the fabric of a candidate cannot be read or is invalid.
    pub fn read(path: &'a Path, output: &Output) -> Result<Self, Failure> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let text = fabricast_topologies::read::read_text_file(path, Limit::STUDY)?;
        Self::from_text(&text, &path.display().to_string(), folder, output)
    }

    /// Reads a study from its text, and the fabrics of its candidates. `source` names the text in errors; file names in
    /// the study are relative to `folder`.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn from_text(text: &str, source: &str, folder: &'a Path, output: &Output) -> Result<Self, Failure> {
        let list = |name: &str| {
            let file = folder.join(name);
            job_file::text(&file, output)
        };
        let traces = |name: &str| job_file::contents(&folder.join(name)).map_err(|failure| failure.to_string());
        let study = read_study_with(text, source, &list, &traces)?;
        for job in &study.jobs {
            if let Job::Trace(job) = job {
                job.trace.ignored.iter().for_each(|reason| output.warn(&format!("{}: {reason}", job.file)));
            }
        }
        let mut loaded = Self { study, fabrics: Vec::new(), folder };
        let fabrics: Vec<Result<Fabric, Failure>> =
            loaded.study.candidates.par_iter().map(|candidate| loaded.fabric(candidate)).collect();
        loaded.fabrics = fabrics.into_iter().collect::<Result<_, _>>()?;
        Ok(loaded)
    }

    /// Checks the study before any run. Returns an error if a job or constraint cannot be satisfied.
    pub fn validate(self) -> Result<Self, Failure> {
        fabricast_study::check(&self.study, &self.fabrics)?;
        self.check_constraints()?;
        Ok(self)
    }

    /// Returns true if an answer was computed for this study.
    pub fn is_answered_by(&self, answer: &Answer) -> bool {
        fabricast_study::link_utilization::matches_study(&self.study, &self.fabrics, answer)
    }

    /// Loads a fabric; file names are relative to the study.
    ///
    /// # Errors
    /// The fabric is unknown or invalid.
    pub fn load(&self, request: &FabricRequest) -> fabricast_topologies::Result<Fabric> {
        let path = self.folder.join(&request.fabric);
        let is_file = fabricast_topologies::preset::text(&request.fabric).is_none() && path.exists();
        match is_file {
            true => {
                fabricast_topologies::load(&FabricRequest { fabric: path.display().to_string(), ..request.clone() })
            }
            false => fabricast_topologies::load(request),
        }
    }

    fn fabric(&self, candidate: &fabricast_study::Candidate) -> Result<Fabric, Failure> {
        let failure_at = |location: &SourceLocation, error: &Error| {
            Failure::input_at(format!("{location}: {error}"), error.help().map(str::to_owned), Some(location))
        };
        let fabric = self.load(&candidate.fabric).map_err(|error| match &error {
            // Errors in a fabric file are reported with their source location in that file.
            Error::Syntax { .. } | Error::Invalid { .. } => error.into(),
            other => failure_at(self.failing_setting(candidate), other),
        })?;
        if fabric.gpus().is_empty() {
            return Err(Failure::input_at("no GPUs in use", None, Some(&candidate.fabric_location)));
        }
        // An unknown GPU model is reported first, because its figures may determine whether a profile matches.
        Profile::for_fabric(&fabric)
            .map_err(|error| Failure::input_at(error.to_string(), None, Some(&candidate.fabric_location)))?;
        Ok(fabric)
    }

    /// Returns the source location of the setting that makes a fabric invalid: the number of GPUs per host if the
    /// fabric loads without this setting, otherwise the fabric.
    fn failing_setting<'c>(&self, candidate: &'c fabricast_study::Candidate) -> &'c SourceLocation {
        let all_gpus = FabricRequest { gpus: None, ..candidate.fabric.clone() };
        match candidate.fabric.gpus.is_some() && self.load(&all_gpus).is_ok() {
            true => &candidate.gpus_location,
            false => &candidate.fabric_location,
        }
    }

    /// Checks that some candidate satisfies the constraints. The error names the candidate that violates them least.
    fn check_constraints(&self) -> Result<(), Failure> {
        let sizes: Vec<MachineSize> = self.fabrics.iter().map(MachineSize::new).collect();
        let nearest = fabricast_study::nearest_candidate(&self.study, &sizes);
        let Some((candidate, size)) =
            nearest.and_then(|index| Some((self.study.candidates.get(index)?, sizes.get(index)?)))
        else {
            return Ok(());
        };
        let terms = fabricast_study::Terms::new(self.study.assumptions);
        let missing_keys = candidate.missing_keys(*size, &terms, &self.study.constraints);
        if let [first, ..] = missing_keys.as_slice() {
            let message = format!(
                "{}: `{}` states no {}, which the constraints limit ({})",
                candidate.location,
                candidate.name,
                missing_keys.join(", "),
                self.study.constraints.location
            );
            let help = format!("give {first} of all of the candidate, or remove the limit");
            return Err(Failure::input_at(message, Some(help), Some(&candidate.location)));
        }
        let (constraints, violations) =
            (&self.study.constraints, candidate.violations(*size, &terms, &self.study.constraints));
        let message = format!(
            "{}: no candidate meets the constraints; `{}` is closest: {}",
            constraints.location,
            candidate.name,
            violations.join("; ")
        );
        Err(Failure::input_at(message, None, Some(&constraints.location)))
    }
}
