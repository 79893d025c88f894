//! Reads, writes, flushes: how requests become frames, and what limits them.

use super::harness::*;
use crate::initiator::*;
use crate::wire::{AFlags, Identify, MIN_FRAME, Opcode, SECTOR};

fn lengths(sent: &[Sent]) -> Vec<(u64, u8)> {
    let pair = |command: crate::wire::AtaRequest| (command.lba().0, command.sectors);
    commands(sent).into_iter().map(pair).collect()
}

#[test]
fn a_read_is_cut_into_aligned_frames_and_put_together() {
    let mut target = Target::new(4096);
    for (at, byte) in target.disk.iter_mut().enumerate() {
        *byte = (at / 7) as u8;
    }
    let (mut host, device) = found(&mut target);
    let id = host.read(device, 3, 40);
    let sent = host.exchange(&mut target);
    assert_eq!(lengths(&sent), [(3, 13), (16, 16), (32, 11)]);
    for frame in &sent {
        let command = frame.ata().expect("only commands are sent");
        assert_eq!(command.opcode, Opcode::READ_SECTORS_EXT);
        assert_eq!(command.flags, AFlags::EXTENDED);
        assert_eq!(frame.bytes.len(), MIN_FRAME);
        let header = frame.frame().header;
        assert_eq!((header.dst, header.src), (TARGET, host_mac(PORT)));
        assert_eq!(header.address, ADDRESS);
        assert_eq!(header.tag.0 >> 23, 0x100 | 5, "user bit and worker");
    }
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(host.buffers[&id], target.disk[3 * SECTOR..43 * SECTOR]);
    assert_eq!(host.initiator.counters().bytes_read, 40 * 512);
}

#[test]
fn a_write_arrives_in_order_of_its_offsets() {
    let mut target = Target::new(4096);
    let (mut host, device) = found(&mut target);
    let id = host.write(device, 100, 33);
    for (at, byte) in host.buffers.get_mut(&id).expect("made").iter_mut().enumerate() {
        *byte = (at / 5) as u8;
    }
    let sent = host.exchange(&mut target);
    assert_eq!(lengths(&sent), [(100, 12), (112, 16), (128, 5)]);
    assert_eq!(sent[1].bytes.len(), 36 + 16 * SECTOR);
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(host.buffers[&id], target.disk[100 * SECTOR..133 * SECTOR]);
    assert_eq!(host.initiator.counters().bytes_written, 33 * 512);
}

#[test]
fn payload_follows_port_and_target() {
    for (mtu, sectors_max, first) in
        [(1500, 17, 2), (9000, 17, 16), (9000, 2, 2), (9000, 0, 2), (4200, 17, 8), (9216, 255, 16)]
    {
        let mut target = Target::new(4096);
        target.sectors_max = sectors_max;
        let mut host = Host::new(Tunables::default());
        host.port(PORT, Some(mtu));
        let device = host.open();
        host.advance_with(ms(1), &mut target);
        host.read(device, 0, 64);
        assert_eq!(lengths(&host.sent())[0], (0, first), "{mtu} {sectors_max}");
    }
}

#[test]
fn small_disks_get_28_bit_commands() {
    let mut target = Target::new(2048);
    target.identify = Identify { lba48: false, flush_ext: false, ..target.identify };
    let (mut host, device) = found(&mut target);
    host.read(device, 5, 1);
    host.write(device, 7, 1);
    host.submit(device, Op::Flush, 0, 0);
    let sent = host.exchange(&mut target);
    let opcodes: Vec<_> = commands(&sent).iter().map(|command| command.opcode).collect();
    let expected = [Opcode::READ_SECTORS, Opcode::WRITE_SECTORS, Opcode::FLUSH_CACHE];
    assert_eq!(opcodes, expected);
    for command in commands(&sent) {
        assert!(!command.flags.contains(AFlags::EXTENDED));
    }
    assert_eq!(host.try_submit(device, Op::Write { fua: true }, 0, 1), Err(SubmitError::NoFua));
}

#[test]
fn flush_and_fua_use_what_the_device_offers() {
    let mut target = Target::ours(2048);
    let (mut host, device) = found(&mut target);
    host.submit(device, Op::Flush, 0, 0);
    host.submit(device, Op::Write { fua: true }, 8, 2);
    let sent = host.exchange(&mut target);
    let opcodes: Vec<_> = commands(&sent).iter().map(|command| command.opcode).collect();
    assert_eq!(opcodes, [Opcode::FLUSH_CACHE_EXT, Opcode::WRITE_DMA_FUA_EXT]);
    assert_eq!(host.status(0), Some(Status::Ok));
    assert_eq!(host.status(1), Some(Status::Ok));
}

