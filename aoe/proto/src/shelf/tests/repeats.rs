//! Repeated requests: answered from memory, not executed; and what the cache does at its limits.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::emitted;

const LIFETIME: Duration = Duration::from_secs(1);

#[test]
fn a_late_copy_of_a_write_does_not_undo_a_newer_write() {
    let mut bench = Bench::new();
    let request = AtaRequest::write(Lba(7), 1, true);
    let (old, new) = (pattern(1, 1), pattern(1, 2));
    let first = bench.ata_frame(&request, &old);
    let second = bench.ata_frame(&request, &new);
    let answer = bench.send(&first).unwrap();
    bench.send(&second).unwrap();
    bench.now = LIFETIME;
    assert_eq!(bench.send(&first), Some(answer));
    assert_eq!(bench.store().bytes[7 * SECTOR..8 * SECTOR], new);
    assert_eq!(bench.log().len(), 2);
    assert_eq!(bench.counters().duplicates, 1);
    assert_eq!(bench.shelf.remembered(), 2);
}

#[test]
fn a_repeat_by_another_port_of_the_initiator_is_a_repeat() {
    let mut bench = Bench::new();
    let request = AtaRequest::write(Lba(7), 1, true);
    let frame = bench.ata_frame(&request, &pattern(1, 1));
    bench.send(&frame).unwrap();
    let mut other = frame.clone();
    other[6..12].copy_from_slice(&OTHER.0);
    let reply = bench.send(&other).unwrap();
    assert_eq!(reply[0..6], OTHER.0);
    assert_eq!(bench.log().len(), 1);
}

#[test]
fn what_is_remembered_and_what_is_not() {
    let trim_data = {
        let mut data = vec![0; SECTOR];
        data[..8].copy_from_slice(&AtaRequest::trim_entry(Lba(1), 1));
        data
    };
    let bare = |opcode| AtaRequest { opcode: Opcode(opcode), ..AtaRequest::flush(false) };
    let cache_off = AtaRequest { feature: 0x82, ..bare(0xEF) };
    let table = [
        (AtaRequest::write(Lba(1), 1, true), pattern(1, 1), 1),
        (AtaRequest::write(Lba(1), 1, false), pattern(1, 1), 1),
        (AtaRequest::write_fua(Lba(1), 1), pattern(1, 1), 1),
        (AtaRequest::trim(1), trim_data, 1),
        (AtaRequest::flush(true), vec![], 1),
        (AtaRequest::flush(false), vec![], 1),
        (bare(0xE0), vec![], 1),
        (bare(0xE6), vec![], 1),
        (cache_off, vec![], 1),
        (AtaRequest::read(Lba(1), 1, true), vec![], 3),
        (AtaRequest::verify(Lba(1), 1, true), vec![], 3),
    ];
    for (request, data, executed) in table {
        let mut bench = Bench::new();
        let frame = bench.ata_frame(&request, &data);
        let answers = [(); 3].map(|()| bench.send(&frame).unwrap());
        assert_eq!(bench.log().len(), executed, "{request:?}");
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{request:?}");
        assert_eq!(bench.counters().duplicates, 3 - executed as u64);
    }
}

#[test]
fn a_failed_flush_stays_failed_for_its_copies() {
    let mut bench = Bench::new();
    bench.store().script.push_back(Err(StoreError::Io));
    let request = AtaRequest::flush(true);
    let frame = bench.ata_frame(&request, &[]);
    let first = bench.send(&frame).unwrap();
    assert!(ata_reply(&request, &first).unwrap().0.status.is_error());
    assert_eq!(bench.send(&frame), Some(first));
    assert_eq!(bench.log(), [Asked::Flush]);
    // The next one is a new one.
    assert!(!bench.registers(request, &[]).unwrap().status.is_error());
}

