//! Closed ranges: writes that wait, for one in flight and for late copies of older ones.

use super::harness::*;
use crate::initiator::*;
use crate::wire::SECTOR;

/// A write that was lost once and then answered; the copies left at `now` and 10 ms later.
fn resent_write(host: &mut Host, device: DeviceId, target: &mut Target, lba: u64) -> u64 {
    let id = host.write(device, lba, 4);
    host.sent();
    let again = host.advance(ms(10));
    assert_eq!(again.len(), 1);
    host.answer(target, &again[0]);
    assert_eq!(host.status(id), Some(Status::Ok));
    id
}

#[test]
fn overlapping_writes_go_one_after_the_other() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let first = host.write(device, 10, 4);
    let second = host.write(device, 12, 4);
    let third = host.write(device, 14, 2);
    let apart = host.write(device, 20, 1);
    let sent = host.sent();
    let lbas = |sent: &[Sent]| -> Vec<u64> { commands(sent).iter().map(|command| command.lba().0).collect() };
    assert_eq!(lbas(&sent), [10, 20]);
    assert_eq!(host.initiator.device(device).expect("open").held(), 2);
    host.answer(&mut target, &sent[0]);
    let sent = host.sent();
    assert_eq!(lbas(&sent), [12], "the third does not overtake the second");
    host.answer(&mut target, &sent[0]);
    let sent = host.sent();
    assert_eq!(lbas(&sent), [14]);
    host.answer(&mut target, &sent[0]);
    let sectors = [10, 11, 12, 13, 14, 15].map(|lba| target.disk[lba * SECTOR]);
    let fill = |id: u64| id as u8 + 1;
    let (a, b, c) = (fill(first), fill(second), fill(third));
    assert_eq!(sectors, [a, a, b, b, c, c]);
    assert_eq!(host.status(apart), None, "not answered yet");
    assert_eq!(host.initiator.counters().writes_held, 2);
}

#[test]
fn reads_are_never_held() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    resent_write(&mut host, device, &mut target, 10);
    host.read(device, 10, 4);
    assert_eq!(host.sent().len(), 1);
}

#[test]
fn a_resent_write_closes_its_sectors_for_a_lifetime_of_the_last_copy() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    resent_write(&mut host, device, &mut target, 10);
    let open_at = host.now + ms(1000);
    let closed = |host: &Host, lba| host.initiator.closed_until(host.now, ADDRESS, Lba(lba), 1);
    assert_eq!(closed(&host, 9), None);
    assert_eq!(closed(&host, 10), Some(open_at));
    assert_eq!(closed(&host, 13), Some(open_at));
    assert_eq!(closed(&host, 14), None);
    let beside = host.write(device, 14, 1);
    let on_it = host.write(device, 13, 2);
    let sent = host.exchange(&mut target);
    assert_eq!(sent.len(), 1);
    assert_eq!(host.status(beside), Some(Status::Ok));
    let sent = host.advance_with(ms(999), &mut target);
    assert_eq!(commands(&sent), [], "closed until the last moment");
    let sent = host.advance_with(ms(1), &mut target);
    assert_eq!(commands(&sent).len(), 1);
    assert_eq!(host.status(on_it), Some(Status::Ok));
}

#[test]
fn a_write_sent_once_and_answered_closes_nothing() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.write(device, 10, 4);
    host.exchange(&mut target);
    assert_eq!(host.initiator.closed_until(host.now, ADDRESS, Lba(0), 2048), None);
}

#[test]
fn writes_that_end_without_a_reply_close_their_sectors() {
    for ours in [false, true] {
        let mut target = if ours { Target::ours(2048) } else { Target::new(2048) };
        let tunables = Tunables { aoe_deadsecs: 3, ..Tunables::default() };
        let (mut host, device) = found_with(&mut target, tunables);
        let closed = |host: &Host, lba| host.initiator.closed_until(host.now, ADDRESS, Lba(lba), 1);
        let cancelled = host.write(device, 10, 1);
        host.cancel(cancelled);
        assert_eq!(closed(&host, 10), None, "never sent");
        let cancelled = host.write(device, 10, 1);
        host.sent();
        let sent_at = host.now;
        host.now += ms(2);
        host.cancel(cancelled);
        host.sent();
        assert_eq!(host.completions, [(0, Status::Cancelled), (1, Status::Cancelled)]);
        assert_eq!(closed(&host, 10), Some(sent_at + ms(1000)));
        // Given up: closed from its last copy on, whatever the target is.
        let given_up = host.write(device, 20, 1);
        let sent = host.advance(ms(3000));
        assert_eq!(host.status(given_up), Some(Status::DeviceGone));
        let copies = sent.iter().filter(|frame| frame.ata().is_some_and(|ata| ata.lba().0 == 20));
        let last = copies.map(|frame| frame.at).max().expect("sent");
        assert_eq!(closed(&host, 20), Some(last + ms(1000)));
        // Closed ranges outlive the device.
        host.initiator.close(host.now, device);
        let again = host.open();
        assert_eq!(closed(&host, 20), Some(last + ms(1000)));
        target.up = true;
        host.initiator.handle_timeout(host.now);
        host.exchange(&mut target);
        host.write(again, 20, 1);
        let sent = host.sent();
        let open = last + ms(1000) <= host.now;
        assert_eq!(commands(&sent).len(), usize::from(open));
    }
}

