//! Links in memory and with faults: delivery, order, bounds, wake-ups, link state.

mod common;

use aoe_net::link::{BATCH, FaultConfig, FaultLink, Faults, FrameRef, Link, MemoryLink, Segment};
use aoe_net::wake::wait;
use aoe_proto::port::PortInfo;
use aoe_proto::wire::MacAddr;
use common::{frame, mac};
use core::time::Duration;
use std::io::IoSlice;
use std::time::Instant;

fn pair(mtu: u32) -> (Segment, MemoryLink, MemoryLink) {
    let segment = Segment::new();
    let a = segment.attach(mac(1), mtu).unwrap();
    let b = segment.attach(mac(2), mtu).unwrap();
    (segment, a, b)
}

fn receive_all(link: &mut dyn Link) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    while link.receive(&mut |frame| got.push(frame.to_vec())) > 0 {}
    got
}

/// Whether the link's descriptor is readable now.
fn readable(link: &dyn Link) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let fd = link.fd().unwrap();
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn a_frame_in_pieces_arrives_whole() {
    let (_segment, mut a, mut b) = pair(9000);
    let head = frame(mac(2), mac(1), false, 1, 36);
    let (one, two) = ([1u8; 512], [2u8; 1024]);
    let data = [IoSlice::new(&one), IoSlice::new(&two)];
    let frame = FrameRef { head: &head, data: &data, pad: 24 };
    assert_eq!(frame.len(), 36 + 512 + 1024 + 24);
    assert_eq!(a.send(&[frame]), 1);
    let got = receive_all(&mut b);
    assert_eq!(got, [[&head[..], &one, &two, &[0; 24]].concat()]);
    assert_eq!((a.counters().sent, b.counters().received), (1, 1));
}

#[test]
fn frames_go_where_they_are_addressed() {
    let segment = Segment::new();
    let mut links: Vec<_> = (1..=4).map(|i| segment.attach(mac(i), 1500).unwrap()).collect();
    let to_three = frame(mac(3), mac(1), false, 1, 60);
    let to_all = frame(MacAddr::BROADCAST, mac(1), false, 2, 60);
    let to_nobody = frame(mac(9), mac(1), false, 3, 60);
    let to_self = frame(mac(1), mac(1), false, 4, 60);
    let all = [&to_three, &to_all, &to_nobody, &to_self].map(|f| FrameRef::whole(f));
    assert_eq!(links[0].send(&all), 4);
    assert_eq!(receive_all(&mut links[0]), Vec::<Vec<u8>>::new());
    assert_eq!(receive_all(&mut links[1]), std::slice::from_ref(&to_all));
    assert_eq!(receive_all(&mut links[2]), [to_three, to_all.clone()]);
    assert_eq!(receive_all(&mut links[3]), std::slice::from_ref(&to_all));
    // A port that was dropped is gone, and its address free again.
    drop(links.pop());
    let mut again = segment.attach(mac(4), 1500).unwrap();
    links[0].send(&[FrameRef::whole(&to_all)]);
    assert_eq!(receive_all(&mut again), [to_all]);
}

#[test]
fn a_full_queue_drops_and_counts() {
    let (_segment, mut a, mut b) = pair(1500);
    let frames: Vec<_> = (0..BATCH as u32).map(|i| frame(mac(2), mac(1), false, i, 60)).collect();
    let refs: Vec<_> = frames.iter().map(|f| FrameRef::whole(f)).collect();
    let rounds = aoe_net::link::memory::QUEUE / BATCH + 2;
    for _ in 0..rounds {
        assert_eq!(a.send(&refs), BATCH);
    }
    let got = receive_all(&mut b);
    assert_eq!(got.len(), aoe_net::link::memory::QUEUE);
    assert_eq!(b.counters().receive_dropped, 2 * BATCH as u64);
    assert!(got.chunks(BATCH).all(|chunk| chunk == frames));
}

#[test]
fn the_descriptor_is_readable_exactly_while_frames_wait() {
    let (_segment, mut a, mut b) = pair(1500);
    let one = frame(mac(2), mac(1), false, 1, 60);
    assert!(!readable(&b));
    for _ in 0..3 {
        a.send(&[FrameRef::whole(&one); BATCH]);
        a.send(&[FrameRef::whole(&one); 3]);
        assert!(readable(&b));
        assert_eq!(b.receive(&mut |_| {}), BATCH);
        assert!(readable(&b));
        assert_eq!(b.receive(&mut |_| {}), 3);
        assert!(!readable(&b));
    }
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    const FRAMES: u32 = 20_000;
    let (_segment, mut a, mut b) = pair(1500);
    let sender = std::thread::spawn(move || {
        for i in 0..FRAMES {
            let one = frame(mac(2), mac(1), false, i, 60);
            a.send(&[FrameRef::whole(&one)]);
            // Never further ahead than the queue is long.
            if i % 256 == 255 {
                while a.receive(&mut |_| {}) == 0 {
                    wait(&[a.fd().unwrap()], None);
                }
            }
        }
        a
    });
    let answer = frame(mac(1), mac(2), true, 0, 60);
    let mut next = 0;
    while next < FRAMES {
        wait(&[b.fd().unwrap()], None);
        let mut answers = 0;
        b.receive(&mut |got| {
            assert_eq!(got[20..24], next.to_be_bytes());
            next += 1;
            answers += u32::from(next % 256 == 0);
        });
        for _ in 0..answers {
            b.send(&[FrameRef::whole(&answer)]);
        }
    }
    sender.join().unwrap();
}

