//! The network: ports, the switch between them, and the frames under way.
//!
//! Owns every frame between [`Network::send`] and [`Network::poll`]. Called by the test that drives the hosts.
//!
//! Each port has one full-duplex link to the switch. A frame crosses the sender's link, is looked up at the switch by its
//! destination address (which the switch knows without learning; group addresses go to every other port), and crosses the link of
//! each port it is for. Both links have a rate, a drop-tail queue, a delay and faults.
//!
//! Invariants: time never goes back; frames come out in the order of their arrival times, and of their sending when those are equal;
//! every frame is counted ([`Counters::accounted`]). Bound: the queues of the links; frames beyond are dropped and counted.

#[cfg(test)]
mod histories;
mod link;
#[cfg(test)]
mod tests;

use crate::counters::{Counters, Loss};
use crate::faults::Faults;
use crate::rng::Rng;
use core::cmp::Reverse;
use core::time::Duration;
use link::{Link, Passage};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// Frame buffers that [`Network::recycle`] keeps for later frames.
const SPARE_BUFFERS: usize = 4096;
/// Ethernet header: what an MTU leaves out.
const ETHERNET_HEADER: usize = 14;

/// A MAC address, as on the wire.
pub type MacId = [u8; 6];

/// A host: a set of ports that live and die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub usize);

/// A port of a host, with its link to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub usize);

/// A direction of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the port to the switch.
    ToSwitch,
    /// From the switch to the port.
    FromSwitch,
}

/// A port as it is added.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Its address.
    pub mac: MacId,
    /// Largest frame of its link without the Ethernet header, in bytes.
    pub mtu: usize,
    /// Rate of each direction in bits per second; 0 is infinitely fast.
    pub rate_bps: u64,
    /// Queue in front of each direction, in bytes on the wire.
    pub queue_bytes: u64,
    /// Propagation delay of each direction.
    pub delay: Duration,
}

impl PortConfig {
    /// A 10 Gbit/s port with jumbo frames: MTU 9000, 1 MiB queues, 5 microseconds each way.
    pub const fn new(mac: MacId) -> Self {
        PortConfig { mac, mtu: 9000, rate_bps: 10_000_000_000, queue_bytes: 1 << 20, delay: Duration::from_micros(5) }
    }
}

#[derive(Debug)]
struct Port {
    host: HostId,
    mac: MacId,
    mtu: usize,
    up: bool,
    /// Counts how often the link went down: frames that entered before are lost.
    epoch: u64,
    to_switch: Link,
    from_switch: Link,
    counters: Counters,
}

#[derive(Debug)]
struct Switch {
    up: bool,
    epoch: u64,
}

/// Where a frame under way comes out next.
#[derive(Clone, Copy, Debug)]
enum Stage {
    AtSwitch,
    AtPort(PortId),
}

#[derive(Debug)]
struct UnderWay {
    at: Duration,
    sequence: u64,
    stage: Stage,
    from: PortId,
    /// Epochs of the link it is on and of the switch, as it entered.
    link_epoch: u64,
    switch_epoch: u64,
    frame: Vec<u8>,
}

