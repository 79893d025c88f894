//! Random histories over a network that loses, doubles, delays and reorders: what must hold whatever happens.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::harness::*;
use crate::initiator::*;
use crate::wire::{Body, Opcode, SECTOR};

/// What the caller does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u8, u8),
    Write(u8, u8),
    Flush,
    Cancel(u8),
    Wait(u16),
    Buffers(u16),
    Mtu(u16),
    PortDown,
    Deaf(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<u8>(), 1u8..60).prop_map(|(lba, sectors)| Step::Read(lba, sectors)),
        8 => (any::<u8>(), 1u8..60).prop_map(|(lba, sectors)| Step::Write(lba, sectors)),
        1 => Just(Step::Flush),
        1 => any::<u8>().prop_map(Step::Cancel),
        6 => (0u16..200).prop_map(Step::Wait),
        1 => (0u16..20).prop_map(Step::Buffers),
        1 => prop_oneof![Just(1500u16), Just(4200), Just(9000)].prop_map(Step::Mtu),
        1 => Just(Step::PortDown),
        1 => any::<bool>().prop_map(Step::Deaf),
    ]
}

/// Chances in 256, drawn from a seed.
#[derive(Clone, Copy, Debug)]
struct Faults {
    seed: u64,
    lose: u64,
    double: u64,
    /// Longest delay in milliseconds; shorter than a frame's lifetime.
    delay: u64,
}

struct Network {
    faults: Faults,
    draws: u64,
    /// Whether a doubled frame's copy takes its own time. Else it directly follows: a write that was sent once, doubled
    /// by the network and delivered after a newer one can't be told apart by a target that remembers nothing.
    delayed_copies: bool,
    /// Frames under way: when, in which order they were sent, towards the target or from it.
    under_way: BTreeMap<(Duration, u64), (bool, Vec<u8>)>,
}

impl Network {
    fn draw(&mut self, below: u64) -> u64 {
        self.draws += 1;
        super::super::config::random(self.faults.seed ^ self.draws << 20) % below.max(1)
    }

    fn send(&mut self, now: Duration, to_target: bool, bytes: &[u8]) {
        let copies = 1 + u64::from(self.draw(256) < self.faults.double);
        let mut delay = self.delay();
        for _ in 0..copies {
            if self.draw(256) < self.faults.lose {
                continue;
            }
            if self.delayed_copies {
                delay = self.delay();
            }
            let at = now + delay + Duration::from_micros(20);
            self.under_way.insert((at, self.draws), (to_target, bytes.to_vec()));
        }
    }

    fn delay(&mut self) -> Duration {
        let slow = self.draw(8) == 0;
        ms(if slow { self.draw(self.faults.delay + 1) } else { self.draw(3) })
    }
}

/// A write frame that was sent, by its tag.
struct SentWrite {
    start: u64,
    end: u64,
    /// The request, by the byte that it writes.
    fill: u8,
    bytes: Vec<u8>,
    copies: u32,
    last_sent: Duration,
    /// Whether a reply came back.
    replied: bool,
}

