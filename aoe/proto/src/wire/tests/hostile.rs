//! Frames cut off at every length, counts that lie, random bytes; and random messages there and back.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::testing::emitted;
use crate::wire::*;

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

fn header(command: Command) -> impl Strategy<Value = Header> {
    (mac(), mac(), any::<u16>(), any::<u8>(), any::<u32>(), any::<bool>()).prop_map(
        move |(dst, src, shelf, slot, tag, response)| Header {
            dst,
            src,
            version: 1,
            response,
            error: None,
            address: Address::new(shelf, slot),
            command,
            tag: Tag(tag),
        },
    )
}

/// One message of each kind, with its smallest legal length.
fn messages() -> Vec<(Vec<u8>, usize)> {
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let request = |command| Header::request(mac, mac, Address::new(1, 2), command, Tag(3));
    let (ata, config) = (request(Command::ATA), request(Command::CONFIG));
    let (mask, reserve) = (request(Command::MASK), request(Command::RESERVE));
    let add = Directive { dcmd: DCmd::ADD, mac };
    let done =
        AtaReply { flags: AFlags(0), error: AtaError(0), sectors: 0, status: Status::OK, lba: LbaBytes::default() };
    vec![
        (emitted(|buf| AtaRequest::identify().emit(&ata, buf)), 36),
        (emitted(|buf| done.emit(&ata.reply(mac, Address::new(1, 2), None), buf)), 36),
        (emitted(|buf| ConfigInfo::request(CCmd::SET, b"hello").emit(&config, buf)), 37),
        (emitted(|buf| MaskList::emit(&mask, MCmd::EDIT, [add; 3].into_iter(), buf)), 52),
        (emitted(|buf| Reserve::emit(&reserve, RCmd::SET, [mac; 3].into_iter(), buf)), 44),
        (emitted(|buf| request(Command(0xF0)).emit(buf)), 24),
    ]
}

#[test]
fn every_truncation_is_an_error() {
    for (frame, least) in messages() {
        assert_eq!(frame.len(), least);
        for len in 0..least {
            let error = Frame::parse(&frame[..len]).map(|_| ()).unwrap_err();
            assert!(matches!(error, ParseError::Short | ParseError::Count), "{len} bytes: {error}");
            // A whole header is always found, so that the sender can be answered.
            assert_eq!(Header::parse(&frame[..len]).is_ok(), len >= AOE_HEADER);
        }
        let mut padded = frame.clone();
        padded.resize(1500, 0xEE);
        let (bare, padded) = (Frame::parse(&frame).unwrap(), Frame::parse(&padded).unwrap());
        assert_eq!(bare.header, padded.header);
        match (bare.body, padded.body) {
            (Body::AtaRequest(a, _), Body::AtaRequest(b, _)) => assert_eq!(a, b),
            (Body::AtaReply(a, _), Body::AtaReply(b, _)) => assert_eq!(a, b),
            (Body::Unknown(_), Body::Unknown(_)) => {}
            (a, b) => assert_eq!(a, b, "padding changes nothing"),
        }
    }
}

#[test]
fn counts_must_fit_the_frame() {
    for count in 0..=255u8 {
        for present in [0usize, 1, 2, 31, 180, 255] {
            let mut mask = vec![0, 1, 0, count];
            mask.resize(4 + 8 * present + 7, 0);
            assert_eq!(MaskList::parse(&mask, false).is_ok(), usize::from(count) <= present);
            let mut reserve = vec![1, count];
            reserve.resize(2 + 6 * present + 5, 0);
            assert_eq!(Reserve::parse(&reserve).is_ok(), usize::from(count) <= present);
        }
    }
    for (len, present, ok) in
        [(0u16, 0, true), (5, 5, true), (5, 4, false), (1024, 1024, true), (1025, 1025, false), (0xFFFF, 1100, false)]
    {
        let mut config = vec![0u8; 8];
        config[6..8].copy_from_slice(&len.to_be_bytes());
        config.resize(8 + present, b'x');
        let parsed = ConfigInfo::parse(&config);
        assert_eq!(parsed.is_ok(), ok, "{len} of {present}");
        if let Ok(parsed) = parsed {
            assert_eq!(parsed.string.len(), usize::from(len));
        }
    }
}

#[test]
fn a_stopped_edit_carries_no_list() {
    let reply = [0, 1, 3, 200];
    assert_eq!(MaskList::parse(&reply, true).unwrap().count, 200);
    assert_eq!(MaskList::parse(&reply, false), Err(ParseError::Count));
}

