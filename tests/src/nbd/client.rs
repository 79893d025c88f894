//! A small NBD client: fixed newstyle, `NBD_OPT_GO`, simple replies, many requests in flight.
//!
//! The tools do not say which writes had been answered when the server went away; this one does. Blocking, with a time limit on
//! each read and write of the socket. Source: the NBD protocol document, "Fixed newstyle negotiation" and "Transmission phase".

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;
const FLAG_FUA: u16 = 1;
/// Longest option reply taken.
const MAX_OPTION_REPLY: usize = 64 << 10;
/// Longest wait for the server.
const LIMIT: Duration = Duration::from_secs(120);

/// The reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The cookie that the request was sent with.
    pub cookie: u64,
    /// NBD's error number, 0 for none.
    pub error: u32,
}

/// A connection in the transmission phase.
pub struct Client {
    stream: UnixStream,
    size: u64,
    flags: u16,
    next_cookie: u64,
}

impl Client {
    /// Connects to the default export.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut client = Self { stream, size: 0, flags: 0, next_cookie: 1 };
        client.negotiate()?;
        Ok(client)
    }

    fn negotiate(&mut self) -> io::Result<()> {
        let greeting: [u8; 18] = self.take()?;
        expect(be64(&greeting), MAGIC, "server magic")?;
        expect(be64(&greeting[8..]), IHAVEOPT, "newstyle magic")?;
        // Fixed newstyle and no zeroes, as the server offered them.
        self.stream.write_all(&3u32.to_be_bytes())?;
        let mut option = Vec::new();
        option.extend(IHAVEOPT.to_be_bytes());
        option.extend(OPT_GO.to_be_bytes());
        // Data: the length of an empty name, and no information requests.
        option.extend(6u32.to_be_bytes());
        option.extend([0; 6]);
        self.stream.write_all(&option)?;
        while !self.option_reply()? {}
        Ok(())
    }

    /// Takes one reply to `NBD_OPT_GO`; true when it was the last.
    fn option_reply(&mut self) -> io::Result<bool> {
        let head: [u8; 20] = self.take()?;
        expect(be64(&head), OPTION_REPLY_MAGIC, "option reply magic")?;
        let (kind, len) = (be32(&head[12..]), be32(&head[16..]) as usize);
        if len > MAX_OPTION_REPLY {
            return Err(invalid(format!("an option reply of {len} bytes")));
        }
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data)?;
        match kind {
            REP_ACK => Ok(true),
            REP_INFO => {
                if data.len() >= 12 && be16(&data) == INFO_EXPORT {
                    self.size = be64(&data[2..]);
                    self.flags = be16(&data[10..]);
                }
                Ok(false)
            }
            other => Err(invalid(format!(
                "the server refuses the export: reply {other:#x}, {}",
                String::from_utf8_lossy(&data)
            ))),
        }
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Transmission flags that the server sent.
    pub fn transmission_flags(&self) -> u16 {
        self.flags
    }

    fn send(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)?;
        Ok(cookie)
    }

    /// Sends a write without waiting for its answer; returns its cookie.
    pub fn send_write(&mut self, offset: u64, data: &[u8], fua: bool) -> io::Result<u64> {
        let flags = if fua { FLAG_FUA } else { 0 };
        self.send(CMD_WRITE, flags, offset, length(data.len()), data)
    }

    /// Sends a flush without waiting for its answer; returns its cookie.
    pub fn send_flush(&mut self) -> io::Result<u64> {
        self.send(CMD_FLUSH, 0, 0, 0, &[])
    }

    /// Sends a read without waiting for its answer, for a client that never takes it; returns its cookie.
    pub fn send_read(&mut self, offset: u64, len: usize) -> io::Result<u64> {
        self.send(CMD_READ, 0, offset, length(len), &[])
    }

    /// Waits for the next answer to a write or flush.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let head: [u8; 16] = self.take()?;
        expect(be32(&head).into(), SIMPLE_REPLY_MAGIC.into(), "simple reply magic")?;
        Ok(Answer { cookie: be64(&head[8..]), error: be32(&head[4..]) })
    }

    fn answered(&mut self, cookie: u64) -> io::Result<()> {
        let answer = self.answer()?;
        expect(answer.cookie, cookie, "cookie of the only request")?;
        match answer.error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(i32::try_from(error).unwrap_or(i32::MAX))),
        }
    }

    /// Writes and waits for the answer. No other request may be in flight.
    pub fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> io::Result<()> {
        let cookie = self.send_write(offset, data, fua)?;
        self.answered(cookie)
    }

    /// Reads. No other request may be in flight.
    pub fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let cookie = self.send(CMD_READ, 0, offset, length(len), &[])?;
        self.answered(cookie)?;
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// Flushes and waits for the answer. No other request may be in flight.
    pub fn flush(&mut self) -> io::Result<()> {
        let cookie = self.send_flush()?;
        self.answered(cookie)
    }

    /// Takes its leave; the server closes the connection.
    pub fn disconnect(mut self) -> io::Result<()> {
        self.send(CMD_DISC, 0, 0, 0, &[])?;
        match self.stream.read(&mut [0; 1])? {
            0 => Ok(()),
            _ => Err(invalid("bytes after the disconnect".to_owned())),
        }
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("NBD requests are below 4 GiB")
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn expect(got: u64, wanted: u64, what: &str) -> io::Result<()> {
    match got == wanted {
        true => Ok(()),
        false => Err(invalid(format!("{what}: {got:#x} in place of {wanted:#x}"))),
    }
}