#[test]
fn a_refused_write_stays_refused_for_its_copies() {
    let write = AtaRequest::write(Lba(SECTORS - 1), 2, true);
    let data = pattern(2, 1);

    // Beyond the end, then the device grows.
    let mut bench = Bench::new();
    let frame = bench.ata_frame(&write, &data);
    let first = bench.send(&frame).unwrap();
    *bench.store() = Memory::new(2 * SECTORS);
    assert_eq!(bench.send(&frame), Some(first));
    assert!(!bench.registers(write, &data).unwrap().status.is_error());

    // Read-only, then writable.
    let mut bench = Bench::new();
    bench.store().read_only = true;
    let write = AtaRequest::write(Lba(0), 2, true);
    let frame = bench.ata_frame(&write, &data);
    let first = bench.send(&frame).unwrap();
    bench.store().read_only = false;
    assert_eq!(bench.send(&frame), Some(first));

    // Too long for the port, then its MTU grows.
    let mut bench = Bench::new();
    let write = AtaRequest::write(Lba(0), 3, true);
    let frame = bench.ata_frame(&write, &pattern(3, 1));
    let first = bench.send(&frame).unwrap();
    bench.shelf.set_port(PORT, Some(PortInfo { mac: TARGET, mtu: 9000 })).unwrap();
    assert_eq!(bench.send(&frame), Some(first));
    assert_eq!(bench.log(), []);

    // Reserved by somebody else, then released.
    let mut bench = Bench::new();
    let reserve = |bench: &mut Bench, rcmd, macs: &[MacAddr]| {
        let header = bench.header(Command::RESERVE);
        let frame = emitted(|buf| Reserve::emit(&header, rcmd, macs.iter().copied(), buf));
        assert!(matches!(bench.handle(&frame), Outcome::Save { .. }));
    };
    reserve(&mut bench, RCmd::SET, &[OTHER]);
    let frame = bench.ata_frame(&AtaRequest::write(Lba(0), 1, true), &pattern(1, 1));
    let first = bench.send(&frame).unwrap();
    assert_eq!(first[15], 6);
    reserve(&mut bench, RCmd::FORCE_SET, &[]);
    assert_eq!(bench.send(&frame), Some(first));
    assert_eq!(bench.log(), []);
}

#[test]
fn a_malformed_write_is_not_remembered() {
    let mut bench = Bench::new();
    let frame = bench.ata_frame(&AtaRequest::write(Lba(0), 1, true), &pattern(1, 1));
    assert_eq!(bench.send(&frame[..300]).unwrap()[15], 2);
    assert_eq!(bench.shelf.remembered(), 0);
    // The network cut it off; the copy is whole.
    assert_eq!(bench.send(&frame).unwrap()[15], 0);
    assert_eq!(bench.log().len(), 1);
}

#[test]
fn other_data_under_the_same_tag_is_another_write() {
    let mut bench = Bench::new();
    let request = AtaRequest::write(Lba(0), 1, true);
    let mut frame = bench.ata_frame(&request, &pattern(1, 1));
    bench.send(&frame).unwrap();
    frame[ATA_HEADER + 200] ^= 1;
    bench.send(&frame).unwrap();
    assert_eq!(bench.log().len(), 2);
    assert_eq!(bench.store().bytes[..SECTOR], frame[ATA_HEADER..]);
}

#[test]
fn padding_is_not_part_of_a_request() {
    let mut bench = Bench::new();
    let mut frame = bench.ata_frame(&AtaRequest::write(Lba(0), 1, true), &pattern(1, 1));
    bench.send(&frame).unwrap();
    frame.extend_from_slice(&[0; 4]);
    bench.send(&frame).unwrap();
    assert_eq!(bench.log().len(), 1);
}

#[test]
fn devices_do_not_share_answers() {
    let mut bench = Bench::new();
    let twin = Address::new(7, 1);
    let config = DeviceConfig::new(twin, 16, "S2");
    bench.shelf.add_device(config, DeviceState::default(), Memory::new(SECTORS)).unwrap();
    let mut frame = bench.ata_frame(&AtaRequest::write(Lba(0), 1, true), &pattern(1, 1));
    bench.send(&frame).unwrap();
    frame[18] = 1;
    bench.send(&frame).unwrap();
    assert_eq!(bench.log().len(), 1);
    assert_eq!(bench.shelf.store(twin).unwrap().log.len(), 1);
}

