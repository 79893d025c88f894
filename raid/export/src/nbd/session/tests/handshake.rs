//! Greeting, client flags and options.

use super::*;
use crate::nbd::proto::option_reply_type as reply;

/// An option reply: option, type, data.
type OptionReply = (u32, u32, Vec<u8>);

/// Option replies in the output, after the greeting.
fn replies(output: &[u8]) -> Vec<OptionReply> {
    let mut rest = output.strip_prefix(&greeting(3)).expect("the greeting is first");
    let mut list = vec![];
    while !rest.is_empty() {
        let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_be_bytes(rest[..8].try_into().unwrap()), 0x0003_e889_0455_65a9);
        let (code, kind, len) = (word(8), word(12), word(16) as usize);
        list.push((code, kind, rest[20..20 + len].to_vec()));
        rest = &rest[20 + len..];
    }
    list
}

const EXPORT_INFO: &[u8] = b"\0\0\0\0\0\0\x40\0\0\0\x05\x6d";
const BLOCK_INFO: &[u8] = b"\0\x03\0\0\x02\0\0\x01\0\0\x02\0\0\0";

#[test]
fn the_greeting_comes_unasked() {
    let session = Session::new(export());
    assert_eq!(session.output(), b"NBDMAGICIHAVEOPT\0\x03");
    assert!(!session.is_transmission());
}

#[test]
fn options_and_their_replies() {
    let told = |code| {
        vec![
            (code, reply::INFO, EXPORT_INFO.to_vec()),
            (code, reply::INFO, BLOCK_INFO.to_vec()),
            (code, reply::ACK, vec![]),
        ]
    };
    let mut all = told(option::INFO);
    all.insert(2, (option::INFO, reply::INFO, b"\0\x01md0".to_vec()));
    all.insert(3, (option::INFO, reply::INFO, b"\0\x02five disks".to_vec()));
    let one = |code, kind| vec![(code, kind, vec![])];
    let list = vec![(option::LIST, reply::SERVER, b"\0\0\0\x03md0".to_vec()), (option::LIST, reply::ACK, vec![])];
    let long = vec![0; MAX_OPTION_DATA + 1];
    let cases: Vec<(u32, &[u8], Vec<OptionReply>, bool)> = vec![
        (option::LIST, b"", list, false),
        (option::LIST, b"x", one(option::LIST, reply::ERR_INVALID), false),
        (option::STRUCTURED_REPLY, b"", one(option::STRUCTURED_REPLY, reply::ACK), false),
        (option::STRUCTURED_REPLY, b"x", one(option::STRUCTURED_REPLY, reply::ERR_INVALID), false),
        (option::INFO, b"\0\0\0\0\0\0", told(option::INFO), false),
        (option::INFO, b"\0\0\0\x03md0\0\x02\0\x02\0\x01", all, false),
        (option::INFO, b"\0\0\0\x03md1\0\0", one(option::INFO, reply::ERR_UNKNOWN), false),
        (option::INFO, b"\0\0\0\x03md0", one(option::INFO, reply::ERR_INVALID), false),
        (option::INFO, b"\0\0\0\0\0\x02\0\x01", one(option::INFO, reply::ERR_INVALID), false),
        (option::INFO, b"", one(option::INFO, reply::ERR_INVALID), false),
        (option::INFO, b"\0\0\0\0\0\x01\x77\x77", told(option::INFO), false),
        (option::GO, b"\0\0\0\x03md0\0\0", told(option::GO), true),
        (option::GO, b"\0\0\0\0\0\0", told(option::GO), true),
        (option::GO, b"\0\0\0\x03md1\0\0", one(option::GO, reply::ERR_UNKNOWN), false),
        (option::GO, b"\0\0\0\x09md0\0\0", one(option::GO, reply::ERR_INVALID), false),
        (option::GO, &long, one(option::GO, reply::ERR_TOO_BIG), false),
        (0, b"", one(0, reply::ERR_UNSUP), false),
        (4, b"", one(4, reply::ERR_UNSUP), false),
        (5, b"", one(5, reply::ERR_UNSUP), false),
        (option::EXTENDED_HEADERS, b"", one(option::EXTENDED_HEADERS, reply::ACK), false),
        (option::EXTENDED_HEADERS, b"x", one(option::EXTENDED_HEADERS, reply::ERR_INVALID), false),
        (12, b"", one(12, reply::ERR_UNSUP), false),
        (u32::MAX, b"abc", one(u32::MAX, reply::ERR_UNSUP), false),
        (99, &long[..MAX_OPTION_DATA], one(99, reply::ERR_UNSUP), false),
    ];
    for (code, data, expected, starts) in cases {
        let mut driver = Driver::new(export());
        driver.feed(&3u32.to_be_bytes());
        assert_eq!(driver.feed(&opt(code, data)), data.len() + 16);
        assert_eq!(replies(&driver.output), expected, "option {code} {data:?}");
        assert_eq!(driver.session.is_transmission(), starts, "option {code} {data:?}");
        assert_eq!(driver.did(), []);
        if !starts {
            // The session goes on as if nothing had been asked.
            driver.feed(&opt(option::GO, b"\0\0\0\0\0\0"));
            assert!(driver.session.is_transmission());
        }
    }
}

