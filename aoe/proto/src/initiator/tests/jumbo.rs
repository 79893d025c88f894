//! What frames carry: proven by padded reads, less where a switch between drops large frames, more again when it no longer does.

use super::harness::*;
use crate::initiator::*;
use crate::wire::{ATA_HEADER, ETH_HEADER};

/// A network that drops frames longer than its MTU, either way or one.
#[derive(Clone, Copy)]
struct Narrow {
    mtu: usize,
    requests: bool,
    replies: bool,
}

impl Narrow {
    fn both(mtu: usize) -> Narrow {
        Narrow { mtu, requests: true, replies: true }
    }

    fn passes(self, len: usize, limited: bool) -> bool {
        !limited || len <= self.mtu + ETH_HEADER
    }
}

/// Runs for a time, answering after 1 ms what passes.
fn run(host: &mut Host, target: &mut Target, time: u64, network: Narrow) -> Vec<Sent> {
    let mut all = Vec::new();
    for _ in 0..time {
        let sent = host.advance_all(ms(1));
        for frame in &sent {
            if !network.passes(frame.bytes.len(), network.requests) {
                continue;
            }
            if let Some(reply) =
                target.answer(&frame.bytes).filter(|reply| network.passes(reply.len(), network.replies))
            {
                host.receive(frame.port, &reply);
            }
        }
        all.extend(sent);
    }
    all
}

fn payload(host: &Host, device: DeviceId) -> u8 {
    host.initiator.device(device).expect("open").paths().next().expect("a path").payload
}

#[test]
fn jumbo_is_used_once_a_read_of_that_size_padded_to_it_was_answered() {
    let mut target = Target::new(2048);
    let mut host = Host::new(Tunables::default());
    let device = host.open();
    let sent = run(&mut host, &mut target, 5, Narrow::both(9000));
    let probes: Vec<&Sent> = sent.iter().filter(|frame| frame.is_probe()).collect();
    assert_eq!(probes.len(), 1);
    assert_eq!(probes[0].bytes.len(), ATA_HEADER + 17 * 512);
    assert_eq!(probes[0].ata().expect("a read").sectors, 17);
    assert!(probes[0].bytes[ATA_HEADER..].iter().all(|byte| *byte == 0));
    assert_eq!(payload(&host, device), 17);
    assert!(sent.iter().all(|frame| !frame.is_probe() || frame.at >= ms(1001)), "after IDENTIFY");
}

#[test]
fn a_narrow_network_is_measured_whichever_direction_is_narrow() {
    for (mtu, sectors) in [(1500, 2), (2000, 3), (4200, 8), (8999, 17)] {
        for network in [
            Narrow::both(mtu),
            Narrow { replies: false, ..Narrow::both(mtu) },
            Narrow { requests: false, ..Narrow::both(mtu) },
        ] {
            let mut target = Target::new(2048);
            let mut host = Host::new(Tunables::default());
            let device = host.open();
            run(&mut host, &mut target, 5, network);
            let write = host.write(device, 0, 64);
            let read = host.read(device, 64, 64);
            run(&mut host, &mut target, 500, network);
            assert_eq!(payload(&host, device), sectors, "MTU {mtu}");
            assert_eq!((host.status(write), host.status(read)), (Some(Status::Ok), Some(Status::Ok)));
        }
    }
}

#[test]
fn large_frames_that_vanish_are_left_within_a_second_and_tried_again() {
    for network in [
        Narrow::both(1500),
        Narrow { replies: false, ..Narrow::both(1500) },
        Narrow { requests: false, ..Narrow::both(1500) },
    ] {
        let mut target = Target::new(1 << 14);
        let (mut host, device) = found(&mut target);
        let wide = Narrow::both(9000);
        assert_eq!(payload(&host, device), 17);
        // Traffic both ways, some of it small, as the network gets narrow.
        let mut ids = Vec::new();
        for at in 0..200 {
            ids.push(host.write(device, at * 16, 16));
            ids.push(host.read(device, 8192 + at * 16, 16));
            ids.push(host.read(device, at, 1));
            run(&mut host, &mut target, 2, if at < 20 { wide } else { network });
        }
        run(&mut host, &mut target, 600, network);
        assert_eq!(payload(&host, device), 2);
        assert!(ids.iter().all(|id| host.status(*id) == Some(Status::Ok)), "within a second");
        assert!(host.take_events().is_empty(), "the device was never silent, nor the path down");
        run(&mut host, &mut target, 2500, wide);
        assert_eq!(payload(&host, device), 17, "and back again");
    }
}

#[test]
fn losses_by_chance_do_not_make_frames_small() {
    let mut target = Target::new(1 << 14);
    let (mut host, device) = found(&mut target);
    let mut random = 1u64;
    let mut smallest = 17;
    for at in 0..2000 {
        host.read(device, (at * 16) % 8192, 16);
        for frame in host.advance_all(ms(1)) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if random >> 33 & 0xff >= 13 {
                host.answer(&mut target, &frame);
            }
        }
        smallest = smallest.min(payload(&host, device));
    }
    run(&mut host, &mut target, 2000, Narrow::both(9000));
    assert_eq!(host.completions.len(), 2000);
    assert!(host.initiator.counters().retransmits > 20);
    assert_eq!((smallest, payload(&host, device)), (17, 17), "5 % are lost");
}

#[test]
fn a_target_that_was_away_is_served_large_frames_as_soon_as_it_is_back() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.write(device, 0, 64);
    let nothing = Narrow { mtu: 0, requests: true, replies: true };
    let probes = run(&mut host, &mut target, 60_000, nothing).iter().filter(|frame| frame.is_probe()).count();
    assert!(probes < 200, "{probes} probes in a minute");
    assert_eq!(payload(&host, device), 17, "nothing was answered, which says nothing about sizes");
    run(&mut host, &mut target, 2100, Narrow::both(9000));
    assert_eq!(host.completions.len(), 1);
    assert_eq!(payload(&host, device), 17);
}

#[test]
fn a_device_smaller_than_a_frame_is_probed_with_all_of_it() {
    let mut target = Target::new(5);
    let (mut host, device) = found(&mut target);
    assert_eq!(payload(&host, device), 17);
    let id = host.read(device, 0, 5);
    host.exchange(&mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
}

#[test]
fn a_target_that_refuses_the_probe_is_believed_to_carry_it() {
    let mut target = Target::new(2048);
    target.fault(Fault::Lost);
    let mut host = Host::new(Tunables::default());
    let device = host.open();
    host.advance(ms(1));
    target.faults = [None, Some(Fault::Ata(0x41, crate::wire::AtaError::UNC))].into();
    run(&mut host, &mut target, 2000, Narrow::both(9000));
    assert_eq!(payload(&host, device), 17);
}