#[test]
fn while_the_cache_is_full_writes_wait_and_reads_do_not() {
    let config = ShelfConfig { duplicate_entries: 3, ..ShelfConfig::new(BOOT) };
    let mut bench = Bench::with(config, |_| {});
    let write = |lba| AtaRequest::write(Lba(lba), 1, true);
    let frames: Vec<_> = (0..4).map(|lba| bench.ata_frame(&write(lba), &pattern(1, lba as u8))).collect();
    for frame in &frames[..3] {
        assert!(bench.send(frame).is_some());
    }
    assert_eq!(bench.send(&frames[3]), None);
    assert_eq!(bench.shelf.counters().cache_full, 1);
    assert_eq!(bench.log().len(), 3);
    assert!(bench.send(&frames[0]).is_some());
    assert!(bench.ata(AtaRequest::read(Lba(0), 1, true), &[]).is_ok());
    // The sender repeats it until there is room.
    bench.now = 2 * LIFETIME;
    assert!(bench.send(&frames[3]).is_some());
}

#[test]
fn after_a_restart_changes_wait_until_old_frames_are_gone() {
    let config = ShelfConfig { changes_from: Duration::from_secs(5), ..ShelfConfig::new(BOOT) };
    let mut bench = Bench::with(config, |_| {});
    bench.now = Duration::from_millis(4999);
    let write = bench.ata_frame(&AtaRequest::write(Lba(0), 1, true), &pattern(1, 1));
    let trim = bench.ata_frame(&AtaRequest::trim(1), &[0; SECTOR]);
    assert_eq!((bench.send(&write), bench.send(&trim)), (None, None));
    assert_eq!(bench.shelf.counters().too_early, 2);
    for request in [AtaRequest::read(Lba(0), 1, true), AtaRequest::identify(), AtaRequest::flush(true)] {
        assert!(bench.ata(request, &[]).is_ok());
    }
    bench.now = Duration::from_secs(5);
    assert!(bench.send(&write).is_some() && bench.send(&trim).is_some());
    assert_eq!(bench.log().len(), 3);
}

/// One step of a random history: a new write, or a copy of an earlier one.
#[derive(Clone, Debug)]
enum Step {
    Write { lba: u64, sectors: u8 },
    Copy { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u64..8, 1u8..=2).prop_map(|(lba, sectors)| Step::Write { lba, sectors }),
        (0usize..1000).prop_map(|which| Step::Copy { which }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Copies arrive in any order within a lifetime of their original, and the store is as if none had.
    #[test]
    fn copies_change_nothing(steps in vec((step(), 0u64..200), 1..80)) {
        let mut bench = Bench::new();
        let mut model = bench.store().bytes.clone();
        let mut sent: Vec<(Duration, Vec<u8>, Vec<u8>)> = Vec::new();
        let mut executed = 0;
        for (serial, (step, pause)) in (0u8..).zip(steps) {
            bench.now += Duration::from_millis(pause);
            let now = bench.now;
            sent.retain(|(at, ..)| now <= *at + LIFETIME);
            match step {
                Step::Write { lba, sectors } => {
                    let data = pattern(sectors.into(), serial);
                    let frame = bench.ata_frame(&AtaRequest::write(Lba(lba), sectors, true), &data);
                    let reply = bench.send(&frame).unwrap();
                    let start = lba as usize * SECTOR;
                    model[start..start + data.len()].copy_from_slice(&data);
                    sent.push((now, frame, reply));
                    executed += 1;
                }
                Step::Copy { which } => {
                    if let Some((_, frame, reply)) = sent.get(which % sent.len().max(1)).cloned() {
                        prop_assert_eq!(bench.send(&frame), Some(reply));
                    }
                }
            }
            prop_assert!(bench.store().bytes == model);
            prop_assert_eq!(bench.store().log.len(), executed);
        }
    }
}
