//! Malformed messages get error 2 and change nothing; random ones never panic.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::emitted;

fn error_of(reply: Option<Vec<u8>>) -> Option<u8> {
    reply.map(|reply| Header::parse(&reply).unwrap().0.error.map_or(0, |error| error.0))
}

#[test]
fn malformed_ata_requests() {
    let mut bench = Bench::new();
    let write_flag = |request: AtaRequest| AtaRequest { flags: request.flags.with(AFlags::WRITE), ..request };
    let read_flag = |request: AtaRequest| AtaRequest { flags: AFlags(request.flags.0 & !1), ..request };
    let narrow = |request: AtaRequest| AtaRequest { flags: AFlags(request.flags.0 & !0x40), ..request };
    let wide = |request: AtaRequest| AtaRequest { flags: request.flags.with(AFlags::EXTENDED), ..request };
    let count = |sectors: u8, request: AtaRequest| AtaRequest { sectors, ..request };
    let read = AtaRequest::read(Lba(1), 1, true);
    let write = AtaRequest::write(Lba(1), 1, true);
    let verify = AtaRequest::verify(Lba(1), 1, true);
    let full = pattern(3, 1);
    let table: Vec<(AtaRequest, &[u8])> = vec![
        // No sectors: never 256.
        (count(0, read), &full),
        (count(0, write), &full),
        (count(0, verify), &full),
        (count(0, AtaRequest::trim(1)), &full),
        // More than fit into a frame at MTU 1500.
        (count(3, read), &full),
        (count(255, read), &full),
        (count(3, write), &full),
        (AtaRequest::trim(3), &full),
        // The W flag must agree with the opcode.
        (write_flag(read), &full),
        (read_flag(write), &full),
        (write_flag(verify), &full),
        (write_flag(AtaRequest::flush(true)), &full),
        (write_flag(AtaRequest::identify()), &full),
        (read_flag(AtaRequest::trim(1)), &full),
        // So must the E flag, where there is an address.
        (narrow(read), &full),
        (narrow(write), &full),
        (narrow(verify), &full),
        (wide(AtaRequest::read(Lba(1), 1, false)), &full),
        (wide(AtaRequest::write(Lba(1), 1, false)), &full),
        // IDENTIFY returns one sector.
        (count(0, AtaRequest::identify()), &full),
        (count(2, AtaRequest::identify()), &full),
        // Data cut off.
        (write, &full[..511]),
        (write, &[]),
        (count(2, write), &full[..1023]),
        (AtaRequest::write_fua(Lba(1), 2), &full[..512]),
        (AtaRequest::trim(1), &full[..511]),
    ];
    let before = bench.store().bytes.clone();
    for (request, data) in &table {
        assert_eq!(bench.ata(*request, data), Err(AoeError::ARGUMENT), "{request:?} with {} bytes", data.len());
    }
    assert_eq!(bench.log(), []);
    assert_eq!(bench.store().bytes, before);
    assert_eq!(bench.counters().protocol_errors, table.len() as u64);
}

#[test]
fn truncated_at_every_length() {
    let mut bench = Bench::new();
    let data = pattern(2, 5);
    let write = bench.ata_frame(&AtaRequest::write(Lba(1), 2, true), &data);
    let (config, mask, reserve) =
        (bench.header(Command::CONFIG), bench.header(Command::MASK), bench.header(Command::RESERVE));
    let add = Directive { dcmd: DCmd::ADD, mac: HOST };
    let frames = [
        write,
        emitted(|buf| ConfigInfo::request(CCmd::FORCE_SET, b"a text").emit(&config, buf)),
        emitted(|buf| MaskList::emit(&mask, MCmd::EDIT, [add; 5].into_iter(), buf)),
        emitted(|buf| Reserve::emit(&reserve, RCmd::SET, [HOST; 5].into_iter(), buf)),
    ];
    for frame in &frames {
        for len in 0..frame.len() {
            let want = (len >= AOE_HEADER).then_some(2);
            assert_eq!(error_of(bench.send(&frame[..len])), want, "command {}, {len} bytes", frame[19]);
        }
    }
    assert_eq!(bench.log(), []);
    assert_eq!(bench.shelf.state(E7_0), Some(&DeviceState::default()));
}

#[test]
fn commands_and_versions() {
    let mut bench = Bench::new();
    for command in (4..=255).map(Command) {
        let header = bench.header(command);
        assert_eq!(error_of(bench.send(&emitted(|buf| header.emit(buf)))), Some(1), "{command:?}");
    }
    for version in (0..16).filter(|version| *version != 1) {
        for command in [0, 1, 2, 3, 4].map(Command) {
            let header = Header { version, ..bench.header(command) };
            let frame = emitted(|buf| AtaRequest::identify().emit(&header, buf));
            assert_eq!(error_of(bench.send(&frame)), Some(5), "version {version}");
        }
    }
    // Flag bits without a meaning are ignored, and so is the error flag in a request.
    let mut frame = bench.ata_frame(&AtaRequest::identify(), &[]);
    frame[14] |= 0x07;
    assert_eq!(error_of(bench.send(&frame)), Some(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random messages to us: a reply is well formed, and a message with an error changes nothing.
    #[test]
    fn random_messages(
        mut frames in vec((vec(any::<u8>(), 0..1100), 0u8..5, 0u8..8), 1..12),
    ) {
        let mut bench = Bench::new();
        for (bytes, command, opcode) in &mut frames {
            let header = bench.header(Command(*command));
            let mut frame = vec![0; AOE_HEADER];
            header.emit(&mut frame);
            frame.append(bytes);
            if *command == 0 && frame.len() >= ATA_HEADER {
                // Mostly known commands, with addresses on the device.
                frame[27] = [0x20, 0x24, 0x30, 0x34, 0x06, 0x42, 0xEA, 0xEF][usize::from(*opcode)];
                frame[26] %= 4;
                frame[29..34].fill(0);
            }
            let state = bench.shelf.state(E7_0).unwrap().clone();
            let stored = bench.store().bytes.clone();
            match bench.handle(&frame) {
                Outcome::Drop => {}
                Outcome::Reply(len) | Outcome::Save { len, .. } => {
                    let reply = bench.checked_reply(&frame, len);
                    if reply[14] == 0x1C {
                        prop_assert_eq!(bench.shelf.state(E7_0).unwrap(), &state);
                        prop_assert!(bench.store().bytes == stored);
                    }
                }
                Outcome::Many => panic!("not a wildcard"),
            }
        }
    }
}
