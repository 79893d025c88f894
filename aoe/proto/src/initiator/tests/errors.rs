//! What replies and errors do to requests, and frames that are not what they seem.

use proptest::prelude::*;

use super::harness::*;
use crate::initiator::*;
use crate::wire::{AoeError, AtaError, AtaString, SECTOR};

/// A request whose first frame meets a fault, and what becomes of it.
fn after(op: Op, fault: Fault) -> (Host, Target, DeviceId, Option<Status>) {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    target.fault(fault);
    let id = host.submit(device, op, 8, 2);
    host.exchange(&mut target);
    let status = host.status(id);
    (host, target, device, status)
}

#[test]
fn errors_end_requests_by_this_table() {
    let write = Op::Write { fua: false };
    let none = AtaError(0);
    let both = AtaError(AtaError::UNC.0 | AtaError::ABRT.0);
    for (op, fault, status) in [
        (Op::Read, Fault::Ata(0x41, AtaError::UNC), Status::Medium),
        (write, Fault::Ata(0x41, AtaError::UNC), Status::Medium),
        (Op::Read, Fault::Ata(0x21, both), Status::Medium),
        (Op::Read, Fault::Ata(0x41, AtaError::IDNF), Status::OutOfRange),
        (write, Fault::Ata(0x41, AtaError::ABRT), Status::Aborted),
        (write, Fault::Ata(0x51, none), Status::Aborted),
        (Op::Read, Fault::Ata(0x60, none), Status::Fault),
        (Op::Read, Fault::Ata(0x61, none), Status::Fault),
        (Op::Read, Fault::Ata(0x80, none), Status::Fault),
        (write, Fault::Ata(0x48, none), Status::Fault),
        (Op::Flush, Fault::Ata(0x60, none), Status::Fault),
        (Op::Read, Fault::Aoe(AoeError::COMMAND), Status::Refused(AoeError::COMMAND)),
        (write, Fault::Aoe(AoeError::ARGUMENT), Status::Refused(AoeError::ARGUMENT)),
        (Op::Read, Fault::Aoe(AoeError::VERSION), Status::Refused(AoeError::VERSION)),
        (Op::Read, Fault::Aoe(AoeError(99)), Status::Refused(AoeError(99))),
        (Op::Read, Fault::Aoe(AoeError::RESERVED), Status::Fenced),
        (write, Fault::Aoe(AoeError::RESERVED), Status::Fenced),
        (write, Fault::Ata(0x00, none), Status::Ok),
        (Op::Flush, Fault::Ata(0x00, none), Status::Ok),
    ] {
        let (mut host, _, device, got) = after(op, fault);
        assert_eq!(got, Some(status), "{op:?} {fault:?}");
        let events = host.take_events();
        let fenced = status == Status::Fenced;
        assert_eq!(events.contains(&Event::Fenced { device }), fenced, "{events:?}");
        assert_eq!(events.len(), usize::from(fenced));
    }
}

#[test]
fn a_flush_that_is_not_one_makes_the_device_volatile() {
    let ignored = VolatileReason::FlushIgnored;
    let aborted = VolatileReason::FlushAborted;
    for (fault, reason) in [(Fault::Ata(0xEA, AtaError(0)), ignored), (Fault::Ata(0x41, AtaError::ABRT), aborted)] {
        let (mut host, _, device, status) = after(Op::Flush, fault);
        assert_eq!(status, Some(Status::Volatile));
        let durability = Durability::Volatile(reason);
        let told = Event::DurabilityChanged { device, durability };
        assert_eq!(host.take_events(), [told]);
        assert_eq!(host.initiator.device(device).expect("open").durability(), durability);
    }
}

