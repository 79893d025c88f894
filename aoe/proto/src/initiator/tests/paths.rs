//! Several paths: sharing, failing over, coming back.

use super::harness::*;
use crate::initiator::*;
use crate::wire::{MacAddr, Opcode};

/// A device that is reached at two addresses over two ports: four paths.
fn found_twice() -> (Host, DeviceId, Target) {
    let mut target = Target::new(1 << 14);
    target.buffer_count = 64;
    let (mut host, device) = found(&mut target);
    host.port(PORT_B, Some(9000));
    for mac in [TARGET, TARGET_B] {
        for port in [PORT, PORT_B] {
            target.mac = mac;
            let frame = target.beacon();
            host.receive(port, &frame);
            host.exchange(&mut target);
        }
    }
    host.take_events();
    (host, device, target)
}

/// Answers frames as if the target had all addresses, except over paths that `broken` names.
fn answer(host: &mut Host, target: &mut Target, sent: &[Sent], broken: impl Fn(PortId, MacAddr) -> bool) {
    for frame in sent {
        let dst = frame.frame().header.dst;
        if !broken(frame.port, dst) {
            target.mac = if dst == MacAddr::BROADCAST { TARGET } else { dst };
            host.answer(target, frame);
        }
    }
}

/// Runs for a time, answering after 1 ms.
fn run(host: &mut Host, target: &mut Target, time: u64, broken: impl Fn(PortId, MacAddr) -> bool + Copy) {
    for _ in 0..time {
        let sent = host.advance_all(ms(1));
        answer(host, target, &sent, broken);
    }
}

fn states(host: &Host, device: DeviceId) -> Vec<(PortId, MacAddr, PathState)> {
    let paths = host.initiator.device(device).expect("open").paths();
    paths.map(|path| (path.port, path.mac, path.state)).collect()
}

#[test]
fn frames_spread_over_paths() {
    let (mut host, device, mut target) = found_twice();
    assert_eq!(states(&host, device).len(), 4);
    let id = host.read(device, 0, 1 << 13);
    run(&mut host, &mut target, 400, |_, _| false);
    assert_eq!(host.status(id), Some(Status::Ok));
    let sent: Vec<u64> = host.initiator.device(device).expect("open").paths().map(|path| path.counters.sent).collect();
    assert_eq!(sent.len(), 4);
    assert!(sent.iter().all(|sent| *sent > 90), "{sent:?}");
}

#[test]
fn a_link_that_comes_up_is_asked_over_until_the_device_is_heard() {
    let mut target = Target::new(64);
    let (mut host, device) = found(&mut target);
    host.port(PORT, None);
    run(&mut host, &mut target, 100, |_, _| false);
    host.port(PORT, Some(9000));
    // The first query is lost. Nothing waits for the device, so no silence tells that it has no path.
    run(&mut host, &mut target, 240, |_, _| true);
    assert_eq!(states(&host, device), []);
    run(&mut host, &mut target, 20, |_, _| false);
    assert_eq!(states(&host, device), [(PORT, TARGET, PathState::Up)]);
    let id = host.read(device, 0, 1);
    run(&mut host, &mut target, 2, |_, _| false);
    assert_eq!(host.status(id), Some(Status::Ok));
}

#[test]
fn a_path_that_fails_is_left_and_comes_back_by_a_read() {
    let (mut host, device, mut target) = found_twice();
    let broken = |port: PortId, _: MacAddr| port == PORT_B;
    for at in 0..300 {
        host.write(device, at * 32, 32);
        run(&mut host, &mut target, 5, broken);
    }
    run(&mut host, &mut target, 100, broken);
    assert_eq!(host.completions.len(), 300, "everything goes over the other port");
    let down: Vec<_> = states(&host, device).iter().map(|(port, _, state)| (*port, *state)).collect();
    for (port, state) in down {
        let expected = if port == PORT { PathState::Up } else { PathState::Down };
        assert_eq!(state, expected, "{port:?}");
    }
    let events = host.take_events();
    let downs = events.iter().filter(|event| matches!(event, Event::PathDown { port: PORT_B, .. }));
    assert_eq!((downs.count(), events.len()), (2, 2), "{events:?}");
    run(&mut host, &mut target, 2500, |_, _| false);
    assert!(states(&host, device).iter().all(|(_, _, state)| *state == PathState::Up));
    let events = host.take_events();
    assert_eq!(events.len(), 2, "{events:?}");
}