#[test]
fn chunks_may_have_the_flag_for_one_of_them() {
    for code in [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
        let mut driver = Driver::new(export());
        driver.feed(&3u32.to_be_bytes());
        driver.feed(&[opt(code, b""), opt(option::INFO, b"\0\0\0\0\0\0")].concat());
        assert_eq!(replies(&driver.output)[1].2, b"\0\0\0\0\0\0\x40\0\0\0\x05\xed");
    }
}

#[test]
fn extended_headers_are_not_taken_back() {
    let mut driver = Driver::new(export());
    driver.feed(&3u32.to_be_bytes());
    let [structured, extended] = [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS].map(|code| opt(code, b""));
    driver.feed(&[&structured[..], &structured, &extended, &extended, &structured].concat());
    let answers: Vec<u32> = replies(&driver.output).into_iter().map(|(_, kind, _)| kind).collect();
    assert_eq!(answers, [reply::ACK, reply::ACK, reply::ACK, reply::ACK, reply::ERR_EXT_HEADER_REQD]);
}

#[test]
fn metadata_contexts() {
    const LIST: u32 = option::LIST_META_CONTEXT;
    const SET: u32 = option::SET_META_CONTEXT;
    const ALLOCATION: &[u8] = b"base:allocation";
    let context = |id: u8| vec![0, 0, 0, id].into_iter().chain(ALLOCATION.to_vec()).collect::<Vec<u8>>();
    let many: Vec<&[u8]> = vec![&b"x:"[..]; 100].into_iter().chain([ALLOCATION, ALLOCATION]).collect();
    let truncated = |len: usize| meta(b"md0", &[ALLOCATION])[..len].to_vec();
    let cases: Vec<(u32, Vec<u8>, u32, Option<u8>)> = vec![
        (LIST, meta(b"", &[]), reply::ACK, Some(0)),
        (LIST, meta(b"md0", &[b"base:"]), reply::ACK, Some(0)),
        (LIST, meta(b"md0", &[ALLOCATION]), reply::ACK, Some(0)),
        (LIST, meta(b"md0", &[b"qemu:", b"base:other"]), reply::ACK, None),
        (LIST, meta(b"md1", &[]), reply::ERR_UNKNOWN, None),
        (LIST, b"".to_vec(), reply::ERR_INVALID, None),
        (SET, meta(b"md0", &[ALLOCATION]), reply::ACK, Some(1)),
        (SET, meta(b"", &many), reply::ACK, Some(1)),
        (SET, meta(b"", &[b"base:"]), reply::ACK, None),
        (SET, meta(b"", &[b"base:allocation:x", b"", b"base"]), reply::ACK, None),
        (SET, meta(b"", &[]), reply::ACK, None),
        (SET, meta(b"md1", &[ALLOCATION]), reply::ERR_UNKNOWN, None),
        (SET, truncated(29), reply::ERR_INVALID, None),
        (SET, truncated(12), reply::ERR_INVALID, None),
        (SET, truncated(8), reply::ERR_INVALID, None),
        (SET, truncated(5), reply::ERR_INVALID, None),
        (SET, [meta(b"", &[ALLOCATION]), vec![0]].concat(), reply::ERR_INVALID, None),
        (SET, b"\0\0\0\0\xff\xff\xff\xff".to_vec(), reply::ERR_INVALID, None),
        (SET, vec![0; MAX_OPTION_DATA + 1], reply::ERR_TOO_BIG, None),
    ];
    for (code, data, end, id) in cases {
        for headers in [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
            let mut driver = Driver::new(export());
            driver.feed(&3u32.to_be_bytes());
            driver.feed(&[opt(headers, b""), opt(code, &data)].concat());
            let mut expected: Vec<OptionReply> =
                id.into_iter().map(|id| (code, reply::META_CONTEXT, context(id))).collect();
            expected.push((code, end, vec![]));
            assert_eq!(replies(&driver.output)[1..], expected, "{code} {data:?}");
        }
        // Without chunks nothing can be told of them.
        let mut driver = Driver::new(export());
        driver.feed(&3u32.to_be_bytes());
        driver.feed(&opt(code, &data));
        let end = if end == reply::ERR_TOO_BIG { end } else { reply::ERR_INVALID };
        assert_eq!(replies(&driver.output), [(code, end, vec![])]);
    }
}

