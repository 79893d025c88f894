//! Finding devices: queries, beacons, identity, restarts.

use super::harness::*;
use crate::initiator::*;
use crate::wire::{AtaError, AtaString, Body, CCmd, Command, ConfigInfo, Header, Identify, MIN_FRAME, MacAddr};

fn queries(sent: &[Sent]) -> Vec<(PortId, MacAddr, Address)> {
    let query = |sent: &Sent| match sent.frame() {
        crate::wire::Frame { header, body: Body::Config(info) } => {
            assert_eq!((info.ccmd, info.string), (CCmd::READ, &b""[..]));
            assert_eq!(sent.bytes.len(), MIN_FRAME);
            Some((sent.port, header.dst, header.address))
        }
        _ => None,
    };
    sent.iter().filter_map(query).collect()
}

#[test]
fn an_open_device_is_looked_for_and_found() {
    let mut target = Target::new(2048);
    let mut host = Host::new(Tunables::default());
    host.port(PORT_B, Some(1500));
    let device = host.open();
    assert_eq!(host.initiator.poll_timeout(), Some(host.now));
    host.initiator.handle_timeout(host.now);
    let sent = host.sent();
    let expected = [PORT, PORT_B].map(|port| (port, MacAddr::BROADCAST, ADDRESS));
    assert_eq!(queries(&sent), expected);
    host.now += ms(3);
    host.answer(&mut target, &sent[0]);
    host.exchange(&mut target);
    let events = host.take_events();
    let found =
        Found { device, identify: target.identify, buffer_count: 16, sectors_max: 17, durability: Durability::Durable };
    let up = Event::PathUp { device, port: PORT, mac: TARGET };
    assert_eq!(events, [Event::Found(found), up]);
    let view = host.initiator.device(device).expect("open");
    assert_eq!(view.limit(), 16);
    // 3 ms for the query, which seeds the estimate; then nothing for IDENTIFY and the probe.
    let path = view.paths().next().expect("one path");
    assert_eq!(path.srtt, Duration::from_micros(2296));
}

#[test]
fn a_device_that_is_not_there_is_queried_with_back_off() {
    let mut host = Host::new(Tunables::default());
    host.open();
    let sent = host.advance(ms(30_000));
    let times: Vec<u64> = sent.iter().map(|sent| sent.at.as_millis() as u64 - 1000).collect();
    assert_eq!(times, [0, 1000, 3000, 7000, 15_000, 23_000]);
    // A port that appears is queried at once.
    host.port(PORT_B, Some(1500));
    let sent = host.advance(ms(0));
    assert_eq!(queries(&sent).len(), 2);
}

#[test]
fn discovery_tells_what_is_not_open() {
    let mut target = Target::new(2048);
    target.address = Address::new(9, 9);
    let mut host = Host::with_config(Config { discovers: true, ..Config::new(WorkerId(0), 1) });
    host.initiator.discover(host.now);
    let sent = host.exchange(&mut target);
    assert_eq!(queries(&sent), [(PORT, MacAddr::BROADCAST, Address::ALL)]);
    let seen = Seen {
        address: target.address,
        port: PORT,
        mac: TARGET,
        buffer_count: 16,
        firmware: 0x4019,
        sectors_max: 17,
        config_len: 0,
        beacon: false,
    };
    assert_eq!(host.take_events(), [Event::Seen(seen)]);
    host.receive(PORT, &target.beacon());
    assert_eq!(host.take_events(), [Event::Seen(Seen { beacon: true, ..seen })]);
    for _ in 0..SEEN_MAX + 5 {
        let frame = target.beacon();
        assert!(host.initiator.handle_frame(host.now, PORT, &frame).is_none());
    }
    assert_eq!(host.take_events().len(), SEEN_MAX);
    assert_eq!(host.initiator.counters().seen_dropped, 5);
    // Others do not discover.
    let mut other = Host::new(Tunables::default());
    other.initiator.discover(other.now);
    other.receive(PORT, &target.beacon());
    assert!(other.sent().is_empty() && other.take_events().is_empty());
}

