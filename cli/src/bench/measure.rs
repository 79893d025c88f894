//! What a measurement is: load threads that warm up, are measured, and stop; and what the process used meanwhile.
//!
//! [`run`] drives the phases for any load. Each load thread counts for itself in a [`Tally`], over its own measured time, so nothing is shared
//! while it runs. Processor time is the whole process's. Bound: one tally per load thread, of fixed size.
//!
//! A rate is that of the requests that ended in the measured time. A latency counts if its request *began* then, whenever it ended: a request of the
//! warm-up may have waited for what happens once, such as the array's start, and one that is slow to end is not left out.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use raid_engine::runtime::topology::{self, Cpu};
use rustix::time::{ClockId, clock_gettime};

use super::progress::{Progress, Shown};

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
    /// When the measured time began.
    from: Option<Instant>,
    /// It was told that a reply came.
    under_way: bool,
    /// Time measured.
    time: Duration,
    /// Requests that ended.
    replies: u64,
    /// Requests that ended while measured.
    ops: u64,
    /// Requests that failed, at whatever time.
    errors: u64,
    latency: Histogram<u64>,
    shown: Arc<Shown>,
}

impl Tally {
    /// Nothing counted yet.
    fn new(shown: Arc<Shown>) -> Tally {
        Tally {
            phase: Phase::Warm,
            from: None,
            under_way: false,
            time: Duration::ZERO,
            replies: 0,
            ops: 0,
            errors: 0,
            latency: latencies(),
            shown,
        }
    }

    /// Follows the phase; answers whether the thread is to go on. Requests that it takes on afterwards begin at `now` or later.
    pub(super) fn follow(&mut self, phases: &Phases, now: Instant) -> bool {
        if !self.under_way && self.replies > 0 {
            self.under_way = true;
            phases.under_way.fetch_add(1, Ordering::Relaxed);
        }
        self.shown.set(self.replies);
        let phase = phases.now();
        if phase != self.phase {
            match (phase, self.from) {
                (Phase::Measure, _) => self.from = Some(now),
                (Phase::Stop, Some(from)) => self.time = now - from,
                _ => {}
            }
            self.phase = phase;
        }
        phase != Phase::Stop
    }

    /// So many requests ended, of which nobody wants to know how long they took.
    pub(super) fn did(&mut self, count: u64) {
        self.replies += count;
        self.ops += if self.phase == Phase::Measure { count } else { 0 };
    }

    /// A request that began at `began` ended at `now`.
    pub(super) fn ended(&mut self, ok: bool, began: Instant, now: Instant) {
        self.replies += 1;
        self.errors += u64::from(!ok);
        self.ops += u64::from(self.phase == Phase::Measure);
        if self.from.is_some_and(|from| began >= from) {
            self.latency.saturating_record((now - began).as_nanos() as u64);
        }
    }
}

/// An empty histogram of latencies, in nanoseconds.
fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_MAX.as_nanos() as u64, 2).expect("two digits up to a minute")
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
    /// Latencies: half, 99 %, 99.9 % of the requests that began while measured took no longer.
    pub(super) latency: [Duration; 3],
    /// Largest resident size seen, in bytes.
    pub(super) rss: u64,
    /// The caller's counters when the measured time began, and when it ended.
    pub(super) counters: (C, C),
    /// The measured time, and the requests that ended in it.
    pub(super) wall: Duration,
    pub(super) ops: u64,
}

impl<C> Measured<C> {
    /// Another process has used so much processor time meanwhile.
    pub(super) fn add_cpu(&mut self, cpu: Duration) {
        self.cpu_percent += cpu.as_secs_f64() / self.wall.as_secs_f64().max(1e-9) * 100.0;
        self.cpu_us_per_op += cpu.as_secs_f64() * 1e6 / (self.ops as f64).max(1.0);
    }
}

/// What a run is about.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    /// Measured time.
    pub(super) runtime: Duration,
    /// In words, for the line of progress.
    pub(super) what: String,
    /// Bytes of a request.
    pub(super) bytes: u64,
    /// Where it is shown.
    pub(super) progress: &'a mut Progress,
}

