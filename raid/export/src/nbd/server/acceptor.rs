//! The acceptor: its thread takes clients from all listening sockets and gives each a thread of its own.
//!
//! What it says about clients that are turned away is bounded too: a line in [`LOG_PAUSE`] at most.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Shared;
use super::connection::Connection;
use super::gate::{Pass, Refusal};
use super::handshake::{End, negotiate};
use super::listener::{Accepted, Listener};
use super::metered::Metered;
use crate::nbd::backend::Backends;
use crate::nbd::session::Session;

/// Pause of the acceptor when the process is out of descriptors or threads.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How often it is told at most that clients are turned away.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// See the module's text.
pub(super) struct Acceptor<F> {
    listeners: Vec<Listener>,
    shared: Arc<Shared>,
    backends: Arc<F>,
    threads: Vec<JoinHandle<()>>,
    /// Clients that have come.
    number: u64,
    /// When a refusal was told last.
    told: Option<Instant>,
    /// Refusals since then.
    untold: u64,
}

impl<F: Backends + 'static> Acceptor<F> {
    pub(super) fn new(listeners: Vec<Listener>, shared: Arc<Shared>, backends: Arc<F>) -> Self {
        Self { listeners, shared, backends, threads: Vec::new(), number: 0, told: None, untold: 0 }
    }

    pub(super) fn run(mut self) {
        while !self.shared.is_stopping() {
            let ready = self.wait(None);
            self.reap();
            for index in ready {
                self.accept(index);
            }
        }
        let Self { listeners, threads, .. } = self;
        // The sockets go first: nobody finds a server that only ends.
        drop(listeners);
        threads.into_iter().for_each(join);
    }

    /// Waits for clients, or with a timeout only for the stop. Returns the indices of listeners that may have one.
    fn wait(&self, pause: Option<&Timespec>) -> Vec<usize> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.shared.stop_fd.as_fd(), PollFlags::IN)];
        if pause.is_none() {
            fds.extend(self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)));
        }
        // The only error that can come is an interruption, after which the caller looks again.
        let _ = rustix::event::poll(&mut fds, pause);
        (0..fds.len() - 1).filter(|&index| !fds[index + 1].revents().is_empty()).collect()
    }

    /// One client of each listener in turn, so that none is flooded out by another.
    fn accept(&mut self, index: usize) {
        match self.listeners[index].accept() {
            Ok(Some(accepted)) => self.serve(accepted),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept an NBD client");
                self.wait(Some(&ACCEPT_PAUSE));
            }
        }
    }

    fn reap(&mut self) {
        for thread in self.threads.extract_if(.., |thread| thread.is_finished()) {
            join(thread);
        }
    }

    fn serve(&mut self, accepted: Accepted) {
        let socket = Arc::new(accepted.socket);
        let pass = match self.shared.gate.enter(accepted.peer, &socket) {
            Ok(pass) => pass,
            Err(refusal) => return self.tell(refusal, accepted.peer),
        };
        self.number += 1;
        let (shared, backends) = (Arc::clone(&self.shared), Arc::clone(&self.backends));
        let peer = accepted.peer.map(|peer| peer.to_string());
        let spawned = std::thread::Builder::new().name(format!("nbd-{}", self.number)).spawn(move || {
            let _span = tracing::info_span!("nbd", client = peer).entered();
            serve(&socket, &shared, &*backends, &pass);
            // The place is free once nothing is held any more.
            drop(socket);
            drop(pass);
        });
        match spawned {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::warn!(%error, "no thread for an NBD client"),
        }
    }

    fn tell(&mut self, refusal: Refusal, peer: Option<std::net::IpAddr>) {
        let now = Instant::now();
        if self.told.is_some_and(|told| now - told < LOG_PAUSE) {
            self.untold += 1;
            return;
        }
        let client = peer.map(tracing::field::display);
        let more = std::mem::take(&mut self.untold);
        tracing::warn!(client, more, "NBD client turned away: {refusal}");
        self.told = Some(now);
    }
}

/// A connection from its first byte to its last.
fn serve<F: Backends>(socket: &Arc<OwnedFd>, shared: &Shared, backends: &F, pass: &Pass) {
    let info = backends.info();
    if let Err(error) = info.check() {
        tracing::warn!(%error, "cannot describe the array to an NBD client");
        return;
    }
    let mut session = Session::new(info);
    if let Err(end) = negotiate(socket, &mut session, shared) {
        match end {
            End::Late => tracing::info!("NBD connection ended: {end}"),
            // Anybody can make these as often as he likes.
            _ => tracing::debug!("NBD connection ended: {end}"),
        }
        return;
    }
    let opened = pass.admit().map_err(io::Error::other).and_then(|()| backends.open());
    match opened {
        Ok(backend) => Connection::new(socket, session, Metered::new(backend, shared.budget.share()), shared).run(),
        Err(error) => tracing::warn!(%error, "cannot serve an NBD client"),
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("an NBD connection panicked");
    }
}
