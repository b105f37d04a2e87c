//! Signals and progress: clean termination, and progress as a bar on the terminal or for the caller in this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fabricast_sim::monitor::{Monitor, Progress};
use fabricast_topologies::visible::visible;
use fabricast_validate::cuda::interrupt;

use crate::control::{CommandProgress, Control, Position};
use crate::output::Output;
use crate::stop::{INTERRUPTED, TERMINATED, set_stop_exit_code, stop_message};
use crate::terminal::write_stderr;

/// Progress bar, cleared when the process ends early.
static BAR: Mutex<Option<indicatif::ProgressBar>> = Mutex::new(None);

/// Installs the signal handler. From then on, Ctrl-C and SIGTERM end the process immediately, with one line on standard
/// error, exit code 130 or 143, and no partial file. GPU work is first requested to stop and to release its resources;
/// a second signal ends the process without this wait.
pub fn stop_on_signals() {
    // Without a handler, signals end the process without cleanup.
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGINT, SIGTERM};
        if let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
            let code = |signal| if signal == SIGTERM { TERMINATED } else { INTERRUPTED };
            std::thread::spawn(move || signals.forever().for_each(|signal| stop(code(signal))));
        }
    }
}

/// Ends the process with exit code `code`, or requests GPU work to stop.
fn stop(code: u8) {
    set_stop_exit_code(code);
    if interrupt::request() == interrupt::Response::WillStop {
        return;
    }
    crate::files::remove_all_and_block();
    if let Some(bar) = BAR.lock().unwrap_or_else(PoisonError::into_inner).take() {
        bar.finish_and_clear();
    }
    write_stderr(stop_message());
    #[expect(clippy::exit, reason = "a signal can come anywhere: no code path leads back to main from here")]
    std::process::exit(code.into());
}

/// Running time before progress is shown.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// Time between two readings of a position.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Runs `work` with a monitor. Its progress is shown as by [`with_progress`].
pub fn with_monitor<T>(output: &Output, label: &str, work: impl FnOnce(Monitor<'_>) -> T) -> T {
    let progress = Progress::default();
    let position =
        || Position { done: progress.done.load(Ordering::Relaxed), total: progress.total.load(Ordering::Relaxed) };
    let monitor = Monitor { interrupt: output.interrupt(), progress: Some(&progress) };
    with_progress(output, label, position, || work(monitor))
}

/// Runs `work`. After a second, a progress bar on the terminal (standard error) shows `position`. A caller in this process
/// that requested progress receives it from the start.
pub fn with_progress<T>(
    output: &Output,
    label: &str,
    position: impl Fn() -> Position + Sync,
    work: impl FnOnce() -> T,
) -> T {
    let finished = AtomicBool::new(false);
    let display: Box<dyn FnOnce() + Send> = match output.progress_receiver() {
        Some(receiver) => Box::new(|| report(receiver, label, &position, &finished)),
        None if output.shows_progress() => Box::new(|| show(label, &position, &finished)),
        None => return work(),
    };
    std::thread::scope(|scope| {
        let display = scope.spawn(display);
        let result = work();
        finished.store(true, Ordering::Relaxed);
        display.thread().unpark();
        result
    })
}

/// Passes the position to the caller until the work is finished, and then its last value.
fn report(receiver: &Control, label: &str, position: &impl Fn() -> Position, finished: &AtomicBool) {
    loop {
        let is_last = finished.load(Ordering::Relaxed);
        receiver.set_progress(CommandProgress { label: label.to_owned(), position: position() });
        if is_last {
            return;
        }
        std::thread::park_timeout(PROGRESS_INTERVAL);
    }
}

fn show(label: &str, position: &impl Fn() -> Position, finished: &AtomicBool) {
    std::thread::park_timeout(PROGRESS_DELAY);
    if finished.load(Ordering::Relaxed) {
        return;
    }
    let style = |template: &str| indicatif::ProgressStyle::with_template(template).ok();
    let bar = indicatif::ProgressBar::new(0);
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
    bar.set_message(visible(label).into_owned());
    let mut had_total = None;
    while !finished.load(Ordering::Relaxed) {
        let Position { done, total } = position();
        if had_total.replace(total > 0) != Some(total > 0) {
            let template =
                if total > 0 { "{msg} {bar:40} {human_pos}/{human_len} {eta}" } else { "{msg} {spinner} {elapsed}" };
            if let Some(style) = style(template) {
                bar.set_style(style);
            }
        }
        bar.set_length(total);
        bar.set_position(done);
        bar.tick();
        std::thread::park_timeout(PROGRESS_INTERVAL);
    }
    bar.finish_and_clear();
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