#[test]
fn other_protocols_are_told_apart() {
    let mut frame = messages().remove(0).0;
    frame[12] = 0x08;
    assert_eq!(Frame::parse(&frame), Err(ParseError::EtherType));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes_never_panic(mut bytes in vec(any::<u8>(), 0..1600), command in 0u8..6, flags: u8) {
        let _ = Frame::parse(&bytes);
        let _ = Identify::parse(&bytes);
        if bytes.len() >= AOE_HEADER {
            bytes[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
            bytes[14] = 0x10 | flags & 0x0F;
            bytes[19] = command;
            if let Ok(Frame { body: Body::Mask(mask), .. }) = Frame::parse(&bytes) {
                prop_assert!(mask.directives.iter().count() <= 255);
            }
        }
    }

    #[test]
    fn ata_request_round_trip(
        header in header(Command::ATA),
        (flags, feature, sectors, opcode) in any::<(u8, u8, u8, u8)>(),
        lba: [u8; 6],
    ) {
        let ata = AtaRequest { flags: AFlags(flags), feature, sectors, opcode: Opcode(opcode), lba: LbaBytes(lba) };
        let header = Header { response: false, ..header };
        let bytes = emitted(|buf| ata.emit(&header, buf));
        prop_assert_eq!(Frame::parse(&bytes), Ok(Frame { header, body: Body::AtaRequest(ata, &[]) }));
    }

    #[test]
    fn ata_reply_round_trip(
        header in header(Command::ATA),
        (flags, error, sectors, status) in any::<(u8, u8, u8, u8)>(),
        lba: [u8; 6],
    ) {
        let ata = AtaReply {
            flags: AFlags(flags), error: AtaError(error), sectors, status: Status(status), lba: LbaBytes(lba),
        };
        let header = Header { response: true, ..header };
        let bytes = emitted(|buf| ata.emit(&header, buf));
        prop_assert_eq!(Frame::parse(&bytes), Ok(Frame { header, body: Body::AtaReply(ata, &[]) }));
    }

    #[test]
    fn config_round_trip(
        header in header(Command::CONFIG),
        (buffer_count, firmware, sectors) in any::<(u16, u16, u8)>(),
        (version, ccmd) in (0u8..16, 0u8..16),
        string in vec(any::<u8>(), 0..=1024),
    ) {
        let config = ConfigInfo { buffer_count, firmware, sectors, version, ccmd: CCmd(ccmd), string: &string };
        let bytes = emitted(|buf| config.emit(&header, buf));
        prop_assert_eq!(Frame::parse(&bytes), Ok(Frame { header, body: Body::Config(config) }));
    }

    #[test]
    fn mask_round_trip(header in header(Command::MASK), list in vec((0u8..4, mac()), 0..=255)) {
        let directives = list.iter().map(|&(dcmd, mac)| Directive { dcmd: DCmd(dcmd), mac });
        let bytes = emitted(|buf| MaskList::emit(&header, MCmd::EDIT, directives.clone(), buf));
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert_eq!(frame.header, header);
        let Body::Mask(mask) = frame.body else { panic!("{frame:?}") };
        prop_assert!(mask.directives.iter().eq(directives));
        prop_assert_eq!(usize::from(mask.count), list.len());
    }

    #[test]
    fn reserve_round_trip(header in header(Command::RESERVE), rcmd: u8, macs in vec(mac(), 0..=255)) {
        let bytes = emitted(|buf| Reserve::emit(&header, RCmd(rcmd), macs.iter().copied(), buf));
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert_eq!(frame.header, header);
        let Body::Reserve(reserve) = frame.body else { panic!("{frame:?}") };
        prop_assert_eq!(reserve.rcmd, RCmd(rcmd));
        prop_assert_eq!(reserve.macs.iter().collect::<Vec<_>>(), macs);
    }

    #[test]
    fn header_round_trip(header in header(Command::ATA), command: u8, error: Option<u8>, version in 0u8..16) {
        let header = Header { command: Command(command), error: error.map(AoeError), version, ..header };
        let bytes = emitted(|buf| header.emit(buf));
        prop_assert_eq!(Header::parse(&bytes), Ok((header, &[][..])));
    }

    #[test]
    fn lba_round_trip(lba in 0..LBA48_END) {
        prop_assert_eq!(LbaBytes::lba48(Lba(lba)).lba(true), Lba(lba));
        let short = Lba(lba % LBA28_END);
        prop_assert_eq!(LbaBytes::lba28(short).lba(false), short);
        prop_assert_eq!(LbaBytes::lba28(short).0[3] & 0xF0, 0xE0);
    }
}
