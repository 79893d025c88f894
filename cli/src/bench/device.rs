//! One AoE device under load, without RAID: what the initiator and the network give.
//!
//! A load thread per CPU, each with an initiator and sockets of its own; they share the device's credits. A read counts as done only when
//! all of its bytes came. Bounds: the queue depth, and the load's buffers as for an array.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use aoe_net::driver::{Driver, Memory};
use aoe_net::wake::{Waker, wait};
use aoe_proto::initiator::{
    Config, Credits, DeviceId, Event, Initiator, Op, Request, RequestId, Status, SubmitError, WorkerId,
};
use aoe_proto::wire::{Address, Lba};
use raid_core::parity::Kernels;
use raid_core::units::Sectors;
use raid_engine::member::aoe::Links;
use raid_engine::member::spec::MemberSpec;
use raid_engine::runtime::finding::FIND_PATIENCE;
use raid_engine::runtime::topology::Cpu;
use raid_engine::slab::Slab;
use raid_engine::tunables::Settings;

use super::args::{Args, Mode};
use super::array::PAIRS;
use super::host::{self, Busy};
use super::load::{Places, WAIT};
use super::measure::{self, Measured, Phases, Subject, Tally};
use super::members::check_empty;
use super::plain::{self, Job};
use super::progress::Progress;
use super::report::{Row, mean, size_text};
use crate::groups::groups;
use crate::usage::usage;

/// Measures a device: a row per request size.
pub(super) fn bench(args: &Args, device: &MemberSpec, settings: &Settings) -> anyhow::Result<Vec<Row>> {
    if !args.group_thread_cnt.is_empty() {
        return usage("--group-thread-cnt is about arrays: a bare device has no workers");
    }
    let MemberSpec::Aoe(address) = *device else {
        return usage(format!(
            "--device {device}: an AoE device, e<shelf>.<slot>; files and memory are measured as an array"
        ));
    };
    let Some(links) = args.interfaces.links(&settings.aoe, 1) else {
        return usage(format!("--device {device}: name the interfaces that lead to it with -i"));
    };
    // Confines this process, too, before it starts any thread.
    let cpus = groups(args.cpus.as_ref(), 0, settings.worker_group)?.cpus;
    let space = look(args, device, &links)?;
    if args.limit && args.interfaces.interfaces.len() > 1 {
        return usage("--limit compares with a loop over one interface: name one with -i");
    }
    let runs = if args.limit { 2 * PAIRS } else { 1 };
    let mut progress = Progress::new(args.runtime * (args.bs.0.len() * runs) as u32);
    let mut rows = Vec::new();
    for size in &args.bs.0 {
        if size.0 > space.0 {
            return usage(format!("{device} has only {} bytes", space.bytes()));
        }
        let rig = Rig { args, address, links: &links, cpus: &cpus, space, size: *size };
        rows.push(if args.limit { rig.pairs(&mut progress)? } else { rig.run(&mut progress, || ())?.0 });
    }
    Ok(rows)
}

/// Finds the device, and refuses to write to one that holds something. Answers with its size.
fn look(args: &Args, device: &MemberSpec, links: &Arc<dyn Links>) -> anyhow::Result<Sectors> {
    let slab = Slab::with_bytes(Kernels::portable(), 4 << 20)?;
    let mut access = crate::members::Members::new(&slab, Some(Arc::clone(links)))?;
    let opened = access.opener.open(device, !args.mode.writes())?;
    if args.mode.writes() {
        if !args.overwrite {
            check_empty(&mut access.opener, &device.to_string(), &opened)?;
        }
        access.settle();
    }
    Ok(opened.sectors())
}

/// Time per request that all CPUs of this host were busy, in microseconds.
fn busy<C>(measured: &Measured<C>, of: impl Fn(&C) -> Busy) -> f64 {
    let (before, after) = (of(&measured.counters.0), of(&measured.counters.1));
    after.0.saturating_sub(before.0).as_secs_f64() * 1e6 / (measured.ops as f64).max(1.0)
}

/// What a row is about.
struct Rig<'a> {
    args: &'a Args,
    address: Address,
    links: &'a Arc<dyn Links>,
    cpus: &'a [Cpu],
    space: Sectors,
    size: Sectors,
}

