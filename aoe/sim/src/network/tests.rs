//! Tables: each link property, fault and switch rule alone.

use super::*;
use crate::faults::{Ppm, Span};

pub(super) const A: MacId = [2, 0, 0, 0, 0, 1];
pub(super) const BROADCAST: MacId = [0xff; 6];

pub(super) fn mac(last: u8) -> MacId {
    [2, 0, 0, 0, 0, last]
}

pub(super) fn frame(to: MacId, from: MacId, len: usize, mark: u64) -> Vec<u8> {
    let mut frame = vec![0; len.max(22)];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[14..22].copy_from_slice(&mark.to_be_bytes());
    if let Some(twice) = frame.get_mut(22..30) {
        twice.copy_from_slice(&mark.to_be_bytes());
    }
    frame
}

fn mark(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[14..22].try_into().unwrap())
}

/// A network of `n` hosts with a port each, addresses `mac(1)` and on.
pub(super) fn network(seed: u64, n: u8, config: PortConfig) -> (Network, Vec<PortId>) {
    let mut network = Network::new(seed);
    let ports = (1..=n)
        .map(|i| {
            let host = network.add_host();
            network.add_port(host, PortConfig { mac: mac(i), ..config })
        })
        .collect();
    (network, ports)
}

/// Runs until nothing is under way; what arrived, with its instant.
fn drain(network: &mut Network) -> Vec<(Duration, PortId, Vec<u8>)> {
    let mut arrived = Vec::new();
    while let Some(at) = network.next_event() {
        while let Some((port, frame)) = network.poll(at) {
            arrived.push((at, port, frame));
        }
    }
    assert_eq!(network.under_way(), 0);
    assert!(network.totals().accounted(0), "{:?}", network.totals());
    arrived
}

#[test]
fn a_frame_takes_serialisation_and_delay_twice() {
    let config = PortConfig { rate_bps: 1_000_000_000, delay: Duration::from_micros(5), ..PortConfig::new(A) };
    let (mut network, ports) = network(1, 2, config);
    network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 976, 7));
    let arrived = drain(&mut network);
    // (976 + 24) bytes at 1 Gbit/s are 8 us, twice, and 5 us of delay, twice.
    assert_eq!(arrived.len(), 1);
    assert_eq!((arrived[0].0, arrived[0].1, mark(&arrived[0].2)), (Duration::from_micros(26), ports[1], 7));
}

#[test]
fn a_short_frame_occupies_the_wire_like_a_minimal_one_but_arrives_short() {
    let config = PortConfig { rate_bps: 84_000_000, delay: Duration::ZERO, ..PortConfig::new(A) };
    let (mut network, ports) = network(1, 2, config);
    network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 24, 0));
    let arrived = drain(&mut network);
    assert_eq!(arrived[0].0, Duration::from_micros(16));
    assert_eq!(arrived[0].2.len(), 24);
}

#[test]
fn throughput_is_the_rate_of_the_slower_link() {
    let (mut network, ports) =
        network(1, 2, PortConfig { queue_bytes: 1 << 30, delay: Duration::ZERO, ..PortConfig::new(A) });
    network.set_rate(ports[1], Direction::FromSwitch, 100_000_000, 1 << 30);
    for i in 0..1000 {
        network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 1226, i));
    }
    let arrived = drain(&mut network);
    assert_eq!(arrived.len(), 1000);
    // 1250 wire bytes at 100 Mbit/s are 100 us each, and the first came over the faster link in 1 us.
    assert_eq!(arrived[999].0, Duration::from_micros(100 * 1000 + 1));
    assert!(arrived.windows(2).all(|w| mark(&w[0].2) < mark(&w[1].2)));
}

#[test]
fn a_full_queue_drops_the_tail() {
    let config = PortConfig { queue_bytes: 10_240, rate_bps: 1_000_000, ..PortConfig::new(A) };
    let (mut network, ports) = network(1, 2, config);
    for i in 0..20 {
        network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 1000, i));
    }
    let arrived = drain(&mut network);
    assert_eq!(arrived.iter().map(|a| mark(&a.2)).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!(network.counters(ports[0]).queue_full, 10);
    // The queue has emptied: there is room again.
    let later = Duration::from_secs(10);
    network.send(later, ports[0], &frame(mac(2), mac(1), 1000, 99));
    assert_eq!(drain(&mut network).len(), 1);
}

#[test]
fn incast_drops_at_the_switch() {
    let (mut network, ports) = network(1, 5, PortConfig { queue_bytes: 64 << 10, ..PortConfig::new(A) });
    for i in 0..10 {
        for &port in &ports[1..] {
            network.send(Duration::ZERO, port, &frame(mac(1), mac(port.0 as u8 + 1), 9000, i));
        }
    }
    let arrived = drain(&mut network);
    assert!(arrived.len() < 40 && arrived.len() >= 10, "{}", arrived.len());
    assert_eq!(network.totals().queue_full, 40 - arrived.len() as u64);
}

