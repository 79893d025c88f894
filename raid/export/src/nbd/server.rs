//! The NBD server: listening sockets, an acceptor thread, and a thread per connection.
//!
//! Whoever runs an array owns a [`Server`]. Connections share the stop signal, the places ([`gate`]) and the memory for
//! payloads ([`budget`]) and nothing else; each has its own [`Backend`](super::backend::Backend) and
//! [`Session`], so one that stalls, sends garbage or vanishes holds up no other.
//!
//! Bounds: [`MAX_CONNECTIONS`] served and [`MAX_NEGOTIATING`] in negotiation; per connection those of the session, over all
//! [`MAX_PAYLOAD_BYTES`]; [`HANDSHAKE_LIMIT`], [`STALL_LIMIT`], [`PRESSED_STALL_LIMIT`] and [`STOP_GRACE`] in time.
//!
//! **Stop.** The sockets go away, new requests are refused with ESHUTDOWN, those in flight are finished and replied to, and
//! each connection is closed once its client has nothing more to say. A client that does not take its replies
//! is cut off after [`STOP_GRACE`]. Requests that the array holds are the array's to end.

mod acceptor;
mod budget;
mod connection;
mod gate;
mod handshake;
mod listener;
mod metered;
mod outbox;
mod patience;
mod tcp;
mod unix;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;

use super::address::Address;
use super::backend::{Backends, InfoError};
#[cfg(doc)]
use super::session::Session;
use acceptor::Acceptor;
use budget::Budget;
pub use budget::{MAX_PAYLOAD_BYTES, OWN_BYTES};
use gate::{Gate, Places};
use listener::Listener;
pub use listener::{BindError, MAX_PATH_BYTES};
pub use patience::STALL_BYTES;

/// Connections served at a time; one more is closed at once. A connection counts until the array has ended its last request.
pub const MAX_CONNECTIONS: usize = 64;
/// Connections served at a time from one IP address, so that one host does not take all places.
pub const MAX_PER_ADDRESS: usize = 32;
/// Connections that have not chosen an export; one more takes the place of the oldest.
pub const MAX_NEGOTIATING: usize = 16;
/// How long a client may take to choose an export.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);
/// A client that owes us the rest of a payload, or does not take its replies, and moves fewer than [`STALL_BYTES`] for this long is cut off:
/// it holds memory. An idle client may stay for ever.
pub const STALL_LIMIT: Duration = Duration::from_secs(60);
/// The same while another client waits for memory.
pub const PRESSED_STALL_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take to read its last replies when the server stops.
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The export cannot be described to a client.
    #[error(transparent)]
    Info(#[from] InfoError),
    /// No thread or descriptor.
    #[error("cannot start the NBD server")]
    Resources(#[source] io::Error),
}

/// The bounds of a server; tests shorten them.
#[derive(Debug, Clone, Copy)]
struct Limits {
    places: Places,
    payload_bytes: u64,
    handshake: Duration,
    stall: Duration,
    pressed_stall: Duration,
    stop_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            places: Places { served: MAX_CONNECTIONS, per_address: MAX_PER_ADDRESS, negotiating: MAX_NEGOTIATING },
            payload_bytes: MAX_PAYLOAD_BYTES,
            handshake: HANDSHAKE_LIMIT,
            stall: STALL_LIMIT,
            pressed_stall: PRESSED_STALL_LIMIT,
            stop_grace: STOP_GRACE,
        }
    }
}

/// What the connections of a server share.
#[derive(Debug)]
struct Shared {
    limits: Limits,
    stopping: AtomicBool,
    /// Readable for ever once `stopping` is set.
    stop_fd: OwnedFd,
    gate: Arc<Gate>,
    budget: Arc<Budget>,
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

/// Sockets that are to be served. Dropping them removes the files of Unix sockets.
#[derive(Debug)]
pub struct Bound {
    listeners: Vec<Listener>,
    addresses: Vec<Address>,
}

impl Bound {
    /// Serves in the background.
    ///
    /// # Errors
    /// The export's description is out of the protocol's range, or the system is short of something.
    pub fn serve<F: Backends + 'static>(self, backends: Arc<F>) -> Result<Server, StartError> {
        self.serve_with(backends, Limits::default())
    }

    fn serve_with<F: Backends + 'static>(self, backends: Arc<F>, limits: Limits) -> Result<Server, StartError> {
        backends.info().check()?;
        let stop_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| StartError::Resources(errno.into()))?;
        let shared = Arc::new(Shared {
            limits,
            stopping: AtomicBool::new(false),
            stop_fd,
            gate: Gate::new(limits.places),
            budget: Budget::new(limits.payload_bytes),
        });
        let acceptor = Acceptor::new(self.listeners, Arc::clone(&shared), backends);
        let thread = std::thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(move || acceptor.run())
            .map_err(StartError::Resources)?;
        Ok(Server { shared, addresses: self.addresses, acceptor: Some(thread) })
    }
}

/// A running NBD server.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on all addresses, before there is anything to serve: clients wait until [`Bound::serve`].
    ///
    /// On a Unix socket only the owner is let in (mode 0600). A socket left behind by a server that has died is replaced; one that
    /// answers, or a file that is no socket, is not. Whoever reaches a TCP port is let in: NBD as it is here knows neither users nor secrets.
    ///
    /// # Errors
    /// An address is taken or cannot be had. Then nothing is listened on.
    pub fn bind(addresses: &[Address]) -> Result<Bound, BindError> {
        let mut bound = Bound { listeners: Vec::new(), addresses: Vec::new() };
        for address in addresses {
            let (listeners, address) = Listener::bind(address)?;
            bound.listeners.extend(listeners);
            bound.addresses.push(address);
        }
        Ok(bound)
    }

    /// Where it listens, as it was told to; a port of 0 has become the port that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Connections that exist, those among them that only wait for the array to end their requests.
    pub fn connections(&self) -> usize {
        self.shared.gate.passes()
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
            tracing::error!("NBD acceptor panicked");
        }
    }
}

impl Drop for Server {
    /// Begins the stop; unlike [`Server::stop`] it does not wait.
    fn drop(&mut self) {
        self.begin_stop();
    }
}

#[cfg(test)]
mod tests;