impl Rig<'_> {
    /// Runs of ours and of the plain loop in turn; the row is that of the median ratio.
    fn pairs(&self, progress: &mut Progress) -> anyhow::Result<Row> {
        let (mode, depth) = (self.args.mode, self.args.depth(self.size.bytes().0 as usize));
        let job = Job { address: self.address, mode, size: self.size, space: self.space, depth };
        let mut rows = Vec::new();
        for _ in 0..PAIRS {
            let interface = &self.args.interfaces.interfaces[0];
            let (limit, frame) =
                plain::run(job, interface, self.links.as_ref(), self.cpus, self.args.runtime, progress, host::busy)?;
            if limit.errors > 0 {
                bail!("{}: {} requests of the plain loop failed", self.address, limit.errors);
            }
            let (mut row, measured) = self.run(progress, host::busy)?;
            // In requests of ours.
            let part = frame.0 as f64 / self.size.0 as f64;
            row.set_limit(limit.iops * part);
            row.set_busy(busy(&measured, |counters| counters.1), busy(&limit, |busy| *busy) / part, limit.latency[0]);
            rows.push(row);
        }
        let errors = rows.iter().map(|row| row.errors).sum();
        rows.sort_by(|a, b| a.limit_ratio.partial_cmp(&b.limit_ratio).expect("no ratio is NaN"));
        Ok(Row { errors, ..rows.swap_remove(PAIRS / 2) })
    }

    /// A run of ours, with what `sample` said before and after it.
    fn run<C>(
        &self,
        progress: &mut Progress,
        mut sample: impl FnMut() -> C,
    ) -> anyhow::Result<(Row, Measured<(Counts, C)>)> {
        let Rig { args, address, links, cpus, space, size } = *self;
        let bytes = size.bytes().0 as usize;
        let depth = args.depth(bytes);
        let credits = Arc::new(Credits::new());
        let shared: Arc<[Shared]> = cpus.iter().map(|_| Shared::new()).collect::<std::io::Result<_>>()?;
        let mut threads = Vec::new();
        for (index, cpu) in cpus.iter().enumerate() {
            let worker = WorkerId(u8::try_from(index).context("too many CPUs")?);
            let seed = uuid::Uuid::new_v4().as_u64_pair().0;
            let config = Config { tunables: links.tunables(), ..Config::new(worker, seed) };
            let driver = Driver::new(Initiator::new(config), links.open(worker, false)?);
            let load = Load {
                driver,
                mode: args.mode,
                size,
                places: Places::new(args.mode, space, size, index, cpus.len()),
                buffers: Buffers { bytes: vec![vec![0x5a; bytes]; depth], arrived: vec![0; depth] },
                free: (0..depth as u64).collect(),
                began: vec![Instant::now(); depth],
                start: Instant::now(),
            };
            let (credits, shared) = (Arc::clone(&credits), Arc::clone(&shared));
            let run = move |phases: &Phases, tally: Tally| load.run(phases, tally, address, credits, &shared, index);
            threads.push((*cpu, run));
        }
        let counts = || shared.iter().map(Shared::counts).fold(Counts::default(), Counts::plus);
        let what = format!("{} {} of {address}", args.mode.word(), size_text(bytes as u64));
        let give_up = || shared.iter().for_each(Shared::give_up);
        let subject = Subject { runtime: args.runtime, what, bytes: bytes as u64, progress };
        let measured = measure::run(threads, subject, || (counts(), sample()), give_up)?;
        let ((before, _), (after, _)) = &measured.counters;
        let answered = after.answered - before.answered;
        let row = Row {
            frame_bytes_mean: mean(after.bytes - before.bytes, answered).map(f64::round),
            retransmits: after.retransmits - before.retransmits,
            rss_bytes: measured.rss.saturating_sub((cpus.len() * depth * bytes) as u64),
            ..Row::new(args.mode, size, depth, &measured)
        };
        Ok((row, measured))
    }
}

/// What an initiator has counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    answered: u64,
    bytes: u64,
    retransmits: u64,
}

impl Counts {
    fn plus(self, other: Counts) -> Counts {
        Counts {
            answered: self.answered + other.answered,
            bytes: self.bytes + other.bytes,
            retransmits: self.retransmits + other.retransmits,
        }
    }
}

/// What others see of a load thread.
#[derive(Debug)]
struct Shared {
    /// Locked, so that counts of one moment are seen together: a mean of two others would be wrong.
    counts: Mutex<Counts>,
    /// Wakes the thread: a credit that it waited for is there.
    waker: Waker,
    /// Requests in flight are to be cancelled.
    give_up: std::sync::atomic::AtomicBool,
}

impl Shared {
    fn new() -> std::io::Result<Shared> {
        Ok(Shared { counts: Mutex::default(), waker: Waker::new()?, give_up: false.into() })
    }

    fn counts(&self) -> Counts {
        *self.counts.lock().expect("no panic while held")
    }

    fn publish(&self, counters: &aoe_proto::initiator::Counters) {
        *self.counts.lock().expect("no panic while held") = Counts {
            answered: counters.frames_answered,
            bytes: counters.bytes_read + counters.bytes_written,
            retransmits: counters.retransmits,
        };
    }

