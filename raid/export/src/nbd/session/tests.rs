//! A driver that does by hand what the connection shell does, and the tests in two halves.

use super::*;
use crate::nbd::proto::{OptionHead, command_flag, greeting, option};
use proptest::prelude::*;

mod extended;
mod handshake;
mod transmission;

const SIZE: u64 = 1 << 30;

fn export() -> ExportInfo {
    ExportInfo {
        name: "md0".into(),
        size_bytes: SIZE,
        read_only: false,
        min_block: 512,
        preferred_block: 65536,
        description: "five disks".into(),
    }
}

/// What a session did.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Did {
    Submit(Request, Vec<u8>),
    /// Answered without the array.
    Answer(Slot),
    Refuse(Slot, NbdError),
    Close(CloseReason),
}

/// Feeds a session as the shell would, replying to everything at once unless told to hold.
struct Driver {
    session: Session,
    output: Vec<u8>,
    did: Vec<Did>,
    replies: Vec<(ReplyHead, u32)>,
    incoming: Vec<u8>,
    /// Keep requests in flight.
    hold: bool,
    full: bool,
    /// The start of transmission was told.
    started: bool,
}

impl Driver {
    fn new(export: ExportInfo) -> Self {
        let session = Session::new(export);
        Self {
            session,
            output: vec![],
            did: vec![],
            replies: vec![],
            incoming: vec![],
            hold: false,
            full: false,
            started: false,
        }
    }

    /// A session in transmission, with nothing of the handshake left in the record.
    fn started(export: ExportInfo, headers: Headers) -> Self {
        let mut driver = Self::new(export);
        driver.feed(&3u32.to_be_bytes());
        match headers {
            Headers::Simple => {}
            Headers::Structured => _ = driver.feed(&opt(option::STRUCTURED_REPLY, b"")),
            Headers::Extended => _ = driver.feed(&opt(option::EXTENDED_HEADERS, b"")),
        }
        driver.feed(&opt(option::SET_META_CONTEXT, &meta(b"", &[b"base:allocation"])));
        driver.feed(&opt(option::GO, b"\0\0\0\0\0\0"));
        assert!(driver.session.is_transmission() && driver.started);
        driver.output.clear();
        driver
    }

    fn finish(&mut self, slot: Slot, result: Result<(), NbdError>) {
        let reply = self.session.reply(slot, result);
        self.replies.push(reply);
        self.session.release(slot);
    }

    /// Feeds all bytes in pieces of at most those sizes, in turn; stops early at `Full` or at the end.
    /// Returns the bytes used.
    fn feed_split(&mut self, bytes: &[u8], sizes: &[usize]) -> usize {
        let mut sizes = sizes.iter().copied().cycle();
        let mut rest = bytes;
        loop {
            match self.session.poll() {
                Event::Read => {
                    let room = self.session.room();
                    assert!(!room.is_empty());
                    let n = room.len().min(rest.len()).min(sizes.next().unwrap());
                    if n == 0 {
                        break;
                    }
                    room[..n].copy_from_slice(&rest[..n]);
                    self.session.received(n);
                    rest = &rest[n..];
                }
                Event::Payload { request, left } => {
                    let at = request.len as usize - left as usize;
                    self.incoming.resize(request.len as usize, 0);
                    let taken = self.session.take_payload(&mut self.incoming[at..]);
                    let wanted = left as usize - taken;
                    let n = wanted.min(rest.len()).min(sizes.next().unwrap());
                    if n > 0 {
                        self.incoming[at + taken..][..n].copy_from_slice(&rest[..n]);
                        self.session.payload_received(n as u32);
                        rest = &rest[n..];
                    } else if taken == 0 {
                        break;
                    }
                }
                Event::Submit(request) => {
                    let data =
                        if request.command == Command::Write { std::mem::take(&mut self.incoming) } else { vec![] };
                    self.did.push(Did::Submit(request, data));
                    if !self.hold {
                        self.finish(request.slot, Ok(()));
                    }
                }
                Event::Started => assert!(!std::mem::replace(&mut self.started, true), "told once"),
                Event::Answer(slot, result) => {
                    self.did.push(result.map_or_else(|error| Did::Refuse(slot, error), |()| Did::Answer(slot)));
                    if !self.hold {
                        self.finish(slot, result);
                    }
                }
                Event::Full if self.session.output().is_empty() => {
                    self.full = true;
                    break;
                }
                Event::Full => self.take_output(),
                Event::Close(reason) => {
                    self.did.push(Did::Close(reason));
                    break;
                }
            }
        }
        self.take_output();
        bytes.len() - rest.len()
    }

