//! NBD URIs, as clients get them: `nbd+unix:///NAME?socket=PATH` and `nbd://HOST[:PORT][/NAME]`.
//!
//! After the URI text of the NBD project, without TLS and vsock. [`Address::uri`] writes what this reads.

use std::path::PathBuf;
use std::str::FromStr;

use super::address::Address;

/// The port of NBD.
const PORT: u16 = 10809;

/// Where a client connects, and what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Uri {
    /// The server.
    pub address: Address,
    /// The export; empty for the default one.
    pub export: String,
}

/// What is not such a URI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no NBD URI: they look like nbd+unix:///?socket=/run/r5.nbd or nbd://HOST:10809/NAME")]
pub struct UriError(String);

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        parse(text).ok_or_else(|| UriError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Uri> {
    if let Some(rest) = text.strip_prefix("nbd+unix://") {
        let (name, query) = rest.split_once('?')?;
        let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="))?;
        let path = PathBuf::from(unescaped(socket).filter(|path| !path.is_empty())?);
        let path = std::path::absolute(path).ok()?;
        // A host has no meaning here.
        return Some(Uri { address: Address::Unix(path), export: unescaped(name.strip_prefix('/')?)? });
    }
    let rest = text.strip_prefix("nbd://")?;
    let (host, name) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let port = match port {
        "" => PORT,
        port => port.strip_prefix(':').filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?,
    };
    let host = unescaped(host).filter(|host| !host.is_empty())?;
    Some(Uri { address: Address::Tcp { host, port }, export: unescaped(name)? })
}

/// The text without its percent-encoding; `None` where that is wrong, or hides no text.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Option<Uri> {
        Some(Uri { address: Address::Tcp { host: host.into(), port }, export: export.into() })
    }

    #[test]
    fn uris() {
        let unix = |path: &str, export: &str| Some(Uri { address: Address::Unix(path.into()), export: export.into() });
        for (text, uri) in [
            ("nbd+unix:///?socket=/run/r5.nbd", unix("/run/r5.nbd", "")),
            ("nbd+unix:///r5?socket=/a%20b&x=1", unix("/a b", "r5")),
            ("nbd+unix:///r5", None),
            ("nbd+unix:///?socket=", None),
            ("nbd+unix://host?socket=/x", None),
            ("nbd://localhost", tcp("localhost", 10809, "")),
            ("nbd://localhost:1/", tcp("localhost", 1, "")),
            ("nbd://[fe80::1%25eth0]:1/a/b", tcp("fe80::1%eth0", 1, "a/b")),
            ("nbd://[::1]/%c3%bc", tcp("::1", 10809, "\u{fc}")),
            ("nbd://", None),
            ("nbd://:1/", None),
            ("nbd://h:/", None),
            ("nbd://h:+1/", None),
            ("nbd://h:65536/", None),
            ("nbd://h/%c3", None),
            ("nbd://h/%+1", None),
            ("nbd://h/%1", None),
            ("nbds://h/", None),
            ("unix:/x", None),
        ] {
            assert_eq!(text.parse().ok(), uri, "{text}");
        }
        assert!("x".parse::<Uri>().expect_err("none").to_string().contains("nbd://HOST"));
    }

    #[test]
    fn what_servers_say_is_understood() {
        for text in ["unix:/run/a b.sock", "tcp:[::1%eth0]:7", "tcp:127.0.0.1:10809"] {
            let address: Address = text.parse().expect("valid");
            assert_eq!(address.uri().parse(), Ok(Uri { address, export: String::new() }));
        }
    }
}
