//! The plain loop: what a few lines that know nothing but frames get out of the same device, over the same interface, on the same CPUs.
//!
//! A thread for each CPU sends a frame for each place in its window with one sendmmsg, reads what has arrived with one recvmmsg, and sends anew for
//! what was answered. There are no requests, buffers, timers, congestion control or copies: what is read stays where the kernel put it. As many frames are
//! in flight as ours may have. Bounds: the window; a frame that is not answered is sent again after [`WAIT`].

use std::io::IoSlice;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use aoe_net::link::{BATCH, FrameRef, Link, PacketConfig, PacketLink, Role};
use aoe_net::wake::wait;
use aoe_proto::wire::{
    ATA_HEADER, Address, AtaRequest, Body, CCmd, Command, ConfigInfo, Frame, Header, Lba, MacAddr, Tag, pad,
};
use raid_core::units::Sectors;
use raid_engine::member::aoe::Links;
use raid_engine::runtime::topology::Cpu;

use super::args::Mode;
use super::load::{Places, WAIT};
use super::measure::{self, Measured, Phases, Subject, Tally};
use super::progress::Progress;
use super::report::size_text;

/// How long the device may take to say where it is.
const FIND_PATIENCE: Duration = Duration::from_secs(5);

/// Bits of a tag below the worker's number.
const SEQUENCE_BITS: u32 = 23;

/// Frames of a longer request are cut to multiples of so many sectors, as far as they are that long.
const UNIT: u64 = 8;

/// What the loop does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) address: Address,
    pub(super) mode: Mode,
    /// Length of a request.
    pub(super) size: Sectors,
    /// The device's.
    pub(super) space: Sectors,
    /// Requests that a thread of ours keeps outstanding.
    pub(super) depth: usize,
}

/// Runs the loop for some time. A request of the measure is a frame; the answer has the sectors of one, too.
pub(super) fn run<C>(
    job: Job,
    interface: &str,
    links: &dyn Links,
    cpus: &[Cpu],
    runtime: Duration,
    progress: &mut Progress,
    sample: impl FnMut() -> C,
) -> anyhow::Result<(Measured<C>, Sectors)> {
    let mut threads = Vec::new();
    let mut sectors = Sectors(0);
    let outstanding = (links.tunables().aoe_maxout as usize / cpus.len()).max(1);
    for (index, cpu) in cpus.iter().enumerate() {
        let plain = Plain::open(job, interface, (index, cpus.len()), outstanding)?;
        sectors = plain.frame;
        threads.push((*cpu, move |phases: &Phases, tally: Tally| plain.work(phases, tally)));
    }
    let bytes = sectors.bytes().0;
    let what = format!("{} {} by the plain loop", job.mode.word(), size_text(bytes));
    let nobody_waits = || {};
    let measured = measure::run(threads, Subject { runtime, what, bytes, progress }, sample, nobody_waits)?;
    Ok((measured, sectors))
}

/// One thread's socket and window.
struct Plain {
    link: PacketLink,
    job: Job,
    target: MacAddr,
    /// Sectors of a frame.
    frame: Sectors,
    places: Places,
    window: Window,
}

/// Frames in flight, each in a place that the low bits of its tag name.
struct Window {
    heads: Vec<[u8; ATA_HEADER]>,
    began: Vec<Instant>,
    tags: Vec<u32>,
    in_flight: Vec<bool>,
    free: Vec<usize>,
}

impl Window {
    fn new(worker: u8, places: usize) -> Window {
        let base = 1 << 31 | u32::from(worker) << SEQUENCE_BITS;
        Window {
            heads: vec![[0; ATA_HEADER]; places],
            began: vec![Instant::now(); places],
            tags: (0..places as u32).map(|place| base | place).collect(),
            in_flight: vec![false; places],
            free: (0..places).rev().collect(),
        }
    }

    /// Tags' distance, so that the place stays in the low bits.
    fn step(&self) -> u32 {
        self.tags.len().next_power_of_two() as u32
    }

    /// Another tag for the frame at this place: a shelf must not take it for a repetition.
    fn next_tag(&mut self, place: usize) -> Tag {
        let mask = (1 << SEQUENCE_BITS) - 1;
        let tag = self.tags[place];
        self.tags[place] = tag & !mask | tag.wrapping_add(self.step()) & mask;
        Tag(self.tags[place])
    }

    /// The place whose frame this tag answers.
    fn answered(&mut self, tag: Tag) -> Option<usize> {
        let place = (tag.0 & (self.step() - 1)) as usize;
        let ours = self.tags.get(place) == Some(&tag.0) && self.in_flight[place];
        ours.then(|| {
            self.in_flight[place] = false;
            self.free.push(place);
            place
        })
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.tags.len()
    }
}

impl Plain {
    fn open(job: Job, interface: &str, (index, threads): (usize, usize), outstanding: usize) -> anyhow::Result<Plain> {
        let worker = u8::try_from(index).context("too many CPUs")?;
        let role = Role::Initiator { worker, discovers: false };
        let mut link = PacketLink::open(&PacketConfig { receive_ring: None, ..PacketConfig::new(interface, role) })?;
        let (target, sectors, buffers) = find(&mut link, job.address, worker)?;
        let whole = if sectors >= UNIT { sectors / UNIT * UNIT } else { sectors };
        let frame = if job.size.0 <= sectors { job.size } else { Sectors(whole) };
        let frames = job.size.0.div_ceil(frame.0) as usize;
        let places = (job.depth * frames).min(outstanding).min(buffers);
        Ok(Plain {
            link,
            job,
            target,
            frame,
            places: Places::new(job.mode, job.space, frame, index, threads),
            window: Window::new(worker, places),
        })
    }

