//! Requests, replies, bounds, and the ways to end.

use super::*;

const FUA: u16 = command_flag::FUA;
const NO_HOLE: u16 = command_flag::NO_HOLE;
const DF: u16 = command_flag::DF;
const REQ_ONE: u16 = command_flag::REQ_ONE;
const PAYLOAD_LEN: u16 = command_flag::PAYLOAD_LEN;

/// Feeds one request with its payload and returns the one thing that was done.
fn one(driver: &mut Driver, head: RequestHead) -> Did {
    let mut bytes = emit(head);
    if head.command == command::WRITE {
        bytes.resize(bytes.len() + head.len as usize, 0xa5);
    }
    assert_eq!(driver.feed(&bytes), bytes.len(), "the payload is used up: {head:?}");
    let mut did = driver.did();
    assert_eq!(did.len(), 1, "{head:?}: {did:?}");
    did.remove(0)
}

#[test]
fn good_requests() {
    use command::*;
    const MAX: u32 = proto::MAX_PAYLOAD;
    let cases = [
        (READ, 0, 0, 512, Command::Read, false),
        (READ, FUA, 1024, 4096, Command::Read, false),
        (READ, 0, SIZE - 512, 512, Command::Read, false),
        (READ, 0, 0, MAX, Command::Read, false),
        (WRITE, 0, 512, 512, Command::Write, false),
        (WRITE, FUA, SIZE - 1024, 1024, Command::Write, true),
        (WRITE, 0, 0, MAX, Command::Write, false),
        (FLUSH, 0, 0, 0, Command::Flush, false),
        (FLUSH, FUA, 0, 0, Command::Flush, false),
        (TRIM, 0, 0, SIZE as u32, Command::Trim, false),
        (TRIM, FUA, 512, 512, Command::Trim, true),
        (WRITE_ZEROES, 0, 0, SIZE as u32, Command::WriteZeroes, false),
        (WRITE_ZEROES, FUA | NO_HOLE, 512, 512, Command::WriteZeroes, true),
        (WRITE_ZEROES, NO_HOLE, 512, 512, Command::WriteZeroes, false),
    ];
    let mut driver = Driver::started(export(), Headers::Simple);
    for (code, flags, offset, len, command, fua) in cases {
        match one(&mut driver, head(code, flags, offset, len)) {
            Did::Submit(request, data) => {
                let expected = Request { slot: request.slot, command, offset, len: len.into(), fua };
                assert_eq!(request, expected);
                let payload = if code == WRITE { len as usize } else { 0 };
                assert!(data.len() == payload && data.iter().all(|&b| b == 0xa5));
            }
            other => panic!("{command:?} {offset} {len}: {other:?}"),
        }
    }
}

/// A request, by command, flags, offset and length, and the error that it gets.
type Refused = (u16, u16, u64, u32, NbdError);

#[test]
fn refused_for_command_or_flags() {
    use NbdError::*;
    use command::*;
    refused(&[
        // Unknown commands: RESIZE, which the protocol has and we have not, and beyond.
        (8, 0, 0, 512, Invalid),
        (9, 0, 0, 512, Invalid),
        (u16::MAX, 0, 0, 0, Invalid),
        // Flags.
        (READ, PAYLOAD_LEN, 0, 512, Invalid),
        (WRITE, PAYLOAD_LEN, 0, 512, Invalid),
        (WRITE, DF, 0, 512, Invalid),
        (CACHE, DF, 0, 512, Invalid),
        (CACHE, REQ_ONE, 0, 512, Invalid),
        (BLOCK_STATUS, DF, 0, 512, Invalid),
        (READ, REQ_ONE, 0, 512, Invalid),
        (READ, NO_HOLE, 0, 512, Invalid),
        (WRITE, NO_HOLE, 0, 512, Invalid),
        (WRITE, 1 << 5, 0, 512, Invalid),
        (WRITE_ZEROES, 1 << 4, 0, 512, Invalid),
        (WRITE_ZEROES, DF, 0, 512, Invalid),
        (TRIM, NO_HOLE, 0, 512, Invalid),
        (FLUSH, 1 << 15, 0, 0, Invalid),
        // Range of a flush.
        (FLUSH, 0, 512, 0, Invalid),
        (FLUSH, 0, 0, 512, Invalid),
    ]);
}