#[test]
fn identify_brings_the_data() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let id = host.submit(device, Op::Identify, 0, 0);
    host.exchange(&mut target);
    assert_eq!(host.status(id), Some(Status::Ok));
    assert_eq!(Identify::parse(&host.buffers[&id]), Ok(target.identify));
}

#[test]
fn what_can_not_be_done_is_not_taken() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let mut other = Host::new(Tunables::default());
    let unknown = other.open();
    for (op, lba, sectors, error) in [
        (Op::Read, 0, 0, SubmitError::OutOfRange),
        (Op::Read, 2048, 1, SubmitError::OutOfRange),
        (Op::Read, 2047, 2, SubmitError::OutOfRange),
        (Op::Write { fua: false }, u64::MAX, 2, SubmitError::OutOfRange),
        (Op::Write { fua: true }, 0, 1, SubmitError::NoFua),
    ] {
        assert_eq!(host.try_submit(device, op, lba, sectors), Err(error), "{op:?} {lba}");
    }
    assert_eq!(other.try_submit(unknown, Op::Read, 0, 1), Err(SubmitError::NotFound));
    host.read(device, 2047, 1);
    host.read(device, 0, 2048);
    host.initiator.close(host.now, device);
    assert_eq!(host.try_submit(device, Op::Read, 0, 1), Err(SubmitError::NoDevice));
    assert!(host.sent().is_empty());
    assert_eq!(host.completions, [(5, Status::Cancelled), (6, Status::Cancelled)]);
}

#[test]
fn requests_are_bounded() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    for _ in 0..REQUESTS_MAX {
        host.read(device, 0, 1);
    }
    assert_eq!(host.try_submit(device, Op::Read, 0, 1), Err(SubmitError::Full));
    host.exchange(&mut target);
    assert_eq!(host.completions.len(), REQUESTS_MAX);
    host.read(device, 0, 1);
}

#[test]
fn outstanding_frames_keep_to_the_buffer_count() {
    for (buffer_count, limit) in [(0, 1), (1, 1), (3, 3), (64, 64), (1024, 64)] {
        let mut target = Target::new(1 << 16);
        target.buffer_count = buffer_count;
        let (mut host, device) = found(&mut target);
        let id = host.read(device, 0, 1 << 15);
        let mut most = 0;
        let mut waiting = Vec::new();
        while host.status(id).is_none() {
            waiting.extend(host.sent());
            most = most.max(waiting.len());
            let frame = waiting.remove(0);
            host.answer(&mut target, &frame);
        }
        assert_eq!(most, limit, "buffer count {buffer_count}");
    }
}

#[test]
fn a_lowered_buffer_count_counts_at_once() {
    let mut target = Target::new(1 << 16);
    let (mut host, device) = found(&mut target);
    let id = host.read(device, 0, 1 << 12);
    let mut waiting = Vec::new();
    // Opens the window to 16.
    for _ in 0..64 {
        waiting.extend(host.sent());
        let frame = waiting.remove(0);
        host.answer(&mut target, &frame);
    }
    waiting.extend(host.sent());
    assert_eq!(waiting.len(), 16);
    target.buffer_count = 2;
    host.receive(PORT, &target.beacon());
    while host.status(id).is_none() {
        let sent = host.sent();
        // The IDENTIFY that follows a beacon is sent too.
        assert!(sent.is_empty() || waiting.len() <= 2, "{} under way", waiting.len());
        waiting.extend(sent);
        let frame = waiting.remove(0);
        host.answer(&mut target, &frame);
    }
    let view = host.initiator.device(device).expect("open");
    assert_eq!((view.limit(), view.buffer_count(), view.outstanding()), (2, 2, 0));
}