    fn work(mut self, phases: &Phases, mut tally: Tally) -> anyhow::Result<Tally> {
        let data = vec![0x5a; if self.job.mode.writes() { self.frame.bytes().0 as usize } else { 0 }];
        let mut heard = Instant::now();
        loop {
            let now = Instant::now();
            if tally.follow(phases, now) {
                self.send(now, &data);
            } else if self.window.is_idle() {
                return Ok(tally);
            }
            if self.receive(&mut tally) > 0 {
                heard = now;
                continue;
            }
            if now - heard > WAIT {
                heard = now;
                self.send_again(&data);
            }
            wait(&[self.link.fd().context("a packet socket has a descriptor")?], Some(WAIT));
        }
    }

    /// Fills the window.
    fn send(&mut self, now: Instant, data: &[u8]) {
        let Some(info) = self.link.info() else { return };
        let mut places = [0; BATCH];
        while !self.window.free.is_empty() {
            let mut count = 0;
            while count < BATCH
                && let Some(place) = self.window.free.pop()
            {
                let lba = Lba(self.places.next().0);
                let sectors = self.frame.0 as u8;
                let request = match self.job.mode.writes() {
                    true => AtaRequest::write(lba, sectors, true),
                    false => AtaRequest::read(lba, sectors, true),
                };
                let tag = self.window.next_tag(place);
                let header = Header::request(self.target, info.mac, self.job.address, Command::ATA, tag);
                request.emit(&header, &mut self.window.heads[place]);
                self.window.began[place] = now;
                self.window.in_flight[place] = true;
                places[count] = place;
                count += 1;
            }
            transmit(&mut self.link, &self.window.heads, &places[..count], data);
        }
    }

    fn send_again(&mut self, data: &[u8]) {
        let places: Vec<usize> = (0..self.window.tags.len()).filter(|place| self.window.in_flight[*place]).collect();
        for places in places.chunks(BATCH) {
            transmit(&mut self.link, &self.window.heads, places, data);
        }
    }

    /// Takes what has arrived; how many frames.
    fn receive(&mut self, tally: &mut Tally) -> usize {
        let Plain { link, window, .. } = self;
        let now = Instant::now();
        link.receive(&mut |frame| {
            let Ok((header, _)) = Header::parse(frame) else { return };
            if let Some(place) = window.answered(header.tag) {
                tally.ended(header.error.is_none(), window.began[place], now);
            }
        })
    }
}

/// Sends the frames at these places. What a full link does not take is sent again later, as what is lost.
fn transmit(link: &mut PacketLink, heads: &[[u8; ATA_HEADER]], places: &[usize], data: &[u8]) {
    let data = [IoSlice::new(data)];
    let mut frames = [FrameRef::whole(&[]); BATCH];
    for (frame, &place) in frames.iter_mut().zip(places) {
        let pad = if data[0].is_empty() { 60 - ATA_HEADER } else { 0 };
        *frame = FrameRef { head: &heads[place], data: &data, pad };
    }
    link.send(&frames[..places.len()]);
}

/// Where the device is, how many sectors a frame may have, and how many frames it takes.
fn find(link: &mut PacketLink, address: Address, worker: u8) -> anyhow::Result<(MacAddr, u64, usize)> {
    let begin = Instant::now();
    while begin.elapsed() < FIND_PATIENCE {
        link.refresh();
        let Some(info) = link.info() else {
            wait(&[], Some(Duration::from_millis(5)));
            continue;
        };
        let tag = Tag(1 << 31 | u32::from(worker) << SEQUENCE_BITS);
        let header = Header::request(MacAddr::BROADCAST, info.mac, address, Command::CONFIG, tag);
        let mut frame = [0; 60];
        let len = ConfigInfo::request(CCmd::READ, &[]).emit(&header, &mut frame);
        pad(&mut frame, len);
        link.send(&[FrameRef::whole(&frame)]);
        wait(&link.fd().into_iter().collect::<Vec<_>>(), Some(WAIT));
        let mut found = None;
        link.receive(&mut |frame| {
            if let Ok(Frame { header, body: Body::Config(config) }) = Frame::parse(frame)
                && header.address == address
            {
                let sectors = config.sectors_max().min(info.sectors_per_frame());
                found = Some((header.src, u64::from(sectors), usize::from(config.buffer_count.max(1))));
            }
        });
        if let Some(found) = found {
            return Ok(found);
        }
    }
    bail!("{address} does not answer on {}", link.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_answered_once_by_its_own_tag() {
        let mut window = Window::new(3, 5);
        let place = window.free.pop().expect("free");
        let first = window.next_tag(place);
        window.in_flight[place] = true;
        assert_eq!(window.answered(Tag(first.0 ^ 1)), None);
        assert_eq!(window.answered(first), Some(place));
        assert_eq!(window.answered(first), None);
        let second = window.next_tag(place);
        assert_ne!(first, second);
        assert_eq!(second.0 >> SEQUENCE_BITS, 1 << 8 | 3, "the worker's number stays");
        for _ in 0..1 << 21 {
            assert_eq!(window.next_tag(place).0 & 7, place as u32);
        }
        assert_eq!(window.tags[place] >> SEQUENCE_BITS, 1 << 8 | 3);
        assert!(window.is_idle());
    }
}