#[test]
fn config_replies_that_are_not_for_us_change_nothing() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    target.buffer_count = 3;
    let header = |tag: u32| Header::request(TARGET, host_mac(PORT), ADDRESS, Command::CONFIG, Tag(tag));
    // The kernel driver's tags have bit 31 clear; another worker's are another worker's.
    for tag in [1, 0x7FFF_FFFF, 0x8000_0001, 0x8300_0001] {
        let reply = target.config(&header(tag));
        host.receive(PORT, &reply);
    }
    assert_eq!(host.initiator.counters().stray, 4);
    // Ours, but damaged: a wildcard address, a string longer than the frame, a group's address as source, a reply to
    // another question, too short.
    let ours = 5 << 23 | 1 << 31 | 7;
    let good = target.config(&header(ours));
    let mut wild = good.clone();
    wild[16..19].fill(0xFF);
    let mut long = good.clone();
    long[30] = 3;
    let mut group = good.clone();
    group[6] = 1;
    let mut test = good.clone();
    ConfigInfo::reply(3, 0, 2, CCmd::TEST, b"").emit(&header(ours).reply(TARGET, ADDRESS, None), &mut test);
    let mut error = good.clone();
    error[14] |= 0x04;
    for bad in [&wild, &long, &group, &test, &error, &good[..30].to_vec()] {
        host.receive(PORT, bad);
    }
    assert_eq!(host.initiator.counters().malformed, 6);
    host.receive(PortId(9), &good);
    assert_eq!(host.initiator.counters().malformed, 7, "no such port");
    let view = host.initiator.device(device).expect("open");
    assert_eq!((view.limit(), view.paths().count()), (16, 1));
    host.receive(PORT, &good);
    assert_eq!(host.initiator.device(device).expect("open").limit(), 3);
}

#[test]
fn a_device_that_answers_is_asked_again_each_minute() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    target.buffer_count = 5;
    let sent = host.advance_with(ms(59_000), &mut target);
    assert!(sent.is_empty());
    let sent = host.advance_with(ms(1000), &mut target);
    assert_eq!(queries(&sent).len(), 1);
    assert_eq!(host.initiator.device(device).expect("open").limit(), 5);
}

#[test]
fn a_beacon_of_a_device_in_use_means_restart() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.receive(PORT, &target.beacon());
    let sent = host.exchange(&mut target);
    assert_eq!(commands(&sent).len(), 1, "IDENTIFY: it may be another disk now");
    assert_eq!(host.take_events(), [Event::Restarted { device, boot: None }]);
    // A copy of the beacon tells nothing new.
    host.now += ms(10);
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    assert_eq!(host.take_events(), []);
    host.now += ms(1000);
    host.receive(PORT, &target.beacon());
    assert_eq!(host.take_events(), [Event::Restarted { device, boot: None }]);
}

#[test]
fn a_device_that_was_found_by_its_beacon_was_not_restarted() {
    let mut target = Target::new(2048);
    let mut host = Host::new(Tunables::default());
    let device = host.open();
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    assert!(matches!(host.take_events()[..], [Event::Found(_), Event::PathUp { .. }]));
    // A copy of the beacon, and later proof that it is still there.
    host.now += ms(300);
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    assert_eq!(host.take_events(), []);
    host.now += ms(1000);
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    assert_eq!(host.take_events(), [Event::Restarted { device, boot: None }]);
}

#[test]
fn our_shelf_tells_a_restart_by_its_boot_number() {
    let mut target = Target::ours(2048);
    let (mut host, device) = found(&mut target);
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    assert_eq!(host.take_events(), [], "a beacon alone says nothing");
    let flush = host.submit(device, Op::Flush, 0, 0);
    host.exchange(&mut target);
    assert_eq!(host.status(flush), Some(Status::Ok));
    // Restarted without a beacon being heard: the flush is not good.
    target.identify.boot = 78;
    let flush = host.submit(device, Op::Flush, 0, 0);
    host.exchange(&mut target);
    assert_eq!(host.status(flush), Some(Status::Restarted));
    assert_eq!(host.take_events(), [Event::Restarted { device, boot: Some(78) }]);
    let flush = host.submit(device, Op::Flush, 0, 0);
    host.exchange(&mut target);
    assert_eq!(host.status(flush), Some(Status::Ok));
    // And with one.
    target.identify.boot = 79;
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    assert_eq!(host.take_events(), [Event::Restarted { device, boot: Some(79) }]);
}