#[test]
fn refused_for_their_range() {
    use NbdError::*;
    use command::*;
    const MAX: u32 = proto::MAX_PAYLOAD;
    refused(&[
        // Length.
        (READ, 0, 0, 0, Invalid),
        (WRITE, 0, 0, 0, Invalid),
        (TRIM, 0, 0, 0, Invalid),
        (WRITE_ZEROES, 0, 0, 0, Invalid),
        (CACHE, 0, 0, 0, Invalid),
        (BLOCK_STATUS, 0, 0, 0, Invalid),
        (READ, 0, 0, MAX + 512, Invalid),
        (READ, 0, 0, u32::MAX, Invalid),
        (WRITE, 0, 0, MAX + 512, Invalid),
        // Beyond the end, the sum beyond 64 bits among it.
        (READ, 0, SIZE, 512, Invalid),
        (READ, 0, SIZE - 512, 1024, Invalid),
        (READ, 0, u64::MAX - 511, 512, Invalid),
        (TRIM, 0, SIZE, 512, Invalid),
        (CACHE, 0, SIZE - 512, 1024, Invalid),
        (BLOCK_STATUS, 0, SIZE - 512, 1024, Invalid),
        (BLOCK_STATUS, 0, u64::MAX - 511, 512, Invalid),
        (WRITE, 0, SIZE, 512, NoSpace),
        (WRITE, 0, SIZE - 512, 1024, NoSpace),
        (WRITE, 0, u64::MAX - 511, 512, NoSpace),
        (WRITE_ZEROES, 0, SIZE - 512, 1024, NoSpace),
        // Alignment.
        (READ, 0, 1, 512, Invalid),
        (READ, 0, 0, 513, Invalid),
        (WRITE, 0, 256, 512, Invalid),
        (WRITE, 0, 0, 100, Invalid),
        (TRIM, 0, 0, 100, Invalid),
        (CACHE, 0, 100, 512, Invalid),
        (BLOCK_STATUS, 0, 0, 100, Invalid),
        (WRITE_ZEROES, 0, 100, 512, Invalid),
    ]);
}

fn refused(cases: &[Refused]) {
    for headers in [Headers::Simple, Headers::Structured] {
        let mut driver = Driver::started(export(), headers);
        for &(code, flags, offset, len, error) in cases {
            let head = head(code, flags, offset, len);
            match one(&mut driver, head) {
                Did::Refuse(_, told) => assert_eq!(told, error, "{head:?}"),
                other => panic!("{head:?}: {other:?}"),
            }
            let (reply, data) = driver.replies.pop().unwrap();
            let carries = matches!(code, command::READ | command::BLOCK_STATUS);
            let to = ReplyTo { headers, cookie: head.cookie, offset, carries };
            assert_eq!((reply, data), (ReplyHead::error(to, error), 0));
        }
        assert_eq!(driver.session.in_use(), 0);
    }
}

#[test]
fn a_read_only_export_refuses_what_changes_data() {
    let mut driver = Driver::started(ExportInfo { read_only: true, ..export() }, Headers::Simple);
    for code in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        // Even out of range: the first reason counts.
        for offset in [0, SIZE] {
            assert!(matches!(one(&mut driver, head(code, 0, offset, 512)), Did::Refuse(_, NbdError::Perm)));
        }
    }
    assert!(matches!(one(&mut driver, head(command::READ, 0, 0, 512)), Did::Submit(..)));
    assert!(matches!(one(&mut driver, head(command::FLUSH, 0, 0, 0)), Did::Submit(..)));
}

#[test]
fn a_larger_minimum_block_is_kept_to() {
    let mut driver = Driver::started(ExportInfo { min_block: 4096, ..export() }, Headers::Simple);
    assert!(matches!(one(&mut driver, head(command::WRITE, 0, 512, 4096)), Did::Refuse(_, NbdError::Invalid)));
    assert!(matches!(one(&mut driver, head(command::READ, 0, 4096, 512)), Did::Refuse(_, NbdError::Invalid)));
    assert!(matches!(one(&mut driver, head(command::READ, 0, 4096, 4096)), Did::Submit(..)));
}

#[test]
fn reply_heads() {
    use Headers::{Extended, Simple, Structured};
    let of = |command, flags| RequestHead { flags, ..head(command, 0, 1024, 4096) };
    let (read, status) = (of(command::READ, 0), of(command::BLOCK_STATUS, REQ_ONE));
    let write = of(command::WRITE, 0);
    let flagged = of(command::WRITE, PAYLOAD_LEN);
    for (headers, request) in [Simple, Structured, Extended]
        .into_iter()
        .flat_map(|headers| [read, if headers == Extended { flagged } else { write }, status].map(|r| (headers, r)))
    {
        let carries = request.command != command::WRITE;
        let to = ReplyTo { headers, cookie: request.cookie, offset: request.offset, carries };
        for result in [Ok(()), Err(NbdError::Io)] {
            let mut driver = Driver::started(export(), headers);
            driver.hold = true;
            let bytes = [request.emit(headers), vec![7; request.payload(headers) as usize]].concat();
            driver.feed(&bytes);
            let slot = match driver.did()[..] {
                [Did::Submit(request, _)] => request.slot,
                [Did::Answer(slot)] => slot,
                // Without chunks there is no metadata context to tell of.
                [Did::Refuse(slot, NbdError::Invalid)] if headers == Simple && carries => slot,
                ref other => panic!("{request:?}: {other:?}"),
            };
            if headers == Simple && request == status {
                continue;
            }
            let expected = match (result, request.command) {
                (Err(error), _) => (ReplyHead::error(to, error), 0),
                (Ok(()), command::READ) => (ReplyHead::data(to, 4096), 4096),
                (Ok(()), command::BLOCK_STATUS) => (ReplyHead::extent(to, 1, 4096, 0), 0),
                (Ok(()), _) => (ReplyHead::done(to), 0),
            };
            assert_eq!(driver.session.reply(slot, result), expected, "{headers:?} {request:?}");
        }
    }
}

