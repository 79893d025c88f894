//! The packet socket link on veth pairs, with a receive ring and without: both MTUs, the filter, link loss, an interface that is removed and comes back.

mod common;

use aoe_net::link::{BATCH, FrameRef, Link, LinkError, LinkWatch, PacketConfig, PacketLink, Role, host_interfaces};
use aoe_net::wake::wait;
use common::{frame, in_namespace, ip, mac, veth_pair};
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A way to receive, which all tests go through in turn.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Ring,
    Batches,
}

impl Kind {
    fn config(self, interface: &str, role: Role) -> PacketConfig {
        let config = PacketConfig::new(interface, role);
        PacketConfig { receive_ring: config.receive_ring.filter(|_| matches!(self, Kind::Ring)), ..config }
    }

    /// Opens a link and waits for its carrier.
    fn open(self, interface: &str, role: Role) -> PacketLink {
        self.open_with(&self.config(interface, role))
    }

    fn open_with(self, config: &PacketConfig) -> PacketLink {
        let link = open_with(config);
        assert_eq!(link.has_ring(), matches!(self, Kind::Ring), "nothing refuses rings here");
        link
    }
}

/// Runs a test in a namespace of its own for each kind.
fn for_each_kind(mtu: u32, test: impl Fn(Kind) + Send + Sync) {
    for kind in [Kind::Ring, Kind::Batches] {
        println!("{kind:?}");
        in_namespace(mtu, || test(kind));
    }
}

fn open_with(config: &PacketConfig) -> PacketLink {
    let mut link = PacketLink::open(config).unwrap();
    refresh_until(&mut link, |link| link.info().is_some());
    link
}

/// Receives until there are `count` frames; fails after ten seconds.
fn receive(link: &mut PacketLink, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let end = Instant::now() + Duration::from_secs(10);
    while got.len() < count {
        assert!(Instant::now() < end, "{} of {count} frames arrived", got.len());
        wait(&[link.fd().unwrap()], Some(Duration::from_millis(100)));
        link.receive(&mut |frame| got.push(frame.to_vec()));
    }
    got
}

/// Refreshes until `done`; fails after ten seconds.
fn refresh_until(link: &mut PacketLink, done: impl Fn(&PacketLink) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done(link) {
        assert!(Instant::now() < end, "link state: {:?}", link.info());
        link.receive(&mut |_| {});
        link.refresh();
        wait(&[], Some(Duration::from_millis(1)));
    }
}

#[test]
fn full_frames_pass_in_batches_and_in_pieces() {
    for mtu in [1500, 9000] {
        for_each_kind(mtu, |kind| {
            let mut a = kind.open("ve0", Role::Everything);
            let mut b = kind.open("ve1", Role::Everything);
            assert_eq!(a.info().unwrap().mtu, mtu);
            let (dst, src) = (b.info().unwrap().mac, a.info().unwrap().mac);
            let sent: Vec<_> = (0..3 * BATCH as u32).map(|i| frame(dst, src, false, i, mtu as usize + 14)).collect();
            let pieces: Vec<_> =
                sent.iter().map(|f| f[36..].chunks(512).map(IoSlice::new).collect::<Vec<_>>()).collect();
            let refs: Vec<_> =
                sent.iter().zip(&pieces).map(|(f, p)| FrameRef { head: &f[..36], data: p, pad: 0 }).collect();
            for batch in refs.chunks(BATCH) {
                assert_eq!(a.send(batch), BATCH);
                assert_eq!(receive(&mut b, BATCH).len(), BATCH);
            }
            // Once more, all at once, to compare every byte; and a short one that is padded.
            assert_eq!(a.send(&refs[..BATCH]), BATCH);
            assert_eq!(receive(&mut b, BATCH), sent[..BATCH]);
            assert_eq!(a.send(&[FrameRef { head: &sent[0][..32], data: &[], pad: 28 }]), 1);
            assert_eq!(receive(&mut b, 1), [[&sent[0][..32], &[0; 28]].concat()]);
            assert_eq!(a.counters().sent, 4 * BATCH as u64 + 1);
            assert_eq!(b.counters().received_bytes, a.counters().sent_bytes);
            // Own frames do not come back.
            assert_eq!(a.receive(&mut |_| {}), 0);
        });
    }
}

#[test]
fn the_kernel_filters_by_role() {
    for_each_kind(1500, |kind| {
        let mut a = kind.open("ve0", Role::Everything);
        let mut shelf = kind.open("ve1", Role::Shelf);
        let mut first = kind.open("ve1", Role::Initiator { worker: 0, discovers: true });
        let mut second = kind.open("ve1", Role::Initiator { worker: 1, discovers: false });
        let (dst, src) = (shelf.info().unwrap().mac, mac(9));
        let request = frame(dst, src, false, 5, 60);
        let beacon = frame(dst, src, true, 0, 60);
        let for_first = frame(dst, src, true, 1 << 31 | 7, 60);
        let for_second = frame(dst, src, true, 1 << 31 | 1 << 23 | 7, 60);
        let mut other = request.clone();
        other[12] = 0x08;
        for f in [&request, &beacon, &for_first, &for_second, &other] {
            assert_eq!(a.send(&[FrameRef::whole(f)]), 1);
        }
        assert_eq!(receive(&mut shelf, 1), [request]);
        assert_eq!(receive(&mut first, 3), [beacon, for_first, for_second.clone()]);
        assert_eq!(receive(&mut second, 1), [for_second]);
        for link in [&mut shelf, &mut first, &mut second] {
            assert_eq!(link.receive(&mut |_| {}), 0);
        }
    });
}

