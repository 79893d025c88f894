//! A small NBD client: fixed newstyle, `NBD_OPT_GO`, simple replies, many requests in flight.
//!
//! Blocking, with a time limit on each read and write of the socket, for whoever wants one thing after the other or knows which of its writes were
//! answered. A load that keeps many requests moving takes the [`Stream`] of a negotiated connection ([`Client::into_stream`]), and reads
//! [`SimpleReply`]s itself.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::address::Address;
use super::proto::{
    Headers, IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, OptionHead, RequestHead, SimpleReply, client_flag, command,
    command_flag, info, option, option_reply_type,
};
use super::uri::Uri;

/// Longest option reply taken, in bytes.
const MAX_OPTION_REPLY: usize = 64 << 10;

/// Longest wait for the server.
const LIMIT: Duration = Duration::from_secs(120);

/// A connection of either kind.
#[derive(Debug)]
pub enum Stream {
    /// To a Unix socket.
    Unix(UnixStream),
    /// Over TCP.
    Tcp(TcpStream),
}

impl Stream {
    fn connect(address: &Address) -> io::Result<Stream> {
        match address {
            Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path)?)),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Limits each read and write; `None`: they wait for ever.
    pub fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)),
            Stream::Tcp(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)),
        }
    }

    /// Whether reads and writes answer `WouldBlock` in place of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(nonblocking),
            Stream::Tcp(stream) => stream.set_nonblocking(nonblocking),
        }
    }

    /// Another handle on the same connection.
    pub fn try_clone(&self) -> io::Result<Stream> {
        match self {
            Stream::Unix(stream) => stream.try_clone().map(Stream::Unix),
            Stream::Tcp(stream) => stream.try_clone().map(Stream::Tcp),
        }
    }

    /// Ends the connection, whoever waits for it.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(bytes),
            Stream::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write_vectored(slices),
            Stream::Tcp(stream) => stream.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// What the server said of the export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Its canonical name, if the server told it.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Bits of [`transmission_flag`](super::proto::transmission_flag).
    pub flags: u16,
}

/// The reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The cookie that the request was sent with.
    pub cookie: u64,
    /// NBD's error number, 0 for none.
    pub error: u32,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    export: Export,
    next_cookie: u64,
}

impl Client {
    /// Connects to the default export at a Unix socket.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        Client::open(&Uri { address: Address::Unix(socket.to_owned()), export: String::new() })
    }

    /// Connects to an export.
    pub fn open(uri: &Uri) -> io::Result<Client> {
        let stream = Stream::connect(&uri.address)?;
        stream.set_timeout(Some(LIMIT))?;
        let mut client = Client { stream, export: Export::default(), next_cookie: 1 };
        client.negotiate(&uri.export)?;
        Ok(client)
    }

    fn negotiate(&mut self, name: &str) -> io::Result<()> {
        let greeting: [u8; 18] = self.take()?;
        expect(be64(&greeting), NBDMAGIC, "server magic")?;
        expect(be64(&greeting[8..]), IHAVEOPT, "newstyle magic")?;
        self.stream.write_all(&(client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES).to_be_bytes())?;
        let mut data = Vec::new();
        data.extend(length(name.len()).to_be_bytes());
        data.extend(name.as_bytes());
        // One information request, beside what is always sent.
        data.extend(1_u16.to_be_bytes());
        data.extend(info::NAME.to_be_bytes());
        self.stream.write_all(&OptionHead { code: option::GO, len: length(data.len()) }.emit())?;
        self.stream.write_all(&data)?;
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
        match (kind, data.split_first_chunk::<2>()) {
            (option_reply_type::ACK, _) => Ok(true),
            (option_reply_type::INFO, Some((&kind, data))) => {
                match u16::from_be_bytes(kind) {
                    info::EXPORT if data.len() >= 10 => {
                        self.export.size = be64(data);
                        self.export.flags = u16::from_be_bytes([data[8], data[9]]);
                    }
                    info::NAME => self.export.name = String::from_utf8_lossy(data).into_owned(),
                    _ => {}
                }
                Ok(false)
            }
            (other, _) => {
                let text = String::from_utf8_lossy(&data);
                Err(invalid(format!("the server refuses the export: reply {other:#x}, {text}")))
            }
        }
    }

    /// What the server said of the export.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.export.size
    }

    /// Transmission flags that the server sent.
    pub fn transmission_flags(&self) -> u16 {
        self.export.flags
    }

    /// The connection, for requests and replies of the caller's own. Nothing may be in flight.
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    fn send(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut request = RequestHead { flags, command, cookie, offset, len: len.into() }.emit(Headers::Simple);
        request.extend(data);
        self.stream.write_all(&request)?;
        Ok(cookie)
    }

    /// Sends a write without waiting for its answer; returns its cookie.
    pub fn send_write(&mut self, offset: u64, data: &[u8], fua: bool) -> io::Result<u64> {
        let flags = if fua { command_flag::FUA } else { 0 };
        self.send(command::WRITE, flags, offset, length(data.len()), data)
    }

    /// Sends a flush without waiting for its answer; returns its cookie.
    pub fn send_flush(&mut self) -> io::Result<u64> {
        self.send(command::FLUSH, 0, 0, 0, &[])
    }

    /// Sends a read without waiting for its answer, for a client that never takes it; returns its cookie.
    pub fn send_read(&mut self, offset: u64, len: usize) -> io::Result<u64> {
        self.send(command::READ, 0, offset, length(len), &[])
    }

    /// Waits for the next answer to a write or flush.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let head: [u8; SimpleReply::LEN] = self.take()?;
        let reply = SimpleReply::parse(&head).map_err(|magic| invalid(format!("simple reply magic: {magic}")))?;
        Ok(Answer { cookie: reply.cookie, error: reply.error })
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
        let cookie = self.send_read(offset, len)?;
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
        self.send(command::DISC, 0, 0, 0, &[])?;
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
