//! Who is answered: addresses, wildcards, beacons, ports.

use super::*;
use crate::testing::emitted;

/// Wildcards as numbers.
const ALL_SHELVES: u16 = 0xFFFF;
const ALL_SLOTS: u8 = 0xFF;

/// A shelf with e7.0, e7.3, e8.0 and e8.3.
fn four() -> Bench {
    let mut bench = Bench::new();
    for (shelf, slot) in [(8, 3), (7, 3), (8, 0)] {
        let config = DeviceConfig::new(Address::new(shelf, slot), 8, "S");
        bench.shelf.add_device(config, DeviceState::default(), Memory::new(8)).unwrap();
    }
    bench
}

fn query(dst: MacAddr, address: Address, ccmd: CCmd, string: &[u8]) -> Vec<u8> {
    let header = Header::request(dst, HOST, address, Command::CONFIG, Tag(0x8000_0001));
    emitted(|buf| ConfigInfo::request(ccmd, string).emit(&header, buf))
}

/// All replies to a frame: from which device, to whom, and whether the state is to be saved.
fn replies(bench: &mut Bench, frame: &[u8]) -> Vec<(String, bool)> {
    let outcome = bench.handle(frame);
    let mut all = Vec::new();
    if outcome != Outcome::Many {
        assert_eq!(outcome, Outcome::Drop);
        return all;
    }
    while let Some(outcome) = bench.shelf.poll_reply(&mut bench.reply) {
        let (len, save) = match outcome {
            Outcome::Reply(len) => (len, false),
            Outcome::Save { len, .. } => (len, true),
            other => panic!("{other:?}"),
        };
        let reply = bench.checked_reply(frame, len);
        let device = Header::parse(&reply).unwrap().0.address;
        if let Outcome::Save { address, .. } = outcome {
            assert_eq!(address, device);
        }
        all.push((device.to_string(), save));
        bench.reply.fill(0xEE);
    }
    assert_eq!(bench.shelf.poll_reply(&mut bench.reply), None);
    all
}

