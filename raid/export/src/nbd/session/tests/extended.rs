//! CACHE and BLOCK_STATUS in each form, and what extended headers change.

use super::*;

const PAYLOAD_LEN: u16 = command_flag::PAYLOAD_LEN;

fn wide(command: u16, flags: u16, offset: u64, len: u64) -> RequestHead {
    RequestHead { flags, command, cookie: 7, offset, len }
}

fn huge() -> ExportInfo {
    ExportInfo { size_bytes: 1 << 50, ..export() }
}

#[test]
fn what_needs_nothing_of_the_array() {
    for headers in [Headers::Simple, Headers::Structured, Headers::Extended] {
        let mut driver = Driver::started(ExportInfo { read_only: true, ..export() }, headers);
        for (command, flags) in [
            (command::CACHE, 0),
            (command::CACHE, command_flag::FUA),
            (command::BLOCK_STATUS, 0),
            (command::BLOCK_STATUS, command_flag::REQ_ONE),
            (command::BLOCK_STATUS, command_flag::REQ_ONE | command_flag::FUA),
        ] {
            for (offset, len) in [(0, SIZE), (512, 512), (SIZE - 512, 512)] {
                driver.feed(&wide(command, flags, offset, len).emit(headers));
                let refused = headers == Headers::Simple && command == command::BLOCK_STATUS;
                match driver.did()[..] {
                    [Did::Answer(_)] if !refused => {}
                    [Did::Refuse(_, NbdError::Invalid)] if refused => {}
                    ref other => panic!("{command} {flags}: {other:?}"),
                }
            }
        }
        assert_eq!(driver.session.in_use(), 0);
    }
}

/// One extent, never longer than the request: so REQ_ONE is honoured.
#[test]
fn an_extent_is_as_long_as_the_request() {
    for (headers, len) in [(Headers::Structured, 0xffff_fe00_u64), (Headers::Extended, 1 << 50)] {
        for flags in [0, command_flag::REQ_ONE] {
            let mut driver = Driver::started(huge(), headers);
            driver.feed(&wide(command::BLOCK_STATUS, flags, 0, len).emit(headers));
            let to = ReplyTo { headers, cookie: 7, offset: 0, carries: true };
            assert_eq!(driver.replies, [(ReplyHead::extent(to, 1, len, 0), 0)]);
        }
    }
}

#[test]
fn lengths_of_64_bits() {
    use command::*;
    let max = u64::from(proto::MAX_PAYLOAD);
    let cases = [
        (READ, 0, 0, max, Ok(Command::Read)),
        (READ, command_flag::DF, 512, 512, Ok(Command::Read)),
        (WRITE, PAYLOAD_LEN, 0, max, Ok(Command::Write)),
        (WRITE, PAYLOAD_LEN | command_flag::FUA, 512, 512, Ok(Command::Write)),
        (FLUSH, 0, 0, 0, Ok(Command::Flush)),
        (TRIM, 0, 0, 1 << 50, Ok(Command::Trim)),
        (WRITE_ZEROES, command_flag::NO_HOLE, 512, (1 << 50) - 512, Ok(Command::WriteZeroes)),
        (READ, 0, 0, max + 512, Err(NbdError::Invalid)),
        (READ, 0, 0, 1 << 40, Err(NbdError::Invalid)),
        (READ, 0, 0, u64::MAX, Err(NbdError::Invalid)),
        (TRIM, 0, 512, 1 << 50, Err(NbdError::Invalid)),
        (TRIM, 0, u64::MAX - 511, u64::MAX - 511, Err(NbdError::Invalid)),
        (WRITE_ZEROES, 0, 512, 1 << 50, Err(NbdError::NoSpace)),
        (BLOCK_STATUS, 0, 512, 1 << 50, Err(NbdError::Invalid)),
        (FLUSH, 0, 0, 1 << 32, Err(NbdError::Invalid)),
        // A WRITE has a payload without the flag too; nothing else has one with it.
        (WRITE, 0, 0, 512, Ok(Command::Write)),
        (WRITE, PAYLOAD_LEN, 0, 0, Err(NbdError::Invalid)),
        (READ, PAYLOAD_LEN, 0, 512, Err(NbdError::Invalid)),
        (BLOCK_STATUS, PAYLOAD_LEN, 0, 512, Err(NbdError::Invalid)),
        (FLUSH, PAYLOAD_LEN, 0, 4096, Err(NbdError::Invalid)),
        (99, PAYLOAD_LEN, 0, max, Err(NbdError::Invalid)),
    ];
    let mut driver = Driver::started(huge(), Headers::Extended);
    for (code, flags, offset, len, expected) in cases {
        let head = wide(code, flags, offset, len);
        let payload = head.payload(Headers::Extended) as usize;
        let bytes = [head.emit(Headers::Extended), vec![5; payload]].concat();
        assert_eq!(driver.feed(&bytes), bytes.len(), "the payload is used up: {head:?}");
        match (&driver.did()[..], expected) {
            ([Did::Submit(request, data)], Ok(command)) => {
                assert_eq!((request.command, request.offset, request.len), (command, offset, len));
                assert_eq!(data.len(), payload);
            }
            ([Did::Refuse(_, told)], Err(error)) => {
                assert_eq!(*told, error, "{head:?}");
                let to = ReplyTo { headers: Headers::Extended, cookie: 7, offset, carries: false };
                assert_eq!(driver.replies.last(), Some(&(ReplyHead::error(to, error), 0)));
            }
            (other, _) => panic!("{head:?}: {other:?}"),
        }
    }
    assert_eq!(driver.session.in_use(), 0);
}

#[test]
fn a_payload_that_nobody_may_send_ends_the_session() {
    for (command, len) in
        [(command::WRITE, u64::from(proto::MAX_PAYLOAD) + 1), (command::READ, 1 << 32), (99, u64::MAX)]
    {
        let mut driver = Driver::started(huge(), Headers::Extended);
        driver.feed(&wide(command, PAYLOAD_LEN, 0, len).emit(Headers::Extended));
        assert_eq!(driver.did(), [Did::Close(CloseReason::PayloadLength(len))]);
        assert_eq!(driver.session.in_use(), 0);
    }
}

#[test]
fn the_other_forms_magic_is_garbage() {
    for (headers, other) in [(Headers::Extended, Headers::Structured), (Headers::Structured, Headers::Extended)] {
        let mut driver = Driver::started(export(), headers);
        let mut bytes = wide(command::READ, 0, 0, 512).emit(other);
        bytes.extend([0; 8]);
        driver.feed(&bytes);
        assert!(matches!(driver.did()[..], [Did::Close(CloseReason::BadMagic(_))]));
    }
}

#[test]
fn read_ahead_is_of_whole_heads() {
    let mut driver = Driver::started(export(), Headers::Extended);
    assert_eq!(driver.session.room().len(), 64 * 32);
    driver.feed(&wide(command::WRITE, PAYLOAD_LEN, 0, 4096).emit(Headers::Extended));
    assert_eq!(driver.session.room().len(), 32);
}