#[test]
fn broadcast_reaches_every_other_port_and_unknown_addresses_none() {
    let (mut network, ports) = network(1, 4, PortConfig::new(A));
    for sender in &ports {
        network.send(network.now(), *sender, &frame(BROADCAST, mac(sender.0 as u8 + 1), 60, 1));
        let mut got: Vec<_> = drain(&mut network).into_iter().map(|a| a.1).collect();
        got.sort();
        assert_eq!(got, ports.iter().copied().filter(|p| p != sender).collect::<Vec<_>>());
    }
    network.send(Duration::from_secs(1), ports[0], &frame(mac(77), mac(1), 60, 1));
    network.send(Duration::from_secs(1), ports[0], &frame(mac(1), mac(1), 60, 1));
    network.send(Duration::from_secs(1), ports[0], &[1, 2, 3]);
    assert!(drain(&mut network).is_empty());
    assert_eq!(network.totals().no_port, 3);
}

#[test]
fn a_lone_port_broadcasts_to_nobody() {
    let (mut network, ports) = network(1, 1, PortConfig::new(A));
    network.send(Duration::ZERO, ports[0], &frame(BROADCAST, mac(1), 60, 1));
    assert!(drain(&mut network).is_empty());
}

#[test]
fn frames_above_the_mtu_of_either_link_vanish() {
    let (mut network, ports) = network(1, 2, PortConfig { mtu: 1500, ..PortConfig::new(A) });
    network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 1514, 1));
    network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 1515, 2));
    network.set_mtu(ports[0], 9000);
    network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 9014, 3));
    assert_eq!(drain(&mut network).len(), 1);
    assert_eq!(network.totals().too_big, 2);
    assert_eq!((network.mtu(ports[0]), network.mac(ports[1])), (9000, mac(2)));
}

#[test]
fn link_down_loses_what_is_on_it_and_up_works_again() {
    let ms = Duration::from_millis;
    let config = PortConfig { delay: ms(10), ..PortConfig::new(A) };
    // (port that goes down, when): the frame is on the sender's link until 10 ms, on the receiver's until 20 ms.
    for (down, at, lost) in [(0, 5, true), (0, 15, false), (1, 15, true), (1, 25, false), (1, 5, true)] {
        let (mut network, ports) = network(1, 2, config);
        network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 60, 1));
        network.set_link(ms(at), ports[down], false);
        let arrived = drain(&mut network).len();
        assert_eq!(arrived, usize::from(!lost), "port {down} down at {at} ms");
        assert_eq!(network.totals().link_down, u64::from(lost));
        network.set_link(ms(100), ports[down], true);
        network.send(ms(100), ports[0], &frame(mac(2), mac(1), 60, 2));
        assert_eq!(drain(&mut network).len(), 1);
    }
}

#[test]
fn a_link_that_came_back_does_not_bring_back_what_was_on_it() {
    let ms = Duration::from_millis;
    let (mut network, ports) = network(1, 2, PortConfig { delay: ms(10), ..PortConfig::new(A) });
    network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 60, 1));
    network.set_link(ms(5), ports[0], false);
    network.set_link(ms(6), ports[0], true);
    assert!(drain(&mut network).is_empty());
}

#[test]
fn a_host_and_the_switch_go_down_whole() {
    let mut network = Network::new(3);
    let (a, b) = (network.add_host(), network.add_host());
    let near = [1, 2].map(|i| network.add_port(a, PortConfig::new(mac(i))));
    let far = network.add_port(b, PortConfig::new(mac(3)));
    network.set_host(Duration::ZERO, a, false);
    network.send(Duration::ZERO, far, &frame(BROADCAST, mac(3), 60, 0));
    network.send(Duration::ZERO, near[0], &frame(mac(3), mac(1), 60, 0));
    assert!(drain(&mut network).is_empty());
    network.set_host(network.now(), a, true);
    network.send(network.now(), far, &frame(BROADCAST, mac(3), 60, 0));
    network.set_switch(network.now(), false);
    network.send(network.now(), far, &frame(BROADCAST, mac(3), 60, 0));
    assert!(drain(&mut network).is_empty());
    network.set_switch(Duration::from_secs(1), true);
    network.send(Duration::from_secs(1), far, &frame(BROADCAST, mac(3), 60, 0));
    assert_eq!(drain(&mut network).len(), 2);
}

