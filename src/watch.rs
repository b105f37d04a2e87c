//! Signals and progress: what happens when a run is stopped, and a bar on a terminal once a second has passed.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fabricast_topologies::visible::visible;
use fabricast_validate::cuda::interrupt;

use crate::output::Output;
use crate::terminal::note;

/// The exit code of a run that Ctrl-C stopped: 128 + SIGINT, as shells count.
const INTERRUPTED: u8 = 130;
/// The exit code of a run that SIGTERM stopped, as Slurm and Kubernetes do: 128 + SIGTERM.
const TERMINATED: u8 = 143;

/// The exit code of the signal that came last.
static STOPPED: AtomicU8 = AtomicU8::new(INTERRUPTED);

/// The exit code of a run that was stopped.
pub fn stopped() -> u8 {
    STOPPED.load(Ordering::Relaxed)
}

/// The line on standard error that says so.
pub fn stopped_by() -> &'static str {
    if stopped() == TERMINATED { "terminated" } else { "interrupted" }
}

/// The bar on the terminal, to be cleared when the process ends early.
static BAR: Mutex<Option<indicatif::ProgressBar>> = Mutex::new(None);

/// From here on Ctrl-C and SIGTERM end the process at once, whatever it is doing: with one line on standard error, exit code 130
/// or 143, and no file that is half written. Work on GPUs is asked to stop first, and gives back what it holds; a second signal does
/// not wait for it.
pub fn stop_on_signals() {
    // Without a handler signals still end the process, only less politely.
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGINT, SIGTERM};
        if let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
            let code = |signal| if signal == SIGTERM { TERMINATED } else { INTERRUPTED };
            std::thread::spawn(move || signals.forever().for_each(|signal| stop(code(signal))));
        }
    }
}

/// Ends the process, or asks work on GPUs to stop.
fn stop(code: u8) {
    STOPPED.store(code, Ordering::Relaxed);
    if interrupt::request() == interrupt::Response::WillStop {
        return;
    }
    crate::files::abandon();
    if let Some(bar) = BAR.lock().unwrap_or_else(PoisonError::into_inner).take() {
        bar.finish_and_clear();
    }
    note(stopped_by());
    #[expect(clippy::exit, reason = "a signal can come anywhere: no code path leads back to main from here")]
    std::process::exit(code.into());
}

/// How long a command runs before it shows progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Steps done.
    pub done: u64,
    /// Steps in all; 0 while that is not known.
    pub total: u64,
}

/// Runs `work`; if it takes over a second, shows on a terminal (standard error) how far `position` says it is.
pub fn with_progress<T>(
    output: &Output,
    what: &str,
    position: impl Fn() -> Position + Sync,
    work: impl FnOnce() -> T,
) -> T {
    if !output.shows_progress() {
        return work();
    }
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bar = scope.spawn(|| show(what, &position, &finished));
        let result = work();
        finished.store(true, Ordering::Relaxed);
        bar.thread().unpark();
        result
    })
}

fn show(what: &str, position: &impl Fn() -> Position, finished: &AtomicBool) {
    std::thread::park_timeout(PATIENCE);
    if finished.load(Ordering::Relaxed) {
        return;
    }
    let style = |template: &str| indicatif::ProgressStyle::with_template(template).ok();
    let bar = indicatif::ProgressBar::new(0);
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
    bar.set_message(visible(what).into_owned());
    let mut known = None;
    while !finished.load(Ordering::Relaxed) {
        let Position { done, total } = position();
        if known.replace(total > 0) != Some(total > 0) {
            let template =
                if total > 0 { "{msg} {bar:40} {human_pos}/{human_len} {eta}" } else { "{msg} {spinner} {elapsed}" };
            if let Some(style) = style(template) {
                bar.set_style(style);
            }
        }
        bar.set_length(total);
        bar.set_position(done);
        bar.tick();
        std::thread::park_timeout(Duration::from_millis(100));
    }
    bar.finish_and_clear();
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
