//! The server with an array in memory: by a plain client of our own, and by everybody else's.

mod clients;
mod memory;
mod plain;
mod serving;
mod stopping;

use std::sync::Arc;

use super::*;
use memory::Array;

/// A server on a socket of its own.
struct Served {
    server: Server,
    array: Arc<Array>,
    dir: tempfile::TempDir,
}

fn serve(array: Array) -> Served {
    serve_with(array, Limits::default())
}

fn serve_with(array: Array, limits: Limits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let array = Arc::new(array);
    let server = Server::start_with(&dir.path().join("nbd"), Arc::clone(&array), limits).unwrap();
    Served { server, array, dir }
}

/// Waits until something is so; a minute without it is a failure.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}
