//! The two worker processes, from the point of view of the program that compares them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fabricast_topologies::{Bytes, Picos};

use super::message::{Trial, WorkerRequest, WorkerResponse};
use crate::nccl::SHARED_HOST;
use crate::nvshmem::{NvshmemError, Processes};

/// Side of the comparison: one of the two worker processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TestSide {
    /// NCCL with its default choices.
    Default,
    /// NCCL with the tuner table.
    Tuned,
}

impl TestSide {
    /// Both sides, in the order of their process numbers, 0 and 1.
    pub const BOTH: [Self; 2] = [Self::Default, Self::Tuned];

    /// Both sides, beginning with this one.
    #[must_use]
    pub fn order_from(self) -> [Self; 2] {
        match self {
            Self::Default => Self::BOTH,
            Self::Tuned => [Self::Tuned, Self::Default],
        }
    }

    /// Name of the side: `default` or `tuned`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Tuned => "tuned",
        }
    }
}

/// Reason that the two sides cannot be compared.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProveError {
    /// The machine has fewer GPUs than requested, or none.
    #[error("{0}")]
    NoGpu(String),
    /// A process failed.
    #[error("NCCL, {}: {reason}", .side.name())]
    Failed {
        /// The side that failed.
        side: TestSide,
        /// Error message of the process.
        reason: String,
    },
    /// Communication with a process failed.
    #[error("process 0 has NCCL's default, process 1 the table: {0}")]
    Processes(#[from] NvshmemError),
}

/// Settings shared by both sides.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Path of NCCL's library or its folder; `None` to search for it.
    pub library: Option<PathBuf>,
    /// Number of GPUs, one per rank.
    pub ranks: u32,
    /// Size of the largest call in bytes, for which buffers are allocated.
    pub buffer_bytes: Bytes,
    /// Time limit of each wait in a worker process.
    pub timeout: Duration,
}

/// Environment variables of a side's process. They disable NVLink multicast, write NCCL's log to `log` and, for the
/// tuned side, load the tuner `plugin` with its `table`.
#[must_use]
pub fn environment(side: TestSide, plugin: &Path, table: &Path, log: &Path) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&'static str, OsString)> =
        SHARED_HOST.iter().map(|&(name, value)| (name, OsString::from(value))).collect();
    variables.push(("NCCL_DEBUG", "INFO".into()));
    variables.push(("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING".into()));
    variables.push(("NCCL_DEBUG_FILE", log.into()));
    match side {
        TestSide::Default => variables.push(("NCCL_TUNER_PLUGIN", "none".into())),
        TestSide::Tuned => {
            variables.push(("NCCL_TUNER_PLUGIN", plugin.into()));
            variables.push(("FABRICAST_TUNER_FILE", table.into()));
        }
    }
    variables
}

/// The two worker processes, one per side.
#[derive(Debug)]
pub struct WorkerPair {
    processes: Processes,
    patience: Duration,
}

impl WorkerPair {
    /// Starts both processes, beginning with `first`, and returns their NCCL version. The order determines which
    /// process allocates memory first.
    ///
    /// # Errors
    /// A process fails to start.
    pub fn start(
        setting: &WorkerSettings,
        first: TestSide,
        command: impl Fn(TestSide) -> Command,
    ) -> Result<(Self, String), ProveError> {
        /// Time limit for loading NCCL's kernels onto all GPUs and connecting its ranks.
        const BEGINNING: Duration = Duration::from_secs(120);
        let side = |number: usize| if number == 0 { TestSide::Default } else { TestSide::Tuned };
        let processes = Processes::start(TestSide::BOTH.len(), |number| command(side(number)))?;
        let mut sides = Self { processes, patience: BEGINNING };
        let mut version = String::new();
        for side in first.order_from() {
            let WorkerSettings { library, ranks, buffer_bytes: room, timeout: patience } = setting.clone();
            match sides.request(side, &WorkerRequest::Begin { library, ranks, room, timeout: patience })? {
                WorkerResponse::Begun { version: reported } => version = reported,
                response => return Err(unexpected(side, &response)),
            }
        }
        sides.patience = setting.timeout * 2;
        Ok((sides, version))
    }

    /// Makes a side capture a graph of the trial's calls.
    ///
    /// # Errors
    /// The side fails.
    pub fn prepare(&mut self, side: TestSide, trial: Trial) -> Result<(), ProveError> {
        match self.request(side, &WorkerRequest::Prepare(trial))? {
            WorkerResponse::Prepared => Ok(()),
            response => Err(unexpected(side, &response)),
        }
    }

    /// Makes a side run its graph and returns the time of a call.
    ///
    /// # Errors
    /// The side fails.
    pub fn time(&mut self, side: TestSide) -> Result<Picos, ProveError> {
        match self.request(side, &WorkerRequest::Time)? {
            WorkerResponse::Time(time) => Ok(time),
            response => Err(unexpected(side, &response)),
        }
    }

    /// Makes a side discard its graph.
    ///
    /// # Errors
    /// The side fails.
    pub fn discard(&mut self, side: TestSide) -> Result<(), ProveError> {
        self.request_done(side, &WorkerRequest::Done)
    }

    /// Makes both sides release all resources.
    ///
    /// # Errors
    /// A side fails.
    pub fn end(mut self) -> Result<(), ProveError> {
        TestSide::BOTH.into_iter().try_for_each(|side| self.request_done(side, &WorkerRequest::End))
    }

