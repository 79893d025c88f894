//! All hosts and the network between them, on virtual time: from one instant at which something happens to the next.

use std::time::Duration;

use aoe_proto::port::{PortId as AoePort, PortInfo};
use aoe_proto::wire::MacAddr;
use aoe_sim::{Direction, Network, PortConfig, PortId, Ppm, Rng};

use super::measure::{Measure, Report};
use super::scenario::{Flap, Link, Scenario};
use super::station::Station;
use super::target::Target;

/// The host that a port belongs to, and which of its ports it is.
#[derive(Clone, Copy)]
enum Owner {
    Station(usize, AoePort),
    Target(usize, AoePort),
}

struct Host<T> {
    inner: T,
    ports: Vec<PortId>,
}

/// A link that goes down and up.
struct Flapping {
    port: PortId,
    flap: Flap,
    next: Duration,
    up: bool,
}

/// A scenario that runs.
struct World<'a> {
    network: Network,
    now: Duration,
    owners: Vec<Owner>,
    stations: Vec<Host<Station>>,
    /// When each station must be looked at.
    wakes: Vec<Duration>,
    targets: Vec<Host<Target>>,
    flapping: Vec<Flapping>,
    measure: Measure<'a>,
}

/// Runs a scenario from start to end.
pub(super) fn run(scenario: &Scenario) -> Report {
    let mut world = World::new(scenario);
    let end = scenario.warmup + scenario.runtime;
    while world.now < end {
        world.turn(end);
    }
    let wrong = world.targets.iter().map(|host| host.inner.wrong()).sum();
    let stations: Vec<&Station> = world.stations.iter().map(|host| &host.inner).collect();
    world.measure.report(&stations, world.network.totals(), wrong)
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> World<'a> {
        let mut world = World {
            network: Network::new(scenario.seed),
            now: Duration::ZERO,
            owners: Vec::new(),
            stations: Vec::new(),
            wakes: Vec::new(),
            targets: Vec::new(),
            flapping: Vec::new(),
            measure: Measure::new(scenario),
        };
        let mut seeds = Rng::new(scenario.seed ^ 0x5EED);
        for (index, shelf) in scenario.shelves.iter().enumerate() {
            let ports = world.add_ports(&shelf.links, |port| Owner::Target(index, port));
            let target = Target::new(seeds.next_u64(), scenario.shelves.len(), shelf, index, &world.infos(&ports));
            world.targets.push(Host { inner: target, ports });
        }
        for (index, initiator) in scenario.initiators.iter().enumerate() {
            let ports = world.add_ports(&initiator.links, |port| Owner::Station(index, port));
            let station = Station::new(scenario, initiator, seeds.next_u64(), &world.infos(&ports));
            world.stations.push(Host { inner: station, ports });
            world.wakes.push(Duration::ZERO);
        }
        world
    }

    /// A new host's ports.
    fn add_ports(&mut self, links: &[Link], owner: impl Fn(AoePort) -> Owner) -> Vec<PortId> {
        let host = self.network.add_host();
        let mut ports = Vec::new();
        for (index, link) in (0..).zip(links) {
            let number = self.owners.len() as u32;
            let [_, high, middle, low] = number.to_be_bytes();
            let config = PortConfig {
                mac: [2, 0, 0, high, middle, low],
                mtu: link.mtu,
                rate_bps: link.rate,
                queue_bytes: link.queue,
                delay: link.delay,
            };
            let port = self.network.add_port(host, config);
            self.network.set_rate(port, Direction::ToSwitch, link.rate, link.host_queue);
            for direction in [Direction::ToSwitch, Direction::FromSwitch] {
                self.network.faults(port, direction).loss = Ppm(link.loss_ppm);
            }
            if let Some(flap) = link.flap {
                self.flapping.push(Flapping { port, flap, next: flap.every - flap.down, up: true });
            }
            self.owners.push(owner(AoePort(index)));
            ports.push(port);
        }
        ports
    }

    fn infos(&self, ports: &[PortId]) -> Vec<PortInfo> {
        let info = |&port| PortInfo { mac: MacAddr(self.network.mac(port)), mtu: self.network.mtu(port) as u32 };
        ports.iter().map(info).collect()
    }

    /// Everything that is to be done now; then on to the next instant, not beyond `end`.
    fn turn(&mut self, end: Duration) {
        let now = self.now;
        self.flap();
        while let Some((port, frame)) = self.network.poll(now) {
            match self.owners[port.0] {
                Owner::Station(at, port) => {
                    self.stations[at].inner.receive(now, port, &frame);
                    self.wakes[at] = now;
                }
                Owner::Target(at, port) => self.targets[at].inner.receive(now, port, &frame),
            }
            self.network.recycle(frame);
        }
        let mut next = end;
        for Host { inner, ports } in &mut self.targets {
            let network = &mut self.network;
            inner.send(now, |port, frame| network.send(now, ports[usize::from(port.0)], frame));
            next = next.min(inner.next_reply().unwrap_or(end));
        }
        for (at, wake) in self.wakes.iter_mut().enumerate() {
            if *wake <= now {
                let Host { inner, ports } = &mut self.stations[at];
                let (network, measure) = (&mut self.network, &mut self.measure);
                let mut send = |port: AoePort, frame: &[u8]| network.send(now, ports[usize::from(port.0)], frame);
                inner.work(now, &mut send, &mut |done| measure.done(now, at, &done));
                *wake = inner.wake_at();
            }
            next = next.min(*wake);
        }
        let stations = || self.stations.iter().map(|host| &host.inner);
        next = next.min(self.measure.look(now, stations, self.network.totals()));
        for flapping in &self.flapping {
            next = next.min(flapping.next);
        }
        self.now = next.min(self.network.next_event().unwrap_or(end)).max(now);
    }

    /// Takes links down and up whose time has come.
    fn flap(&mut self) {
        for Flapping { port, flap, next, up } in &mut self.flapping {
            if *next <= self.now {
                *up = !*up;
                *next += if *up { flap.every - flap.down } else { flap.down };
                self.network.set_link(self.now, *port, *up);
            }
        }
    }
}
