//! Known bytes of each kind of message, decoded and emitted again.

use crate::testing::{emitted, hex};
use crate::wire::*;

const HOST: MacAddr = MacAddr([0x68, 0xA3, 0xC4, 0xF4, 0x84, 0x1E]);
const TARGET: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x14]);

fn request(command: Command, tag: u32) -> Header {
    Header::request(TARGET, HOST, Address::new(0x14, 0), command, Tag(tag))
}

/// Header bytes of `request`.
const REQUEST: &str = "02 00 00 00 00 14 68 a3 c4 f4 84 1e 88 a2 10 00 00 14 00";

#[test]
fn discovery() {
    let golden =
        hex("ff ff ff ff ff ff 68 a3 c4 f4 84 1e 88 a2 10 00 ff ff ff 01 00 00 00 00 | 00 00 00 00 00 00 00 00");
    let header = Header::request(MacAddr::BROADCAST, HOST, Address::ALL, Command::CONFIG, Tag(0));
    let config = ConfigInfo::request(CCmd::READ, b"");
    assert_eq!(emitted(|buf| config.emit(&header, buf)), golden);
    let frame = Frame::parse(&golden).unwrap();
    assert_eq!(frame, Frame { header, body: Body::Config(config) });
    let padded = emitted(|buf| {
        let len = config.emit(&header, buf);
        pad(buf, len)
    });
    assert_eq!(padded.len(), 60);
    assert_eq!(padded[..32], golden);
    assert!(padded[32..].iter().all(|byte| *byte == 0));
}

#[test]
fn vblade_beacon_has_version_0() {
    let golden =
        hex("ff ff ff ff ff ff 02 00 00 00 00 14 88 a2 08 00 00 14 00 01 00 00 00 00 | 00 10 40 15 02 10 00 00");
    let frame = Frame::parse(&golden).unwrap();
    assert_eq!(frame.header.version, 0);
    assert!(frame.header.response);
    assert_eq!(frame.header.address, Address::new(20, 0));
    assert_eq!(frame.header.tag, Tag::UNSOLICITED);
    let Body::Config(config) = frame.body else { panic!("{frame:?}") };
    assert_eq!(config, ConfigInfo::reply(16, 0x4015, 2, CCmd::READ, b""));
    assert_eq!(emitted(|buf| config.emit(&frame.header, buf)), golden);
}

