//! Where NBD is served, as users write it and as clients want it.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::str::FromStr;

/// `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket; parsed ones are absolute.
    Unix(PathBuf),
    /// A TCP port of the addresses that a name or literal stands for.
    Tcp {
        /// A name, an IPv4 address, or an IPv6 address without brackets.
        host: String,
        /// 0 lets the system choose.
        port: u16,
    },
}

impl Address {
    /// For clients, as the NBD URI text has it.
    pub fn uri(&self) -> String {
        match self {
            Self::Unix(path) => format!("nbd+unix:///?socket={}", escaped(path.as_os_str().as_encoded_bytes())),
            // A zone's percent sign is escaped in a URI; there is nothing else to escape in an address.
            Self::Tcp { host, port } if host.contains(':') => format!("nbd://[{}]:{port}", host.replace('%', "%25")),
            Self::Tcp { host, port } => format!("nbd://{}:{port}", escaped(host.as_bytes())),
        }
    }
}

/// Percent-encodes what may not stand in a URI as it is.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither kind.
    #[error(
        "an NBD address is unix:PATH or tcp:HOST:PORT, such as unix:/run/r5.nbd, tcp:127.0.0.1:10809 or tcp:[::1]:10809"
    )]
    Kind,
    /// No host.
    #[error(
        "the NBD address {0:?} names no host: to listen on all addresses say tcp:0.0.0.0:PORT, and tcp:[::]:PORT for IPv6"
    )]
    Host(String),
    /// No port.
    #[error("the NBD address {0:?} has no port from 0 to 65535 (0: any that is free) after the host")]
    Port(String),
    /// An IPv6 address that cannot be told from its port.
    #[error("an IPv6 address stands in brackets, such as tcp:[::1]:10809: {0:?}")]
    Brackets(String),
    /// The path cannot be made absolute.
    #[error("{path}: {reason}")]
    Path {
        /// As given.
        path: String,
        /// What the system said.
        reason: String,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            let absolute = std::path::absolute(path);
            return absolute
                .map(Self::Unix)
                .map_err(|error| AddressError::Path { path: path.to_owned(), reason: error.to_string() });
        }
        let rest = text.strip_prefix("tcp:").ok_or(AddressError::Kind)?;
        let port_missing = || AddressError::Port(text.to_owned());
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(port_missing)?,
            None => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(port_missing)?;
                if host.contains(':') {
                    return Err(AddressError::Brackets(text.to_owned()));
                }
                (host, port)
            }
        };
        if host.is_empty() {
            return Err(AddressError::Host(text.to_owned()));
        }
        // Unlike `parse`, no plus sign.
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or_else(port_missing)?;
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds() {
        let tcp = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        let table = [
            ("unix:/tmp/a b%.sock", Address::Unix("/tmp/a b%.sock".into()), "nbd+unix:///?socket=/tmp/a%20b%25.sock"),
            ("tcp:127.0.0.1:10809", tcp("127.0.0.1", 10809), "nbd://127.0.0.1:10809"),
            ("tcp:localhost:0", tcp("localhost", 0), "nbd://localhost:0"),
            ("tcp:a.example-1.org:65535", tcp("a.example-1.org", 65535), "nbd://a.example-1.org:65535"),
            ("tcp:[::1]:1", tcp("::1", 1), "nbd://[::1]:1"),
            ("tcp:[fe80::1%eth0]:1", tcp("fe80::1%eth0", 1), "nbd://[fe80::1%25eth0]:1"),
        ];
        for (text, address, uri) in table {
            assert_eq!(text.parse(), Ok(address.clone()), "{text}");
            assert_eq!((address.to_string().as_str(), address.uri().as_str()), (text, uri));
        }
        let relative: Address = "unix:sock".parse().unwrap();
        assert!(matches!(relative, Address::Unix(path) if path.is_absolute() && path.ends_with("sock")));
    }

    #[test]
    fn neither_kind() {
        let table = [
            ("", "unix:PATH or tcp:HOST:PORT"),
            ("unix:", "unix:PATH or tcp:HOST:PORT"),
            ("/tmp/sock", "unix:PATH or tcp:HOST:PORT"),
            ("10809", "unix:PATH or tcp:HOST:PORT"),
            ("nbd://localhost", "unix:PATH or tcp:HOST:PORT"),
            ("tcp:", "no port"),
            ("tcp:localhost", "no port"),
            ("tcp:localhost:", "no port"),
            ("tcp:localhost:65536", "no port"),
            ("tcp:localhost:+1", "no port"),
            ("tcp:localhost:nbd", "no port"),
            ("tcp:[::1]", "no port"),
            ("tcp:[::1", "no port"),
            ("tcp:10809", "no port"),
            ("tcp::10809", "tcp:0.0.0.0:PORT"),
            ("tcp:[]:10809", "tcp:0.0.0.0:PORT"),
            ("tcp:::1:10809", "brackets"),
        ];
        for (text, reason) in table {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