#[test]
fn what_the_queue_can_not_hold_is_dropped_and_counted() {
    for_each_kind(9000, |kind| {
        let config = kind.config("ve1", Role::Shelf);
        let receive_ring = config.receive_ring.map(|_| 100);
        let mut b = kind.open_with(&PacketConfig { receive_ring, receive_buffer: 1 << 20, ..config });
        let mut a = kind.open("ve0", Role::Everything);
        let holds = b.receive_frames();
        assert!((64..200).contains(&holds), "{holds}");
        let one = frame(b.info().unwrap().mac, a.info().unwrap().mac, false, 1, 9014);
        for _ in 0..4 {
            assert_eq!(a.send(&[FrameRef::whole(&one); BATCH]), BATCH);
        }
        let mut got = 0;
        while b.receive(&mut |_| got += 1) > 0 {}
        b.refresh();
        // The promise is a lower bound.
        assert!(got >= holds, "{got} of {holds}");
        assert_eq!(b.counters().receive_dropped, 4 * BATCH as u64 - got as u64);
    });
}

#[test]
fn errors_say_what_and_what_to_try() {
    for_each_kind(1500, |kind| {
        let open = |name: &str| PacketLink::open(&kind.config(name, Role::Shelf)).err();
        let error = open("nosuch").unwrap();
        assert!(matches!(&error, LinkError::NoInterface { existing, .. } if existing.contains(&"ve0".to_owned())));
        assert!(error.to_string().contains("no interface named nosuch; there are: lo, "), "{error}");
        for name in ["", "a-name-that-is-too-long"] {
            assert!(matches!(open(name), Some(LinkError::NoInterface { .. })), "{name}");
        }
        ip("link set ve0 down");
        let error = open("ve0").unwrap();
        assert!(error.to_string().contains("ip link set ve0 up"), "{error}");
        let waits = PacketConfig { allow_down: true, ..kind.config("ve0", Role::Shelf) };
        let mut link = PacketLink::open(&waits).unwrap();
        assert_eq!(link.info(), None);
        ip("link set ve0 up");
        refresh_until(&mut link, |link| link.info().is_some());
        ip("link set ve0 mtu 500");
        assert!(matches!(open("ve0"), Some(LinkError::MtuTooSmall { mtu: 500, .. })));
    });
}

#[test]
fn a_link_that_went_down_works_again() {
    for_each_kind(1500, |kind| {
        let (mut a, mut b) = (kind.open("ve0", Role::Everything), kind.open("ve1", Role::Everything));
        let one = frame(b.info().unwrap().mac, a.info().unwrap().mac, false, 1, 60);
        for round in 1..=3 {
            ip("link set ve1 down");
            refresh_until(&mut a, |link| link.info().is_none());
            refresh_until(&mut b, |link| link.info().is_none());
            // Lost, not kept, and no error.
            assert_eq!(a.send(&[FrameRef::whole(&one); 3]), 3);
            assert_eq!(a.counters().send_lost, 3 * round);
            ip("link set ve1 up");
            refresh_until(&mut a, |link| link.info().is_some());
            refresh_until(&mut b, |link| link.info().is_some());
            assert_eq!(a.send(&[FrameRef::whole(&one)]), 1);
            assert_eq!(receive(&mut b, 1), std::slice::from_ref(&one));
            assert_eq!(b.counters().went_down, round);
        }
    });
}

#[test]
fn an_interface_that_was_removed_and_made_again_is_found_by_its_name() {
    for_each_kind(1500, |kind| {
        let mut b = kind.open("ve1", Role::Everything);
        ip("link del ve0");
        refresh_until(&mut b, |link| link.info().is_none());
        assert_eq!(b.send(&[FrameRef::whole(&[0; 60])]), 1);
        veth_pair("ve0", "ve1", 9000);
        refresh_until(&mut b, |link| link.info().is_some());
        assert_eq!(b.info().unwrap().mtu, 9000);
        let mut a = kind.open("ve0", Role::Everything);
        let long = frame(b.info().unwrap().mac, a.info().unwrap().mac, false, 1, 9014);
        assert_eq!(a.send(&[FrameRef::whole(&long)]), 1);
        assert_eq!(receive(&mut b, 1), [long]);
    });
}

