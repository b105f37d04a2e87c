//! Ctrl-C and progress: a flag that long runs look at, and a bar on a terminal once a second has passed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::output::Output;

/// Set by the first Ctrl-C; the second ends the process at once.
pub fn interrupt() -> &'static AtomicBool {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&flag);
        // Without a handler Ctrl-C still ends the process, only less politely.
        let _ = ctrlc::set_handler(move || {
            if seen.swap(true, Ordering::Relaxed) {
                // There is no other way to end at once from a handler; nothing is half written (see `files`).
                #[expect(clippy::exit, reason = "the second Ctrl-C ends the process at once")]
                std::process::exit(130);
            }
        });
        flag
    })
}

/// How long a command runs before it shows progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs `work` with a counter; shows a bar of `total` on standard error if it takes over a second on a terminal.
pub fn with_progress<T>(output: &Output, what: &str, total: usize, work: impl FnOnce(&AtomicUsize) -> T) -> T {
    let done = AtomicUsize::new(0);
    if !output.shows_progress() {
        return work(&done);
    }
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bar = scope.spawn(|| show(what, total, &done, &finished));
        let result = work(&done);
        finished.store(true, Ordering::Relaxed);
        bar.thread().unpark();
        result
    })
}

fn show(what: &str, total: usize, done: &AtomicUsize, finished: &AtomicBool) {
    std::thread::park_timeout(PATIENCE);
    if finished.load(Ordering::Relaxed) {
        return;
    }
    let bar = indicatif::ProgressBar::new(total as u64);
    if let Ok(style) = indicatif::ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    while !finished.load(Ordering::Relaxed) {
        bar.set_position(done.load(Ordering::Relaxed) as u64);
        std::thread::park_timeout(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}