#[test]
fn a_port_that_vanishes_takes_its_frames_along_to_the_other() {
    let (mut host, device, mut target) = found_twice();
    let id = host.read(device, 0, 512);
    let sent = host.sent();
    assert!(sent.iter().any(|sent| sent.port == PORT_B));
    host.port(PORT_B, None);
    let again = host.sent();
    assert!(again.iter().all(|sent| sent.port == PORT));
    answer(&mut host, &mut target, &sent, |port, _| port == PORT_B);
    answer(&mut host, &mut target, &again, |_, _| false);
    run(&mut host, &mut target, 20, |_, _| false);
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(states(&host, device).len(), 2);
    let view = host.initiator.device(device).expect("open");
    assert!(view.paths().all(|path| path.counters.loss_epochs == 0), "nobody is to blame");
    host.port(PORT_B, Some(9000));
    run(&mut host, &mut target, 20, |_, _| false);
    assert_eq!(states(&host, device).len(), 3, "the query found one of the addresses again");
}

#[test]
fn a_late_reply_says_nothing_about_a_path_that_took_the_old_ones_place() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let id = host.read(device, 0, 1);
    let late = host.sent();
    host.port(PORT, None);
    // Once the old path's end is told, its place is free.
    host.take_events();
    host.now += ms(500);
    host.port(PORT, Some(9000));
    host.receive(PORT, &target.beacon());
    // IDENTIFY is answered, so that the path is up; the read still waits to be sent again.
    let sent = host.sent();
    host.answer(&mut target, &sent[0]);
    let srtt = |host: &Host| {
        let view = host.initiator.device(device).expect("open");
        view.paths().next().expect("one path").srtt
    };
    assert_eq!(srtt(&host), ms(0));
    host.answer(&mut target, &late[0]);
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(srtt(&host), ms(0));
}

#[test]
fn a_target_that_moved_to_another_address_is_followed() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let id = host.write(device, 0, 4);
    host.sent();
    target.mac = TARGET_B;
    host.advance_with(ms(4000), &mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
    let states = states(&host, device);
    assert_eq!(states[0], (PORT, TARGET, PathState::Down));
    assert_eq!(states[1], (PORT, TARGET_B, PathState::Up));
}