impl PartialEq for UnderWay {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for UnderWay {}
impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for UnderWay {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// The simulated Ethernet.
#[derive(Debug)]
pub struct Network {
    seed: u64,
    now: Duration,
    hosts: usize,
    ports: Vec<Port>,
    by_mac: BTreeMap<MacId, PortId>,
    switch: Switch,
    /// Ordered pairs (from, to) that do not reach each other.
    blocked: BTreeSet<(PortId, PortId)>,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    /// Frames that came out of the last link and wait for [`Network::poll`].
    arrived: VecDeque<(PortId, Vec<u8>)>,
    next_sequence: u64,
    spare: Vec<Vec<u8>>,
    totals: Counters,
}

impl Network {
    /// A network without ports, whose faults follow `seed`.
    pub fn new(seed: u64) -> Self {
        Network {
            seed,
            now: Duration::ZERO,
            hosts: 0,
            ports: Vec::new(),
            by_mac: BTreeMap::new(),
            switch: Switch { up: true, epoch: 0 },
            blocked: BTreeSet::new(),
            under_way: BinaryHeap::new(),
            arrived: VecDeque::new(),
            next_sequence: 0,
            spare: Vec::new(),
            totals: Counters::default(),
        }
    }

    /// Adds a host without ports.
    pub fn add_host(&mut self) -> HostId {
        self.hosts += 1;
        HostId(self.hosts - 1)
    }

    /// Adds a port to `host` and connects it to the switch.
    ///
    /// # Panics
    /// When the host does not exist, or the address is a group address or in use.
    pub fn add_port(&mut self, host: HostId, config: PortConfig) -> PortId {
        assert!(host.0 < self.hosts, "no such host");
        assert!(config.mac[0] & 1 == 0, "a port can't have a group address");
        let id = PortId(self.ports.len());
        assert!(self.by_mac.insert(config.mac, id).is_none(), "address in use");
        // A stream of its own for each direction: more traffic on one port does not change another's faults.
        let mut seeds = Rng::new(self.seed ^ (id.0 as u64 + 1).wrapping_mul(0xA24B_AED4_963E_E407));
        let mut link = || Link::new(config.rate_bps, config.queue_bytes, config.delay, Rng::new(seeds.next_u64()));
        let (to_switch, from_switch) = (link(), link());
        self.ports.push(Port {
            host,
            mac: config.mac,
            mtu: config.mtu,
            up: true,
            epoch: 0,
            to_switch,
            from_switch,
            counters: Counters::default(),
        });
        id
    }

    /// The latest instant that the network was told of.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The address of `port`.
    pub fn mac(&self, port: PortId) -> MacId {
        self.ports[port.0].mac
    }

    /// The MTU of `port`.
    pub fn mtu(&self, port: PortId) -> usize {
        self.ports[port.0].mtu
    }

    /// Changes the MTU of the link of `port`. Longer frames vanish in it, in both directions.
    pub fn set_mtu(&mut self, port: PortId, mtu: usize) {
        self.ports[port.0].mtu = mtu;
    }

    /// Faults of one direction of a link, to read or to change; frames already on the link are not affected.
    pub fn faults(&mut self, port: PortId, direction: Direction) -> &mut Faults {
        &mut self.link(port, direction).faults
    }

    /// Sets the faults of both directions of every link.
    pub fn set_all_faults(&mut self, faults: Faults) {
        for port in &mut self.ports {
            port.to_switch.faults = faults;
            port.from_switch.faults = faults;
        }
    }

    /// Changes rate and queue of one direction of a link for frames that enter it from now on.
    pub fn set_rate(&mut self, port: PortId, direction: Direction, rate_bps: u64, queue_bytes: u64) {
        let link = self.link(port, direction);
        link.rate_bps = rate_bps;
        link.queue_bytes = queue_bytes;
    }

    /// Takes the link of `port` up or down. What is on a link that goes down is lost.
    pub fn set_link(&mut self, now: Duration, port: PortId, up: bool) {
        self.advance(now);
        let port = &mut self.ports[port.0];
        if port.up && !up {
            port.epoch += 1;
            port.to_switch.clear(now);
            port.from_switch.clear(now);
        }
        port.up = up;
    }

    /// Takes all links of `host` up or down.
    pub fn set_host(&mut self, now: Duration, host: HostId, up: bool) {
        for index in 0..self.ports.len() {
            if self.ports[index].host == host {
                self.set_link(now, PortId(index), up);
            }
        }
    }

    /// Turns the switch on or off. What is under way when it goes off is lost.
    pub fn set_switch(&mut self, now: Duration, up: bool) {
        self.advance(now);
        if self.switch.up && !up {
            self.switch.epoch += 1;
        }
        self.switch.up = up;
    }

    /// Blocks frames from `from` to `to` (that way only), or lets them pass again.
    pub fn set_blocked(&mut self, from: PortId, to: PortId, blocked: bool) {
        if blocked {
            self.blocked.insert((from, to));
        } else {
            self.blocked.remove(&(from, to));
        }
    }

    /// Cuts the network in two: ports in `part` reach each other, the others reach each other. Replaces earlier blocks.
    pub fn partition(&mut self, part: &[PortId]) {
        self.blocked.clear();
        for a in (0..self.ports.len()).map(PortId) {
            for b in (0..self.ports.len()).map(PortId) {
                if part.contains(&a) != part.contains(&b) {
                    self.blocked.insert((a, b));
                }
            }
        }
    }

    /// Removes all blocks.
    pub fn heal(&mut self) {
        self.blocked.clear();
    }

    /// Sends `frame` (from its destination address on) out of `port`.
    pub fn send(&mut self, now: Duration, port: PortId, frame: &[u8]) {
        self.advance(now);
        self.totals.sent += 1;
        self.totals.sent_bytes += frame.len() as u64;
        let counters = &mut self.ports[port.0].counters;
        counters.sent += 1;
        counters.sent_bytes += frame.len() as u64;
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        self.enter_link(now, port, Direction::ToSwitch, port, buffer);
    }

    /// The next frame that has arrived at a port by `now`, in the order of arrival. Call until it yields `None`.
    pub fn poll(&mut self, now: Duration) -> Option<(PortId, Vec<u8>)> {
        self.advance(now);
        let (port, frame) = self.arrived.pop_front()?;
        for counters in [&mut self.totals, &mut self.ports[port.0].counters] {
            counters.delivered += 1;
            counters.delivered_bytes += frame.len() as u64;
        }
        Some((port, frame))
    }

    /// When [`Network::poll`] has something to do next; nothing happens in the network before.
    pub fn next_event(&self) -> Option<Duration> {
        if !self.arrived.is_empty() {
            return Some(self.now);
        }
        self.under_way.peek().map(|Reverse(head)| head.at)
    }

    /// Gives a frame's buffer back for later frames.
    pub fn recycle(&mut self, frame: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(frame);
        }
    }

    /// Frames that are in the network now.
    pub fn under_way(&self) -> usize {
        self.under_way.len() + self.arrived.len()
    }

    /// Counters of the whole network.
    pub fn totals(&self) -> Counters {
        self.totals
    }

    /// Counters of one port. A loss is counted at the port that sent the frame, a delivery at the one that received it.
    pub fn counters(&self, port: PortId) -> Counters {
        self.ports[port.0].counters
    }

    fn link(&mut self, port: PortId, direction: Direction) -> &mut Link {
        let port = &mut self.ports[port.0];
        match direction {
            Direction::ToSwitch => &mut port.to_switch,
            Direction::FromSwitch => &mut port.from_switch,
        }
    }

    /// Moves every frame as far as it has come by `now`.
    fn advance(&mut self, now: Duration) {
        assert!(now >= self.now, "time went back from {:?} to {now:?}", self.now);
        self.now = now;
        while let Some(Reverse(head)) = self.under_way.peek()
            && head.at <= now
        {
            let Reverse(out) = self.under_way.pop().expect("peeked just now");
            let link = match out.stage {
                Stage::AtSwitch => out.from,
                Stage::AtPort(port) => port,
            };
            if out.link_epoch != self.ports[link.0].epoch || out.switch_epoch != self.switch.epoch {
                self.lose(out.from, Loss::LinkDown, out.frame);
                continue;
            }
            match out.stage {
                Stage::AtSwitch => self.forward(out.at, out.from, out.frame),
                Stage::AtPort(port) => self.arrived.push_back((port, out.frame)),
            }
        }
    }

    /// A frame has reached the switch at `at`: puts it on the link of each port it is for.
    fn forward(&mut self, at: Duration, from: PortId, frame: Vec<u8>) {
        let Some(destination) = frame.first_chunk::<6>().copied() else {
            return self.lose(from, Loss::NoPort, frame);
        };
        if destination[0] & 1 == 0 {
            return match self.by_mac.get(&destination) {
                // A switch does not send a frame back where it came from.
                Some(&to) if to != from => self.forward_to(at, from, to, frame),
                _ => self.lose(from, Loss::NoPort, frame),
            };
        }
        if self.ports.len() < 2 {
            return self.lose(from, Loss::NoPort, frame);
        }
        let last = if from.0 + 1 == self.ports.len() { self.ports.len() - 2 } else { self.ports.len() - 1 };
        for to in (0..last).map(PortId).filter(|&to| to != from) {
            let copy = self.copy(from, &frame);
            self.forward_to(at, from, to, copy);
        }
        self.forward_to(at, from, PortId(last), frame);
    }

    fn forward_to(&mut self, at: Duration, from: PortId, to: PortId, frame: Vec<u8>) {
        if self.blocked.contains(&(from, to)) {
            return self.lose(from, Loss::Partition, frame);
        }
        self.enter_link(at, to, Direction::FromSwitch, from, frame);
    }

    fn enter_link(&mut self, at: Duration, port: PortId, direction: Direction, from: PortId, mut frame: Vec<u8>) {
        let owner = &self.ports[port.0];
        if !owner.up || !self.switch.up {
            return self.lose(from, Loss::LinkDown, frame);
        }
        if frame.len() > owner.mtu + ETHERNET_HEADER {
            return self.lose(from, Loss::TooBig, frame);
        }
        let Passage { arrives, reordered, garbled_bit, copy_arrives } =
            match self.link(port, direction).enter(at, frame.len()) {
                Ok(passage) => passage,
                Err(loss) => return self.lose(from, loss, frame),
            };
        if let Some(bit) = garbled_bit {
            frame[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        for counters in [&mut self.totals, &mut self.ports[from.0].counters] {
            counters.garbled += u64::from(garbled_bit.is_some());
            counters.reordered += u64::from(reordered);
        }
        let stage = match direction {
            Direction::ToSwitch => Stage::AtSwitch,
            Direction::FromSwitch => Stage::AtPort(port),
        };
        let copy = copy_arrives.map(|at| (at, self.copy(from, &frame)));
        self.put_under_way(arrives, stage, port, from, frame);
        if let Some((at, copy)) = copy {
            self.put_under_way(at, stage, port, from, copy);
        }
    }

    fn put_under_way(&mut self, at: Duration, stage: Stage, link: PortId, from: PortId, frame: Vec<u8>) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let (link_epoch, switch_epoch) = (self.ports[link.0].epoch, self.switch.epoch);
        let entry = UnderWay { at, sequence, stage, from, link_epoch, switch_epoch, frame };
        self.under_way.push(Reverse(entry));
    }

    fn copy(&mut self, from: PortId, frame: &[u8]) -> Vec<u8> {
        self.totals.copied += 1;
        self.ports[from.0].counters.copied += 1;
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        copy
    }

    fn lose(&mut self, from: PortId, loss: Loss, frame: Vec<u8>) {
        self.totals.count(loss);
        self.ports[from.0].counters.count(loss);
        self.recycle(frame);
    }
}
