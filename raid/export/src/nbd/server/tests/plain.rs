//! A client that does exactly what it is told, right or wrong.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::nbd::address::Address;
use crate::nbd::proto::{Headers, OptionHead, RequestHead, chunk_type, command, command_flag, greeting, option};

pub(super) struct Plain {
    /// A socket of either kind.
    pub(super) stream: File,
    headers: Headers,
    cookie: u64,
    /// What was asked for: command, offset, length.
    asked: HashMap<u64, (u16, u64, u32)>,
}

/// A reply: cookie, error number, data.
pub(super) type Answer = (u64, u32, Vec<u8>);

/// A connection on which nothing has been said.
pub(super) fn connect(at: &Address) -> io::Result<File> {
    let socket = match at {
        Address::Unix(path) => OwnedFd::from(UnixStream::connect(path)?),
        Address::Tcp { host, port } => OwnedFd::from(TcpStream::connect((host.as_str(), *port))?),
    };
    Ok(File::from(socket))
}

impl Plain {
    /// A client that has read the greeting.
    pub(super) fn greeted(at: &Address) -> io::Result<Self> {
        let mut stream = connect(at)?;
        let mut bytes = [0; 18];
        stream.read_exact(&mut bytes)?;
        assert_eq!(bytes, greeting(3));
        stream.write_all(&3u32.to_be_bytes())?;
        Ok(Self { stream, headers: Headers::Simple, cookie: 0, asked: HashMap::new() })
    }

    /// A client in transmission.
    pub(super) fn connect(at: &Address, headers: Headers) -> io::Result<Self> {
        let mut client = Self::greeted(at)?;
        match headers {
            Headers::Simple => {}
            Headers::Structured => _ = client.option(option::STRUCTURED_REPLY, b"")?,
            Headers::Extended => _ = client.option(option::EXTENDED_HEADERS, b"")?,
        }
        client.headers = headers;
        client.option(option::SET_META_CONTEXT, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation")?;
        client.option(option::GO, b"\0\0\0\0\0\0")?;
        Ok(client)
    }

    /// Sends an option and reads its replies to the last.
    pub(super) fn option(&mut self, code: u32, data: &[u8]) -> io::Result<u32> {
        let head = OptionHead { code, len: data.len() as u32 };
        self.stream.write_all(&[&head.emit()[..], data].concat())?;
        loop {
            let mut reply = [0; 20];
            self.stream.read_exact(&mut reply)?;
            let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
            self.stream.read_exact(&mut vec![0; word(16) as usize])?;
            let kind = word(12);
            if kind == 1 || kind >> 31 == 1 {
                return Ok(kind);
            }
        }
    }

    /// The bytes of a request with the next cookie, which starts at 1.
    pub(super) fn request(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
        self.cookie += 1;
        self.asked.insert(self.cookie, (command, offset, len));
        let payload = self.headers == Headers::Extended && command == command::WRITE;
        let flags = flags | if payload { command_flag::PAYLOAD_LEN } else { 0 };
        RequestHead { flags, command, cookie: self.cookie, offset, len: len.into() }.emit(self.headers)
    }

    /// The cookie of the last request.
    pub(super) fn last_cookie(&self) -> u64 {
        self.cookie
    }

    /// The bytes of a write.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.request(command::WRITE, 0, offset, data.len() as u32);
        bytes.extend_from_slice(data);
        bytes
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends one request and reads its reply.
    pub(super) fn ask(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> Answer {
        let bytes = self.request(command, flags, offset, len);
        self.send(&bytes);
        self.answer().unwrap()
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the next reply.
    pub(super) fn answer(&mut self) -> io::Result<Answer> {
        match u32::from_be_bytes(self.bytes()?) {
            0x6744_6698 => self.simple(),
            0x668e_33ef if self.headers == Headers::Structured => self.chunk(),
            0x6e8a_278c if self.headers == Headers::Extended => self.chunk(),
            magic => panic!("magic {magic:#x}"),
        }
    }

    fn simple(&mut self) -> io::Result<Answer> {
        assert_ne!(self.headers, Headers::Extended);
        let error = u32::from_be_bytes(self.bytes()?);
        let cookie = u64::from_be_bytes(self.bytes()?);
        let (command, _, len) = self.asked.remove(&cookie).expect("answered once");
        let reads = command == command::READ;
        assert!(!reads || self.headers == Headers::Simple, "a read is answered by chunks");
        let mut data = vec![0; if reads && error == 0 { len as usize } else { 0 }];
        self.stream.read_exact(&mut data)?;
        Ok((cookie, error, data))
    }

    fn chunk(&mut self) -> io::Result<Answer> {
        assert_eq!(u16::from_be_bytes(self.bytes()?), 1, "the last chunk");
        let kind = u16::from_be_bytes(self.bytes()?);
        let cookie = u64::from_be_bytes(self.bytes()?);
        let (command, offset, len) = self.asked.remove(&cookie).expect("answered once");
        let payload = match self.headers {
            Headers::Extended => {
                assert_eq!(u64::from_be_bytes(self.bytes()?), offset);
                u64::from_be_bytes(self.bytes()?)
            }
            _ => u32::from_be_bytes(self.bytes()?).into(),
        };
        let mut data = vec![0; payload as usize];
        self.stream.read_exact(&mut data)?;
        match (kind, command) {
            (chunk_type::NONE, _) => assert!(data.is_empty() && command != command::READ),
            (chunk_type::OFFSET_DATA, command::READ) => {
                assert_eq!(data.len(), len as usize + 8);
                assert_eq!(data[..8], offset.to_be_bytes());
                data.drain(..8);
            }
            (chunk_type::BLOCK_STATUS | chunk_type::BLOCK_STATUS_EXT, command::BLOCK_STATUS) => {}
            (chunk_type::ERROR, _) => {
                assert_eq!(data[4..], [0, 0]);
                return Ok((cookie, u32::from_be_bytes(data[..4].try_into().unwrap()), vec![]));
            }
            other => panic!("chunk type and command {other:?}"),
        }
        Ok((cookie, 0, data))
    }

    /// Whether the server has closed, with nothing left to read.
    pub(super) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
