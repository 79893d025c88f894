//! NBD clients that send garbage, stop reading, or vanish in the midst of a request: none holds up another, changes what it did not
//! wholly send, or keeps the array from ending.

use etherraid_tests::array::{Running, Spec};
use etherraid_tests::nbd::Client;
use etherraid_tests::{pattern, rig, wait};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const MEMBER_BYTES: u64 = 32 << 20;
const BLOCK: usize = 64 << 10;
/// Far longer than anything here takes, far shorter than the server's patience with a client that stands still.
const SOON: Duration = Duration::from_secs(20);
/// Clients that may negotiate at once, as the server has it.
const MAX_NEGOTIATING: usize = 16;
const READ: u16 = 0;
const WRITE: u16 = 1;

struct Served {
    array: Running,
    _dir: tempfile::TempDir,
}

impl Served {
    /// An array that holds a known pattern.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = rig::blank_files(dir.path(), 3, MEMBER_BYTES);
        let spec = Spec::local(&files);
        spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
        let served = Self { array: spec.run(&[]), _dir: dir };
        served.write(1);
        served
    }

    fn client(&self) -> Client {
        Client::connect(self.array.socket()).unwrap()
    }

    fn write(&self, seed: u64) {
        let mut client = self.client();
        for n in 0..16 {
            let offset = n * BLOCK as u64;
            client.write(offset, &pattern::bytes(seed, offset, BLOCK), false).unwrap();
        }
        client.flush().unwrap();
    }

    /// A good client is served at once, and all is as it was written.
    fn serves(&self, seed: u64) {
        let begin = Instant::now();
        let mut client = self.client();
        for n in 0..16 {
            let offset = n * BLOCK as u64;
            assert!(client.read(offset, BLOCK).unwrap() == pattern::bytes(seed, offset, BLOCK), "block {n}");
        }
        client.disconnect().unwrap();
        assert!(begin.elapsed() < SOON, "it was held up");
    }

    /// A connection before anything was said.
    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.array.socket()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
        stream
    }

    /// A connection in the transmission phase, chosen with `NBD_OPT_EXPORT_NAME`.
    fn chosen(&self) -> UnixStream {
        let mut stream = self.raw();
        stream.read_exact(&mut [0; 18]).unwrap();
        let mut text = 3u32.to_be_bytes().to_vec();
        text.extend(b"IHAVEOPT");
        text.extend(1u32.to_be_bytes());
        text.extend(0u32.to_be_bytes());
        stream.write_all(&text).unwrap();
        // Size and flags; no zeroes were agreed on.
        stream.read_exact(&mut [0; 10]).unwrap();
        stream
    }

    /// SIGTERM ends it in order and soon.
    fn ends(mut self) {
        let begin = Instant::now();
        self.array.sigterm();
        assert_eq!(self.array.wait_exit().code(), Some(0));
        assert!(begin.elapsed() < SOON, "its clients held it up");
    }
}

fn request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend(0u16.to_be_bytes());
    request.extend(command.to_be_bytes());
    request.extend(cookie.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(len.to_be_bytes());
    request
}

/// The server closes the connection.
fn is_closed(mut stream: UnixStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
}

#[test]
fn garbage_closes_its_own_connection() {
    let served = Served::new();
    let noise = pattern::bytes(77, 0, 4096);
    for garbage in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0; 64], &[0xFF; 64], &noise] {
        let mut stream = served.raw();
        // It may be closed before all has been sent.
        let _ = stream.write_all(garbage);
        is_closed(stream);
        let mut stream = served.chosen();
        let _ = stream.write_all(garbage);
        is_closed(stream);
    }
    // An option whose data would take all memory, and a write that would.
    let mut stream = served.raw();
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut option = 3u32.to_be_bytes().to_vec();
    option.extend(b"IHAVEOPT");
    option.extend(7u32.to_be_bytes());
    option.extend(u32::MAX.to_be_bytes());
    stream.write_all(&option).unwrap();
    drop(stream);
    let mut stream = served.chosen();
    stream.write_all(&request(WRITE, 1, 0, u32::MAX)).unwrap();
    let _ = stream.write_all(&noise);
    drop(stream);
    served.serves(1);
    assert_eq!(served.array.detail().degraded(), 0);
    served.ends();
}

#[test]
fn a_client_that_vanishes_within_a_request_changes_nothing() {
    let served = Served::new();
    let data = pattern::bytes(2, 0, BLOCK);
    for sent in [0, 1, 511, 4096, BLOCK - 1] {
        let mut stream = served.chosen();
        stream.write_all(&request(WRITE, 1, 0, BLOCK as u32)).unwrap();
        stream.write_all(&data[..sent]).unwrap();
        drop(stream);
    }
    // Half a request, a request whose reply nobody takes, and a handshake that stops.
    let mut stream = served.chosen();
    stream.write_all(&request(WRITE, 1, 0, BLOCK as u32)[..13]).unwrap();
    drop(stream);
    let mut stream = served.chosen();
    stream.write_all(&request(READ, 1, 0, 1 << 20)).unwrap();
    drop(stream);
    drop(served.raw());
    served.serves(1);
    // One that sent all of its write and left before the reply: it may be done, as a whole.
    let mut stream = served.chosen();
    stream.write_all(&[request(WRITE, 1, 0, BLOCK as u32), data.clone()].concat()).unwrap();
    drop(stream);
    wait::until("the write is done", SOON, || (served.client().read(0, BLOCK).unwrap() == data).then_some(()));
    served.ends();
}

#[test]
fn clients_that_stop_reading_hold_up_nobody() {
    let served = Served::new();
    let mut stuck = Vec::new();
    for _ in 0..8 {
        let mut stream = served.chosen();
        stream.set_nonblocking(true).unwrap();
        // Reads of 256 MiB, until the server takes no more of them.
        for cookie in 0..256 {
            if stream.write_all(&request(READ, cookie, 0, 1 << 20)).is_err() {
                break;
            }
        }
        stuck.push(stream);
    }
    // And one that owes the rest of a write.
    let mut stream = served.chosen();
    stream.write_all(&request(WRITE, 1, 0, 1 << 20)).unwrap();
    stuck.push(stream);
    served.serves(1);
    served.write(2);
    served.serves(2);
    let rss = served.array.rss_bytes();
    assert!(rss < 600 << 20, "{} MiB for clients that read nothing", rss >> 20);
    served.ends();
    drop(stuck);
}

/// Whether a connection that does not wait is still open, after all that it has sent.
fn is_open(stream: &mut UnixStream) -> bool {
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn more_clients_than_are_served() {
    let served = Served::new();
    let idle: Vec<UnixStream> = (0..200).map(|_| served.raw()).collect();
    // Those that are too many are closed, greeted or not; a few that came last may still negotiate.
    let mut open: Vec<UnixStream> = idle.into_iter().filter(|stream| stream.set_nonblocking(true).is_ok()).collect();
    assert_eq!(open.len(), 200);
    wait::until("all but a few clients that say nothing are closed", SOON, || {
        open.retain_mut(is_open);
        (open.len() <= MAX_NEGOTIATING).then_some(())
    });
    assert!(!open.is_empty(), "the last ones have not done anything wrong");
    served.serves(1);
    drop(open);
    served.serves(1);
    served.ends();
}
