//! The wire format against bytes from the protocol text, and parsers against any bytes.

use super::*;
use proptest::prelude::*;

/// Bytes written down by hand from the protocol text.
#[test]
fn messages_are_those_of_the_protocol_text() {
    assert_eq!(&greeting(3), b"NBDMAGICIHAVEOPT\x00\x03");

    let head = OptionHead { code: option::GO, len: 0x0102 };
    assert_eq!(&head.emit(), b"IHAVEOPT\x00\x00\x00\x07\x00\x00\x01\x02");

    let mut out = vec![9];
    option_reply(&mut out, option::LIST, option_reply_type::SERVER, &[&[0, 0, 0, 1], b"x"]);
    let expected =
        b"\x09\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x03\x00\x00\x00\x02\x00\x00\x00\x05\x00\x00\x00\x01x";
    assert_eq!(out, expected);

    let request =
        RequestHead { flags: 1, command: command::WRITE, cookie: 0x0102_0304_0506_0708, offset: 0x1000, len: 512 };
    let expected = b"\x25\x60\x95\x13\x00\x01\x00\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x10\0\0\0\x02\0";
    assert_eq!(request.emit(Headers::Simple), expected);
    assert_eq!(request.emit(Headers::Structured), expected);
    let expected =
        b"\x21\xe4\x1c\x71\x00\x01\x00\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x02\0";
    assert_eq!(request.emit(Headers::Extended), expected);
}

#[test]
fn replies_are_those_of_the_protocol_text() {
    let to = |headers, carries| ReplyTo { headers, cookie: 7, offset: 0x200, carries };
    let simple = to(Headers::Simple, true);
    let structured = to(Headers::Structured, true);
    let extended = to(Headers::Extended, true);
    let ok: &[u8] = b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x07";
    let full: &[u8] = b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x07";
    let cases: &[(ReplyHead, &[u8])] = &[
        (ReplyHead::done(to(Headers::Simple, false)), ok),
        (ReplyHead::done(to(Headers::Structured, false)), ok),
        (ReplyHead::data(simple, 16), ok),
        (ReplyHead::error(simple, NbdError::NoSpace), full),
        (ReplyHead::error(to(Headers::Structured, false), NbdError::NoSpace), full),
        (
            ReplyHead::data(structured, 16),
            b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\0\x18\0\0\0\0\0\0\x02\0",
        ),
        (
            ReplyHead::error(structured, NbdError::Io),
            b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x06\0\0\0\x05\0\0",
        ),
        (
            ReplyHead::extent(structured, 9, 0x1000, 3),
            b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x07\0\0\0\x0c\0\0\0\x09\0\0\x10\0\0\0\0\x03",
        ),
        (
            ReplyHead::done(to(Headers::Extended, false)),
            b"\x6e\x8a\x27\x8c\0\x01\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0",
        ),
        (
            ReplyHead::data(extended, 16),
            b"\x6e\x8a\x27\x8c\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\x18\0\0\0\0\0\0\x02\0",
        ),
        (
            ReplyHead::error(to(Headers::Extended, false), NbdError::Io),
            b"\x6e\x8a\x27\x8c\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\x06\0\0\0\x05\0\0",
        ),
        (
            ReplyHead::extent(extended, 9, 1 << 40, 3),
            b"\x6e\x8a\x27\x8c\0\x01\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\x18\0\0\0\x09\0\0\0\x01\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\x03",
        ),
    ];
    for (head, bytes) in cases {
        assert_eq!(head.as_bytes(), *bytes);
    }
}

#[test]
fn error_numbers() {
    let table = [
        (NbdError::Perm, 1),
        (NbdError::Io, 5),
        (NbdError::Invalid, 22),
        (NbdError::NoSpace, 28),
        (NbdError::Shutdown, 108),
    ];
    for (error, code) in table {
        assert_eq!(error.code(), code);
    }
}

#[test]
fn wrong_magic_is_told() {
    let mut option = OptionHead { code: 1, len: 0 }.emit();
    option[0] ^= 1;
    assert!(matches!(OptionHead::parse(&option), Err(BadMagic(m)) if m != IHAVEOPT));
    for (headers, magic) in [(Headers::Simple, 0x2560_9513), (Headers::Extended, 0x21e4_1c71)] {
        let mut request = RequestHead { flags: 0, command: 0, cookie: 0, offset: 0, len: 0 }.emit(headers);
        assert_eq!(RequestHead::parse(headers, &request[1..]), None);
        request[3] ^= 1;
        assert_eq!(RequestHead::parse(headers, &request), Some(Err(BadMagic(magic ^ 1))));
    }
}

#[test]
fn info_request_table() {
    let good = b"\0\0\0\x02ab\0\x02\0\x03\0\x01";
    let parsed = InfoRequest::parse(good).unwrap();
    assert_eq!(parsed.name, b"ab");
    assert!(parsed.wants(info::BLOCK_SIZE) && parsed.wants(info::NAME));
    assert!(!parsed.wants(info::DESCRIPTION) && !parsed.wants(info::EXPORT));
    assert!(InfoRequest::parse(b"\0\0\0\0\0\0").is_some());
    let bad: &[&[u8]] = &[
        b"",
        b"\0\0\0",
        b"\0\0\0\x01",
        b"\0\0\0\0\0",
        b"\xff\xff\xff\xff\0\0",
        b"\0\0\0\x02ab\0\x02\0\x03",
        b"\0\0\0\x02ab\0\x02\0\x03\0\x01\0",
        b"\0\0\0\x02ab\0\0\0\x03",
    ];
    for data in bad {
        assert_eq!(InfoRequest::parse(data), None, "{data:?}");
    }
}

proptest! {
    #[test]
    fn heads_round_trip(flags: u16, command: u16, cookie: u64, offset: u64, len: u64, code: u32) {
        let request = RequestHead { flags, command, cookie, offset, len };
        let mut bytes = request.emit(Headers::Extended);
        prop_assert_eq!(RequestHead::parse(Headers::Extended, &bytes[..31]), None);
        bytes.push(9);
        prop_assert_eq!(RequestHead::parse(Headers::Extended, &bytes), Some(Ok(request)));
        let narrow = RequestHead { len: len & 0xffff_ffff, ..request };
        prop_assert_eq!(RequestHead::parse(Headers::Simple, &narrow.emit(Headers::Structured)), Some(Ok(narrow)));
        let option = OptionHead { code, len: len as u32 };
        prop_assert_eq!(OptionHead::parse(&option.emit()), Ok(option));
    }

    #[test]
    fn any_bytes_parse_or_not(data in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Some(parsed) = InfoRequest::parse(&data) {
            prop_assert!(parsed.name.len() <= data.len());
        }
        if let Some(parsed) = MetaRequest::parse(&data) {
            let bytes: usize = parsed.queries().map(|query| query.len() + 4).sum();
            prop_assert_eq!(bytes + parsed.name.len() + 8, data.len());
        }
    }
}
