//! One process per GPU, started from this program's own executable, and communication with all of them.
//!
//! The standard input of each process is a socket to its parent. Both sides write one message per line. A process ends
//! immediately when its parent has ended. A process that ends, sends an invalid message or exceeds the time limit
//! causes an error with its rank and its last lines of output. Dropping [`Processes`] kills the remaining ones.

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
use crate::cuda::{CudaError, exit_immediately, interrupt};
use crate::nccl::SHARED_HOST;

/// Interval at which Ctrl-C and new messages are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for a process to end after it closed its socket.
const EXIT_TIME_LIMIT: Duration = Duration::from_secs(2);
/// Number of bytes at the end of a process's output that are stored.
const RETAINED_OUTPUT_BYTES: usize = 1500;
/// Maximum length of a message in bytes; schedules with many operations are long.
const MAX_MESSAGE_BYTES: u64 = 1 << 30;

/// Environment variables of the processes. Unless the user sets them, NVSHMEM bootstraps over the loopback interface
/// and uses no network transport. Multicast is always disabled.
#[must_use]
pub fn environment() -> Vec<(&'static str, &'static str)> {
    const USUAL: [(&str, &str); 2] =
        [("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "lo"), ("NVSHMEM_REMOTE_TRANSPORT", "none")];
    let usual = USUAL.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    usual.chain(SHARED_HOST).collect()
}

/// Message of a process to its parent, or a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessMessage<T> {
    /// Heartbeat: the process is alive.
    Alive,
    /// Message of the process.
    Said(T),
}

enum SocketEvent {
    Line(String),
    Closed,
}

/// The last bytes of the output of a process.
type Tail = Arc<Mutex<Vec<u8>>>;

struct StartedProcess {
    child: Child,
    socket: UnixStream,
    tail: Tail,
}

/// Processes of all ranks, from the point of view of their parent.
pub struct Processes {
    all: Vec<StartedProcess>,
    events: Receiver<(usize, SocketEvent)>,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Processes({})", self.all.len())
    }
}

impl Processes {
    /// Starts `count` processes. `command` returns the command of a rank.
    ///
    /// # Errors
    /// [`NvshmemError::Start`]; processes that were already started are killed.
    pub fn start(count: usize, command: impl Fn(usize) -> Command) -> Result<Self, NvshmemError> {
        let (say, heard) = mpsc::channel();
        let mut processes = Self { all: Vec::with_capacity(count), events: heard };
        for rank in 0..count {
            let failed = |what: &'static str| {
                move |error: std::io::Error| NvshmemError::Start { rank, operation: what, reason: error.to_string() }
            };
            let (socket, theirs) = UnixStream::pair().map_err(failed("no socket to it"))?;
            let reading = socket.try_clone().map_err(failed("no socket to it"))?;
            let mut command = command(rank);
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
            // Each process has a separate process group, so that Ctrl-C on the terminal reaches only the parent.
            command.process_group(0);
            let mut child = command.spawn().map_err(failed("it cannot be started"))?;
            // The command holds the other end of the socket open until it is dropped.
            drop(command);
            let tail = Tail::default();
            for output in
                [child.stdout.take().map(Output::Out), child.stderr.take().map(Output::Err)].into_iter().flatten()
            {
                let tail = Arc::clone(&tail);
                std::thread::spawn(move || retain_output(output, &tail));
            }
            let say = say.clone();
            std::thread::spawn(move || listen(rank, reading, &say));
            processes.all.push(StartedProcess { child, socket, tail });
        }
        Ok(processes)
    }

    /// Number of processes, one per rank.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Sends a message to one process.
    ///
    /// # Errors
    /// The process has ended, or the message cannot be serialized.
    pub fn send<T: Serialize>(&mut self, rank: usize, message: &T) -> Result<(), NvshmemError> {
        let line =
            to_line(message).map_err(|reason| NvshmemError::Start { rank, operation: "a message to it", reason })?;
        let Some(started) = self.all.get_mut(rank) else { return Ok(()) };
        if started.socket.write_all(line.as_bytes()).is_err() {
            return Err(self.died(rank));
        }
        Ok(())
    }

    /// Waits for one message from each of `waiting`, or until a message satisfies `ends`. Returns the messages in the
    /// order of `waiting`. Any message, including a heartbeat, restarts the time limit.
    ///
    /// # Errors
    /// A process ended, sent an invalid message, or exceeded the time limit, or Ctrl-C was pressed.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        waiting: &[usize],
        limit: Duration,
        ends: impl Fn(&T) -> bool,
    ) -> Result<Vec<(usize, T)>, NvshmemError> {
        let _heed = interrupt::start_polling();
        let mut said: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
        let mut last = Instant::now();
        let mut ended = false;
        while !ended && said.iter().any(Option::is_none) {
            if interrupt::is_requested() {
                return Err(CudaError::Interrupted.into());
            }
            let (rank, heard) = match self.events.recv_timeout(POLL_INTERVAL) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) if last.elapsed() < limit => continue,
                Err(_) => return Err(self.silent(waiting, &said, limit)),
            };
            let line = match heard {
                SocketEvent::Line(line) => line,
                SocketEvent::Closed => return Err(self.died(rank)),
            };
            last = Instant::now();
            let garbage = |reason: String| NvshmemError::Garbage { rank, line: shortened(&line), reason };
            match serde_json::from_str::<ProcessMessage<T>>(&line).map_err(|error| garbage(error.to_string()))? {
                ProcessMessage::Alive => {}
                ProcessMessage::Said(message) => {
                    ended = ends(&message);
                    let place = waiting.iter().position(|&one| one == rank);
                    match place.and_then(|place| said.get_mut(place)).filter(|slot| slot.is_none()) {
                        Some(slot) => *slot = Some(message),
                        None => return Err(garbage("no request was sent to it".to_owned())),
                    }
                }
            }
        }
        let heard = waiting.iter().zip(said);
        Ok(heard.filter_map(|(&rank, message)| Some((rank, message?))).collect())
    }

    fn silent<T>(&self, waiting: &[usize], answers: &[Option<T>], limit: Duration) -> NvshmemError {
        let waiting: Vec<usize> =
            waiting.iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(&rank, _)| rank).collect();
        let last_lines = waiting.first().map(|&rank| self.last_lines(rank)).unwrap_or_default();
        NvshmemError::Silent { seconds: limit.as_secs(), waiting, output: last_lines }
    }

    fn died(&mut self, rank: usize) -> NvshmemError {
        let start = Instant::now();
        let mut status = None;
        if let Some(started) = self.all.get_mut(rank) {
            while status.is_none() && start.elapsed() < EXIT_TIME_LIMIT {
                status = started.child.try_wait().ok().flatten();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let status = status.map_or_else(|| "it closed its socket and went on".to_owned(), exit_description);
        // The last output of the process may not have arrived yet.
        std::thread::sleep(POLL_INTERVAL);
        NvshmemError::Died { rank, status, output: self.last_lines(rank) }
    }

    fn last_lines(&self, rank: usize) -> String {
        let Some(started) = self.all.get(rank) else { return String::new() };
        let tail = started.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).trim().to_owned()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // All processes are killed first, so that none of them can report that another has ended.
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

/// Reads the output of a process and stores the end of it.
fn retain_output(mut output: Output, tail: &Tail) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = output.read(&mut buffer) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(buffer.iter().take(count));
        let over = tail.len().saturating_sub(RETAINED_OUTPUT_BYTES);
        tail.drain(..over);
    }
}