/// What is checked: data against a model, and the initiator's promises on what it sends.
struct World {
    host: Host,
    device: DeviceId,
    target: Target,
    network: Network,
    /// What each sector may hold: the last write that was answered as done, and those submitted since.
    model: Vec<Vec<u8>>,
    /// Outstanding requests of the caller's: what, first sector, sectors.
    open: BTreeMap<u64, (Op, usize, usize)>,
    writes: BTreeMap<u32, SentWrite>,
    /// What each sector of a read may have held at some time since it was submitted.
    reads: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl World {
    fn new(faults: Faults, ours: bool, congestion: u64) -> World {
        let mut target = if ours { Target::ours(512) } else { Target::new(512) };
        let tunables = Tunables { aoe_deadsecs: 0, aoe_congestion: congestion, ..Tunables::default() };
        let (host, device) = found_with(&mut target, tunables);
        let network = Network { faults, draws: 0, delayed_copies: ours, under_way: BTreeMap::new() };
        World {
            host,
            device,
            target,
            network,
            model: vec![vec![0]; 512],
            open: BTreeMap::new(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Read(lba, sectors) => self.submit(Op::Read, lba, sectors),
            Step::Write(lba, sectors) => self.submit(Op::Write { fua: false }, lba, sectors),
            Step::Flush => self.submit(Op::Flush, 0, 0),
            Step::Cancel(which) => {
                let which = usize::from(which) % self.open.len().max(1);
                if let Some(id) = self.open.keys().nth(which).copied() {
                    self.host.cancel(id);
                }
            }
            Step::Wait(time) => self.run(ms(u64::from(time))),
            Step::Buffers(count) => {
                self.target.buffer_count = count;
                let beacon = self.target.beacon();
                self.network.send(self.host.now, false, &beacon);
            }
            Step::Mtu(mtu) => self.host.port(PORT, Some(u32::from(mtu))),
            Step::PortDown => {
                self.host.port(PORT, None);
                self.send();
                self.run(ms(5));
                self.host.port(PORT, Some(9000));
            }
            Step::Deaf(deaf) => self.target.up = !deaf,
        }
        self.send();
    }

    fn submit(&mut self, op: Op, lba: u8, sectors: u8) {
        let (lba, sectors) = (usize::from(lba), usize::from(sectors));
        let id = self.host.submit(self.device, op, lba as u64, sectors as u32);
        self.open.insert(id, (op, lba, sectors));
        if op == Op::Read {
            self.reads.insert(id, self.model[lba..lba + sectors].to_vec());
        }
        if !op.is_write() {
            return;
        }
        let fill = id as u8 + 1;
        for sector in lba..lba + sectors {
            self.model[sector].push(fill);
            for (id, seen) in &mut self.reads {
                let (_, start, len) = self.open[id];
                if (start..start + len).contains(&sector) {
                    seen[sector - start].push(fill);
                }
            }
        }
    }

    /// Sends what is to be sent, and checks it.
    fn send(&mut self) {
        let outstanding = |host: &Host, device| {
            let view = host.initiator.device(device).expect("open");
            let paths: Vec<_> = view.paths().map(|path| (path.outstanding, path.cwnd)).collect();
            (view.outstanding(), view.limit(), paths)
        };
        let (before, _, paths_before) = outstanding(&self.host, self.device);
        let sent = self.host.sent();
        let (after, limit, paths) = outstanding(&self.host, self.device);
        // IDENTIFY and probes may come on top of the windows.
        let identify = |sent: &Sent| sent.ata().is_some_and(|command| command.opcode == Opcode::IDENTIFY);
        let extra = sent.iter().filter(|sent| sent.is_probe() || identify(sent)).count() as u32;
        assert!(after <= before.max(limit) + extra, "{after} under way, limit {limit}");
        for (at, (outstanding, cwnd)) in paths.into_iter().enumerate() {
            let before = paths_before.get(at).map_or(0, |(before, _)| *before);
            // Three more than the window may be under way, to show whether those before are lost.
            assert!(outstanding <= before.max(cwnd + 3) + extra, "{outstanding} under way, window {cwnd}");
        }
        self.settle();
        for frame in sent {
            self.note_write(&frame);
            self.network.send(self.host.now, true, &frame.bytes);
        }
    }

    /// Checks a write frame against all that may still arrive at the target.
    fn note_write(&mut self, frame: &Sent) {
        let wire = frame.frame();
        let Body::AtaRequest(request, data) = wire.body else {
            return;
        };
        if request.opcode != Opcode::WRITE_SECTORS_EXT {
            return;
        }
        let tag = wire.header.tag.0;
        if let Some(write) = self.writes.get_mut(&tag) {
            assert_eq!(write.bytes, frame.bytes, "copies differ");
            write.copies += 1;
            write.last_sent = frame.at;
            return;
        }
        let (start, fill) = (request.lba().0, data[0]);
        let end = start + u64::from(request.sectors);
        let ours = self.target.identify.dedupes();
        let overlapping = |other: &&SentWrite| other.fill != fill && other.start < end && start < other.end;
        for other in self.writes.values().filter(overlapping) {
            let open = self.open.contains_key(&u64::from(other.fill - 1));
            let answered = other.replied && (other.copies == 1 || ours);
            let expired = frame.at >= other.last_sent + ms(1000);
            assert!(
                !open && (answered || expired),
                "{fill} at {start}..{end} is sent at {:?}, while {} at {}..{} (open: {open}, replied: {}, copies: {}, \
                 last sent at {:?}) may arrive",
                frame.at,
                other.fill,
                other.start,
                other.end,
                other.replied,
                other.copies,
                other.last_sent
            );
        }
        let write =
            SentWrite { start, end, fill, bytes: frame.bytes.clone(), copies: 1, last_sent: frame.at, replied: false };
        self.writes.insert(tag, write);
    }

    /// Looks at what ended.
    fn settle(&mut self) {
        for (id, status) in core::mem::take(&mut self.host.completions) {
            let (op, lba, sectors) = self.open.remove(&id).expect("completes once");
            let seen = self.reads.remove(&id);
            if status == Status::Cancelled {
                continue;
            }
            assert_eq!(status, Status::Ok, "{op:?}");
            match op {
                Op::Write { .. } => {
                    for held in &mut self.model[lba..lba + sectors] {
                        let fill = id as u8 + 1;
                        let at = held.iter().position(|byte| *byte == fill);
                        held.drain(..at.expect("nothing newer was answered"));
                    }
                }
                Op::Read => self.check_read(id, &seen.expect("noted")),
                _ => {}
            }
        }
    }

    fn check_read(&self, id: u64, seen: &[Vec<u8>]) {
        for (sector, data) in self.host.buffers[&id].chunks(SECTOR).enumerate() {
            let byte = data[0];
            assert!(data.iter().all(|other| *other == byte), "a torn sector");
            let seen = &seen[sector];
            assert!(seen.contains(&byte), "sector {sector} of the read has {byte}, not of {seen:?}");
        }
    }

    /// Runs network and timers for a time.
    fn run(&mut self, time: Duration) {
        let end = self.host.now + time;
        loop {
            self.send();
            let frame = self.network.under_way.keys().next().map(|(at, _)| *at);
            let timer = self.host.initiator.poll_timeout();
            let next = frame.into_iter().chain(timer).min().filter(|at| *at <= end);
            let Some(next) = next else {
                self.host.now = end;
                return;
            };
            self.host.now = self.host.now.max(next);
            if frame.is_some_and(|at| at <= next) {
                let (_, (to_target, bytes)) = self.network.under_way.pop_first().expect("seen");
                self.deliver(to_target, &bytes);
            } else {
                self.host.initiator.handle_timeout(self.host.now);
            }
        }
    }

    fn deliver(&mut self, to_target: bool, bytes: &[u8]) {
        if to_target {
            if let Some(reply) = self.target.answer(bytes) {
                self.network.send(self.host.now, false, &reply);
            }
            return;
        }
        let tag = crate::wire::Frame::parse(bytes).expect("whole").header.tag;
        if let Some(write) = self.writes.get_mut(&tag.0) {
            write.replied = true;
        }
        self.host.receive(PORT, bytes);
    }

    /// The network becomes good: everything ends, and the disk holds what it may.
    fn finish(&mut self) {
        self.network.faults.lose = 0;
        self.target.up = true;
        self.host.port(PORT, Some(9000));
        self.run(ms(60_000));
        assert!(self.open.is_empty(), "never completed: {:?}", self.open);
        let view = self.host.initiator.device(self.device).expect("open");
        let left = (view.outstanding(), view.resending(), view.queued(), view.held());
        assert_eq!(left, (0, 0, 0, 0));
        for (sector, held) in self.model.iter().enumerate() {
            let byte = self.target.disk[sector * SECTOR];
            assert!(held.contains(&byte), "sector {sector} has {byte}, not of {held:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn nothing_is_lost_doubled_or_overtaken(
        steps in prop::collection::vec(step(), 1..120),
        (seed, lose, double, delay) in (any::<u64>(), 0u64..60, 0u64..60, 0u64..700),
        (ours, congestion) in (any::<bool>(), 0u64..3),
    ) {
        let faults = Faults { seed, lose, double, delay };
        let mut world = World::new(faults, ours, congestion);
        for step in steps {
            world.step(step);
        }
        world.finish();
    }
}