    fn take_output(&mut self) {
        self.output.extend_from_slice(self.session.output());
        self.session.output_sent(self.session.output().len());
    }

    fn feed(&mut self, bytes: &[u8]) -> usize {
        self.feed_split(bytes, &[usize::MAX])
    }

    /// What was done since the last call.
    fn did(&mut self) -> Vec<Did> {
        std::mem::take(&mut self.did)
    }
}

fn opt(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OptionHead { code, len: data.len() as u32 }.emit().to_vec();
    bytes.extend_from_slice(data);
    bytes
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
fn meta(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let len = |bytes: &[u8]| (bytes.len() as u32).to_be_bytes();
    let mut data = [&len(name)[..], name, &(queries.len() as u32).to_be_bytes()].concat();
    for query in queries {
        data.extend([&len(query)[..], query].concat());
    }
    data
}

fn head(command: u16, flags: u16, offset: u64, len: u32) -> RequestHead {
    RequestHead { flags, command, cookie: 0xc0_0c1e, offset, len: len.into() }
}

/// On the wire without extended headers.
fn emit(head: RequestHead) -> Vec<u8> {
    head.emit(Headers::Simple)
}

/// One message of a client.
#[derive(Debug, Clone)]
enum Message {
    Option(u32, Vec<u8>),
    Request(RequestHead, bool),
}

fn message() -> impl Strategy<Value = Message> {
    let data = proptest::collection::vec(any::<u8>(), 0..40);
    let info = Just(b"\0\0\0\x03md0\0\x01\0\x03".to_vec());
    let option = prop_oneof![
        (0u32..13, data.clone()),
        (6u32..8, info),
        (prop_oneof![Just(3u32), Just(8)], Just(vec![])),
        (3u32..9, Just(vec![7; 9000])),
        (9u32..11, Just(meta(b"md0", &[b"base:allocation", b"other:"]))),
    ];
    let request = (
        0u16..9,
        prop_oneof![4 => 0u16..4, 4 => Just(command_flag::PAYLOAD_LEN), 1 => 0u16..64],
        any::<u64>(),
        0u64..16,
        0u32..6,
        any::<bool>(),
    );
    prop_oneof![
        1 => option.prop_map(|(code, data)| Message::Option(code, data)),
        8 => request.prop_map(|(command, flags, cookie, offset, len, odd)| {
            let len = u64::from(len * 512 + u32::from(odd && len == 5));
            Message::Request(RequestHead { flags, command, cookie, offset: offset * 512, len }, true)
        }),
    ]
}

/// A stream that makes sense for the most part: handshake, then requests with their payload.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let form = prop_oneof![Just(Headers::Simple), Just(Headers::Extended)];
    let parts = (proptest::collection::vec(message(), 0..30), any::<bool>(), any::<u32>(), form);
    parts.prop_map(|(messages, go, seed, form)| {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        let (options, requests): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|m| matches!(m, Message::Option(..)));
        for message in options {
            if let Message::Option(code, data) = message {
                bytes.extend(opt(code, &data));
            }
        }
        if form == Headers::Extended {
            bytes.extend(opt(option::EXTENDED_HEADERS, b""));
        }
        if go {
            bytes.extend(opt(option::GO, b"\0\0\0\0\0\0"));
        }
        for message in requests {
            if let Message::Request(head, payload) = message {
                bytes.extend(head.emit(form));
                if payload {
                    bytes.extend((0..head.payload(form) as u32).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8));
                }
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However the stream is cut, the session does the same.
    #[test]
    fn cuts_change_nothing(bytes in stream(), sizes in proptest::collection::vec(1usize..700, 1..20)) {
        let mut whole = Driver::new(export());
        whole.feed(&bytes);
        let mut cut = Driver::new(export());
        cut.feed_split(&bytes, &sizes);
        let mut single = Driver::new(export());
        single.feed_split(&bytes, &[1]);
        for other in [cut, single] {
            prop_assert_eq!(&whole.did, &other.did);
            prop_assert_eq!(&whole.output, &other.output);
            prop_assert_eq!(&whole.replies, &other.replies);
            prop_assert_eq!(whole.session.in_use(), other.session.in_use());
        }
    }

    /// Garbage after any good beginning ends in no panic and in no growth.
    #[test]
    fn garbage_is_survived(
        good in stream(),
        keep in 0usize..4000,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        garbage in proptest::collection::vec(any::<u8>(), 0..3000),
        stop in any::<bool>(),
    ) {
        let mut bytes = good;
        bytes.truncate(keep);
        for (index, value) in flips {
            if !bytes.is_empty() {
                let at = index.index(bytes.len());
                bytes[at] ^= value;
            }
        }
        bytes.extend(garbage);
        let mut driver = Driver::new(export());
        driver.feed(&bytes);
        if stop {
            driver.session.stop();
            driver.feed(&[0x55; 100]);
        }
        driver.session.end_of_stream();
        prop_assert_eq!(driver.session.in_use(), 0);
        prop_assert!(driver.session.output().len() < 64 << 10);
        prop_assert!(matches!(driver.session.poll(), Event::Close(_)));
    }

}

proptest! {
    // Payloads up to the bound are copied in each.
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Replies in any order, with any result, against a list of what is open.
    #[test]
    fn any_reply_order(
        steps in proptest::collection::vec((0u8..4, any::<prop::sample::Index>(), 1u32..200), 1..300),
        headers in prop_oneof![Just(Headers::Simple), Just(Headers::Structured), Just(Headers::Extended)],
    ) {
        let mut driver = Driver::started(export(), headers);
        driver.hold = true;
        let (mut open, mut replied) = (Vec::<(Request, u64)>::new(), Vec::<(Request, bool)>::new());
        for (cookie, (step, index, blocks)) in (1u64..).zip(steps) {
            match step {
                0 | 1 => {
                    let which = if step == 0 { command::READ } else { command::WRITE };
                    let len = u64::from(blocks) * 65536 * 2;
                    let payload = step == 1 && headers == Headers::Extended;
                    let flags = if payload { command_flag::PAYLOAD_LEN } else { 0 };
                    let head = RequestHead { flags, command: which, cookie, offset: 512, len };
                    let held: u64 = open.iter().map(|(r, _)| r.len).sum::<u64>()
                        + replied.iter().filter(|(r, ok)| *ok && r.command == Command::Read).map(|(r, _)| r.len).sum::<u64>();
                    let used = open.len() + replied.len();
                    prop_assert_eq!(driver.session.in_use(), used);
                    let fits = used < MAX_IN_FLIGHT && held + len <= MAX_IN_FLIGHT_BYTES;
                    if !fits {
                        continue;
                    }
                    driver.feed(&head.emit(headers));
                    if step == 1 {
                        driver.feed(&vec![0; len as usize]);
                    }
                    let did = driver.did();
                    prop_assert!(matches!(did[..], [Did::Submit(r, _)] if r.len == len), "{:?}", did);
                    if let [Did::Submit(request, _)] = did[..] {
                        open.push((request, cookie));
                    }
                }
                2 if !open.is_empty() => {
                    let (request, cookie) = open.swap_remove(index.index(open.len()));
                    let ok = blocks % 3 != 0;
                    let (head, data) = driver.session.reply(request.slot, if ok { Ok(()) } else { Err(NbdError::Io) });
                    let read = request.command == Command::Read;
                    let at = 8;
                    prop_assert_eq!(&head.as_bytes()[at..at + 8], &cookie.to_be_bytes());
                    prop_assert_eq!(u64::from(data), if read && ok { request.len } else { 0 });
                    replied.push((request, ok));
                }
                3 if !replied.is_empty() => {
                    let (request, _) = replied.swap_remove(index.index(replied.len()));
                    driver.session.release(request.slot);
                }
                _ => {}
            }
        }
    }
}
