//! A process for each GPU, started by this program from itself, and talking with all of them.
//!
//! Each process has one socket to its parent, as its standard input; both write a message a line. Whoever loses the other ends:
//! a process whose parent is gone ends at once, and a process that ends, says what is no message or says nothing for too long
//! is an error that names its rank and brings the last lines that it wrote. Dropping [`Processes`] kills what is left.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Serialize, de::DeserializeOwned};

use super::error::NvshmemError;
use crate::cuda::{CudaError, interrupt, leave};
use crate::nccl::SHARED_HOST;

/// Between two looks at Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// How long a process that closed its socket may take to end.
const LAST_BREATH: Duration = Duration::from_secs(2);
/// Of what a process writes so many bytes are kept.
const KEPT: usize = 1500;
/// A message may be so long: schedules of many operations are.
const LONGEST: u64 = 1 << 30;

/// What NVSHMEM is told by the environment of its processes, where the user's own does not: to meet over the loopback
/// interface and to look for no network. Of multicast the user has no say.
#[must_use]
pub fn environment() -> Vec<(&'static str, &'static str)> {
    const USUAL: [(&str, &str); 2] =
        [("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "lo"), ("NVSHMEM_REMOTE_TRANSPORT", "none")];
    let usual = USUAL.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    usual.chain(SHARED_HOST).collect()
}

/// What a process said, or that it is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spoken<T> {
    /// It works.
    Alive,
    /// A message.
    Said(T),
}

enum Heard {
    Line(String),
    Closed,
}

/// The last of what a process wrote.
type Tail = Arc<Mutex<Vec<u8>>>;

struct Started {
    child: Child,
    socket: UnixStream,
    tail: Tail,
}

/// The processes, from their parent's side.
pub struct Processes {
    all: Vec<Started>,
    heard: Receiver<(usize, Heard)>,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Processes({})", self.all.len())
    }
}

impl Processes {
    /// Starts `count` processes by `command`, which gets each one's rank.
    ///
    /// # Errors
    /// [`NvshmemError::Start`]; those started before are killed.
    pub fn start(count: usize, command: impl Fn(usize) -> Command) -> Result<Self, NvshmemError> {
        let (say, heard) = mpsc::channel();
        let mut processes = Self { all: Vec::with_capacity(count), heard };
        for rank in 0..count {
            let failed = |what: &'static str| {
                move |error: std::io::Error| NvshmemError::Start { rank, what, reason: error.to_string() }
            };
            let (socket, theirs) = UnixStream::pair().map_err(failed("no socket to it"))?;
            let reading = socket.try_clone().map_err(failed("no socket to it"))?;
            let mut command = command(rank);
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
            // A group of its own: Ctrl-C on the terminal is this process's to answer.
            command.process_group(0);
            let mut child = command.spawn().map_err(failed("it cannot be started"))?;
            // The command holds the other end of the socket as long as it lives.
            drop(command);
            let tail = Tail::default();
            for output in
                [child.stdout.take().map(Output::Out), child.stderr.take().map(Output::Err)].into_iter().flatten()
            {
                let tail = Arc::clone(&tail);
                std::thread::spawn(move || keep(output, &tail));
            }
            let say = say.clone();
            std::thread::spawn(move || listen(rank, reading, &say));
            processes.all.push(Started { child, socket, tail });
        }
        Ok(processes)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Says something to one.
    ///
    /// # Errors
    /// It ended.
    pub fn tell<T: Serialize>(&mut self, rank: usize, message: &T) -> Result<(), NvshmemError> {
        let line = line_of(message).map_err(|reason| NvshmemError::Start { rank, what: "a message to it", reason })?;
        let Some(started) = self.all.get_mut(rank) else { return Ok(()) };
        if started.socket.write_all(line.as_bytes()).is_err() {
            return Err(self.died(rank));
        }
        Ok(())
    }