#[test]
fn copies_of_a_frame_are_the_same_bytes() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let id = host.write(device, 64, 4);
    let sent = host.advance(Duration::from_secs(4));
    let copies: Vec<&Sent> = sent.iter().filter(|frame| frame.ata().is_some()).collect();
    assert!(copies.len() > 3, "{} copies", copies.len());
    for pair in copies.windows(2) {
        assert_eq!(pair[0].bytes, pair[1].bytes);
    }
    // The floor, then doubled up to the ceiling.
    let gaps: Vec<_> = copies.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    assert_eq!(gaps[..4], [ms(10), ms(20), ms(40), ms(80)]);
    assert!(gaps.iter().all(|gap| *gap <= Duration::from_secs(2)));
    let last = copies[copies.len() - 1].clone();
    host.answer(&mut target, &last);
    assert_eq!(host.status(id), Some(Status::Ok));
    let counters = host.initiator.counters();
    assert!(counters.retransmits >= copies.len() as u64 - 1);
    assert_eq!(counters.bytes_written, 4 * 512, "copies do not count");
}

#[test]
fn a_frame_sent_twice_gives_no_round_trip() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    let srtt = |host: &Host| {
        let view = host.initiator.device(device).expect("open");
        view.paths().next().expect("one path").srtt
    };
    let before = srtt(&host);
    host.read(device, 0, 1);
    let first = host.sent();
    // Copies at 10, 30 and 70 ms.
    let again = host.advance(ms(75));
    assert_eq!((first.len(), again.len()), (1, 3));
    host.answer(&mut target, &again[2]);
    assert_eq!(srtt(&host), before);
    // Late, but sent once: a sample.
    host.read(device, 0, 1);
    let sent = host.sent();
    host.now += ms(8);
    host.answer(&mut target, &sent[0]);
    assert_eq!(srtt(&host), ms(1));
}

#[test]
fn a_late_reply_ends_a_request_that_waits_to_be_sent_again() {
    let mut target = Target::new(2048);
    let (mut host, device) = found(&mut target);
    for _ in 0..4 {
        host.read(device, 0, 1);
    }
    let sent = host.sent();
    let again = host.advance(ms(10));
    assert_eq!((sent.len(), again.len()), (4, 2), "the window is half as large after the loss");
    for frame in &sent {
        host.answer(&mut target, frame);
    }
    assert_eq!(host.completions.len(), 4);
    assert!(host.sent().is_empty());
    let counters = *host.initiator.counters();
    host.answer(&mut target, &again[0]);
    assert_eq!(host.initiator.counters().stray, counters.stray + 1);
}

#[test]
fn retransmits_obey_the_window() {
    let mut target = Target::new(1 << 14);
    let (mut host, device) = found(&mut target);
    host.read(device, 0, 1 << 12);
    let mut waiting = Vec::new();
    for _ in 0..64 {
        waiting.extend(host.sent());
        let frame = waiting.remove(0);
        host.answer(&mut target, &frame);
    }
    waiting.extend(host.sent());
    assert_eq!(waiting.len(), 16);
    // All sixteen are lost at once; the window is cut once, and far fewer are sent again.
    let again = host.advance(ms(12));
    assert!((1..=8).contains(&again.len()), "{} sent again", again.len());
    let view = host.initiator.device(device).expect("open");
    let path = view.paths().next().expect("one path");
    assert_eq!(path.counters.loss_epochs, 1);
    // Up to three more, to show whether those before are lost.
    assert!(path.outstanding <= path.cwnd + 3);
    assert_eq!(view.resending() + path.outstanding, 16);
}

#[test]
fn a_frame_too_large_for_the_port_is_split() {
    let mut target = Target::new(4096);
    let (mut host, device) = found(&mut target);
    let write = host.write(device, 32, 16);
    let read = host.read(device, 64, 16);
    let lost = host.sent();
    assert_eq!(lengths(&lost), [(32, 16), (64, 16)]);
    host.port(PORT, Some(1500));
    let sent = host.advance_with(ms(200), &mut target);
    assert!(lengths(&sent).iter().all(|(_, sectors)| *sectors <= 2), "{:?}", lengths(&sent));
    assert_eq!(host.status(write), Some(Status::Ok));
    assert_eq!(host.status(read), Some(Status::Ok));
    assert_eq!(host.buffers[&write], target.disk[32 * SECTOR..48 * SECTOR]);
    // The whole frame may still come: its sectors are closed, even though each part was sent once.
    let until = host.initiator.closed_until(host.now, ADDRESS, Lba(32), 16);
    assert_eq!(until, Some(ms(2000)));
    let counters = *host.initiator.counters();
    host.answer(&mut target, &lost[1]);
    assert_eq!(host.initiator.counters().stray, counters.stray + 1);
}