#[test]
fn a_write_that_failed_closes_its_sectors() {
    for (ours, closed) in [(false, true), (true, false)] {
        let mut target = if ours { Target::ours(2048) } else { Target::new(2048) };
        let (mut host, device) = found(&mut target);
        target.fault(Fault::Ata(0x41, crate::wire::AtaError::ABRT));
        let id = host.write(device, 10, 4);
        host.exchange(&mut target);
        assert_eq!(host.status(id), Some(Status::Aborted));
        let until = host.initiator.closed_until(host.now, ADDRESS, Lba(10), 4);
        assert_eq!(until.is_some(), closed, "ours: {ours}");
    }
}

#[test]
fn a_shelf_that_recognises_repetitions_is_exempt() {
    let mut target = Target::ours(2048);
    let (mut host, device) = found(&mut target);
    resent_write(&mut host, device, &mut target, 10);
    assert_eq!(host.initiator.closed_until(host.now, ADDRESS, Lba(10), 4), None);
    let next = host.write(device, 10, 4);
    host.exchange(&mut target);
    assert_eq!(host.status(next), Some(Status::Ok));
}

#[test]
fn copies_over_different_paths_are_not_exempt() {
    let mut target = Target::ours(2048);
    let (mut host, device) = found(&mut target);
    host.port(PORT_B, Some(9000));
    host.receive(PORT_B, &target.beacon());
    // The queries on the new port, too.
    host.advance_with(ms(1), &mut target);
    let id = host.write(device, 10, 4);
    let first = host.sent();
    let again = host.advance(ms(10));
    assert_eq!((first.len(), again.len()), (1, 1));
    assert_ne!(first[0].port, again[0].port, "the other path is tried");
    assert_eq!(first[0].bytes[12..], again[0].bytes[12..], "the same bytes behind the addresses");
    host.answer(&mut target, &again[0]);
    assert_eq!(host.status(id), Some(Status::Ok));
    let until = host.initiator.closed_until(host.now, ADDRESS, Lba(10), 4);
    assert_eq!(until, Some(host.now + ms(1000)));
}

#[test]
fn a_cancelled_write_may_still_be_executed_but_not_after_a_newer_one() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let old = host.write(device, 10, 1);
    let late = host.sent();
    host.cancel(old);
    let new = host.write(device, 10, 1);
    assert!(host.sent().is_empty());
    let sent = host.advance(ms(500));
    assert_eq!(commands(&sent), [], "the cancelled one is not sent again");
    // The old copy is executed within its lifetime; its reply is of no more use.
    host.answer(&mut target, &late[0]);
    assert_eq!(host.initiator.counters().stray, 1, "the ghost timed out long ago");
    host.advance_with(ms(500), &mut target);
    assert_eq!(host.status(new), Some(Status::Ok));
    assert_eq!(target.disk[10 * SECTOR], new as u8 + 1);
}

#[test]
fn a_ghost_keeps_its_place_until_it_is_answered_or_times_out() {
    let mut target = Target::new(2048);
    target.buffer_count = 1;
    let (mut host, device) = found(&mut target);
    let ghost = host.read(device, 0, 1);
    let late = host.sent();
    host.cancel(ghost);
    host.read(device, 0, 1);
    assert!(host.sent().is_empty(), "the target has one buffer, and it may be in use");
    host.answer(&mut target, &late[0]);
    assert_eq!(host.initiator.counters().late, 1);
    assert_eq!(host.sent().len(), 1);
    host.advance_with(ms(30), &mut target);
    let ghost = host.read(device, 0, 1);
    assert_eq!(host.sent().len(), 1);
    host.cancel(ghost);
    host.read(device, 0, 1);
    assert_eq!(commands(&host.advance(ms(100)))[..1].len(), 1, "after the ghost's timeout");
}

#[test]
fn with_too_many_closed_ranges_the_device_is_closed() {
    let mut target = Target::new(1 << 20);
    let (mut host, device) = found(&mut target);
    for at in 0..CLOSED_MAX as u64 {
        let until = host.now + ms(10_000);
        host.initiator.close_range(host.now, ADDRESS, Lba(at * 2), 1, until);
    }
    let free = host.write(device, 50_000, 1);
    host.exchange(&mut target);
    assert_eq!(host.status(free), Some(Status::Ok));
    resent_write(&mut host, device, &mut target, 60_000);
    let waits = host.write(device, 50_000, 1);
    host.advance_with(ms(999), &mut target);
    assert_eq!(host.status(waits), None);
    host.advance_with(ms(1), &mut target);
    assert_eq!(host.status(waits), Some(Status::Ok));
}

/// Why the rule is there: without it the delayed first copy of a write destroys a newer one.
#[test]
fn without_the_rule_an_update_is_lost() {
    for (lifetime, survives) in [(1000, true), (0, false)] {
        let mut target = Target::new(2048);
        let tunables = Tunables { aoe_frame_lifetime: lifetime, ..Tunables::default() };
        let (mut host, device) = found_with(&mut target, tunables);
        host.write(device, 10, 1);
        // The network delays the first copy by 900 ms, its lifetime being a second.
        let delayed = host.sent();
        let again = host.advance(ms(10));
        host.answer(&mut target, &again[0]);
        let new = host.write(device, 10, 1);
        host.advance_with(ms(890), &mut target);
        host.answer(&mut target, &delayed[0]);
        host.advance_with(ms(1000), &mut target);
        assert_eq!(host.status(new), Some(Status::Ok));
        assert_eq!(target.disk[10 * SECTOR] == new as u8 + 1, survives);
    }
}