#[test]
fn the_table_is_bounded_in_requests() {
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.hold = true;
    let flush = head(command::FLUSH, 0, 0, 0).emit(Headers::Simple);
    driver.feed(&flush.repeat(MAX_IN_FLIGHT + 1));
    let did = driver.did();
    assert!(driver.full);
    assert_eq!(did.len(), MAX_IN_FLIGHT);
    let mut slots: Vec<_> =
        did.iter().map(|d| if let Did::Submit(r, _) = d { r.slot } else { panic!("{d:?}") }).collect();
    slots.sort();
    slots.dedup();
    assert_eq!(slots.len(), MAX_IN_FLIGHT);
    assert!(slots.iter().all(|s| Slot::from_index(s.index() as u64) == Some(*s)));
    assert_eq!(Slot::from_index(MAX_IN_FLIGHT as u64), None);
    assert_eq!(driver.session.poll(), Event::Full);
    // A reply that has not left still counts.
    driver.session.reply(slots[5], Ok(()));
    assert_eq!(driver.session.poll(), Event::Full);
    driver.session.release(slots[5]);
    assert!(matches!(driver.session.poll(), Event::Submit(_)));
    assert_eq!(driver.session.in_use(), MAX_IN_FLIGHT);
}

#[test]
fn refusals_are_bounded_too() {
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.hold = true;
    driver.feed(&head(99, 0, 0, 0).emit(Headers::Simple).repeat(MAX_IN_FLIGHT + 1));
    assert!(driver.full);
    assert_eq!(driver.did().len(), MAX_IN_FLIGHT);
}

#[test]
fn the_table_is_bounded_in_bytes() {
    const MAX: u32 = proto::MAX_PAYLOAD;
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.hold = true;
    let reads =
        [head(command::READ, 0, 0, MAX).emit(Headers::Simple), head(command::READ, 0, 0, MAX).emit(Headers::Simple)]
            .concat();
    driver.feed(&reads);
    let slots: Vec<_> =
        driver.did().iter().map(|d| if let Did::Submit(r, _) = d { r.slot } else { panic!("{d:?}") }).collect();
    assert_eq!(slots.len(), 2);
    // What moves no data still goes.
    assert!(matches!(one(&mut driver, head(command::FLUSH, 0, 0, 0)), Did::Submit(..)));
    driver.feed(&head(command::READ, 0, 0, 512).emit(Headers::Simple));
    assert!(driver.full);
    // A read holds its bytes until they have left, unless it failed.
    driver.session.reply(slots[0], Ok(()));
    assert_eq!(driver.session.poll(), Event::Full);
    driver.session.reply(slots[1], Err(NbdError::Io));
    assert!(matches!(driver.session.poll(), Event::Submit(_)));
    driver.session.release(slots[0]);
    driver.session.release(slots[1]);

    // A write gives its bytes back when it has ended.
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.hold = true;
    let Did::Submit(first, _) = one(&mut driver, head(command::WRITE, 0, 0, MAX)) else { panic!("a good write") };
    assert!(matches!(one(&mut driver, head(command::WRITE, 0, 0, MAX)), Did::Submit(..)));
    driver.feed(&head(command::WRITE, 0, 0, 512).emit(Headers::Simple));
    assert!(driver.full);
    driver.session.reply(first.slot, Ok(()));
    assert!(matches!(driver.session.poll(), Event::Payload { left: 512, .. }));
}

#[test]
fn read_ahead_stays_short_of_payloads() {
    let mut driver = Driver::started(export(), Headers::Simple);
    assert_eq!(driver.session.room().len(), 64 * 28);
    driver.feed(&head(command::WRITE, 0, 0, 4096).emit(Headers::Simple));
    // Behind a payload there is room for the next head and no more.
    assert_eq!(driver.session.room().len(), 28);
    driver.feed(&[0; 4096]);
    assert_eq!(driver.session.room().len(), 28);
    driver.feed(&head(command::READ, 0, 0, 4096).emit(Headers::Simple));
    assert_eq!(driver.session.room().len(), 64 * 28);
    // A payload that is swallowed comes in larger pieces.
    driver.feed(&head(command::WRITE, 0, 1, 4096).emit(Headers::Simple));
    assert!(driver.session.room().len() >= 4096);
}