#[test]
fn link_state_and_mtu_are_seen_by_refresh() {
    let (segment, mut a, mut b) = pair(1500);
    assert_eq!(b.info(), Some(PortInfo { mac: mac(2), mtu: 1500 }));
    segment.set_link(mac(2), false);
    let one = frame(mac(2), mac(1), false, 1, 60);
    a.send(&[FrameRef::whole(&one)]);
    b.refresh();
    assert_eq!(b.info(), None);
    assert_eq!(b.send(&[FrameRef::whole(&one)]), 1);
    assert_eq!((b.counters().went_down, b.counters().send_lost), (1, 1));
    segment.set_link(mac(2), true);
    segment.set_mtu(mac(2), 9000);
    b.refresh();
    assert_eq!(b.info(), Some(PortInfo { mac: mac(2), mtu: 9000 }));
    assert!(receive_all(&mut b).is_empty());
    // The sender's own MTU still is 1500.
    let long = frame(mac(2), mac(1), false, 1, 1515);
    a.send(&[FrameRef::whole(&long), FrameRef::whole(&one)]);
    assert_eq!(receive_all(&mut b), [one]);
    assert_eq!(a.counters().send_lost, 1);
}

/// Sends `count` frames from one side of a link with `faults` on its receiving side; the tags that came out, in order, until
/// nothing was held any more.
fn through(faults: Faults, seed: u64, count: u32, sending: bool) -> (Vec<u32>, aoe_net::link::fault::FaultCounters) {
    let (_segment, mut a, b) = pair(1500);
    let config = if sending {
        FaultConfig { send: faults, seed, ..FaultConfig::default() }
    } else {
        FaultConfig { receive: faults, seed, ..FaultConfig::default() }
    };
    let mut b = FaultLink::new(b, config).unwrap();
    let mut tags = Vec::new();
    for i in 0..count {
        let one = frame(mac(if sending { 1 } else { 2 }), mac(3), false, i, 60);
        let mut note = |got: &[u8]| tags.push(u32::from_be_bytes(got[20..24].try_into().unwrap()));
        if sending {
            assert_eq!(b.send(&[FrameRef::whole(&one)]), 1);
            b.receive(&mut |_| {});
            a.receive(&mut note);
        } else {
            assert_eq!(a.send(&[FrameRef::whole(&one)]), 1);
            b.receive(&mut note);
        }
    }
    let counters = b.fault_counters();
    // A frame whose address was damaged is for nobody.
    let expected = u64::from(count) - counters.lost + counters.duplicated - counters.corrupted;
    let end = Instant::now() + Duration::from_secs(10);
    while (tags.len() as u64) < expected {
        assert!(Instant::now() < end, "{} of {expected} frames came out", tags.len());
        wait(&[b.fd().unwrap()], Some(Duration::from_millis(2)));
        let mut note = |got: &[u8]| tags.push(u32::from_be_bytes(got[20..24].try_into().unwrap()));
        if sending {
            b.receive(&mut |_| {});
            a.receive(&mut note);
        } else {
            b.receive(&mut note);
        }
    }
    (tags, counters)
}

#[test]
fn each_fault_of_a_link_in_each_direction() {
    let ms = Duration::from_millis;
    for sending in [false, true] {
        let (tags, counters) = through(Faults { loss: 0.1, ..Faults::default() }, 1, 2000, sending);
        assert!((150..250).contains(&counters.lost), "{counters:?}");
        assert_eq!(tags.len() as u64, 2000 - counters.lost);

        let faults = Faults { duplicate: 0.1, duplicate_delay: ms(3), ..Faults::default() };
        let (tags, counters) = through(faults, 1, 2000, sending);
        assert!((150..250).contains(&counters.duplicated), "{counters:?}");
        assert_eq!(tags.len() as u64, 2000 + counters.duplicated);

        let faults = Faults { reorder: 0.1, reorder_delay: ms(3), ..Faults::default() };
        let (mut tags, counters) = through(faults, 1, 2000, sending);
        assert!((150..250).contains(&counters.reordered), "{counters:?}");
        assert!(tags.windows(2).any(|w| w[0] > w[1]));
        tags.sort_unstable();
        assert_eq!(tags, (0..2000).collect::<Vec<_>>());

        let (_, counters) = through(Faults { corrupt: 0.1, ..Faults::default() }, 1, 2000, sending);
        assert!((150..250).contains(&counters.corrupted), "{counters:?}");
    }
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let faults = Faults { loss: 0.3, ..Faults::default() };
    let tags = |seed| through(faults, seed, 300, false).0;
    assert_eq!(tags(5), tags(5));
    assert_ne!(tags(5), tags(6));
}

#[test]
fn a_batch_with_faults_keeps_the_order_of_the_rest() {
    let (_segment, a, mut b) = pair(1500);
    let faults = Faults { loss: 0.2, ..Faults::default() };
    let mut a = FaultLink::new(a, FaultConfig { send: faults, seed: 3, ..FaultConfig::default() }).unwrap();
    let frames: Vec<_> = (0..BATCH as u32).map(|i| frame(mac(2), mac(1), false, i, 60)).collect();
    let refs: Vec<_> = frames.iter().map(|f| FrameRef::whole(f)).collect();
    assert_eq!(a.send(&refs), BATCH);
    let got = receive_all(&mut b);
    let lost = a.fault_counters().lost as usize;
    assert!(lost > 0 && got.len() == BATCH - lost);
    assert!(got.windows(2).all(|w| w[0][20..24] < w[1][20..24]));
}
