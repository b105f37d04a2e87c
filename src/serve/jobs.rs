//! Computations in progress, shared by the pages that wait for them.
//!
//! Pages with the same study share one computation. Each page has a ticket, which it must show again within
//! [`LEASE`]. A computation whose tickets have all been returned or have expired is stopped: a closed tab costs no
//! more than its current runs.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use super::answer::{AnswerError, Progress, StudyAnswer};
use super::cache::Cache;
use super::form::StudyText;
use super::random::{self, RandomError};

/// Time after which a ticket expires that is not shown again.
pub const LEASE: Duration = Duration::from_secs(15);

/// Number of computations that run concurrently.
const WORKERS: usize = 4;

/// Interval at which a computation that waits for others checks whether it was stopped.
const STOP_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of computations that run or wait, including stopped ones that have not ended.
const MAX_JOBS: usize = 32;

/// Maximum number of tickets.
const MAX_TICKETS: usize = 512;

/// Maximum number of cached answers.
const MAX_ANSWERS: usize = 64;

/// Function that answers a study.
pub type AnswerStudy = dyn Fn(&StudyText, &Progress) -> Result<StudyAnswer, AnswerError> + Send + Sync;

/// Result of a computation.
pub type JobResult = Result<Arc<StudyAnswer>, AnswerError>;

/// Reason why a study is not answered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// Too many computations.
    #[error("the server is busy: try again in some seconds")]
    Busy,
    /// A ticket that does not exist or has expired.
    #[error("this computation has ended or was stopped: send the form again")]
    UnknownTicket,
    /// No ticket could be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Name of a page's interest in a computation, which cannot be guessed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(String);