#[test]
fn partitions_and_one_way_blocks() {
    let (mut network, ports) = network(1, 4, PortConfig::new(A));
    network.partition(&ports[..2]);
    network.send(Duration::ZERO, ports[0], &frame(BROADCAST, mac(1), 60, 1));
    network.send(Duration::ZERO, ports[0], &frame(mac(3), mac(1), 60, 1));
    assert_eq!(drain(&mut network).iter().map(|a| a.1).collect::<Vec<_>>(), [ports[1]]);
    assert_eq!(network.totals().partition, 3);
    network.heal();
    network.set_blocked(ports[0], ports[1], true);
    network.send(Duration::from_secs(1), ports[0], &frame(mac(2), mac(1), 60, 1));
    network.send(Duration::from_secs(1), ports[1], &frame(mac(1), mac(2), 60, 1));
    assert_eq!(drain(&mut network).iter().map(|a| a.1).collect::<Vec<_>>(), [ports[0]]);
    network.set_blocked(ports[0], ports[1], false);
    network.send(Duration::from_secs(2), ports[0], &frame(mac(2), mac(1), 60, 1));
    assert_eq!(drain(&mut network).len(), 1);
}

#[test]
fn each_fault_alone_does_what_it_says() {
    let run = |faults: Faults| {
        let (mut network, ports) = network(9, 2, PortConfig { queue_bytes: 1 << 30, ..PortConfig::new(A) });
        *network.faults(ports[0], Direction::ToSwitch) = faults;
        for i in 0..10_000 {
            network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 100, i));
        }
        (drain(&mut network), network.totals())
    };
    let near = |n: u64, of: u64| (of * 9 / 10..of * 11 / 10).contains(&n);
    let tenth = Ppm::percent(10);

    let (arrived, totals) = run(Faults { loss: tenth, ..Faults::NONE });
    assert!(near(totals.lost, 1000) && arrived.len() as u64 == 10_000 - totals.lost, "{totals:?}");

    let (arrived, totals) = run(Faults { corrupt: tenth, ..Faults::NONE });
    assert!(near(totals.corrupt, 1000) && arrived.len() as u64 == 10_000 - totals.corrupt, "{totals:?}");

    let (arrived, totals) = run(Faults { garble: tenth, ..Faults::NONE });
    assert!(near(totals.garbled, 1000), "{totals:?}");
    let intact =
        arrived.iter().filter(|a| mark(&a.2) < 10_000 && a.2 == frame(mac(2), mac(1), 100, mark(&a.2))).count();
    // Some have their destination damaged and get lost; none is damaged without being counted.
    assert_eq!(10_000 - intact as u64, totals.garbled);

    let (arrived, totals) = run(Faults { duplicate: tenth, duplicate_delay: Span::millis(1, 5), ..Faults::NONE });
    assert!(near(totals.copied, 1000) && arrived.len() as u64 == 10_000 + totals.copied, "{totals:?}");

    let (arrived, totals) = run(Faults { reorder: tenth, reorder_delay: Span::millis(1, 5), ..Faults::NONE });
    assert!(near(totals.reordered, 1000) && arrived.len() == 10_000, "{totals:?}");
    assert!(arrived.windows(2).any(|w| mark(&w[0].2) > mark(&w[1].2)));

    let (arrived, _) = run(Faults { jitter: Span::micros(0, 100), ..Faults::NONE });
    assert!(arrived.windows(2).any(|w| mark(&w[0].2) > mark(&w[1].2)));

    let (arrived, _) = run(Faults::NONE);
    assert!(arrived.windows(2).all(|w| mark(&w[0].2) + 1 == mark(&w[1].2)));
    let (arrived, _) = run(Faults { loss: Ppm::ONE, ..Faults::NONE });
    assert!(arrived.is_empty());
}

#[test]
fn more_traffic_on_one_port_does_not_change_the_faults_of_another() {
    let lost_marks = |extra: u64| {
        let (mut network, ports) = network(5, 3, PortConfig { queue_bytes: 1 << 30, ..PortConfig::new(A) });
        *network.faults(ports[0], Direction::ToSwitch) = Faults { loss: Ppm::percent(20), ..Faults::NONE };
        *network.faults(ports[2], Direction::ToSwitch) = Faults { loss: Ppm::percent(20), ..Faults::NONE };
        for i in 0..200 {
            network.send(Duration::ZERO, ports[0], &frame(mac(2), mac(1), 100, i));
            for _ in 0..extra {
                network.send(Duration::ZERO, ports[2], &frame(mac(2), mac(3), 100, 1000 + i));
            }
        }
        let mut got: Vec<_> = drain(&mut network).iter().map(|a| mark(&a.2)).filter(|&m| m < 1000).collect();
        got.sort();
        got
    };
    assert_eq!(lost_marks(0), lost_marks(3));
}

#[test]
#[should_panic(expected = "time went back")]
fn time_never_goes_back() {
    let (mut network, ports) = network(1, 2, PortConfig::new(A));
    network.send(Duration::from_secs(1), ports[0], &frame(mac(2), mac(1), 60, 0));
    network.poll(Duration::ZERO);
}
