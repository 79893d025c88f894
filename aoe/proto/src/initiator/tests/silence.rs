//! Silence, giving up, and coming back.

use super::harness::*;
use crate::initiator::*;
use crate::wire::{AtaString, Body, MacAddr};

fn at_second(sent: &[Sent], start: Duration) -> Vec<(u64, bool)> {
    let query = |sent: &&Sent| matches!(sent.frame().body, Body::Config(_));
    let pair = |sent: &Sent| {
        let broadcast = sent.frame().header.dst == MacAddr::BROADCAST;
        ((sent.at - start).as_millis() as u64, broadcast)
    };
    sent.iter().filter(query).map(pair).collect()
}

#[test]
fn silence_is_told_once_and_looked_into() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let start = host.now;
    let id = host.read(device, 0, 1);
    let sent = host.advance(ms(1999));
    assert_eq!(host.take_events(), []);
    assert_eq!(at_second(&sent, start), []);
    let sent = host.advance(ms(8001));
    assert_eq!(host.take_events(), [Event::Silent { device }]);
    let each = |ms| [(ms, true), (ms, false)];
    let expected: Vec<_> = [2000, 3000, 5000, 9000].into_iter().flat_map(each).collect();
    assert_eq!(at_second(&sent, start), expected);
    assert!(host.initiator.device(device).expect("open").is_silent());
    host.advance_with(ms(2100), &mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(host.take_events(), [Event::Answers { device }]);
}

#[test]
fn a_device_that_answers_slowly_is_not_silent() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    for _ in 0..20 {
        host.read(device, 0, 1);
        let sent = host.advance(ms(1900));
        host.answer(&mut target, &sent[0]);
    }
    assert_eq!(host.completions.len(), 20);
    assert_eq!(host.take_events(), []);
}

#[test]
fn queued_requests_have_no_clock() {
    let mut target = Target::new(2048);
    target.buffer_count = 1;
    let (mut host, device) = found(&mut target);
    for _ in 0..5 {
        host.read(device, 0, 1);
    }
    for _ in 0..5 {
        let sent = host.advance(ms(1500));
        host.answer(&mut target, &sent[0]);
    }
    assert_eq!(host.completions.len(), 5);
    assert_eq!(host.take_events(), [], "7.5 s in all, but none of them unanswered for 2 s");
}

#[test]
fn one_request_that_hangs_keeps_the_device_silent() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let hung = host.read(device, 100, 1);
    host.sent();
    for _ in 0..30 {
        let id = host.read(device, 0, 1);
        for frame in host.advance(ms(100)) {
            if frame.ata().is_none_or(|command| command.lba().0 != 100) {
                host.answer(&mut target, &frame);
            }
        }
        host.advance(ms(1));
        let _ = id;
    }
    assert_eq!(host.take_events(), [Event::Silent { device }]);
    host.cancel(hung);
    host.read(device, 0, 1);
    host.advance_with(ms(3000), &mut target);
    assert_eq!(host.take_events(), [Event::Answers { device }]);
}

#[test]
fn a_silent_device_with_nothing_to_do_is_found_again() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let id = host.read(device, 0, 1);
    host.advance(ms(2500));
    host.cancel(id);
    assert_eq!(host.take_events(), [Event::Silent { device }]);
    // It comes back; no request is there to tell, but the config reply leads to IDENTIFY.
    host.advance_with(ms(10_000), &mut target);
    assert_eq!(host.take_events(), [Event::Answers { device }]);
    assert!(!host.initiator.device(device).expect("open").is_silent());
}

#[test]
fn a_config_reply_alone_does_not_end_silence() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.read(device, 0, 1);
    for _ in 0..200 {
        target.fault(Fault::Lost);
    }
    host.advance_with(ms(8000), &mut target);
    assert_eq!(host.take_events(), [Event::Silent { device }]);
    assert!(host.initiator.device(device).expect("open").is_silent());
}

#[test]
fn dead_seconds_end_all_requests_once() {
    let mut target = Target::new(2048);
    let tunables = Tunables { aoe_deadsecs: 5, ..Tunables::default() };
    let (mut host, device) = found_with(&mut target, tunables);
    host.write(device, 0, 4);
    host.write(device, 2, 4);
    host.read(device, 0, 1000);
    host.submit(device, Op::Flush, 0, 0);
    host.advance(ms(3000));
    // Submitted later, ended with the rest.
    host.read(device, 50, 1);
    host.advance(ms(1999));
    assert_eq!(host.completions, []);
    host.advance(ms(1));
    let ids: Vec<u64> = host.completions.iter().map(|(id, _)| *id).collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2, 3, 4]);
    assert!(host.completions.iter().all(|(_, status)| *status == Status::DeviceGone));
    let mut events = host.take_events();
    assert_eq!(events.remove(0), Event::Silent { device });
    assert_eq!(events.remove(0), Event::Gone { device });
    assert!(matches!(events[..], [Event::PathDown { .. }]), "{events:?}");
    assert_eq!(host.try_submit(device, Op::Read, 0, 1), Err(SubmitError::NotFound));
    assert_eq!(host.initiator.device(device).expect("open").outstanding(), 0);
    // It comes back, as whoever it is.
    target.identify.serial = AtaString::new("new");
    host.advance_with(ms(10_000), &mut target);
    let events = host.take_events();
    assert!(matches!(events[..], [Event::Found(_), Event::PathUp { .. }]), "{events:?}");
    let id = host.read(device, 0, 1);
    host.exchange(&mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
}

#[test]
fn with_zero_dead_seconds_requests_wait_for_ever() {
    let mut target = Target::new(2048);
    let tunables = Tunables { aoe_deadsecs: 0, ..Tunables::default() };
    let (mut host, device) = found_with(&mut target, tunables);
    let id = host.write(device, 0, 4);
    let sent = host.advance(ms(3_600_000));
    assert_eq!(host.completions, []);
    assert!(commands(&sent).len() < 2000, "at most one copy each 2 s");
    host.advance_with(ms(10_000), &mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
}

#[test]
fn a_request_that_can_not_be_sent_has_a_clock_too() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.port(PORT, None);
    let events = host.take_events();
    assert!(matches!(events[..], [Event::PathDown { .. }]), "{events:?}");
    let id = host.read(device, 0, 1);
    host.advance(ms(2000));
    assert_eq!(host.take_events(), [Event::Silent { device }]);
    host.port(PORT, Some(9000));
    host.advance_with(ms(1000), &mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
    let events = host.take_events();
    assert!(events.contains(&Event::Answers { device }), "{events:?}");
    host.port(PORT, None);
    let id = host.read(device, 0, 1);
    host.advance(ms(180_000));
    assert_eq!(host.status(id), Some(Status::DeviceGone));
}

#[test]
fn a_flush_may_take_its_time() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    host.submit(device, Op::Flush, 0, 0);
    let sent = host.advance(ms(1900));
    assert_eq!(commands(&sent).len(), 2, "first copy and one after a second");
    let view = host.initiator.device(device).expect("open");
    let path = view.paths().next().expect("one path");
    assert_eq!((path.cwnd, path.counters.loss_epochs), (4, 0));
    host.answer(&mut target, &sent[0]);
    assert_eq!(host.completions, [(0, Status::Ok)]);
    let view = host.initiator.device(device).expect("open");
    assert!(view.paths().next().expect("one path").srtt < ms(1));
}
