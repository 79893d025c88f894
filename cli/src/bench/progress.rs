//! The line of progress: on a terminal, on standard error, while a bench runs.
//!
//! It shows which row is measured, how far all rows are, and the rate since the last look. Load threads tell how many requests have ended
//! through a [`Shown`] each, so it costs them a store of their own now and then. Where standard error is no terminal nothing is shown at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Requests that a load thread has seen end. On a cache line of its own: two threads' may lie side by side.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Shown(AtomicU64);

impl Shown {
    /// So many by now.
    pub(super) fn set(&self, replies: u64) {
        self.0.store(replies, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    /// Measured time of the runs before this one, and of this one.
    before: Duration,
    runtime: Duration,
    /// Of the present run.
    threads: Vec<Arc<Shown>>,
    /// Bytes of a request.
    bytes: u64,
    seen: u64,
    seen_at: Instant,
    what: String,
}

impl Progress {
    /// For runs that are measured for so long altogether.
    pub(super) fn new(total: Duration) -> Progress {
        let style = ProgressStyle::with_template("{bar:24} {percent}% {msg}, {eta} left").expect("a valid template");
        let bar = ProgressBar::with_draw_target(Some(total.as_millis() as u64), ProgressDrawTarget::stderr());
        Progress {
            bar: bar.with_style(style.progress_chars("=> ")),
            before: Duration::ZERO,
            runtime: Duration::ZERO,
            threads: Vec::new(),
            bytes: 0,
            seen: 0,
            seen_at: Instant::now(),
            what: String::new(),
        }
    }

    /// The next run begins: `what` it measures, for how long, with requests of so many bytes. A counter for each of its load threads.
    pub(super) fn begin(&mut self, what: String, runtime: Duration, bytes: u64, threads: usize) -> Vec<Arc<Shown>> {
        self.threads = (0..threads).map(|_| Arc::default()).collect();
        (self.bytes, self.what, self.seen, self.seen_at) = (bytes, what, 0, Instant::now());
        self.before += self.runtime;
        self.runtime = runtime;
        self.show(Duration::ZERO);
        self.threads.clone()
    }

    /// The run is this far in its measured time.
    pub(super) fn show(&mut self, past: Duration) {
        if self.bar.is_hidden() {
            return;
        }
        let (seen, now) = (self.threads.iter().map(|shown| shown.get()).sum::<u64>(), Instant::now());
        let rate = (seen - self.seen) as f64 * self.bytes as f64 / (now - self.seen_at).as_secs_f64().max(1e-3) / 1e6;
        (self.seen, self.seen_at) = (seen, now);
        self.bar.set_position((self.before + past.min(self.runtime)).as_millis() as u64);
        self.bar.set_message(format!("{}: {rate:.0} MB/s", self.what));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