#[test]
fn a_flush_that_fails_where_one_worked_is_a_failure() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.submit(device, Op::Flush, 0, 0);
    host.exchange(&mut target);
    target.fault(Fault::Ata(0x41, AtaError::ABRT));
    let flush = host.submit(device, Op::Flush, 0, 0);
    host.exchange(&mut target);
    assert_eq!(host.status(flush), Some(Status::Aborted));
    // Our shelf aborts a flush only when it fails.
    let mut target = Target::ours(2048);
    let (mut host, device) = found(&mut target);
    target.fault(Fault::Ata(0x41, AtaError::ABRT));
    let flush = host.submit(device, Op::Flush, 0, 0);
    host.exchange(&mut target);
    assert_eq!(host.status(flush), Some(Status::Aborted));
    assert_eq!(host.take_events(), []);
}

#[test]
fn one_failed_frame_ends_the_request_and_the_others_become_ghosts() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let id = host.read(device, 0, 160);
    let sent = host.sent();
    assert_eq!(sent.len(), 4, "the first window");
    target.fault(Fault::Ata(0x41, AtaError::UNC));
    host.answer(&mut target, &sent[2]);
    assert_eq!(host.completions, [(id, Status::Medium)]);
    assert!(host.sent().is_empty(), "no more of it is sent");
    let outstanding = |host: &Host| host.initiator.device(device).expect("open").outstanding();
    assert_eq!(outstanding(&host), 3);
    host.answer(&mut target, &sent[0]);
    assert_eq!((outstanding(&host), host.initiator.counters().late), (2, 1));
    assert_eq!(host.advance(ms(100)), []);
    assert_eq!(outstanding(&host), 0);
    assert_eq!(host.completions.len(), 1);
}

#[test]
fn truncated_data_count_as_lost() {
    let mut target = Target::new(2048);
    target.disk.fill(9);
    let (mut host, device) = found(&mut target);
    for short in [1, SECTOR, 2 * SECTOR] {
        target.fault(Fault::Short(short));
        let id = host.read(device, 8, 2);
        host.exchange(&mut target);
        assert_eq!(host.status(id), None);
        host.advance_with(ms(50), &mut target);
        assert_eq!(host.status(id), Some(Status::Ok));
        assert_eq!(host.buffers[&id], [9; 2 * SECTOR]);
    }
    assert_eq!(host.initiator.counters().truncated, 3);
}

#[test]
fn replies_that_do_not_match_are_counted_and_ignored() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let id = host.read(device, 8, 2);
    let sent = host.sent();
    let good = target.answer(&sent[0].bytes).expect("answered");
    let change = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame
    };
    let before = *host.initiator.counters();
    // Another slot, another command, another tag, a request, another version, another protocol.
    for frame in [
        change(18, 3),
        change(19, 3),
        change(23, good[23] ^ 1),
        change(20, good[20] & 0x7F),
        change(14, 0x10),
        change(14, 0x28),
        change(12, 0x08),
        good[..23].to_vec(),
        good[..35].to_vec(),
        Vec::new(),
    ] {
        host.receive(PORT, &frame);
        assert_eq!(host.status(id), None);
    }
    let counters = host.initiator.counters();
    assert_eq!(counters.foreign - before.foreign, 2);
    assert_eq!(counters.stray - before.stray, 2);
    assert_eq!(counters.malformed - before.malformed, 6);
    // Version 0, another source and another port are all the same.
    let mut liberal = change(14, 0x08);
    liberal[6..12].copy_from_slice(&TARGET_B.0);
    host.port(PORT_B, Some(1500));
    host.receive(PORT_B, &liberal);
    assert_eq!(host.status(id), Some(Status::Ok));
    host.receive(PORT, &good);
    assert_eq!(host.initiator.counters().stray - before.stray, 3, "a second reply");
}

#[test]
fn unavailable_pauses_the_only_path() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    for _ in 0..3 {
        target.fault(Fault::Aoe(AoeError::UNAVAILABLE));
    }
    let id = host.read(device, 8, 2);
    let start = host.now;
    let sent = host.advance_with(ms(1000), &mut target);
    let times: Vec<_> = sent.iter().map(|sent| sent.at - start).collect();
    assert_eq!(times, [ms(0), ms(50), ms(150), ms(350)]);
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(host.take_events(), []);
}