    fn request_done(&mut self, side: TestSide, order: &WorkerRequest) -> Result<(), ProveError> {
        match self.request(side, order)? {
            WorkerResponse::Done => Ok(()),
            response => Err(unexpected(side, &response)),
        }
    }

    fn request(&mut self, side: TestSide, order: &WorkerRequest) -> Result<WorkerResponse, ProveError> {
        let number = side as usize;
        self.processes.send(number, order)?;
        let responses = self.processes.receive::<WorkerResponse>(&[number], self.patience, |_| false)?;
        match responses.into_iter().next() {
            Some((_, WorkerResponse::Failed { reason: why, no_gpu: true })) => Err(ProveError::NoGpu(why)),
            Some((_, WorkerResponse::Failed { reason: why, .. })) => Err(ProveError::Failed { side, reason: why }),
            Some((_, answer)) => Ok(answer),
            None => Err(ProveError::Failed { side, reason: "no response".to_owned() }),
        }
    }
}

fn unexpected(side: TestSide, answer: &WorkerResponse) -> ProveError {
    ProveError::Failed { side, reason: format!("unexpected response {answer:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_sim::schedule::{Collective, DataType};

    /// Shell process that responds to each request with a fixed text, selected by a word of the request.
    fn shell(answers: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("while read -r order; do case \"$order\" in {answers} esac; done"));
        command
    }

    fn case_arm(word: &str, answer: &str) -> String {
        format!("*{word}*) echo '{{\"said\":{answer}}}' >&0;; ")
    }

    const TRIAL: Trial =
        Trial { collective: Collective::AllReduce, bytes: Bytes(1 << 20), dtype: DataType::F32, calls: 5 };

    fn setting() -> WorkerSettings {
        WorkerSettings { library: None, ranks: 2, buffer_bytes: Bytes(1 << 20), timeout: Duration::from_secs(5) }
    }

    #[test]
    fn both_sides_report_their_own_times() {
        let answers = |side: TestSide| {
            let reply = if side == TestSide::Default { "{\"time\":7000}" } else { "{\"time\":6000}" };
            [
                case_arm("begin", "{\"begun\":{\"version\":\"2.28.9\"}}"),
                case_arm("prepare", "\"prepared\""),
                case_arm("time", reply),
                case_arm("done", "\"done\""),
                case_arm("end", "\"done\""),
            ]
            .concat()
        };
        let (mut sides, version) =
            WorkerPair::start(&setting(), TestSide::Tuned, |side| shell(&answers(side))).unwrap();
        assert_eq!(version, "2.28.9");
        for side in TestSide::BOTH {
            sides.prepare(side, TRIAL).unwrap();
            let time = sides.time(side).unwrap();
            assert_eq!(time, Picos(if side == TestSide::Default { 7000 } else { 6000 }));
            sides.discard(side).unwrap();
        }
        sides.end().unwrap();
    }

    #[test]
    fn errors_name_the_failing_side() {
        let begun = case_arm("begin", "{\"begun\":{\"version\":\"2\"}}");
        let none = case_arm("begin", "{\"failed\":{\"why\":\"no GPU here\",\"no_gpu\":true}}");
        let error = WorkerPair::start(&setting(), TestSide::Default, |_| shell(&none)).unwrap_err();
        assert!(matches!(&error, ProveError::NoGpu(why) if why == "no GPU here"), "{error}");
        let hangs = case_arm("prepare", "{\"failed\":{\"why\":\"rank 1 hangs\",\"no_gpu\":false}}");
        let (mut sides, _) =
            WorkerPair::start(&setting(), TestSide::Default, |_| shell(&format!("{begun}{hangs}"))).unwrap();
        let error = sides.prepare(TestSide::Tuned, TRIAL).unwrap_err();
        assert_eq!(error.to_string(), "NCCL, tuned: rank 1 hangs");
        let dies = "*prepare*) exit 5;; ";
        let (mut sides, _) =
            WorkerPair::start(&setting(), TestSide::Default, |_| shell(&format!("{begun}{dies}"))).unwrap();
        let error = sides.prepare(TestSide::Tuned, TRIAL).unwrap_err();
        assert!(error.to_string().contains("exit code 5"), "{error}");
        let (mut sides, _) = WorkerPair::start(&setting(), TestSide::Default, |_| shell(&begun.clone())).unwrap();
        sides.patience = Duration::from_millis(100);
        assert!(sides.time(TestSide::Default).is_err(), "it says nothing");
    }

    #[test]
    fn only_the_tuned_side_loads_the_tuner_and_both_disable_multicast() {
        let all = |side| environment(side, Path::new("/p.so"), Path::new("/t.csv"), Path::new("/l"));
        let value = |side, name: &str| all(side).into_iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        for side in TestSide::BOTH {
            assert_eq!(value(side, "NCCL_NVLS_ENABLE"), Some("0".into()));
            assert_eq!(value(side, "NCCL_DEBUG_FILE"), Some("/l".into()));
        }
        assert_eq!(value(TestSide::Default, "NCCL_TUNER_PLUGIN"), Some("none".into()));
        assert_eq!(value(TestSide::Default, "FABRICAST_TUNER_FILE"), None);
        assert_eq!(value(TestSide::Tuned, "NCCL_TUNER_PLUGIN"), Some("/p.so".into()));
        assert_eq!(value(TestSide::Tuned, "FABRICAST_TUNER_FILE"), Some("/t.csv".into()));
    }
}