fn names(bench: &mut Bench, frame: &[u8]) -> Vec<String> {
    replies(bench, frame).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn all_four_combinations_of_wildcards() {
    let mut bench = four();
    let address = Address::new;
    let table: [(Address, &[&str]); 6] = [
        (Address::ALL, &["e7.0", "e7.3", "e8.0", "e8.3"]),
        (address(ALL_SHELVES, 3), &["e7.3", "e8.3"]),
        (address(7, ALL_SLOTS), &["e7.0", "e7.3"]),
        (address(ALL_SHELVES, 9), &[]),
        (address(9, ALL_SLOTS), &[]),
        (address(8, ALL_SLOTS), &["e8.0", "e8.3"]),
    ];
    for dst in [MacAddr::BROADCAST, TARGET] {
        for (asked, want) in table {
            assert_eq!(names(&mut bench, &query(dst, asked, CCmd::READ, b"")), want, "{asked}");
        }
    }
    // No wildcard: one reply, and none from a device that is not here.
    let frame = query(TARGET, Address::new(8, 3), CCmd::READ, b"");
    assert!(bench.send(&frame).is_some());
    assert_eq!(bench.shelf.poll_reply(&mut bench.reply), None);
    assert_eq!(bench.send(&query(TARGET, Address::new(9, 3), CCmd::READ, b"")), None);
    assert_eq!(bench.shelf.counters().no_device, 1);
}

#[test]
fn wildcards_are_for_query_config_only() {
    let mut bench = four();
    for command in [0, 2, 3, 4, 0xF0, 0xFF] {
        for address in [Address::ALL, Address::new(7, ALL_SLOTS), Address::new(ALL_SHELVES, 0)] {
            let header = Header::request(MacAddr::BROADCAST, HOST, address, Command(command), Tag(1));
            let mut frame = vec![0; 36 + SECTOR];
            AtaRequest::write(Lba(0), 1, true).emit(&header, &mut frame);
            assert_eq!(bench.handle(&frame), Outcome::Drop);
            assert_eq!(bench.shelf.poll_reply(&mut bench.reply), None);
        }
    }
    assert_eq!(bench.shelf.counters().wildcards_refused, 18);
    assert_eq!(bench.log(), []);
}

#[test]
fn wildcard_tests_and_sets_are_each_devices_own() {
    let mut bench = four();
    assert!(matches!(bench.handle(&query(TARGET, E7_0, CCmd::SET, b"mine")), Outcome::Save { .. }));
    assert_eq!(names(&mut bench, &query(TARGET, Address::ALL, CCmd::TEST, b"mine")), ["e7.0"]);
    assert_eq!(names(&mut bench, &query(TARGET, Address::ALL, CCmd::TEST_PREFIX, b"mi")), ["e7.0"]);
    let set = replies(&mut bench, &query(TARGET, Address::ALL, CCmd::SET, b"ours"));
    let want = [("e7.0", false), ("e7.3", true), ("e8.0", true), ("e8.3", true)];
    assert!(set.iter().map(|(name, saved)| (&**name, *saved)).eq(want));
    assert_eq!(bench.shelf.state(E7_0).unwrap().config, b"mine");
    assert_eq!(bench.shelf.state(Address::new(8, 3)).unwrap().config, b"ours");
    // A malformed one is answered with an error by each.
    let mut bad = query(TARGET, Address::ALL, CCmd::READ, b"");
    bad.truncate(31);
    assert_eq!(names(&mut bench, &bad).len(), 4);
    assert_eq!(bench.counters().protocol_errors, 2, "this one, and the set that e7.0 refused");
}

#[test]
fn a_masked_device_stays_hidden() {
    let mut bench = four();
    let header = bench.header(Command::MASK);
    let add = Directive { dcmd: DCmd::ADD, mac: OTHER };
    let frame = emitted(|buf| MaskList::emit(&header, MCmd::EDIT, [add].into_iter(), buf));
    assert!(matches!(bench.handle(&frame), Outcome::Save { .. }));
    assert_eq!(names(&mut bench, &query(TARGET, Address::ALL, CCmd::READ, b"")), ["e7.3", "e8.0", "e8.3"]);
}

#[test]
fn unpolled_replies_are_forgotten() {
    let mut bench = four();
    assert_eq!(bench.handle(&query(TARGET, Address::ALL, CCmd::READ, b"")), Outcome::Many);
    assert!(bench.shelf.poll_reply(&mut bench.reply).is_some());
    assert!(bench.send(&query(TARGET, E7_0, CCmd::READ, b"")).is_some());
    assert_eq!(bench.shelf.poll_reply(&mut bench.reply), None);
}

#[test]
fn beacons() {
    let mut bench = four();
    let header = bench.header(Command::MASK);
    let adds = [HOST, OTHER].map(|mac| Directive { dcmd: DCmd::ADD, mac });
    let frame = emitted(|buf| MaskList::emit(&header, MCmd::EDIT, adds.into_iter(), buf));
    assert!(matches!(bench.handle(&frame), Outcome::Save { .. }));
    assert!(matches!(bench.handle(&query(TARGET, Address::new(8, 0), CCmd::SET, b"text")), Outcome::Save { .. }));

    bench.shelf.beacon(PORT);
    let mut seen = Vec::new();
    bench.reply.fill(0xEE);
    while let Some(outcome) = bench.shelf.poll_reply(&mut bench.reply) {
        let Outcome::Reply(len) = outcome else { panic!("{outcome:?}") };
        let frame = Frame::parse(&bench.reply[..len]).unwrap();
        let header = frame.header;
        assert!(header.response && header.error.is_none() && header.version == 1 && len == 60);
        assert_eq!((header.src, header.tag, header.command), (TARGET, Tag::UNSOLICITED, Command::CONFIG));
        let Body::Config(config) = frame.body else { panic!("{frame:?}") };
        assert_eq!((config.ccmd, config.sectors, config.version), (CCmd::READ, 2, 1));
        assert!(bench.reply[CONFIG_HEADER + config.string.len()..len].iter().all(|byte| *byte == 0));
        seen.push((header.address.to_string(), header.dst, config.buffer_count, config.string.to_vec()));
        bench.reply.fill(0xEE);
    }
    // A device with a mask list announces itself to those on it, each by itself.
    let want = [
        ("e7.0".to_owned(), HOST, 16, vec![]),
        ("e7.0".to_owned(), OTHER, 16, vec![]),
        ("e7.3".to_owned(), MacAddr::BROADCAST, 8, vec![]),
        ("e8.0".to_owned(), MacAddr::BROADCAST, 8, b"text".to_vec()),
        ("e8.3".to_owned(), MacAddr::BROADCAST, 8, vec![]),
    ];
    assert_eq!(seen, want);
    assert_eq!(bench.shelf.counters().beacons, 5);
    bench.shelf.beacon(PortId(9));
    assert_eq!(bench.shelf.poll_reply(&mut bench.reply), None);
}

#[test]
fn frames_that_are_not_for_us() {
    let mut bench = Bench::new();
    let good = query(TARGET, E7_0, CCmd::READ, b"");
    assert!(bench.send(&good).is_some());
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let ignored = [
        with(14, &[0x18]),
        with(14, &[0x1C]),
        with(12, &[0x08, 0x00]),
        with(0, &[2, 0, 0, 0, 0, 0x77]),
        with(6, &[0xFF; 6]),
        with(6, &[3, 0, 0, 0, 0, 1]),
        good[..23].to_vec(),
        vec![],
    ];
    for frame in &ignored {
        assert_eq!(bench.send(frame), None, "{frame:02x?}");
    }
    assert_eq!(bench.shelf.counters().ignored, ignored.len() as u64);
    assert_eq!(bench.shelf.counters().frames, ignored.len() as u64 + 1);
    // Broadcast with the device's own address is fine.
    assert!(bench.send(&with(0, &[0xFF; 6])).is_some());
    let unknown = bench.shelf.handle_frame(Duration::ZERO, PortId(3), &good, &mut bench.reply);
    assert_eq!(unknown, Outcome::Drop);
}

#[test]
fn ports_come_and_go_and_change() {
    let mut bench = Bench::new();
    let frame = query(TARGET, E7_0, CCmd::READ, b"");
    let sectors = |bench: &mut Bench| bench.send(&frame).map(|reply| reply[28]);
    for (mtu, want) in [(1500, 2), (9000, 17), (548, 1), (4200, 8)] {
        bench.shelf.set_port(PORT, Some(PortInfo { mac: TARGET, mtu })).unwrap();
        assert_eq!(bench.shelf.reply_len(PORT), 14 + mtu as usize);
        assert_eq!(sectors(&mut bench), Some(want), "MTU {mtu}");
        let most = AtaRequest::read(Lba(0), want, true);
        assert_eq!(bench.ata(most, &[]).unwrap().1.len(), usize::from(want) * SECTOR);
        let more = AtaRequest { sectors: want + 1, ..most };
        assert_eq!(bench.ata(more, &[]), Err(AoeError::ARGUMENT));
    }
    assert_eq!(bench.shelf.set_port(PORT, Some(PortInfo { mac: TARGET, mtu: 547 })), Err(MtuTooSmall(547)));
    assert_eq!(sectors(&mut bench), None);
    bench.shelf.set_port(PORT, Some(PortInfo { mac: OTHER, mtu: 1500 })).unwrap();
    assert_eq!(sectors(&mut bench), None);
    bench.shelf.set_port(PORT, None).unwrap();
    assert_eq!(sectors(&mut bench), None);
}

#[test]
fn a_changed_buffer_count_is_told() {
    let mut bench = Bench::new();
    bench.shelf.set_buffer_count(E7_0, 300);
    let reply = bench.send(&query(TARGET, E7_0, CCmd::READ, b"")).unwrap();
    assert_eq!(reply[24..26], [1, 44]);
}

#[test]
fn devices_that_can_not_be_added() {
    let mut bench = Bench::new();
    let mut add = |address, sectors, mask: usize| {
        let state = DeviceState { mask: vec![HOST; mask], ..DeviceState::default() };
        let store = Memory { sectors, ..Memory::new(1) };
        bench.shelf.add_device(DeviceConfig::new(address, 16, "S"), state, store)
    };
    assert_eq!(add(E7_0, 8, 0), Err(AddDeviceError::Present));
    assert_eq!(add(Address::new(ALL_SHELVES, 1), 8, 0), Err(AddDeviceError::Wildcard));
    assert_eq!(add(Address::new(1, ALL_SLOTS), 8, 0), Err(AddDeviceError::Wildcard));
    assert_eq!(add(Address::new(1, 1), 0, 0), Err(AddDeviceError::Size));
    assert_eq!(add(Address::new(1, 1), (1 << 48) + 1, 0), Err(AddDeviceError::Size));
    assert_eq!(add(Address::new(1, 1), 8, MASK_MAX + 1), Err(AddDeviceError::State));
    assert_eq!(add(Address::new(1, 1), 1 << 48, MASK_MAX), Ok(()));
    assert!(bench.shelf.addresses().eq([Address::new(1, 1), E7_0]));
    assert!(bench.shelf.remove_device(Address::new(1, 2)).is_none());
}
