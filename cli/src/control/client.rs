//! Speaks to a running array: one HTTP/1.1 request per connection.
//!
//! Knows only what our server answers with: a length, and no chunks. Bound: [`RESPONSE_MAX`].

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::messages::Failure;
use crate::runtime_dir::{announced, control_socket, parse_name};

/// Longest answer.
const RESPONSE_MAX: u64 = 16 << 20;

/// The status of what is asked of an array that does not serve yet, or no more.
const UNAVAILABLE: u16 = 503;

/// An array answers that it is being started, is being stopped, or has ended.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotServing(String);

/// Which array, as options.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ControlArgs {
    /// The array's name, as given to `run`
    #[arg(value_parser = parse_name)]
    name: String,

    /// Its control socket [default: /run/etherraid/NAME.sock, or that of the array that runs here as NAME]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

impl ControlArgs {
    /// The array's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The array that answers at a socket.
    pub(crate) fn at(name: String, socket: PathBuf) -> ControlArgs {
        ControlArgs { name, control: Some(socket) }
    }

    /// Whether somebody answers there.
    pub(crate) fn is_there(&self) -> bool {
        UnixStream::connect(self.socket()).is_ok()
    }

    fn socket(&self) -> PathBuf {
        if let Some(path) = &self.control {
            return path.clone();
        }
        let usual = control_socket(&self.name);
        // What cannot be looked at does not tell of another place.
        let elsewhere = || announced().ok()?.into_iter().find(|(name, _)| *name == self.name).map(|(_, path)| path);
        if usual.exists() { usual } else { elsewhere().unwrap_or(usual) }
    }

    /// Asks for something, and waits no longer than this.
    pub(crate) fn get_within<T: DeserializeOwned>(&self, path: &str, limit: Duration) -> anyhow::Result<T> {
        self.call("GET", path, "", Some(limit))
    }

    /// Asks for something.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call("GET", path, "", Some(Duration::from_secs(60)))
    }

    /// Has something done; waits as long as it takes.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.call("POST", path, &serde_json::to_string(body)?, None)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &str,
        limit: Option<Duration>,
    ) -> anyhow::Result<T> {
        let socket = self.socket();
        let mut stream = UnixStream::connect(&socket).map_err(|error| self.unreachable(&socket, error))?;
        let talking = || format!("array {} at {}", self.name, socket.display());
        stream.set_read_timeout(limit).with_context(talking)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).with_context(talking)?;
        let mut response = Vec::new();
        stream.take(RESPONSE_MAX).read_to_end(&mut response).with_context(talking)?;
        let (status, body) = parse(&response).with_context(talking)?;
        if status >= 400 {
            let failure = serde_json::from_slice(body).map(|failure: Failure| failure.error);
            let text = failure.unwrap_or_else(|_| format!("status {status}"));
            let error = if status == UNAVAILABLE { anyhow::Error::new(NotServing(text)) } else { anyhow!(text) };
            return Err(error.context(self.name.clone()));
        }
        serde_json::from_slice(body).with_context(talking)
    }

    fn unreachable(&self, socket: &Path, error: std::io::Error) -> anyhow::Error {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let (name, at) = (&self.name, socket.display());
        match error.kind() {
            NotFound | ConnectionRefused => anyhow!(
                "array {name} does not run here (nobody answers at {at}): start it with `etherraid run {name} ..`, or name its socket with --control"
            ),
            _ => anyhow::Error::new(error).context(format!("array {name} at {at}")),
        }
    }
}

/// Status and body of a response.
fn parse(response: &[u8]) -> anyhow::Result<(u16, &[u8])> {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("the answer ends in its head")?;
    let head = std::str::from_utf8(&response[..end]).context("the answer is not HTTP")?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (version, status) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    if !version.starts_with("HTTP/1.") {
        bail!("the answer is not HTTP");
    }
    let status = status.parse().context("the answer has no status")?;
    let headers = lines.filter_map(|line| line.split_once(':'));
    let length = headers.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).map(|(_, value)| value.trim());
    let length: usize =
        length.last().context("the answer has no length")?.parse().context("the answer has no length")?;
    let body = response[end + 4..].get(..length).context("the answer is cut short: the array has ended")?;
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses() {
        let parsed = parse(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: 2\r\n\r\n{}");
        assert_eq!(parsed.expect("valid"), (200, &b"{}"[..]));
        let parsed = parse(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(parsed.expect("valid"), (404, &b""[..]));
        for bad in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\n\r\n{}",
            b"HTTP/1.1 two OK\r\ncontent-length: 2\r\n\r\n{}",
            b"SSH-2.0\r\ncontent-length: 2\r\n\r\n{}",
            b"\xff\r\n\r\n",
        ] {
            assert!(parse(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn an_array_that_does_not_run_is_told_as_such() {
        let args = ControlArgs { name: "r5".into(), control: Some("/nonexistent/socket".into()) };
        let error = args.get::<Failure>("/detail").expect_err("nobody there").to_string();
        assert!(error.contains("array r5 does not run here") && error.contains("etherraid run r5"), "{error}");
    }
}