#[test]
fn replies_of_our_shelf_say_which_start_they_come_from() {
    let mut target = Target::ours(2048);
    let (mut host, device) = found(&mut target);
    let write = host.submit(device, Op::Write { fua: false }, 8, 8);
    host.exchange(&mut target);
    assert_eq!((host.status(write), host.boot(write)), (Some(Status::Ok), Some(77)));
    // Restarted and told by nobody: what was not flushed may be gone, so the next read may be of older data.
    target.identify.boot = 78;
    let read = host.submit(device, Op::Read, 8, 8);
    host.exchange(&mut target);
    assert_eq!((host.status(read), host.boot(read)), (Some(Status::Ok), Some(78)));
    assert_eq!(host.take_events(), [Event::Restarted { device, boot: Some(78) }]);
    // A failure says it, too.
    target.identify.boot = 79;
    target.fault(Fault::Ata(0x41, AtaError::UNC));
    let read = host.submit(device, Op::Read, 8, 8);
    host.exchange(&mut target);
    assert_eq!((host.status(read), host.boot(read)), (Some(Status::Medium), Some(79)));
}

#[test]
fn a_request_that_two_starts_carried_out_was_not_carried_out() {
    for op in [Op::Read, Op::Write { fua: false }] {
        let mut target = Target::ours(2048);
        let (mut host, device) = found(&mut target);
        let request = host.submit(device, op, 0, 32);
        let frames = host.sent();
        let replies: Vec<_> = [(77, &frames[0]), (78, &frames[1])]
            .map(|(boot, frame)| {
                target.identify.boot = boot;
                target.answer(&frame.bytes).expect("a reply")
            })
            .into();
        for reply in &replies {
            host.receive(PORT, reply);
        }
        assert_eq!((host.status(request), host.boot(request)), (Some(Status::Restarted), Some(78)), "{op:?}");
        assert_eq!(host.take_events(), [Event::Restarted { device, boot: Some(78) }]);
        // Again, with the earlier start's reply arriving last: that is no second restart.
        let request = host.submit(device, Op::Read, 0, 32);
        let frames = host.sent();
        for (boot, frame) in [(78, &frames[0]), (77, &frames[1])] {
            target.identify.boot = boot;
            let reply = target.answer(&frame.bytes).expect("a reply");
            host.receive(PORT, &reply);
        }
        assert_eq!((host.status(request), host.boot(request)), (Some(Status::Restarted), Some(78)));
        assert_eq!(host.take_events(), []);
    }
}

#[test]
fn addresses_in_replies_of_other_targets_are_not_boot_numbers() {
    for ours in [false, true] {
        // A shelf of ours from before it told.
        let mut target = if ours { Target::ours(2048) } else { Target::new(2048) };
        target.identify.boot_flag = false;
        let (mut host, device) = found(&mut target);
        for lba in [0, 8, 16] {
            let read = host.submit(device, Op::Read, lba, 8);
            host.exchange(&mut target);
            assert_eq!((host.status(read), host.boot(read)), (Some(Status::Ok), None));
        }
        assert_eq!(host.take_events(), []);
    }
}

#[test]
fn a_restart_at_a_new_address_is_a_restart() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    target.mac = TARGET_B;
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    let up = Event::PathUp { device, port: PORT, mac: TARGET_B };
    assert_eq!(host.take_events(), [Event::Restarted { device, boot: None }, up]);
}

#[test]
fn a_changed_capacity_is_told_and_taken() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    target.identify.sectors = 4096;
    target.disk.resize(4096 * 512, 0);
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    let sectors = 4096;
    let expected = [Event::Restarted { device, boot: None }, Event::SizeChanged { device, sectors }];
    assert_eq!(host.take_events(), expected);
    host.read(device, 4095, 1);
}