#[test]
fn a_moved_target_is_found_though_all_credits_are_stuck() {
    let mut target = Target::new(2048);
    target.buffer_count = 1;
    let credits = Arc::new(Credits::new());
    let mut host = Host::new(Tunables::default());
    let device = host.initiator.open(host.now, ADDRESS, credits.clone());
    host.advance_with(ms(1), &mut target);
    let id = host.write(device, 0, 4);
    host.sent();
    assert_eq!(credits.taken(), 1);
    target.mac = TARGET_B;
    host.advance_with(ms(4000), &mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(credits.taken(), 0, "the probe of the old path has none");
}

#[test]
fn paths_are_bounded_and_useless_ones_make_room() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    for at in 0..PATHS_MAX as u8 + 3 {
        target.mac = MacAddr([2, 0, 0, 1, 0, at]);
        host.receive(PORT, &target.beacon());
        host.exchange(&mut target);
    }
    assert_eq!(states(&host, device).len(), PATHS_MAX);
    assert_eq!(host.initiator.counters().paths_dropped, 4);
    // The port goes and comes: all places are free again.
    host.port(PORT, None);
    assert_eq!(states(&host, device).len(), 0);
    host.port(PORT, Some(9000));
    host.advance_with(ms(10), &mut target);
    assert_eq!(states(&host, device).len(), 1);
    let id = host.read(device, 0, 1);
    host.exchange(&mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
}

#[test]
fn tunables_change_while_running() {
    let (mut host, device, mut target) = found_twice();
    let mut tunables = *host.initiator.tunables();
    tunables.aoe_maxout = 8;
    tunables.aoe_congestion = 1;
    tunables.aoe_window = 3;
    host.initiator.set_tunables(host.now, tunables).expect("in range");
    host.read(device, 0, 1 << 13);
    let sent = host.sent();
    assert_eq!(sent.len(), 8);
    let view = host.initiator.device(device).expect("open");
    assert_eq!(view.limit(), 8);
    assert!(view.paths().all(|path| path.cwnd == 3 && path.outstanding <= 3));
    answer(&mut host, &mut target, &sent, |_, _| false);
    let bad = Tunables { aoe_maxout: 0, ..tunables };
    assert!(host.initiator.set_tunables(host.now, bad).is_err());
    assert_eq!(*host.initiator.tunables(), tunables);
}

#[test]
fn what_is_sent_again_keeps_to_a_lowered_buffer_count_over_all_paths() {
    let (mut host, device, mut target) = found_twice();
    let id = host.read(device, 0, 1 << 10);
    let sent = host.sent();
    assert_eq!(sent.len(), 16, "four paths with a first window each");
    target.mac = TARGET;
    target.buffer_count = 2;
    let beacon = target.beacon();
    host.receive(PORT, &beacon);
    let requests = |sent: &[Sent]| {
        let reads = commands(sent).into_iter();
        reads.filter(|command| command.opcode != Opcode::IDENTIFY).count()
    };
    for _ in 0..10 {
        host.advance(ms(5));
        let view = host.initiator.device(device).expect("open");
        let under_way: u32 = view.paths().map(|path| path.outstanding).sum();
        // Those that were under way before, then two.
        assert!(under_way <= 2 || view.resending() == 0, "{under_way} under way");
    }
    assert!(requests(&host.advance(ms(1000))) > 0);
    run(&mut host, &mut target, 3000, |_, _| false);
    assert_eq!(host.status(id), Some(Status::Ok));
}

/// Frames of requests that a port sent.
fn reads_on(sent: &[Sent], port: PortId) -> usize {
    sent.iter().filter(|frame| frame.port == port && frame.ata().is_some() && !frame.is_probe()).count()
}

#[test]
fn a_path_that_answers_nothing_is_not_used_while_another_is() {
    let (mut host, device, mut target) = found_twice();
    let broken = |port: PortId, _: MacAddr| port == PORT_B;
    let mut ids: Vec<u64> = (0..60).map(|_| host.read(device, 0, 4096)).collect();
    run(&mut host, &mut target, 50, |_, _| false);
    assert!(host.initiator.device(device).expect("open").paths().all(|path| path.taint == 0 && path.cwnd > 4));
    // Up to 13 ms of frames on the port that goes silent, then a timeout, and from then on nothing but probes.
    let start = host.now;
    for _ in 0..25 {
        let sent = host.advance_all(ms(1));
        answer(&mut host, &mut target, &sent, broken);
    }
    let taints = |host: &Host| {
        let paths = host.initiator.device(device).expect("open").paths();
        paths.map(|path| (path.port, path.taint > 0)).collect::<Vec<_>>()
    };
    assert!(taints(&host).iter().all(|(port, tainted)| *tainted == (*port == PORT_B)), "{:?}", taints(&host));
    let mut late = 0;
    while host.now < start + ms(100) {
        let sent = host.advance_all(ms(1));
        late += reads_on(&sent, PORT_B);
        answer(&mut host, &mut target, &sent, broken);
    }
    assert_eq!(late, 0, "within 25 ms all goes over the other port");
    ids.extend((0..200).map(|at| host.read(device, at * 32, 32)));
    run(&mut host, &mut target, 1000, broken);
    assert!(ids.iter().all(|id| host.status(*id) == Some(Status::Ok)));
    assert!(host.take_events().iter().all(|event| matches!(event, Event::PathDown { port: PORT_B, .. })));
    // It works again: the next probe shows it.
    run(&mut host, &mut target, 900, |_, _| false);
    assert!(host.initiator.device(device).expect("open").paths().all(|path| path.taint == 0));
    assert!(states(&host, device).iter().all(|(_, _, state)| *state == PathState::Up));
    host.read(device, 0, 1 << 14);
    let mut used = 0;
    for _ in 0..50 {
        let sent = host.advance_all(ms(1));
        used += reads_on(&sent, PORT_B);
        answer(&mut host, &mut target, &sent, |_, _| false);
    }
    assert!(used > 20, "{used} frames over the path that is back");
}

#[test]
fn a_link_that_comes_back_is_asked_over_again_though_the_device_is_in_use() {
    let (mut host, device, mut target) = found_twice();
    host.port(PORT_B, None);
    run(&mut host, &mut target, 100, |_, _| false);
    assert_eq!(states(&host, device).len(), 2);
    host.port(PORT_B, Some(9000));
    // The switch does not forward for a while: the first queries are lost.
    run(&mut host, &mut target, 700, |port, _| port == PORT_B);
    run(&mut host, &mut target, 100, |_, _| false);
    assert_eq!(states(&host, device).len(), 3);
    // Later the intervals are those of a device that answers.
    let sent = host.advance_all(ms(300_000));
    let queries = sent.iter().filter(|frame| frame.port == PORT_B && frame.ata().is_none()).count();
    assert!(queries <= 12, "{queries} queries in five minutes");
}

#[test]
fn one_clock_runs_over_all_paths() {
    let mut target = Target::new(2048);
    let tunables = Tunables { aoe_deadsecs: 4, ..Tunables::default() };
    let (mut host, device) = found_with(&mut target, tunables);
    let start = host.now;
    let id = host.write(device, 0, 4);
    host.advance_all(ms(900));
    // A new path, then another, each after most of the time: the request does not begin anew.
    for (port, mac) in [(PORT, TARGET_B), (PORT_B, TARGET)] {
        host.port(PORT_B, Some(9000));
        target.mac = mac;
        let frame = target.beacon();
        host.receive(port, &frame);
        host.advance_all(ms(900));
    }
    host.advance_all(ms(3900) - (host.now - start));
    assert_eq!(host.status(id), None);
    host.advance_all(ms(200));
    assert_eq!(host.status(id), Some(Status::DeviceGone));
}

#[test]
fn paths_are_forgotten_when_told_and_found_again() {
    let (mut host, device, mut target) = found_twice();
    let broken = |port: PortId, _: MacAddr| port == PORT_B;
    for at in 0..50 {
        host.write(device, at * 32, 32);
        run(&mut host, &mut target, 5, broken);
    }
    run(&mut host, &mut target, 200, broken);
    assert_eq!(states(&host, device).len(), 4);
    host.initiator.flush_paths(host.now, device, false);
    let left = states(&host, device);
    assert!(
        left.iter().all(|(port, _, state)| (*port, *state) == (PORT, PathState::Up)) && left.len() == 2,
        "{left:?}"
    );
    let id = host.write(device, 0, 512);
    host.sent();
    host.initiator.flush_paths(host.now, device, true);
    assert_eq!(states(&host, device), []);
    run(&mut host, &mut target, 1500, |_, _| false);
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(states(&host, device).len(), 2, "one address answers, on both ports");
}

#[test]
fn a_device_is_asked_for_its_size_when_told() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.take_events();
    target.identify.sectors = 1024;
    host.initiator.revalidate(host.now, device);
    host.exchange(&mut target);
    assert_eq!(host.take_events(), [Event::SizeChanged { device, sectors: 1024 }]);
    assert_eq!(host.try_submit(device, Op::Read, 1024, 1), Err(SubmitError::OutOfRange));
    host.initiator.revalidate(host.now, device);
    host.exchange(&mut target);
    assert_eq!(host.take_events(), []);
}