fn listen(rank: usize, socket: UnixStream, events: &Sender<(usize, SocketEvent)>) {
    let mut reader = BufReader::new(socket.take(MAX_MESSAGE_BYTES));
    loop {
        let mut line = Vec::new();
        match reader.read_until(b'\n', &mut line) {
            Ok(1..) => {
                reader.get_mut().set_limit(MAX_MESSAGE_BYTES);
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if events.send((rank, SocketEvent::Line(line))).is_err() {
                    return;
                }
            }
            _ => {
                let _ = events.send((rank, SocketEvent::Closed));
                return;
            }
        }
    }
}

fn exit_description(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for an unknown reason".to_owned(),
    }
}

fn to_line<T: Serialize>(message: &T) -> Result<String, String> {
    serde_json::to_string(message).map(|line| line + "\n").map_err(|error| error.to_string())
}

fn shortened(line: &str) -> String {
    const MAX_LINES: usize = 120;
    if line.chars().count() <= MAX_LINES {
        line.to_owned()
    } else {
        line.chars().take(MAX_LINES).chain(['…']).collect()
    }
}

/// End of a process's socket to its parent.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    lines: Receiver<String>,
}

impl Channel {
    /// Takes the socket that the parent passed as standard input. From then on, this process ends when its parent ends.
    ///
    /// # Errors
    /// Standard input is not a socket: the process was not started by [`Processes`].
    pub fn to_parent() -> std::io::Result<Self> {
        use std::os::fd::AsFd;
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        socket.peer_addr()?;
        let mut reader = BufReader::new(socket.try_clone()?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            loop {
                let mut line = String::new();
                match reader.read_line(&mut line) {
                    Ok(1..) if sender.send(line).is_ok() => {}
                    // Exit handlers are skipped, because libraries would wait for elements that have ended.
                    _ => exit_immediately(0),
                }
            }
        });
        Ok(Self { socket, lines })
    }

    /// Waits for a message of the parent.
    ///
    /// # Errors
    /// The message is invalid; the error text describes why.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<T, String> {
        let line = self.lines.recv().map_err(|error| error.to_string())?;
        serde_json::from_str(&line).map_err(|error| error.to_string())
    }

    /// Sends a message to the parent. A failure is ignored, because the process ends when its parent has ended.
    pub fn send<T: Serialize>(&self, message: &T) {
        if let Ok(line) = to_line(&ProcessMessage::Said(message)) {
            let _ = (&self.socket).write_all(line.as_bytes());
        }
    }

    /// Sends a heartbeat to the parent.
    pub fn send_heartbeat(&self) {
        if let Ok(line) = to_line(&ProcessMessage::<()>::Alive) {
            let _ = (&self.socket).write_all(line.as_bytes());
        }
    }
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
