//! What a measurement is: load threads that warm up, are measured, and stop; and what the process used meanwhile.
//!
//! [`run`] drives the phases for any load. Each load thread counts for itself in a [`Tally`], over its own measured time, so nothing is shared
//! while it runs. Processor time is the whole process's. Bound: one tally per load thread, of fixed size.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// The longest latency told apart.
const LATENCY_MAX: Duration = Duration::from_secs(60);

/// How long requests in flight may take at the end before the load is given up.
const DRAIN_PATIENCE: Duration = Duration::from_secs(60);

/// How long the first reply may take: the first write waits for a mark that is durable on all members.
const FIRST_PATIENCE: Duration = Duration::from_secs(60);

/// Longest warm-up after the first replies.
const WARM_MAX: Duration = Duration::from_millis(500);

/// How often the process is looked at while it is measured.
const TICK: Duration = Duration::from_millis(100);

/// What the load threads are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// Run, but do not count.
    Warm,
    /// Run and count.
    Measure,
    /// Take no more on.
    Stop,
}

/// The phase, as load threads see it.
#[derive(Debug)]
pub(super) struct Phases {
    phase: AtomicU8,
    /// Load threads that had a reply.
    under_way: AtomicUsize,
}

impl Phases {
    fn new() -> Phases {
        Phases { phase: AtomicU8::new(Phase::Warm as u8), under_way: AtomicUsize::new(0) }
    }

    /// The phase now.
    pub(super) fn now(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Warm,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }

    fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }
}

/// What one load thread counts.
#[derive(Debug)]
pub(super) struct Tally {
    phase: Phase,
    since: Instant,
    /// It was told that a reply came.
    under_way: bool,
    /// Time measured.
    time: Duration,
    /// Requests that ended.
    replies: u64,
    /// Requests that ended while measured.
    ops: u64,
    /// Of those, how many failed. Failures before and after the measured time count, too.
    errors: u64,
    latency: Histogram<u64>,
}

impl Tally {
    /// Nothing counted yet.
    pub(super) fn new() -> Tally {
        let latency = Histogram::new_with_max(LATENCY_MAX.as_nanos() as u64, 2).expect("two digits up to a minute");
        Tally {
            phase: Phase::Warm,
            since: Instant::now(),
            under_way: false,
            time: Duration::ZERO,
            replies: 0,
            ops: 0,
            errors: 0,
            latency,
        }
    }

    /// Follows the phase; answers whether the thread is to go on.
    pub(super) fn follow(&mut self, phases: &Phases, now: Instant) -> bool {
        if !self.under_way && self.replies > 0 {
            self.under_way = true;
            phases.under_way.fetch_add(1, Ordering::Relaxed);
        }
        let phase = phases.now();
        if phase != self.phase {
            if self.phase == Phase::Measure {
                self.time = now - self.since;
            }
            self.phase = phase;
            self.since = now;
        }
        phase != Phase::Stop
    }

    /// A request ended.
    pub(super) fn ended(&mut self, ok: bool, latency: Duration) {
        self.replies += 1;
        self.errors += u64::from(!ok);
        if self.phase == Phase::Measure {
            self.ops += 1;
            self.latency.saturating_record(latency.as_nanos() as u64);
        }
    }
}

/// What was measured, over all load threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured<C> {
    /// Requests per second.
    pub(super) iops: f64,
    /// Requests that failed.
    pub(super) errors: u64,
    /// Processor time of the process per wall time, in percent of one CPU.
    pub(super) cpu_percent: f64,
    /// Processor time per request.
    pub(super) cpu_us_per_op: f64,
    /// Latencies: half, 99 %, 99.9 % of the requests took no longer.
    pub(super) latency: [Duration; 3],
    /// Largest resident size seen, in bytes.
    pub(super) rss: u64,
    /// The caller's counters when the measured time began, and when it ended.
    pub(super) counters: (C, C),
}

/// Runs load threads: warms up, measures for `runtime`, stops. `sample` reads the counters of what is under load; `give_up` ends requests that
/// do not end by themselves.
pub(super) fn run<C, F>(
    threads: Vec<F>,
    runtime: Duration,
    what: &str,
    mut sample: impl FnMut() -> C,
    give_up: impl FnOnce(),
) -> anyhow::Result<Measured<C>>
where
    F: FnOnce(&Phases) -> anyhow::Result<Tally> + Send + 'static,
{
    let phases = Arc::new(Phases::new());
    let (to, from) = channel();
    let count = threads.len();
    for (index, load) in threads.into_iter().enumerate() {
        let (phases, to) = (Arc::clone(&phases), to.clone());
        let start = thread::Builder::new().name(format!("load-{index}"));
        // Nobody listens any more when the bench was given up.
        start.spawn(move || drop(to.send(load(&phases)))).context("starting a load thread")?;
    }
    drop(to);
    let mut tallies = Vec::new();
    let mut ended = || {
        tallies.extend(from.try_recv());
        !tallies.is_empty()
    };
    let under_way = warm_up(&phases, count, runtime, &mut ended);
    let before = (cpu_time(), sample(), Instant::now());
    phases.set(Phase::Measure);
    let rss = watch(if under_way { runtime } else { Duration::ZERO }, what, &mut ended);
    let after = (cpu_time(), sample(), Instant::now());
    phases.set(Phase::Stop);
    let mut give_up = Some(give_up);
    while tallies.len() < count {
        match from.recv_timeout(DRAIN_PATIENCE) {
            Ok(tally) => tallies.push(tally),
            Err(RecvTimeoutError::Timeout) => match give_up.take() {
                Some(give_up) => give_up(),
                None => bail!("requests in flight do not end"),
            },
            Err(RecvTimeoutError::Disconnected) => bail!("a load thread has panicked"),
        }
    }
    let tallies = tallies.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    if !under_way {
        bail!("no request has ended within {} s", FIRST_PATIENCE.as_secs());
    }
    let (cpu, wall) = ((after.0 - before.0).as_secs_f64(), (after.2 - before.2).as_secs_f64());
    Ok(sum(&tallies, cpu, wall, rss, (before.1, after.1)))
}