impl Ticket {
    /// Takes a ticket that a page shows.
    pub fn shown(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A computation.
#[derive(Debug)]
pub struct Job {
    /// TOML of its study, which identifies it.
    study: String,
    /// Progress and stop flag.
    pub progress: Progress,
    result: watch::Sender<Option<JobResult>>,
}

impl Job {
    /// Waits for the result, but no longer than `patience`.
    pub async fn result(&self, patience: Duration) -> Option<JobResult> {
        let mut receiver = self.result.subscribe();
        let waiting = receiver.wait_for(Option::is_some);
        tokio::time::timeout(patience, waiting).await.ok()?.ok()?.clone()
    }
}

/// Page's interest in a computation.
#[derive(Debug)]
struct Interest {
    job: Arc<Job>,
    last_shown: Instant,
}

#[derive(Debug)]
struct State {
    /// Computations in progress by the TOML of their study.
    jobs: FxHashMap<String, Arc<Job>>,
    /// Number of computations that have not ended. A stopped one may have been replaced in `jobs`.
    live: usize,
    tickets: FxHashMap<Ticket, Interest>,
    answers: Cache<String, Arc<StudyAnswer>>,
}

/// Study that was handed in.
#[derive(Debug)]
pub enum Submission {
    /// It was answered before.
    Answered(Arc<StudyAnswer>),
    /// It is being computed.
    Running(Ticket, Arc<Job>),
}

/// All computations of a server.
pub struct Jobs {
    state: Mutex<State>,
    workers: Semaphore,
    answer: Box<AnswerStudy>,
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Jobs {
    /// Creates the computations of a server whose studies `answer` answers.
    pub fn new(answer: Box<AnswerStudy>) -> Self {
        let (jobs, tickets, answers) = (FxHashMap::default(), FxHashMap::default(), Cache::new(MAX_ANSWERS));
        let state = State { jobs, live: 0, tickets, answers };
        Self { state: Mutex::new(state), workers: Semaphore::new(WORKERS), answer }
    }

    /// Returns the answer of a study if it is cached; otherwise starts its computation, or joins one in progress. Must
    /// be called in a runtime.
    ///
    /// # Errors
    /// [`JobError`]: too many computations.
    pub fn submit(self: &Arc<Self>, study: StudyText, now: Instant) -> Result<Submission, JobError> {
        let mut state = self.lock();
        if let Some(answered) = state.answers.get(&study.toml) {
            return Ok(Submission::Answered(answered));
        }
        if state.tickets.len() >= MAX_TICKETS {
            return Err(JobError::Busy);
        }
        let ticket = Ticket(random::hexadecimal()?);
        // A stopped computation ends without an answer.
        let running = state.jobs.get(&study.toml).filter(|job| !job.progress.stop.load(Ordering::Relaxed)).cloned();
        let job = match running {
            Some(job) => job,
            None if state.live >= MAX_JOBS => return Err(JobError::Busy),
            None => {
                let (result, _) = watch::channel(None);
                let job = Arc::new(Job { study: study.toml.clone(), progress: Progress::default(), result });
                state.jobs.insert(study.toml.clone(), Arc::clone(&job));
                state.live += 1;
                tokio::spawn(Arc::clone(self).compute(Arc::clone(&job), study));
                job
            }
        };
        state.tickets.insert(ticket.clone(), Interest { job: Arc::clone(&job), last_shown: now });
        Ok(Submission::Running(ticket, job))
    }

    /// Returns the computation of a ticket and renews the ticket.
    ///
    /// # Errors
    /// [`JobError::UnknownTicket`].
    pub fn show(&self, ticket: &Ticket, now: Instant) -> Result<Arc<Job>, JobError> {
        let mut state = self.lock();
        let interest = state.tickets.get_mut(ticket).ok_or(JobError::UnknownTicket)?;
        interest.last_shown = now;
        Ok(Arc::clone(&interest.job))
    }

    /// Returns a ticket. If it was the last one of its computation, the computation is stopped.
    pub fn release(&self, ticket: &Ticket) {
        let mut state = self.lock();
        if let Some(interest) = state.tickets.remove(ticket) {
            state.stop_if_unwanted(&interest.job);
        }
    }

    /// Drops the tickets that were not shown for [`LEASE`], and stops computations without tickets.
    pub fn expire(&self, now: Instant) {
        let mut state = self.lock();
        let is_expired = |interest: &Interest| now.saturating_duration_since(interest.last_shown) > LEASE;
        let expired: Vec<Ticket> = state
            .tickets
            .iter()
            .filter(|(_, interest)| is_expired(interest))
            .map(|(ticket, _)| ticket.clone())
            .collect();
        for ticket in expired {
            if let Some(interest) = state.tickets.remove(&ticket) {
                state.stop_if_unwanted(&interest.job);
            }
        }
    }

    async fn compute(self: Arc<Self>, job: Arc<Job>, study: StudyText) {
        let result = match self.turn(&job).await {
            Some(_permit) => {
                job.progress.begun.store(true, Ordering::Relaxed);
                let (jobs, running) = (Arc::clone(&self), Arc::clone(&job));
                let work = move || (jobs.answer)(&study, &running.progress);
                tokio::task::spawn_blocking(work)
                    .await
                    // A panic is an error of the program; the server continues.
                    .unwrap_or_else(|error| Err(AnswerError::Failed(error.to_string())))
                    .map(Arc::new)
            }
            None => Err(AnswerError::Stopped),
        };
        let mut state = self.lock();
        state.live = state.live.saturating_sub(1);
        if let Ok(answered) = &result {
            state.answers.insert(job.study.clone(), Arc::clone(answered));
        }
        // A computation that started after this one was stopped stays.
        if state.jobs.get(&job.study).is_some_and(|current| Arc::ptr_eq(current, &job)) {
            state.jobs.remove(&job.study);
        }
        job.result.send_replace(Some(result));
    }

    /// Waits until a computation may run; `None` if it was stopped before.
    async fn turn(&self, job: &Job) -> Option<SemaphorePermit<'_>> {
        let mut turn = pin!(self.workers.acquire());
        loop {
            let permit = tokio::time::timeout(STOP_INTERVAL, turn.as_mut()).await;
            if job.progress.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Ok(permit) = permit {
                return permit.ok();
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn stop_if_unwanted(&self, job: &Arc<Job>) {
        if !self.tickets.values().any(|interest| Arc::ptr_eq(&interest.job, job)) {
            job.progress.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Ticket that is returned if the page leaves before its request is answered.
#[derive(Debug)]
pub struct TicketGuard {
    jobs: Arc<Jobs>,
    ticket: Option<Ticket>,
}

impl TicketGuard {
    /// Guards a ticket.
    pub fn new(jobs: Arc<Jobs>, ticket: Ticket) -> Self {
        Self { jobs, ticket: Some(ticket) }
    }

    /// Ends the guard; the page can show the ticket again.
    pub fn keep(mut self) {
        self.ticket = None;
    }
}

impl Drop for TicketGuard {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            self.jobs.release(ticket);
        }
    }
}