#[test]
fn frames_are_bounded_and_every_device_gets_its_share_again() {
    const DEVICES: u8 = 6;
    let tunables = Tunables { aoe_maxout: 1024, aoe_congestion: 1, aoe_window: 1024, ..Tunables::default() };
    let mut host = Host::new(tunables);
    let mut targets = Vec::new();
    let mut devices = Vec::new();
    for slot in 0..DEVICES {
        let mut target = Target::new(4096);
        target.address = Address::new(7, slot);
        target.buffer_count = 1024;
        target.sectors_max = 2;
        let credits = Arc::new(Credits::new());
        devices.push(host.initiator.open(host.now, target.address, credits));
        host.initiator.handle_timeout(host.now);
        host.exchange(&mut target);
        targets.push(target);
    }
    // 6 times 1024 frames; the last two devices get none of them at first.
    let read = |host: &mut Host, range: core::ops::Range<usize>| -> Vec<u64> {
        let devices = devices[range].iter();
        devices.map(|device| host.read(*device, 0, 2048)).collect()
    };
    let mut ids = read(&mut host, 0..4);
    let mut waiting: VecDeque<Sent> = host.sent().into();
    assert_eq!(waiting.len(), FRAMES_MAX);
    ids.extend(read(&mut host, 4..6));
    assert_eq!(host.sent(), []);
    while let Some(frame) = waiting.pop_front() {
        let slot = frame.frame().header.address.slot.0;
        host.answer(&mut targets[usize::from(slot)], &frame);
        waiting.extend(host.sent());
        assert!(waiting.len() <= FRAMES_MAX);
    }
    assert!(ids.iter().all(|id| host.status(*id) == Some(Status::Ok)));
}

#[test]
fn devices_take_turns() {
    let mut target = Target::new(1 << 14);
    let (mut host, device) = found(&mut target);
    let mut second = Target::new(1 << 14);
    second.address = Address::new(7, 2);
    let credits = Arc::new(Credits::new());
    let other = host.initiator.open(host.now, second.address, credits);
    host.initiator.handle_timeout(host.now);
    host.exchange(&mut second);
    host.read(device, 0, 640);
    host.read(other, 0, 640);
    let addresses: Vec<_> = host.sent().iter().map(|sent| sent.frame().header.address).collect();
    assert_eq!(addresses.len(), 8);
    for pair in addresses.chunks(2) {
        assert_ne!(pair[0], pair[1], "{addresses:?}");
    }
}

#[test]
fn workers_share_the_credits_of_a_device() {
    let mut target = Target::new(1 << 14);
    target.buffer_count = 2;
    let credits = Arc::new(Credits::new());
    let mut hosts: Vec<Host> = (0..2).map(|worker| Host::with_config(Config::new(WorkerId(worker), 7))).collect();
    let devices: Vec<_> = hosts
        .iter_mut()
        .map(|host| {
            let device = host.initiator.open(host.now, ADDRESS, credits.clone());
            host.initiator.handle_timeout(host.now);
            host.exchange(&mut target);
            host.take_events();
            device
        })
        .collect();
    let ids: Vec<_> = (0..2).map(|at| hosts[at].read(devices[at], 0, 256)).collect();
    let mut waiting = [hosts[0].sent(), hosts[1].sent()];
    assert_eq!((waiting[0].len(), waiting[1].len()), (2, 0));
    // Each answer hands the credit to the other worker, which is to be woken.
    for turn in 0.. {
        let [first, second] = &waiting;
        assert!(first.len() + second.len() <= 2);
        let Some(at) = (0..2).find(|at| !waiting[(*at + turn) % 2].is_empty()) else {
            break;
        };
        let at = (at + turn) % 2;
        let frame = waiting[at].remove(0);
        hosts[at].answer(&mut target, &frame);
        let own = hosts[at].sent();
        waiting[at].extend(own);
        for event in hosts[at].take_events() {
            let Event::CreditsFreed { worker } = event else {
                panic!("{event:?}");
            };
            assert_eq!(usize::from(worker.0), 1 - at);
            let other = hosts[1 - at].sent();
            waiting[1 - at].extend(other);
        }
    }
    assert_eq!(hosts[0].status(ids[0]), Some(Status::Ok));
    assert_eq!(hosts[1].status(ids[1]), Some(Status::Ok));
    assert_eq!(credits.taken(), 0);
}