    fn give_up(&self) {
        self.give_up.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// The buffers of a load thread's requests, by request.
#[derive(Debug)]
struct Buffers {
    bytes: Vec<Vec<u8>>,
    /// Bytes read so far.
    arrived: Vec<usize>,
}

impl Memory for Buffers {
    fn write(&mut self, id: RequestId, offset: usize, data: &[u8]) {
        self.bytes[id.0 as usize][offset..offset + data.len()].copy_from_slice(data);
        self.arrived[id.0 as usize] += data.len();
    }

    fn slices<'a>(&'a self, id: RequestId, offset: usize, len: usize, piece: &mut dyn FnMut(&'a [u8])) {
        piece(&self.bytes[id.0 as usize][offset..offset + len]);
    }
}

/// One load thread.
struct Load {
    driver: Driver,
    mode: Mode,
    size: Sectors,
    places: Places,
    buffers: Buffers,
    free: Vec<u64>,
    began: Vec<Instant>,
    start: Instant,
}

impl Load {
    fn run(
        mut self,
        phases: &Phases,
        mut tally: Tally,
        address: Address,
        credits: Arc<Credits>,
        all: &[Shared],
        index: usize,
    ) -> anyhow::Result<Tally> {
        let now = self.now();
        let device = self.driver.initiator().open(now, address, credits);
        self.find(address)?;
        let depth = self.free.len();
        let mut given_up = false;
        loop {
            let going_on = tally.follow(phases, Instant::now());
            if going_on {
                self.submit(device);
            } else if self.free.len() == depth {
                return Ok(tally);
            } else if !given_up && all[index].give_up.load(Ordering::Relaxed) {
                given_up = true;
                let now = self.now();
                self.driver.initiator().close(now, device);
            }
            let now = self.now();
            let moved = self.driver.pump(now, &mut self.buffers).any();
            self.wake_others(all);
            let ended = self.collect(&mut tally);
            all[index].publish(self.driver.initiator().counters());
            if !moved && !ended {
                self.sleep(&all[index].waker);
            }
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until the device is found.
    fn find(&mut self, address: Address) -> anyhow::Result<()> {
        loop {
            let now = self.now();
            self.driver.pump(now, &mut self.buffers);
            while let Some(event) = self.driver.initiator().poll_event() {
                if let Event::Found(_) = event {
                    return Ok(());
                }
            }
            if now > FIND_PATIENCE {
                bail!("{address} does not answer any more");
            }
            let fds: Vec<BorrowedFd<'_>> = self.driver.fds().collect();
            wait(&fds, Some(self.driver.wake_at(now).saturating_sub(now).min(WAIT)));
        }
    }

    /// Submits all that is free.
    fn submit(&mut self, device: DeviceId) {
        if self.free.is_empty() {
            return;
        }
        let (now, instant) = (self.now(), Instant::now());
        let op = if self.mode.writes() { Op::Write { fua: false } } else { Op::Read };
        while let Some(id) = self.free.pop() {
            let lba = Lba(self.places.next().0);
            let request = Request { id: RequestId(id), device, op, lba, sectors: self.size.0 as u32 };
            match self.driver.initiator().submit(now, request) {
                Ok(()) => {
                    self.began[id as usize] = instant;
                    self.buffers.arrived[id as usize] = 0;
                }
                Err(SubmitError::Full | SubmitError::NotFound) => {
                    self.free.push(id);
                    return;
                }
                Err(error) => unreachable!("requests lie on the device, which is open: {error}"),
            }
        }
    }

    /// Takes the completions that are there; false when there is none.
    fn collect(&mut self, tally: &mut Tally) -> bool {
        let Some(mut completion) = self.driver.initiator().poll_completion() else { return false };
        let now = Instant::now();
        loop {
            let id = completion.id.0 as usize;
            let whole = self.mode.writes() || self.buffers.arrived[id] == self.size.bytes().0 as usize;
            tally.ended(completion.status == Status::Ok && whole, self.began[id], now);
            self.free.push(id as u64);
            match self.driver.initiator().poll_completion() {
                Some(next) => completion = next,
                None => return true,
            }
        }
    }

    fn wake_others(&mut self, all: &[Shared]) {
        while let Some(event) = self.driver.initiator().poll_event() {
            match event {
                Event::CreditsFreed { worker } => all[usize::from(worker.0)].waker.wake(),
                other => tracing::debug!(event = ?other, "AoE"),
            }
        }
    }

    fn sleep(&self, waker: &Waker) {
        let now = self.now();
        let timeout = self.driver.wake_at(now).saturating_sub(now).min(WAIT);
        match self.driver.rest() {
            Some(rest) => wait(&[waker.as_fd()], Some(timeout.min(rest))),
            None => wait(&self.driver.fds().chain([waker.as_fd()]).collect::<Vec<_>>(), Some(timeout)),
        }
        waker.clear();
    }
}