#[test]
fn the_last_choice_of_contexts_counts() {
    let good = opt(option::SET_META_CONTEXT, &meta(b"md0", &[b"base:allocation"]));
    let none = opt(option::SET_META_CONTEXT, &meta(b"md0", &[]));
    let unknown = opt(option::SET_META_CONTEXT, &meta(b"md1", &[b"base:allocation"]));
    let list = opt(option::LIST_META_CONTEXT, &meta(b"md0", &[]));
    let malformed = opt(option::SET_META_CONTEXT, b"");
    for (options, chosen) in [
        (vec![&good], true),
        (vec![&none, &good, &list], true),
        (vec![&good, &none], false),
        (vec![&good, &unknown], false),
        (vec![&good, &malformed], false),
        (vec![], false),
    ] {
        let mut driver = Driver::new(export());
        driver.feed(&3u32.to_be_bytes());
        driver.feed(&opt(option::STRUCTURED_REPLY, b""));
        options.into_iter().for_each(|option| _ = driver.feed(option));
        driver.feed(&opt(option::GO, b"\0\0\0\0\0\0"));
        driver.feed(&emit(head(command::BLOCK_STATUS, 0, 0, 512)));
        assert_eq!(matches!(driver.did()[..], [Did::Answer(_)]), chosen);
    }
}

#[test]
fn export_name_has_padding_unless_both_agreed() {
    for (flags, padding) in [(3u32, 0), (1, 124), (2, 0), (0, 124)] {
        for name in ["", "md0"] {
            let mut driver = Driver::new(export());
            driver.feed(&flags.to_be_bytes());
            driver.feed(&opt(option::EXPORT_NAME, name.as_bytes()));
            let mut expected = greeting(3).to_vec();
            expected.extend(b"\0\0\0\0\x40\0\0\0\x05\x6d");
            expected.extend(vec![0; padding]);
            assert_eq!(driver.output, expected, "flags {flags}");
            assert!(driver.session.is_transmission());
        }
    }
}

#[test]
fn a_read_only_export_says_so() {
    let mut driver = Driver::new(ExportInfo { read_only: true, ..export() });
    driver.feed(&3u32.to_be_bytes());
    driver.feed(&opt(option::EXPORT_NAME, b""));
    assert_eq!(driver.output[driver.output.len() - 2..], [0x05, 0x6f]);
}