/// Runs load threads, each on its CPU: warms up, measures, stops. `sample` reads the counters of what is under load; `give_up` ends requests that
/// do not end by themselves.
pub(super) fn run<C, F>(
    threads: Vec<(Cpu, F)>,
    subject: Subject<'_>,
    mut sample: impl FnMut() -> C,
    give_up: impl FnOnce(),
) -> anyhow::Result<Measured<C>>
where
    F: FnOnce(&Phases, Tally) -> anyhow::Result<Tally> + Send + 'static,
{
    let Subject { runtime, what, bytes, progress } = subject;
    let phases = Arc::new(Phases::new());
    let (to, from) = channel();
    let count = threads.len();
    let shown = progress.begin(what, runtime, bytes, count);
    for (index, ((cpu, load), shown)) in threads.into_iter().zip(shown).enumerate() {
        let (phases, to) = (Arc::clone(&phases), to.clone());
        let start = thread::Builder::new().name(format!("load-{index}"));
        let load = move || {
            topology::confine(&[cpu]).with_context(|| format!("keeping a load thread to CPU {}", cpu.0))?;
            load(&phases, Tally::new(shown))
        };
        // Nobody listens any more when the bench was given up.
        start.spawn(move || drop(to.send(load()))).context("starting a load thread")?;
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
    let rss = watch(if under_way { runtime } else { Duration::ZERO }, progress, &mut ended);
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
    let mut measured = sum(&tallies, after.2 - before.2, rss, (before.1, after.1));
    measured.add_cpu(after.0 - before.0);
    Ok(measured)
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

/// All load threads' counts, without processor time.
fn sum<C>(tallies: &[Tally], wall: Duration, rss: u64, counters: (C, C)) -> Measured<C> {
    let mut latency = latencies();
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
        cpu_percent: 0.0,
        cpu_us_per_op: 0.0,
        latency: [0.5, 0.99, 0.999].map(quantile),
        rss,
        counters,
        wall,
        ops,
    }
}

/// Waits until the measured time is over or `ended` says so, and shows the progress; answers with the largest resident size.
fn watch(runtime: Duration, progress: &mut Progress, mut ended: impl FnMut() -> bool) -> u64 {
    let start = Instant::now();
    let mut rss = 0;
    loop {
        let past = start.elapsed();
        rss = rss.max(resident("self"));
        progress.show(past);
        if past >= runtime || ended() {
            return rss;
        }
        thread::sleep(TICK.min(runtime - past));
    }
}

/// Processor time of all threads so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident size in bytes of a process, named as in /proc; 0 where it can't be read.
pub(super) fn resident(process: impl Display) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load of requests that take no time at all.
    fn busy(phases: &Phases, mut tally: Tally, fail_every: u64) -> anyhow::Result<Tally> {
        let mut count = 0;
        let mut now = Instant::now();
        while tally.follow(phases, now) {
            count += 1;
            let began = now;
            now = Instant::now();
            tally.ended(count % fail_every != 0, began, now);
        }
        Ok(tally)
    }

    fn a_cpu() -> Cpu {
        topology::allowed().expect("CPUs")[0]
    }

    fn subject(progress: &mut Progress, runtime: Duration) -> Subject<'_> {
        Subject { runtime, what: "test".into(), bytes: 4096, progress }
    }

    #[test]
    fn all_threads_are_counted_over_their_measured_time() {
        let mut samples = 0;
        let sample = || {
            samples += 1;
            samples
        };
        let runtime = Duration::from_millis(60);
        let cpu = a_cpu();
        let threads =
            [u64::MAX, 10].map(|every| (cpu, move |phases: &Phases, tally: Tally| busy(phases, tally, every)));
        let mut progress = Progress::new(runtime);
        let measured = run(threads.into(), subject(&mut progress, runtime), sample, || panic!("all ends"));
        let measured = measured.expect("runs");
        assert!(measured.iops > 0.0 && measured.errors > 0 && measured.cpu_percent > 0.0 && measured.rss > 0);
        assert_eq!(measured.counters, (1, 2));
        assert!(measured.latency.is_sorted() && measured.latency[0] > Duration::ZERO);
    }

    #[test]
    fn a_load_that_fails_ends_the_run() {
        let fail = |_: &Phases, _: Tally| bail!("no device");
        let runtime = Duration::from_secs(3600);
        let mut progress = Progress::new(runtime);
        let error = run(vec![(a_cpu(), fail)], subject(&mut progress, runtime), || (), || ()).expect_err("it failed");
        assert_eq!(error.to_string(), "no device");
    }

    #[test]
    fn rates_count_ends_and_latencies_beginnings_in_the_measured_time() {
        let phases = Phases::new();
        let mut tally = Tally::new(Arc::default());
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(tally.follow(&phases, start));
        assert_eq!(phases.under_way.load(Ordering::Relaxed), 0);
        tally.ended(true, start, at(1));
        phases.set(Phase::Measure);
        assert!(tally.follow(&phases, at(1000)));
        assert_eq!(phases.under_way.load(Ordering::Relaxed), 1);
        tally.ended(true, at(0), at(1001));
        tally.ended(true, at(1000), at(1001));
        phases.set(Phase::Stop);
        assert!(!tally.follow(&phases, at(3000)));
        tally.ended(false, at(2000), at(3200));
        assert_eq!((tally.ops, tally.errors, tally.time), (2, 1, Duration::from_secs(2)));
        let in_ms = |quantile| tally.latency.value_at_quantile(quantile) / 1_000_000;
        assert_eq!((tally.latency.len(), in_ms(0.5)), (2, 1), "that of the warm-up is left out");
        assert!((1190..1210).contains(&in_ms(1.0)), "and that which ended late is not");
    }
}
