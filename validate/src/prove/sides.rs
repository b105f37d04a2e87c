//! Both worker processes, as seen by the program that compares them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fabricast_topologies::{Bytes, Picos};

use super::message::{Answer, Order, Trial};
use crate::nccl::SHARED_HOST;
use crate::nvshmem::{NvshmemError, Processes};

/// One of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// NCCL with its default choices.
    Default,
    /// NCCL with the tuner table.
    Tuned,
}

impl Side {
    /// Both sides, in the order of their processes.
    pub const BOTH: [Self; 2] = [Self::Default, Self::Tuned];

    /// Both sides, this one first.
    #[must_use]
    pub fn and_other(self) -> [Self; 2] {
        match self {
            Self::Default => Self::BOTH,
            Self::Tuned => [Self::Tuned, Self::Default],
        }
    }

    /// The name of the side.
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
    /// The machine has no GPUs, or too few.
    #[error("{0}")]
    NoGpu(String),
    /// A process failed.
    #[error("NCCL, {}: {why}", .side.name())]
    Failed {
        /// The side that failed.
        side: Side,
        /// Its error message.
        why: String,
    },
    /// Communication with a process failed.
    #[error("process 0 has NCCL's default, process 1 the table: {0}")]
    Processes(#[from] NvshmemError),
}

/// Settings shared by both sides.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Path of NCCL's library or its folder.
    pub library: Option<PathBuf>,
    /// Number of GPUs, one per rank.
    pub ranks: u32,
    /// Size of the largest call.
    pub room: Bytes,
    /// Time limit of any operation.
    pub patience: Duration,
}

/// Environment of a process: multicast disabled, NCCL's log to a file, and the tuner or none.
#[must_use]
pub fn environment(side: Side, plugin: &Path, table: &Path, log: &Path) -> Vec<(&'static str, OsString)> {
    let mut all: Vec<(&'static str, OsString)> =
        SHARED_HOST.iter().map(|&(name, value)| (name, OsString::from(value))).collect();
    all.push(("NCCL_DEBUG", "INFO".into()));
    all.push(("NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING".into()));
    all.push(("NCCL_DEBUG_FILE", log.into()));
    match side {
        Side::Default => all.push(("NCCL_TUNER_PLUGIN", "none".into())),
        Side::Tuned => {
            all.push(("NCCL_TUNER_PLUGIN", plugin.into()));
            all.push(("FABRICAST_TUNER_FILE", table.into()));
        }
    }
    all
}

/// Both worker processes.
#[derive(Debug)]
pub struct Sides {
    processes: Processes,
    patience: Duration,
}

impl Sides {
    /// Starts both processes, `first` before the other, and returns their NCCL version. The order determines which
    /// process allocates memory first.
    ///
    /// # Errors
    /// A process fails to start.
    pub fn start(
        setting: &Setting,
        first: Side,
        command: impl Fn(Side) -> Command,
    ) -> Result<(Self, String), ProveError> {
        /// Time limit for NCCL to load its kernels onto all GPUs and connect its ranks.
        const BEGINNING: Duration = Duration::from_secs(120);
        let side = |number: usize| if number == 0 { Side::Default } else { Side::Tuned };
        let processes = Processes::start(Side::BOTH.len(), |number| command(side(number)))?;
        let mut sides = Self { processes, patience: BEGINNING };
        let mut version = String::new();
        for side in first.and_other() {
            let Setting { library, ranks, room, patience } = setting.clone();
            match sides.asked(side, &Order::Begin { library, ranks, room, patience })? {
                Answer::Begun { version: found } => version = found,
                other => return Err(unexpected(side, &other)),
            }
        }
        sides.patience = setting.patience * 2;
        Ok((sides, version))
    }

    /// Makes a side capture a graph of a call.
    ///
    /// # Errors
    /// The side fails.
    pub fn prepare(&mut self, side: Side, trial: Trial) -> Result<(), ProveError> {
        match self.asked(side, &Order::Prepare(trial))? {
            Answer::Prepared => Ok(()),
            other => Err(unexpected(side, &other)),
        }
    }

    /// Makes a side run its graph and returns the time of a call.
    ///
    /// # Errors
    /// The side fails.
    pub fn time(&mut self, side: Side) -> Result<Picos, ProveError> {
        match self.asked(side, &Order::Time)? {
            Answer::Took(time) => Ok(time),
            other => Err(unexpected(side, &other)),
        }
    }

    /// Makes a side discard its graph.
    ///
    /// # Errors
    /// The side fails.
    pub fn forget(&mut self, side: Side) -> Result<(), ProveError> {
        self.done(side, &Order::Done)
    }

    /// Makes both sides release everything.
    ///
    /// # Errors
    /// A side fails.
    pub fn end(mut self) -> Result<(), ProveError> {
        Side::BOTH.into_iter().try_for_each(|side| self.done(side, &Order::End))
    }

    fn done(&mut self, side: Side, order: &Order) -> Result<(), ProveError> {
        match self.asked(side, order)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(side, &other)),
        }
    }

    fn asked(&mut self, side: Side, order: &Order) -> Result<Answer, ProveError> {
        let number = side as usize;
        self.processes.tell(number, order)?;
        let said = self.processes.hear::<Answer>(&[number], self.patience, |_| false)?;
        match said.into_iter().next() {
            Some((_, Answer::Failed { why, no_gpu: true })) => Err(ProveError::NoGpu(why)),
            Some((_, Answer::Failed { why, .. })) => Err(ProveError::Failed { side, why }),
            Some((_, answer)) => Ok(answer),
            None => Err(ProveError::Failed { side, why: "it said nothing".to_owned() }),
        }
    }
}