    /// Waits until each of `waiting` has said something, or one of them something that `ends` the waiting, and gives what was
    /// said, in their order. Whoever says that it is alive gets `limit` anew.
    ///
    /// # Errors
    /// One ended, said what is no message, or nothing in time; Ctrl-C.
    pub fn hear<T: DeserializeOwned>(
        &mut self,
        waiting: &[usize],
        limit: Duration,
        ends: impl Fn(&T) -> bool,
    ) -> Result<Vec<(usize, T)>, NvshmemError> {
        let _heed = interrupt::heed();
        let mut said: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
        let mut last = Instant::now();
        let mut ended = false;
        while !ended && said.iter().any(Option::is_none) {
            if interrupt::requested() {
                return Err(CudaError::Interrupted.into());
            }
            let (rank, heard) = match self.heard.recv_timeout(LOOK) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) if last.elapsed() < limit => continue,
                Err(_) => return Err(self.silent(waiting, &said, limit)),
            };
            let line = match heard {
                Heard::Line(line) => line,
                Heard::Closed => return Err(self.died(rank)),
            };
            last = Instant::now();
            let garbage = |reason: String| NvshmemError::Garbage { rank, line: shortened(&line), reason };
            match serde_json::from_str::<Spoken<T>>(&line).map_err(|error| garbage(error.to_string()))? {
                Spoken::Alive => {}
                Spoken::Said(message) => {
                    ended = ends(&message);
                    let place = waiting.iter().position(|&one| one == rank);
                    match place.and_then(|place| said.get_mut(place)).filter(|slot| slot.is_none()) {
                        Some(slot) => *slot = Some(message),
                        None => return Err(garbage("nothing was asked of it".to_owned())),
                    }
                }
            }
        }
        let heard = waiting.iter().zip(said);
        Ok(heard.filter_map(|(&rank, message)| Some((rank, message?))).collect())
    }

    fn silent<T>(&self, waiting: &[usize], said: &[Option<T>], limit: Duration) -> NvshmemError {
        let waiting: Vec<usize> =
            waiting.iter().zip(said).filter(|(_, said)| said.is_none()).map(|(&rank, _)| rank).collect();
        let said = waiting.first().map(|&rank| self.last_lines(rank)).unwrap_or_default();
        NvshmemError::Silent { seconds: limit.as_secs(), waiting, said }
    }

    fn died(&mut self, rank: usize) -> NvshmemError {
        let since = Instant::now();
        let mut how = None;
        if let Some(started) = self.all.get_mut(rank) {
            while how.is_none() && since.elapsed() < LAST_BREATH {
                how = started.child.try_wait().ok().flatten();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let how = how.map_or_else(|| "it closed its socket and went on".to_owned(), ending);
        // What it wrote last may still be on its way.
        std::thread::sleep(LOOK);
        NvshmemError::Died { rank, how, said: self.last_lines(rank) }
    }

    fn last_lines(&self, rank: usize) -> String {
        let Some(started) = self.all.get(rank) else { return String::new() };
        let tail = started.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).trim().to_owned()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // All first, so that none has time to complain of another's end.
        for started in &mut self.all {
            let _ = started.child.kill();
        }
        for started in &mut self.all {
            let _ = started.child.wait();
        }
    }
}

enum Output {
    Out(std::process::ChildStdout),
    Err(std::process::ChildStderr),
}

impl Read for Output {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Out(output) => output.read(buffer),
            Self::Err(output) => output.read(buffer),
        }
    }
}

/// Reads all that a process writes and keeps the end of it.
fn keep(mut output: Output, tail: &Tail) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = output.read(&mut buffer) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(buffer.iter().take(count));
        let over = tail.len().saturating_sub(KEPT);
        tail.drain(..over);
    }
}

fn listen(rank: usize, socket: UnixStream, say: &Sender<(usize, Heard)>) {
    let mut reader = BufReader::new(socket.take(LONGEST));
    loop {
        let mut line = Vec::new();
        match reader.read_until(b'\n', &mut line) {
            Ok(1..) => {
                reader.get_mut().set_limit(LONGEST);
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if say.send((rank, Heard::Line(line))).is_err() {
                    return;
                }
            }
            _ => {
                let _ = say.send((rank, Heard::Closed));
                return;
            }
        }
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "nobody knows how".to_owned(),
    }
}

fn line_of<T: Serialize>(message: &T) -> Result<String, String> {
    serde_json::to_string(message).map(|line| line + "\n").map_err(|error| error.to_string())
}

fn shortened(line: &str) -> String {
    const MOST: usize = 120;
    if line.chars().count() <= MOST { line.to_owned() } else { line.chars().take(MOST).chain(['…']).collect() }
}

/// A process's own end of the socket.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    lines: Receiver<String>,
}

impl Channel {
    /// Takes the socket that the parent gave as standard input. From here on this process ends when its parent does.
    ///
    /// # Errors
    /// Standard input is no socket: the process was not started by [`Processes`].
    pub fn of_parent() -> std::io::Result<Self> {
        use std::os::fd::AsFd;
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        socket.peer_addr()?;
        let mut reader = BufReader::new(socket.try_clone()?);
        let (say, lines) = mpsc::channel();
        std::thread::spawn(move || {
            loop {
                let mut line = String::new();
                match reader.read_line(&mut line) {
                    Ok(1..) if say.send(line).is_ok() => {}
                    // No library in it is asked, which would wait for elements that are gone.
                    _ => leave(0),
                }
            }
        });
        Ok(Self { socket, lines })
    }

    /// Waits for what the parent says; its text is for whoever wonders.
    ///
    /// # Errors
    /// What is no message, in words.
    pub fn hear<T: DeserializeOwned>(&self) -> Result<T, String> {
        let line = self.lines.recv().map_err(|error| error.to_string())?;
        serde_json::from_str(&line).map_err(|error| error.to_string())
    }

    /// Says something to the parent. Where it is gone this process ends soon anyway.
    pub fn tell<T: Serialize>(&self, message: &T) {
        if let Ok(line) = line_of(&Spoken::Said(message)) {
            let _ = (&self.socket).write_all(line.as_bytes());
        }
    }

    /// Tells the parent that this process works.
    pub fn alive(&self) {
        if let Ok(line) = line_of(&Spoken::<()>::Alive) {
            let _ = (&self.socket).write_all(line.as_bytes());
        }
    }
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