#[test]
fn a_changed_mtu_is_followed() {
    for_each_kind(1500, |kind| {
        let (mut a, mut b) = (kind.open("ve0", Role::Everything), kind.open("ve1", Role::Everything));
        let (dst, src) = (b.info().unwrap().mac, a.info().unwrap().mac);
        let long = frame(dst, src, false, 1, 9014);
        // Too long for the interface: refused by the kernel, counted, and the next frame still goes.
        let short = frame(dst, src, false, 2, 60);
        assert_eq!(a.send(&[FrameRef::whole(&long), FrameRef::whole(&short)]), 2);
        assert_eq!(receive(&mut b, 1), [short]);
        assert_eq!(a.counters().send_lost, 1);
        ip("link set ve0 mtu 9000");
        ip("link set ve1 mtu 9000");
        // Before the receiver has noticed, the frame does not fit its slots.
        a.refresh();
        assert_eq!(a.send(&[FrameRef::whole(&long)]), 1);
        let end = Instant::now() + Duration::from_secs(10);
        while b.counters().receive_too_long == 0 {
            assert!(Instant::now() < end);
            wait(&[b.fd().unwrap()], Some(Duration::from_millis(100)));
            b.receive(&mut |_| panic!("a frame that was cut"));
        }
        b.refresh();
        assert_eq!(b.info().unwrap().mtu, 9000);
        assert_eq!(a.send(&[FrameRef::whole(&long)]), 1);
        assert_eq!(receive(&mut b, 1), [long]);
    });
}

#[test]
fn frames_that_waited_too_long_are_dropped() {
    for_each_kind(1500, |kind| {
        let longest_wait = Some(Duration::from_millis(200));
        let mut b = kind.open_with(&PacketConfig { longest_wait, ..kind.config("ve1", Role::Shelf) });
        let mut a = kind.open("ve0", Role::Everything);
        let (dst, src) = (b.info().unwrap().mac, a.info().unwrap().mac);
        let [old, new] = [1, 2].map(|tag| frame(dst, src, false, tag, 60));
        // The kernel begins to note arrival times a moment after it was asked to; frames before that count as just arrived.
        for round in 0.. {
            a.send(&[FrameRef::whole(&old); 3]);
            wait(&[], Some(Duration::from_millis(300)));
            a.send(&[FrameRef::whole(&new)]);
            let mut got = receive(&mut b, 1);
            while got.last() != Some(&new) {
                got.extend(receive(&mut b, 1));
            }
            if got == [new.clone()] {
                break;
            }
            assert!(got.len() == 4 && round < 10, "round {round}: {} frames", got.len());
        }
        assert_eq!(b.counters().receive_stale, 3);
    });
}

#[test]
fn changes_of_interfaces_are_told_and_all_of_them_are_listed() {
    in_namespace(1500, || {
        let mut watch = LinkWatch::new().unwrap();
        for change in
            ["link set ve0 mtu 9000", "link set ve1 down", "link add new type veth peer name other", "link del new"]
        {
            while watch.changed() {}
            ip(change);
            let end = Instant::now() + Duration::from_secs(10);
            while !watch.changed() {
                assert!(Instant::now() < end, "not told of: {change}");
                wait(&[watch.as_fd()], Some(Duration::from_secs(1)));
            }
        }
        let found = host_interfaces().unwrap();
        let told: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.up, found.mtu)).collect();
        assert_eq!(told, [("ve0", true, 9000), ("ve1", false, 1500)], "the loop is none of Ethernet");
    });
}

#[test]
fn where_a_ring_is_refused_frames_are_read_in_batches() {
    in_namespace(1500, || {
        // More than the kernel can count.
        let config = PacketConfig { receive_ring: Some(1 << 30), ..PacketConfig::new("ve1", Role::Everything) };
        let mut b = open_with(&config);
        assert!(!b.has_ring());
        let mut a = open_with(&PacketConfig::new("ve0", Role::Everything));
        let one = frame(b.info().unwrap().mac, a.info().unwrap().mac, false, 1, 1514);
        assert_eq!(a.send(&[FrameRef::whole(&one)]), 1);
        assert_eq!(receive(&mut b, 1), [one]);
    });
}

#[test]
fn frames_stay_in_order_around_the_ring() {
    in_namespace(9000, || {
        let config = PacketConfig { receive_ring: Some(100), ..PacketConfig::new("ve1", Role::Everything) };
        let (mut a, mut b) = (open_with(&PacketConfig::new("ve0", Role::Everything)), open_with(&config));
        let (dst, src) = (b.info().unwrap().mac, a.info().unwrap().mac);
        let mut next = 0;
        for round in 0..200 {
            // Lengths and counts that have nothing to do with the ring's.
            let count = 1 + round * 7 % 50;
            let sent: Vec<_> =
                (next..next + count).map(|i| frame(dst, src, false, i, 60 + i as usize * 37 % 8954)).collect();
            let refs: Vec<_> = sent.iter().map(|frame| FrameRef::whole(frame)).collect();
            assert_eq!(a.send(&refs), refs.len());
            assert!(receive(&mut b, sent.len()) == sent, "round {round}");
            next += count;
        }
        assert_eq!(b.counters().receive_dropped, 0);
    });
}
