//! Study from the command line, with the fabrics of its candidates.

use std::path::Path;

use fabricast_planner::job::Job;
use fabricast_planner::study::answer::Answer;
use fabricast_planner::study::{self, Extent, Study, read_study_with};
use fabricast_sim::profile::Profile;
use fabricast_topologies::read::Limit;
use fabricast_topologies::{Error, Fabric, FabricRequest, Place};
use rayon::prelude::*;

use crate::commands::job_file;
use crate::failure::Failure;
use crate::output::Output;

/// Study with its fabrics.
pub struct Asked<'a> {
    /// Candidates, jobs and constraints.
    pub study: Study,
    /// Fabrics of the candidates, in their order.
    pub fabrics: Vec<Fabric>,
    /// Folder that file names are relative to.
    folder: &'a Path,
}

impl<'a> Asked<'a> {
    /// Reads a study and the fabrics of its candidates.
    pub fn read(path: &'a Path, output: &Output) -> Result<Self, Failure> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let text = fabricast_topologies::read::text_of_file(path, Limit::STUDY)?;
        let list = |name: &str| {
            let file = folder.join(name);
            let text =
                fabricast_topologies::read::text_of_file(&file, Limit::STUDY).map_err(|error| error.to_string())?;
            Ok((file.display().to_string(), text))
        };
        let traces = |name: &str| job_file::contents(&folder.join(name)).map_err(|failure| failure.to_string());
        let study = read_study_with(&text, &path.display().to_string(), &list, &traces)?;
        for job in &study.jobs {
            if let Job::Trace(job) = job {
                job.trace.left_out.iter().for_each(|reason| output.warn(&format!("{}: {reason}", job.file)));
            }
        }
        let mut asked = Self { study, fabrics: Vec::new(), folder };
        let fabrics: Vec<Result<Fabric, Failure>> =
            asked.study.candidates.par_iter().map(|candidate| asked.fabric(candidate)).collect();
        asked.fabrics = fabrics.into_iter().collect::<Result<_, _>>()?;
        Ok(asked)
    }

    /// Checks the study before any run. Returns an error if a job or constraint cannot be satisfied.
    pub fn checked(self) -> Result<Self, Failure> {
        study::check(&self.study, &self.fabrics)?;
        self.check_constraints()?;
        Ok(self)
    }

    /// Returns true if an answer belongs to this study.
    pub fn is_answered_by(&self, answer: &Answer) -> bool {
        study::load::is_answered(&self.study, &self.fabrics, answer)
    }

    /// Loads a fabric; file names are relative to the study.
    pub fn load(&self, request: &FabricRequest) -> fabricast_topologies::Result<Fabric> {
        let beside = self.folder.join(&request.fabric);
        let is_file = fabricast_topologies::preset::text(&request.fabric).is_none() && beside.exists();
        match is_file {
            true => {
                fabricast_topologies::load(&FabricRequest { fabric: beside.display().to_string(), ..request.clone() })
            }
            false => fabricast_topologies::load(request),
        }
    }

    fn fabric(&self, candidate: &study::Candidate) -> Result<Fabric, Failure> {
        let at = |place: &Place, error: &Error| {
            Failure::at(format!("{place}: {error}"), error.help().map(str::to_owned), Some(place))
        };
        let fabric = self.load(&candidate.fabric).map_err(|error| match &error {
            // Errors in a fabric file are reported at their place in that file.
            Error::Syntax { .. } | Error::Invalid { .. } => error.into(),
            other => at(self.to_blame(candidate), other),
        })?;
        if fabric.gpus().is_empty() {
            return Err(Failure::at("no GPUs in use", None, Some(&candidate.fabric_place)));
        }
        // An unknown GPU is reported before the parameters that its model would provide.
        Profile::for_fabric(&fabric)
            .map_err(|error| Failure::at(error.to_string(), None, Some(&candidate.fabric_place)))?;
        Ok(fabric)
    }

    /// Returns the source location of the setting that makes a fabric unusable: the GPUs per host if it loads without
    /// them.
    fn to_blame<'c>(&self, candidate: &'c study::Candidate) -> &'c Place {
        let whole = FabricRequest { gpus: None, ..candidate.fabric.clone() };
        match candidate.fabric.gpus.is_some() && self.load(&whole).is_ok() {
            true => &candidate.gpus_place,
            false => &candidate.fabric_place,
        }
    }

    /// Checks that some candidate satisfies the constraints. The error names the nearest candidate.
    fn check_constraints(&self) -> Result<(), Failure> {
        let extents: Vec<Extent> = self.fabrics.iter().map(Extent::of).collect();
        let nearest = study::nearest(&self.study, &extents);
        let Some((candidate, extent)) =
            nearest.and_then(|number| Some((self.study.candidates.get(number)?, extents.get(number)?)))
        else {
            return Ok(());
        };
        let terms = study::Terms::of(self.study.assumptions);
        let lacking = candidate.unstated(*extent, &terms, &self.study.constraints);
        if let [first, ..] = lacking.as_slice() {
            let message = format!(
                "{}: `{}` states no {}, which the constraints limit ({})",
                candidate.place,
                candidate.name,
                lacking.join(", "),
                self.study.constraints.place
            );
            let help = format!("give {first} of all of the candidate, or take the limit away");
            return Err(Failure::at(message, Some(help), Some(&candidate.place)));
        }
        let (constraints, why) = (&self.study.constraints, candidate.beyond(*extent, &terms, &self.study.constraints));
        let message = format!(
            "{}: no candidate keeps within the constraints; `{}` comes nearest: {}",
            constraints.place,
            candidate.name,
            why.join("; ")
        );
        Err(Failure::at(message, None, Some(&constraints.place)))
    }
}
