//! The server with an array in memory: by a plain client of our own, and by everybody else's.

mod clients;
mod hostile;
mod memory;
mod plain;
mod serving;
mod stopping;
mod tcp;

use std::sync::Arc;

use std::path::Path;

use super::*;
use crate::nbd::proto::Headers;
use memory::Array;

const FORMS: [Headers; 3] = [Headers::Simple, Headers::Structured, Headers::Extended];

/// A server on a socket of its own.
struct Served {
    server: Server,
    array: Arc<Array>,
    dir: tempfile::TempDir,
}

impl Served {
    /// Where it listens first.
    fn at(&self) -> &Address {
        &self.server.addresses()[0]
    }
}

/// The path of a Unix socket.
fn path_of(address: &Address) -> &Path {
    match address {
        Address::Unix(path) => path,
        Address::Tcp { .. } => panic!("{address} is no path"),
    }
}

fn serve(array: Array) -> Served {
    serve_with(array, Limits::default())
}

fn serve_with(array: Array, limits: Limits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let array = Arc::new(array);
    let unix = Address::Unix(dir.path().join("nbd"));
    let tcp = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
    let server = Server::bind(&[unix, tcp]).unwrap().serve_with(Arc::clone(&array), limits).unwrap();
    Served { server, array, dir }
}

/// Waits until something is so; a minute without it is a failure.
pub(super) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}
