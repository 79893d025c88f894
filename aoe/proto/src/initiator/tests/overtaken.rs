//! Frames that are found lost by the replies to later ones.

use super::harness::*;
use crate::initiator::*;

/// A host whose path has seen round trips of a millisecond, with `reads` frames under way.
fn under_way(target: &mut Target, reads: u64) -> (Host, DeviceId, Vec<Sent>) {
    let tunables = Tunables { aoe_congestion: 1, ..Tunables::default() };
    let (mut host, device) = found_with(target, tunables);
    for lba in 0..40 {
        host.read(device, lba, 1);
        let sent = host.sent();
        host.advance(ms(1));
        host.answer(target, &sent[0]);
    }
    for lba in 0..reads {
        host.read(device, 100 + lba, 1);
    }
    let sent = host.sent();
    assert_eq!(sent.len(), reads as usize);
    (host, device, sent)
}

fn counters(host: &Host, device: DeviceId) -> PathCounters {
    let view = host.initiator.device(device).expect("open");
    view.paths().next().expect("one path").counters
}

#[test]
fn a_frame_is_lost_when_later_ones_are_answered_and_it_is_late() {
    let mut target = Target::new(2048);
    let (mut host, device, sent) = under_way(&mut target, 4);
    host.advance(ms(1));
    for frame in &sent[1..] {
        host.answer(&mut target, frame);
    }
    assert!(host.sent().is_empty(), "it may be on its way yet");
    let again = host.advance(ms(2));
    assert_eq!(again.len(), 1, "long before the timeout of 10 ms");
    assert_eq!(again[0].bytes, sent[0].bytes);
    let counters = counters(&host, device);
    assert_eq!((counters.overtaken, counters.timeouts, counters.retransmits), (1, 0, 1));
    host.answer(&mut target, &again[0]);
    assert_eq!(host.completions.len(), 44);
}

#[test]
fn switched_off_only_the_timeout_tells() {
    let mut target = Target::new(2048);
    let (mut host, device, sent) = under_way(&mut target, 4);
    let tunables = Tunables { aoe_overtaken: 0, ..Tunables::default() };
    host.initiator.set_tunables(host.now, tunables).expect("in range");
    host.advance(ms(1));
    for frame in &sent[1..] {
        host.answer(&mut target, frame);
    }
    assert!(host.advance(ms(8)).is_empty());
    assert_eq!(host.advance(ms(2)).len(), 1);
    assert_eq!(counters(&host, device).overtaken, 0);
}

#[test]
fn replies_that_come_out_of_order_teach_patience() {
    let mut target = Target::new(2048);
    let (mut host, device, _) = under_way(&mut target, 0);
    let mut early = Vec::new();
    for round in 0..12 {
        host.read(device, 100, 1);
        host.read(device, 200, 1);
        let sent = host.sent();
        host.advance(ms(1));
        host.answer(&mut target, &sent[1]);
        // The first one takes 8 ms, which is no loss: what is sent again meanwhile is answered a second time.
        let again = host.advance(ms(7));
        early.push(again.len());
        host.answer(&mut target, &sent[0]);
        for frame in &again {
            host.answer(&mut target, frame);
        }
        assert_eq!(host.completions.len(), 40 + 2 * (round + 1));
    }
    assert_eq!(early[0], 1);
    assert_eq!(early[8..], [0, 0, 0, 0], "{early:?}");
}

#[test]
fn one_more_frame_shows_whether_the_last_one_is_lost() {
    let mut target = Target::new(2048);
    target.buffer_count = 64;
    let tunables = Tunables { aoe_congestion: 1, aoe_window: 1, ..Tunables::default() };
    let (mut host, device) = found_with(&mut target, tunables);
    for lba in 0..40 {
        host.read(device, lba, 1);
        let sent = host.sent();
        host.advance(ms(1));
        host.answer(&mut target, &sent[0]);
    }
    host.read(device, 100, 1);
    host.read(device, 200, 1);
    let lost = host.sent();
    assert_eq!(lost.len(), 1, "the window is one frame");
    let more = host.advance(ms(4));
    assert_eq!(more.len(), 1);
    assert_ne!(more[0].bytes, lost[0].bytes);
    host.answer(&mut target, &more[0]);
    let again = host.advance(ms(1));
    assert_eq!((again.len(), &again[0].bytes), (1, &lost[0].bytes), "long before the timeout of 10 ms");
    host.answer(&mut target, &again[0]);
    assert_eq!(host.completions.len(), 42);
}