#[test]
fn unavailable_moves_on_to_another_path() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    target.mac = TARGET_B;
    host.receive(PORT, &target.beacon());
    host.exchange(&mut target);
    host.take_events();
    target.mac = TARGET;
    let mut second = Target::new(2048);
    second.mac = TARGET_B;
    let id = host.read(device, 8, 2);
    let sent = host.sent();
    let first = sent[0].frame().header.dst;
    let (bad, good) = match first == TARGET {
        true => (&mut target, &mut second),
        false => (&mut second, &mut target),
    };
    bad.fault(Fault::Aoe(AoeError::UNAVAILABLE));
    host.answer(bad, &sent[0]);
    let sent = host.exchange(good);
    assert_eq!(host.status(id), Some(Status::Ok));
    let port = PORT;
    let mac = first;
    assert_eq!(host.take_events(), [Event::PathDown { device, port, mac }]);
    // A read probes the bad one after a while, and brings it back.
    assert!(sent.iter().all(|sent| sent.frame().header.dst != first || sent.ata().is_some()));
    let (bad, _) = match first == TARGET {
        true => (&mut target, &mut second),
        false => (&mut second, &mut target),
    };
    host.advance_with(ms(3000), bad);
    assert_eq!(host.take_events(), [Event::PathUp { device, port, mac }]);
}

#[test]
fn identity_needs_more_than_a_beacon() {
    let mut target = Target::new(2048);
    let mut host = Host::new(Tunables::default());
    let device = host.open();
    host.receive(PORT, &target.beacon());
    assert_eq!(host.try_submit(device, Op::Read, 0, 1), Err(SubmitError::NotFound));
    host.exchange(&mut target);
    let events = host.take_events();
    assert!(matches!(events[..], [Event::Found(_), Event::PathUp { .. }]), "{events:?}");
    assert_eq!(target.identify.serial, AtaString::new("one"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Hostile bytes, with and without a tag that is outstanding, never panic and never complete a read wrongly.
    #[test]
    fn hostile_frames_do_no_harm(
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..80), any::<bool>()), 1..40),
        cut in 0usize..600,
    ) {
        let mut target = Target::new(2048);
        target.disk.fill(3);
        let (mut host, device) = found(&mut target);
        let id = host.read(device, 8, 1);
        let sent = host.sent();
        let good = target.answer(&sent[0].bytes).expect("answered");
        for (bytes, tagged) in frames {
            let mut frame = bytes;
            if tagged {
                let head = good[..24].to_vec();
                let len = frame.len().min(24);
                frame.splice(..len, head);
                // Not a success: fewer data than a sector.
                frame.truncate(36 + SECTOR - 1);
                if frame.len() > 27 {
                    frame[27] &= 0x56;
                }
            }
            host.receive(PORT, &frame);
        }
        let cut = cut.min(good.len() - 1);
        host.receive(PORT, &good[..cut]);
        prop_assert_eq!(host.status(id), None);
        host.receive(PORT, &good);
        prop_assert_eq!(host.status(id), Some(Status::Ok));
        prop_assert_eq!(&host.buffers[&id], &vec![3; SECTOR]);
    }
}

#[test]
fn a_reservation_that_was_lost_is_told_when_asked() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.initiator.ask(host.now, device);
    assert_eq!(host.exchange(&mut target).len(), 1);
    assert_eq!(host.take_events(), []);
    target.fault(Fault::Aoe(AoeError::RESERVED));
    host.initiator.ask(host.now, device);
    host.exchange(&mut target);
    assert_eq!(host.take_events(), [Event::Fenced { device }]);
    let path = host.initiator.device(device).expect("open").paths().next().expect("one path");
    assert_eq!((path.state, path.payload), (PathState::Up, 17));
}