fn unexpected(side: Side, answer: &Answer) -> ProveError {
    ProveError::Failed { side, why: format!("it answered {answer:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_sim::schedule::{Collective, DataType};

    /// A shell process that gives a fixed answer to each order, selected by a word of the order.
    fn shell(answers: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("while read -r order; do case \"$order\" in {answers} esac; done"));
        command
    }

    fn says(word: &str, answer: &str) -> String {
        format!("*{word}*) echo '{{\"said\":{answer}}}' >&0;; ")
    }

    const TRIAL: Trial =
        Trial { collective: Collective::AllReduce, bytes: Bytes(1 << 20), dtype: DataType::F32, calls: 5 };

    fn setting() -> Setting {
        Setting { library: None, ranks: 2, room: Bytes(1 << 20), patience: Duration::from_secs(5) }
    }

    #[test]
    fn both_sides_report_their_own_times() {
        let answers = |side: Side| {
            let took = if side == Side::Default { "{\"took\":7000}" } else { "{\"took\":6000}" };
            [
                says("begin", "{\"begun\":{\"version\":\"2.28.9\"}}"),
                says("prepare", "\"prepared\""),
                says("time", took),
                says("done", "\"done\""),
                says("end", "\"done\""),
            ]
            .concat()
        };
        let (mut sides, version) = Sides::start(&setting(), Side::Tuned, |side| shell(&answers(side))).unwrap();
        assert_eq!(version, "2.28.9");
        for side in Side::BOTH {
            sides.prepare(side, TRIAL).unwrap();
            let time = sides.time(side).unwrap();
            assert_eq!(time, Picos(if side == Side::Default { 7000 } else { 6000 }));
            sides.forget(side).unwrap();
        }
        sides.end().unwrap();
    }

    #[test]
    fn errors_name_the_failing_side() {
        let begun = says("begin", "{\"begun\":{\"version\":\"2\"}}");
        let none = says("begin", "{\"failed\":{\"why\":\"no GPU here\",\"no_gpu\":true}}");
        let error = Sides::start(&setting(), Side::Default, |_| shell(&none)).unwrap_err();
        assert!(matches!(&error, ProveError::NoGpu(why) if why == "no GPU here"), "{error}");
        let hangs = says("prepare", "{\"failed\":{\"why\":\"rank 1 hangs\",\"no_gpu\":false}}");
        let (mut sides, _) = Sides::start(&setting(), Side::Default, |_| shell(&format!("{begun}{hangs}"))).unwrap();
        let error = sides.prepare(Side::Tuned, TRIAL).unwrap_err();
        assert_eq!(error.to_string(), "NCCL, tuned: rank 1 hangs");
        let dies = "*prepare*) exit 5;; ";
        let (mut sides, _) = Sides::start(&setting(), Side::Default, |_| shell(&format!("{begun}{dies}"))).unwrap();
        let error = sides.prepare(Side::Tuned, TRIAL).unwrap_err();
        assert!(error.to_string().contains("exit code 5"), "{error}");
        let (mut sides, _) = Sides::start(&setting(), Side::Default, |_| shell(&begun.clone())).unwrap();
        sides.patience = Duration::from_millis(100);
        assert!(sides.time(Side::Default).is_err(), "it says nothing");
    }

    #[test]
    fn only_the_tuned_side_loads_the_tuner_and_both_disable_multicast() {
        let all = |side| environment(side, Path::new("/p.so"), Path::new("/t.csv"), Path::new("/l"));
        let value = |side, name: &str| all(side).into_iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        for side in Side::BOTH {
            assert_eq!(value(side, "NCCL_NVLS_ENABLE"), Some("0".into()));
            assert_eq!(value(side, "NCCL_DEBUG_FILE"), Some("/l".into()));
        }
        assert_eq!(value(Side::Default, "NCCL_TUNER_PLUGIN"), Some("none".into()));
        assert_eq!(value(Side::Default, "FABRICAST_TUNER_FILE"), None);
        assert_eq!(value(Side::Tuned, "NCCL_TUNER_PLUGIN"), Some("/p.so".into()));
        assert_eq!(value(Side::Tuned, "FABRICAST_TUNER_FILE"), Some("/t.csv".into()));
    }
}