#[test]
fn another_device_at_the_same_address_is_refused() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let mut rogue = Target::new(2048);
    rogue.mac = TARGET_B;
    rogue.identify.serial = AtaString::new("two");
    rogue.buffer_count = 1;
    host.receive(PORT, &rogue.beacon());
    host.exchange(&mut rogue);
    let mac = TARGET_B;
    let port = PORT;
    assert_eq!(host.take_events(), [Event::Conflict { device, port, mac }]);
    host.receive(PORT, &rogue.beacon());
    assert!(host.exchange(&mut rogue).is_empty(), "not looked at again so soon");
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    let id = host.read(device, 0, 256);
    let sent = host.exchange(&mut target);
    assert!(sent.iter().all(|sent| sent.frame().header.dst == TARGET));
    assert_eq!(host.status(id), Some(Status::Ok));
    let states: Vec<_> = host.initiator.device(device).expect("open").paths().map(|path| path.state).collect();
    assert!(matches!(states[..], [PathState::Up, PathState::Refused { .. }]), "{states:?}");
}

#[test]
fn sectors_of_another_size_can_not_be_used() {
    let mut target = Target::new(2048);
    target.identify.logical_sector = 4096;
    let mut host = Host::new(Tunables::default());
    let device = host.open();
    host.advance_with(ms(10), &mut target);
    let logical_sector = 4096;
    assert_eq!(host.take_events(), [Event::Unusable { device, logical_sector }]);
    assert_eq!(host.try_submit(device, Op::Read, 0, 1), Err(SubmitError::NotFound));
    // Formatted anew.
    target.identify.logical_sector = 512;
    host.advance_with(ms(10_000), &mut target);
    assert!(matches!(host.take_events()[0], Event::Found(_)));
}

#[test]
fn damaged_identify_data_are_asked_for_again() {
    let mut target = Target::new(2048);
    let mut host = Host::new(Tunables::default());
    host.open();
    target.fault(Fault::Ata(0x41, crate::wire::AtaError::ABRT));
    host.advance_with(ms(10), &mut target);
    assert_eq!(host.take_events(), []);
    host.advance_with(ms(1000), &mut target);
    assert!(matches!(host.take_events()[0], Event::Found(_)));
}

#[test]
fn identify_is_not_repeated_for_ever_without_a_config_reply() {
    let mut target = Target::new(2048);
    let mut host = Host::new(Tunables::default());
    let device = host.open();
    for _ in 0..100 {
        target.fault(Fault::Lost);
    }
    host.initiator.handle_timeout(host.now);
    let query = host.sent();
    host.answer(&mut target, &query[0]);
    let sent = host.advance(ms(60_000));
    let copies = commands(&sent);
    assert_eq!(copies.len(), 8);
    assert_eq!(host.initiator.device(device).expect("open").paths().count(), 0);
    // The path comes back with the next config reply.
    target.faults.clear();
    host.advance_with(ms(10_000), &mut target);
    assert!(matches!(host.take_events()[0], Event::Found(_)));
}

#[test]
fn opening_twice_is_the_same_device_and_closing_ends_it() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    assert_eq!(host.open(), device);
    host.initiator.close(host.now, device);
    assert!(host.initiator.device(device).is_none());
    assert_eq!(host.take_events(), [], "a closed device tells nothing");
    let again = host.open();
    assert_ne!(again, device);
    host.initiator.close(host.now, device);
    assert!(host.initiator.device(again).is_some(), "an old name closes nothing");
    host.advance_with(ms(1), &mut target);
    assert!(matches!(host.take_events()[0], Event::Found(_)));
}

#[test]
fn known_liars_are_volatile() {
    let mut target = Target::new(2048);
    target.identify.model = AtaString::new("Coraid EtherDrive vblade");
    let mut host = Host::new(Tunables::default());
    host.open();
    host.advance_with(ms(1), &mut target);
    let Event::Found(found) = host.take_events()[0] else {
        panic!("not found");
    };
    assert_eq!(found.durability, Durability::Volatile(VolatileReason::KnownLiar));
    let none = Identify { flush: false, flush_ext: false, ..Target::new(1).identify };
    let mut target = Target::new(2048);
    target.identify = Identify { sectors: 2048, ..none };
    let (mut host, device) = super::harness::found(&mut target);
    let flush = host.submit(device, Op::Flush, 0, 0);
    assert!(host.sent().is_empty(), "not sent to a device that has no flush");
    assert_eq!(host.status(flush), Some(Status::Volatile));
}
