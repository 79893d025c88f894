//! A client that does exactly what it is told, right or wrong.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::nbd::proto::{OptionHead, RequestHead, command, greeting, option};

pub(super) struct Plain {
    pub(super) stream: UnixStream,
    structured: bool,
    cookie: u64,
    /// Lengths of the reads that were asked for.
    reads: HashMap<u64, u32>,
}

/// A reply: cookie, error number, data.
pub(super) type Answer = (u64, u32, Vec<u8>);

impl Plain {
    /// A client that has read the greeting.
    pub(super) fn greeted(path: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(path)?;
        let mut bytes = [0; 18];
        stream.read_exact(&mut bytes)?;
        assert_eq!(bytes, greeting(3));
        stream.write_all(&3u32.to_be_bytes())?;
        Ok(Self { stream, structured: false, cookie: 0, reads: HashMap::new() })
    }

    /// A client in transmission.
    pub(super) fn connect(path: &Path, structured: bool) -> io::Result<Self> {
        let mut client = Self::greeted(path)?;
        if structured {
            client.option(option::STRUCTURED_REPLY, b"")?;
            client.structured = true;
        }
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
        if command == command::READ {
            self.reads.insert(self.cookie, len);
        }
        RequestHead { flags, command, cookie: self.cookie, offset, len }.emit().to_vec()
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
        let magic = u32::from_be_bytes(self.bytes()?);
        if magic == 0x6744_6698 {
            let error = u32::from_be_bytes(self.bytes()?);
            let cookie = u64::from_be_bytes(self.bytes()?);
            let read = self.reads.remove(&cookie);
            assert!(read.is_none() || !self.structured, "a read is answered by chunks");
            let mut data = vec![0; read.filter(|_| error == 0).unwrap_or(0) as usize];
            self.stream.read_exact(&mut data)?;
            return Ok((cookie, error, data));
        }
        assert_eq!(magic, 0x668e_33ef);
        assert!(self.structured);
        let [_, done, kind_high, kind_low] = self.bytes()?;
        assert_eq!(done, 1);
        let cookie = u64::from_be_bytes(self.bytes()?);
        let mut data = vec![0; u32::from_be_bytes(self.bytes()?) as usize];
        self.stream.read_exact(&mut data)?;
        let len = self.reads.remove(&cookie).expect("only reads are answered by chunks");
        match (kind_high, kind_low) {
            (0, 1) => {
                assert_eq!(data.len(), len as usize + 8);
                Ok((cookie, 0, data.split_off(8)))
            }
            (0x80, 1) => {
                assert_eq!(data[4..], [0, 0]);
                Ok((cookie, u32::from_be_bytes(data[..4].try_into().unwrap()), vec![]))
            }
            other => panic!("chunk type {other:?}"),
        }
    }

    /// Whether the server has closed, with nothing left to read.
    pub(super) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