/// Waits until all load threads are under way (or one has ended), and a little longer; false when they do not get there.
fn warm_up(phases: &Phases, threads: usize, runtime: Duration, ended: &mut impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while phases.under_way.load(Ordering::Relaxed) < threads && !ended() {
        if start.elapsed() > FIRST_PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep((runtime / 8).clamp(Duration::from_millis(20), WARM_MAX));
    true
}

fn sum<C>(tallies: &[Tally], cpu: f64, wall: f64, rss: u64, counters: (C, C)) -> Measured<C> {
    let mut latency = Tally::new().latency;
    let (mut iops, mut ops, mut errors) = (0.0, 0, 0);
    for tally in tallies {
        latency.add(&tally.latency).expect("histograms of one shape");
        iops += tally.ops as f64 / tally.time.as_secs_f64().max(1e-9);
        ops += tally.ops;
        errors += tally.errors;
    }
    let quantile = |q| Duration::from_nanos(latency.value_at_quantile(q));
    Measured {
        iops,
        errors,
        cpu_percent: cpu / wall * 100.0,
        cpu_us_per_op: cpu * 1e6 / (ops as f64).max(1.0),
        latency: [0.5, 0.99, 0.999].map(quantile),
        rss,
        counters,
    }
}

/// Waits until the measured time is over or `ended` says so, with a line of progress on a terminal; answers with the largest resident size.
fn watch(runtime: Duration, what: &str, mut ended: impl FnMut() -> bool) -> u64 {
    let start = Instant::now();
    let mut stderr = std::io::stderr();
    let shown = stderr.is_terminal();
    let mut rss = 0;
    loop {
        let past = start.elapsed();
        rss = rss.max(resident());
        if past >= runtime || ended() {
            break;
        }
        if shown {
            // A terminal that does not take it is no reason to stop.
            let _ = write!(stderr, "\r\x1b[K{what}: {:.1} of {:.1} s", past.as_secs_f64(), runtime.as_secs_f64());
        }
        thread::sleep(TICK.min(runtime - past));
    }
    if shown {
        let _ = write!(stderr, "\r\x1b[K");
    }
    rss
}

/// Processor time of all threads so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident size of the process in bytes; 0 where it can't be read.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load of requests that take no time at all.
    fn busy(phases: &Phases, fail_every: u64) -> anyhow::Result<Tally> {
        let mut tally = Tally::new();
        let mut count = 0;
        while tally.follow(phases, Instant::now()) {
            count += 1;
            tally.ended(count % fail_every != 0, Duration::from_micros(count % 1000));
        }
        Ok(tally)
    }

    #[test]
    fn all_threads_are_counted_over_their_measured_time() {
        let mut samples = 0;
        let sample = || {
            samples += 1;
            samples
        };
        let threads = [u64::MAX, 10].map(|every| move |phases: &Phases| busy(phases, every));
        let measured =
            run(threads.into(), Duration::from_millis(60), "test", sample, || panic!("all ends")).expect("runs");
        assert!(measured.iops > 0.0 && measured.errors > 0 && measured.cpu_percent > 0.0 && measured.rss > 0);
        assert_eq!(measured.counters, (1, 2));
        assert!(measured.latency.is_sorted());
        assert!(measured.latency[2] <= Duration::from_millis(2), "two digits of 999 us");
    }

    #[test]
    fn a_load_that_fails_ends_the_run() {
        let fail = |_: &Phases| bail!("no device");
        let error = run(vec![fail], Duration::from_secs(3600), "test", || (), || ()).expect_err("it failed");
        assert_eq!(error.to_string(), "no device");
    }

    #[test]
    fn only_the_measured_phase_counts() {
        let phases = Phases::new();
        let mut tally = Tally::new();
        let start = Instant::now();
        assert!(tally.follow(&phases, start));
        assert_eq!(phases.under_way.load(Ordering::Relaxed), 0);
        tally.ended(true, Duration::ZERO);
        phases.set(Phase::Measure);
        assert!(tally.follow(&phases, start));
        assert_eq!(phases.under_way.load(Ordering::Relaxed), 1);
        tally.ended(true, Duration::from_micros(5));
        phases.set(Phase::Stop);
        assert!(!tally.follow(&phases, start + Duration::from_secs(2)));
        tally.ended(false, Duration::ZERO);
        assert_eq!((tally.ops, tally.errors, tally.time), (1, 1, Duration::from_secs(2)));
    }
}