#[test]
fn what_ends_a_negotiation() {
    let after_flags = |more: Vec<u8>| [3u32.to_be_bytes().to_vec(), more].concat();
    let long_head = |code, len| OptionHead { code, len }.emit().to_vec();
    let mut bad = opt(option::LIST, b"");
    bad[0] = b'X';
    let magic = u64::from_be_bytes(*b"XHAVEOPT");
    let cases = [
        (4u32.to_be_bytes().to_vec(), CloseReason::ClientFlags(4)),
        (u32::MAX.to_be_bytes().to_vec(), CloseReason::ClientFlags(u32::MAX)),
        (after_flags(bad), CloseReason::BadMagic(proto::BadMagic(magic))),
        (after_flags(opt(option::ABORT, b"")), CloseReason::Abort),
        (after_flags(opt(option::EXPORT_NAME, b"md1")), CloseReason::UnknownExport),
        (after_flags(long_head(option::GO, MAX_OPTION_SWALLOW + 1)), CloseReason::OptionLength(MAX_OPTION_SWALLOW + 1)),
        (after_flags(long_head(77, u32::MAX)), CloseReason::OptionLength(u32::MAX)),
        (after_flags(long_head(option::EXPORT_NAME, 8193)), CloseReason::OptionLength(8193)),
        ([vec![0; 4], opt(option::LIST, b"")].concat(), CloseReason::OptionOutOfTurn),
        (
            after_flags([opt(option::EXTENDED_HEADERS, b""), opt(option::EXPORT_NAME, b"")].concat()),
            CloseReason::OptionOutOfTurn,
        ),
        (after_flags(opt(77, b"").repeat(1025)), CloseReason::OptionOutOfTurn),
    ];
    for (bytes, reason) in cases {
        let mut driver = Driver::new(export());
        driver.feed(&bytes);
        assert_eq!(driver.did(), [Did::Close(reason)]);
        assert_eq!(driver.session.closing(), Some(reason));
        // Once closed, nothing changes that.
        driver.session.stop();
        driver.session.end_of_stream();
        assert_eq!(driver.session.closing(), Some(reason));
    }
}

#[test]
fn abort_is_acknowledged() {
    let mut driver = Driver::new(export());
    driver.feed(&[&3u32.to_be_bytes()[..], &opt(option::ABORT, b"")].concat());
    assert_eq!(replies(&driver.output), [(option::ABORT, reply::ACK, vec![])]);
}

#[test]
fn unsent_output_holds_further_options() {
    let mut session = Session::new(export());
    let list = opt(option::LIST, b"");
    session.room()[..4].copy_from_slice(&3u32.to_be_bytes());
    session.received(4);
    let mut fed = 0;
    while session.poll() == Event::Read {
        session.room()[..list.len()].copy_from_slice(&list);
        session.received(list.len());
        fed += 1;
        assert!(fed < 1000);
    }
    assert_eq!(session.poll(), Event::Full);
    assert!(session.output().len() < (16 << 10) + 200);
    session.output_sent(session.output().len());
    assert_eq!(session.poll(), Event::Read);
}

#[test]
fn stop_and_end_of_stream_in_every_phase_of_the_handshake() {
    let option = opt(option::INFO, &[0; 100]);
    let prefixes: [&[u8]; 5] = [
        b"",
        b"\0\0",
        b"\0\0\0\x03",
        &[b"\0\0\0\x03", &option[..10]].concat(),
        &[b"\0\0\0\x03", &option[..30]].concat(),
    ];
    for prefix in prefixes {
        for stop in [false, true] {
            let mut driver = Driver::new(export());
            driver.feed(prefix);
            let reason = if stop { CloseReason::Stopped } else { CloseReason::Eof };
            if stop {
                driver.session.stop();
            } else {
                driver.session.end_of_stream();
            }
            assert_eq!(driver.session.poll(), Event::Close(reason));
        }
    }
}