#[test]
fn ends() {
    let write = head(command::WRITE, 0, 0, 512).emit(Headers::Simple);
    let refused = head(command::WRITE, 0, 1, 512).emit(Headers::Simple);
    let mut bad = write.clone();
    bad[0] = 0;
    let bad_magic = CloseReason::BadMagic(proto::BadMagic(0x0060_9513));
    let cases: [(Vec<u8>, Option<CloseReason>); 6] = [
        (head(command::DISC, 0, 0, 0).emit(Headers::Simple), Some(CloseReason::Disconnect)),
        (bad, Some(bad_magic)),
        (vec![], None),
        (write[..20].to_vec(), None),
        ([&write[..], &[0; 100]].concat(), None),
        ([&refused[..], &[0; 100]].concat(), None),
    ];
    for (bytes, reason) in cases {
        let mut driver = Driver::started(export(), Headers::Simple);
        driver.feed(&bytes);
        match reason {
            Some(reason) => assert_eq!(driver.did(), [Did::Close(reason)]),
            None => {
                assert_eq!(driver.did(), []);
                driver.session.end_of_stream();
                assert_eq!(driver.session.poll(), Event::Close(CloseReason::Eof));
            }
        }
        // A request that was not read whole holds nothing.
        assert_eq!(driver.session.in_use(), 0);
    }
}

#[test]
fn what_is_in_flight_is_replied_to_after_the_end() {
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.hold = true;
    let Did::Submit(request, _) = one(&mut driver, head(command::READ, 0, 0, 512)) else { panic!("a good read") };
    driver.feed(&head(command::DISC, 0, 0, 0).emit(Headers::Simple));
    assert_eq!(driver.session.in_use(), 1);
    driver.finish(request.slot, Ok(()));
    assert_eq!(driver.session.in_use(), 0);
}

#[test]
fn stop_refuses_what_comes_later() {
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.hold = true;
    let Did::Submit(before, _) = one(&mut driver, head(command::WRITE, 0, 0, 512)) else { panic!("a good write") };
    driver.session.stop();
    for code in [command::READ, command::WRITE, command::FLUSH, 99] {
        assert!(matches!(one(&mut driver, head(code, 0, 0, 512)), Did::Refuse(_, NbdError::Shutdown)));
    }
    driver.finish(before.slot, Ok(()));
    let to = ReplyTo { headers: Headers::Simple, cookie: 0xc0_0c1e, offset: 0, carries: false };
    assert_eq!(driver.replies, [(ReplyHead::done(to), 0)]);
    driver.feed(&head(command::DISC, 0, 0, 0).emit(Headers::Simple));
    assert_eq!(driver.did(), [Did::Close(CloseReason::Disconnect)]);
}

#[test]
fn stop_in_the_middle_of_a_payload() {
    for (offset, error) in [(0, NbdError::Shutdown), (1, NbdError::Invalid)] {
        let mut driver = Driver::started(export(), Headers::Simple);
        let mut bytes = head(command::WRITE, 0, offset, 4096).emit(Headers::Simple);
        bytes.extend([1; 1000]);
        driver.feed(&bytes);
        driver.session.stop();
        driver.feed(&[1; 3096]);
        assert!(matches!(driver.did()[..], [Did::Refuse(_, told)] if told == error));
        assert_eq!(driver.session.in_use(), 0);
    }
}

fn submitted() -> (Driver, Slot) {
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.hold = true;
    let Did::Submit(request, _) = one(&mut driver, head(command::READ, 0, 0, 512)) else { panic!("a good read") };
    (driver, request.slot)
}

#[test]
#[should_panic(expected = "cannot become Replied")]
fn a_second_reply_is_a_bug() {
    let (mut driver, slot) = submitted();
    driver.session.reply(slot, Ok(()));
    driver.session.reply(slot, Ok(()));
}

#[test]
#[should_panic(expected = "cannot become Free")]
fn a_release_before_the_reply_is_a_bug() {
    let (mut driver, slot) = submitted();
    driver.session.release(slot);
}

#[test]
#[should_panic(expected = "cannot become Replied")]
fn a_reply_before_the_payload_is_a_bug() {
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.feed(&head(command::WRITE, 0, 0, 512).emit(Headers::Simple));
    let Event::Payload { request, .. } = driver.session.poll() else { panic!("a good write") };
    driver.session.reply(request.slot, Ok(()));
}

#[test]
#[should_panic(expected = "bytes of payload")]
fn more_payload_than_asked_for_is_a_bug() {
    let mut driver = Driver::started(export(), Headers::Simple);
    driver.feed(&head(command::WRITE, 0, 0, 512).emit(Headers::Simple));
    driver.session.payload_received(513);
}