#[test]
fn ata_requests() {
    let place = Lba(0x010203);
    let table = [
        (AtaRequest::identify(), "00 00 01 ec 00 00 00 a0 00 00 00 00"),
        (AtaRequest::read(place, 2, true), "40 00 02 24 03 02 01 00 00 00 00 00"),
        (AtaRequest::read(place, 2, false), "00 00 02 20 03 02 01 e0 00 00 00 00"),
        (AtaRequest::read(Lba(0x0FED_CBA9), 2, false), "00 00 02 20 a9 cb ed ef 00 00 00 00"),
        (AtaRequest::read(Lba(0xFEDC_BA98_7654), 255, true), "40 00 ff 24 54 76 98 ba dc fe 00 00"),
        (AtaRequest::write(place, 2, true), "41 00 02 34 03 02 01 00 00 00 00 00"),
        (AtaRequest::write(place, 2, false), "01 00 02 30 03 02 01 e0 00 00 00 00"),
        (AtaRequest::write_fua(place, 2), "41 00 02 3d 03 02 01 00 00 00 00 00"),
        (AtaRequest::verify(place, 2, true), "40 00 02 42 03 02 01 00 00 00 00 00"),
        (AtaRequest::verify(place, 2, false), "00 00 02 40 03 02 01 e0 00 00 00 00"),
        (AtaRequest::flush(true), "40 00 00 ea 00 00 00 00 00 00 00 00"),
        (AtaRequest::flush(false), "00 00 00 e7 00 00 00 a0 00 00 00 00"),
        (AtaRequest::trim(1), "41 01 01 06 00 00 00 00 00 00 00 00"),
    ];
    for (ata, arg) in table {
        let golden = hex(&format!("{REQUEST} 00 00 01 cd 4a {arg}"));
        let header = request(Command::ATA, 0x0001_CD4A);
        assert_eq!(emitted(|buf| ata.emit(&header, buf)), golden, "{ata:?}");
        assert_eq!(Frame::parse(&golden), Ok(Frame { header, body: Body::AtaRequest(ata, &[]) }));
    }
    assert_eq!(AtaRequest::read(Lba(0x0FED_CBA9), 1, false).lba(), Lba(0x0FED_CBA9));
    assert_eq!(AtaRequest::read(Lba(0xFEDC_BA98_7654), 1, true).lba(), Lba(0xFEDC_BA98_7654));
    assert_eq!(AtaRequest::trim_entry(Lba(0x0605_0403_0201), 0x0807), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn ata_reply() {
    let golden = hex(
        "68 a3 c4 f4 84 1e 02 00 00 00 00 14 88 a2 18 00 00 14 00 00 00 01 cd 4a | 40 40 01 41 03 02 01 00 00 00 00 00",
    );
    let header = request(Command::ATA, 0x0001_CD4A).reply(TARGET, Address::new(0x14, 0), None);
    let reply = AtaReply {
        flags: AFlags::EXTENDED,
        error: AtaError::UNC,
        sectors: 1,
        status: Status::FAILED,
        lba: LbaBytes::lba48(Lba(0x010203)),
    };
    assert_eq!(emitted(|buf| reply.emit(&header, buf)), golden);
    assert_eq!(Frame::parse(&golden), Ok(Frame { header, body: Body::AtaReply(reply, &[]) }));
    assert!(reply.status.is_error() && reply.error.contains(AtaError::UNC));
    let flushed = AtaReply { lba: AtaReply::boot_number_lba(0x8765_4321), status: Status::OK, ..reply };
    assert_eq!(flushed.lba, LbaBytes([0x21, 0x43, 0x65, 0x87, 0, 0]));
    assert_eq!(flushed.boot_number(), 0x8765_4321);
}

#[test]
fn config_string() {
    let golden = hex(&format!("{REQUEST} 01 00 00 00 07 00 00 00 00 00 13 00 03 61 62 63"));
    let header = request(Command::CONFIG, 7);
    let config = ConfigInfo { version: 1, ..ConfigInfo::request(CCmd::SET, b"abc") };
    assert_eq!(emitted(|buf| config.emit(&header, buf)), golden);
    assert_eq!(Frame::parse(&golden), Ok(Frame { header, body: Body::Config(config) }));
    assert_eq!(ConfigInfo::request(CCmd::READ, b"").sectors_max(), 2);
    assert_eq!(ConfigInfo::reply(1, 1, 17, CCmd::READ, b"").sectors_max(), 17);
}

#[test]
fn mask_list() {
    let golden = hex(&format!("{REQUEST} 02 00 00 00 09 00 01 00 01 00 01 68 a3 c4 f4 84 1e"));
    let header = request(Command::MASK, 9);
    let add = Directive { dcmd: DCmd::ADD, mac: HOST };
    assert_eq!(emitted(|buf| MaskList::emit(&header, MCmd::EDIT, [add].into_iter(), buf)), golden);
    let Ok(Frame { body: Body::Mask(mask), .. }) = Frame::parse(&golden) else { panic!() };
    assert_eq!((mask.mcmd, mask.merror, mask.count), (MCmd::EDIT, MError::NONE, 1));
    assert_eq!(mask.directives.iter().collect::<Vec<_>>(), [add]);
    assert_eq!((mask.directives.len(), mask.directives.is_empty()), (1, false));

    let reply = header.reply(TARGET, Address::new(0x14, 0), None);
    let stopped = emitted(|buf| MaskList::emit_stopped(&reply, MError::LIST_FULL, 5, buf));
    assert_eq!(stopped[14], 0x18);
    assert_eq!(stopped[24..], [0, 1, 3, 5]);
    let Ok(Frame { body: Body::Mask(mask), .. }) = Frame::parse(&stopped) else { panic!() };
    assert_eq!((mask.merror, mask.count, mask.directives.len()), (MError::LIST_FULL, 5, 0));
}

#[test]
fn reserve() {
    let golden = hex(&format!("{REQUEST} 03 00 00 00 0b 01 01 68 a3 c4 f4 84 1e"));
    let header = request(Command::RESERVE, 11);
    assert_eq!(emitted(|buf| Reserve::emit(&header, RCmd::SET, [HOST].into_iter(), buf)), golden);
    let Ok(Frame { body: Body::Reserve(reserve), .. }) = Frame::parse(&golden) else { panic!() };
    assert_eq!(reserve.rcmd, RCmd::SET);
    assert_eq!(reserve.macs.iter().collect::<Vec<_>>(), [HOST]);
}

#[test]
fn error_reply() {
    let header = request(Command(0x42), 3).reply(TARGET, Address::new(0x14, 0), Some(AoeError::COMMAND));
    let frame = emitted(|buf| {
        let len = header.emit(buf);
        pad(buf, len)
    });
    assert_eq!(frame[14..16], [0x1C, 0x01]);
    assert_eq!(frame.len(), 60);
    assert_eq!(Frame::parse(&frame), Ok(Frame { header, body: Body::Error }));
}

#[test]
fn versions() {
    let mut header = request(Command::CONFIG, 1);
    for (version, response, ok) in
        [(1, false, true), (0, false, false), (2, false, false), (1, true, true), (0, true, true), (15, true, false)]
    {
        header.version = version;
        header.response = response;
        let frame = emitted(|buf| ConfigInfo::request(CCmd::READ, b"").emit(&header, buf));
        let want = if ok { Ok(()) } else { Err(ParseError::Version(version)) };
        assert_eq!(Frame::parse(&frame).map(|_| ()), want);
        assert_eq!(Header::parse(&frame).unwrap().0, header);
    }
}

#[test]
fn error_byte_counts_only_with_its_flag() {
    let header = request(Command::ATA, 1);
    let mut frame = emitted(|buf| AtaRequest::identify().emit(&header, buf));
    frame[15] = 2;
    assert_eq!(Frame::parse(&frame).unwrap().header, header);
}

#[test]
fn sectors_per_frame_by_mtu() {
    let table = [
        (0, 0),
        (35, 0),
        (547, 0),
        (548, 1),
        (1500, 2),
        (4131, 7),
        (4132, 8),
        (4200, 8),
        (8228, 16),
        (9000, 17),
        (9216, 17),
        (65536, 127),
        (130_595, 254),
        (130_596, 255),
        (u32::MAX, 255),
    ];
    for (mtu, sectors) in table {
        assert_eq!(sectors_per_frame(mtu), sectors, "MTU {mtu}");
    }
}
