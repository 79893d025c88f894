//! The NBD server: a Unix socket, an acceptor thread, and a thread per connection.
//!
//! Whoever runs an array owns a [`Server`]. Connections share nothing but the stop signal;
//! each has its own [`Backend`](super::backend::Backend) and [`Session`](super::session::Session), so one that stalls,
//! sends garbage or vanishes holds up no other.
//!
//! Bounds: [`MAX_CONNECTIONS`] threads; per connection those of the session; [`HANDSHAKE_LIMIT`], [`STALL_LIMIT`] and [`STOP_GRACE`]
//! in time.
//!
//! **Stop.** The socket file goes away, new requests are refused with ESHUTDOWN, those in flight are finished and replied to, and
//! each connection is closed once its client has nothing more to say. A client that does not take its replies
//! is cut off after [`STOP_GRACE`]. Requests that the array holds are the array's to end.

mod connection;
mod listener;
mod outbox;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::backend::{Backends, InfoError};
use connection::Connection;
use listener::Listener;
pub use listener::{BindError, MAX_PATH_BYTES};

/// Connections served at a time; one more is closed at once. A connection counts until the array has ended its last request.
pub const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to choose an export.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(60);
/// A client that owes us the rest of a payload, or does not take its replies, and moves no byte for this long is cut off:
/// it holds memory. An idle client may stay for ever.
pub const STALL_LIMIT: Duration = Duration::from_secs(60);
/// How long a client may take to read its last replies when the server stops.
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// Pause of the acceptor when the process is out of descriptors or threads.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The export cannot be described to a client.
    #[error(transparent)]
    Info(#[from] InfoError),
    /// The socket cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// No thread or descriptor.
    #[error("cannot start the NBD server")]
    Resources(#[source] io::Error),
}

/// The bounds of a server; tests shorten them.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connections: usize,
    handshake: Duration,
    stall: Duration,
    stop_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: MAX_CONNECTIONS, handshake: HANDSHAKE_LIMIT, stall: STALL_LIMIT, stop_grace: STOP_GRACE }
    }
}

/// What the connections of a server share.
#[derive(Debug)]
struct Shared {
    limits: Limits,
    stopping: AtomicBool,
    /// Readable for ever once `stopping` is set.
    stop_fd: OwnedFd,
    /// Connections that have a thread.
    connections: AtomicUsize,
}

impl Shared {
    fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // An eventfd takes a 1 unless it is near 2^64, and then it is readable already.
        let _ = rustix::io::write(&self.stop_fd, &1u64.to_ne_bytes());
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// A socket that is to be served. Dropping it removes its file.
#[derive(Debug)]
pub struct Bound(Listener);

impl Bound {
    /// Serves in the background.
    ///
    /// # Errors
    /// The export's description is out of the protocol's range, or the system is short of something.
    pub fn serve<F: Backends + 'static>(self, backends: Arc<F>) -> Result<Server, StartError> {
        Server::serve(self.0, backends, Limits::default())
    }
}

/// A running NBD server.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on a Unix socket that only the owner may use (mode 0600) and serves in the background.
    ///
    /// A socket left behind by a server that has died is replaced; one that answers, or a file that is no socket, is not.
    ///
    /// # Errors
    /// The path is too long or taken, or the export's description is out of the protocol's range.
    pub fn start<F: Backends + 'static>(path: &Path, backends: Arc<F>) -> Result<Self, StartError> {
        Self::start_with(path, backends, Limits::default())
    }

    /// Takes the socket's place as [`Server::start`] does, before there is anything to serve: clients wait until [`Bound::serve`].
    ///
    /// # Errors
    /// The path is too long or taken.
    pub fn bind(path: &Path) -> Result<Bound, BindError> {
        Listener::bind(path).map(Bound)
    }

    fn start_with<F: Backends + 'static>(path: &Path, backends: Arc<F>, limits: Limits) -> Result<Self, StartError> {
        Self::serve(Listener::bind(path)?, backends, limits)
    }

    fn serve<F: Backends + 'static>(listener: Listener, backends: Arc<F>, limits: Limits) -> Result<Self, StartError> {
        backends.info().check()?;
        let stop_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| StartError::Resources(errno.into()))?;
        let path = listener.path().to_owned();
        let shared =
            Arc::new(Shared { limits, stopping: AtomicBool::new(false), stop_fd, connections: AtomicUsize::new(0) });
        let acceptor = Acceptor { listener, shared: Arc::clone(&shared), backends, threads: Vec::new() };
        let thread = std::thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(move || acceptor.run())
            .map_err(StartError::Resources)?;
        Ok(Self { shared, path, acceptor: Some(thread) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connections that exist, those among them that only wait for the array to end their requests.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Begins the stop and returns at once.
    pub fn begin_stop(&self) {
        self.shared.begin_stop();
    }

    /// Stops, and returns when every connection has ended.
    pub fn stop(mut self) {
        self.begin_stop();
        if let Some(thread) = self.acceptor.take()
            && thread.join().is_err()
        {
            tracing::error!(path = %self.path.display(), "NBD acceptor panicked");
        }
    }
}

impl Drop for Server {
    /// Begins the stop; unlike [`Server::stop`] it does not wait.
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// The acceptor thread.
struct Acceptor<F> {
    listener: Listener,
    shared: Arc<Shared>,
    backends: Arc<F>,
    threads: Vec<JoinHandle<()>>,
}

impl<F: Backends + 'static> Acceptor<F> {
    fn run(mut self) {
        let mut number = 0u64;
        while !self.shared.is_stopping() {
            if !self.wait(None) {
                continue;
            }
            self.reap();
            match self.listener.accept() {
                Ok(Some(socket)) => {
                    number += 1;
                    self.serve(socket, number);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an NBD client");
                    self.wait(Some(&ACCEPT_PAUSE));
                }
            }
        }
        let Self { listener, threads, .. } = self;
        // The socket goes first: nobody finds a server that only ends.
        drop(listener);
        threads.into_iter().for_each(join);
    }

    /// Waits for a client, or with a timeout only for the stop. Returns whether there may be a client.
    fn wait(&self, pause: Option<&Timespec>) -> bool {
        let mut fds = [
            PollFd::from_borrowed_fd(self.shared.stop_fd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        let watched = if pause.is_some() { 1 } else { 2 };
        // The only error that can come is an interruption, after which the caller looks again.
        let _ = rustix::event::poll(&mut fds[..watched], pause);
        !fds[1].revents().is_empty()
    }

    fn reap(&mut self) {
        for thread in self.threads.extract_if(.., |thread| thread.is_finished()) {
            join(thread);
        }
    }

    fn serve(&mut self, socket: OwnedFd, number: u64) {
        if self.shared.connections.load(Ordering::Acquire) >= self.shared.limits.connections {
            tracing::warn!(limit = self.shared.limits.connections, "too many NBD connections, one closed");
            return;
        }
        self.shared.connections.fetch_add(1, Ordering::AcqRel);
        let count = Counted(Arc::clone(&self.shared));
        let backends = Arc::clone(&self.backends);
        let spawned = std::thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
            let info = backends.info();
            match info.check().map_err(io::Error::other).and_then(|()| backends.open()) {
                Ok(backend) => Connection::new(socket, backend, info, &count.0).run(),
                Err(error) => tracing::warn!(%error, "cannot open the array for an NBD client"),
            }
        });
        match spawned {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::warn!(%error, "no thread for an NBD client"),
        }
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("an NBD connection panicked");
    }
}

/// Counts a connection for as long as it lives, a panic included.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
