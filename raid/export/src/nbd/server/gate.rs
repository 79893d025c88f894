//! Who may be served: bounds on connections, in all, from one address, and in negotiation.
//!
//! Used by the acceptor, which asks for a [`Pass`], and by each connection's thread, which holds it. A client that has not chosen an export yet holds
//! one of few places, and loses it to a newcomer when all are taken: the oldest one of the address that has most of them. So clients that
//! come and say nothing keep nobody out, and those who are served are never put out for others.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::net::Shutdown;

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// Connections served.
    pub(super) served: usize,
    /// Connections served from one IP address.
    pub(super) per_address: usize,
    /// Connections in negotiation.
    pub(super) negotiating: usize,
}

/// Why a client is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0} connections are served already")]
    Served(usize),
    #[error("{0} connections from its address are served already")]
    Address(usize),
    #[error("too many connections come at once")]
    Flood,
}

#[derive(Debug)]
struct Negotiating {
    number: u64,
    peer: Option<IpAddr>,
    socket: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
struct Table {
    /// Passes given.
    count: u64,
    /// Passes that exist, those that have lost their place among them.
    passes: usize,
    /// Oldest first.
    negotiating: VecDeque<Negotiating>,
    served: Vec<(u64, Option<IpAddr>)>,
}

impl Table {
    fn check(&self, places: &Places, peer: Option<IpAddr>) -> Result<(), Refusal> {
        if self.served.len() >= places.served {
            return Err(Refusal::Served(places.served));
        }
        let from_there = self.served.iter().filter(|(_, other)| peer.is_some() && *other == peer).count();
        if from_there >= places.per_address {
            return Err(Refusal::Address(places.per_address));
        }
        Ok(())
    }

    /// Takes out the oldest of the address that has most places, a newcomer from `peer` counted.
    fn displace(&mut self, peer: Option<IpAddr>) -> Option<Negotiating> {
        let count = |peer: Option<IpAddr>, more: usize| {
            self.negotiating.iter().filter(|other| other.peer == peer).count() + more
        };
        let mut most = (0, 0);
        for (index, entry) in self.negotiating.iter().enumerate() {
            let places = count(entry.peer, usize::from(entry.peer == peer));
            // The first one found of an address is its oldest.
            if places > most.0 {
                most = (places, index);
            }
        }
        self.negotiating.remove(most.1)
    }
}

#[derive(Debug)]
pub(super) struct Gate {
    places: Places,
    table: Mutex<Table>,
}

impl Gate {
    pub(super) fn new(places: Places) -> Arc<Self> {
        Arc::new(Self { places, table: Mutex::default() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic while held")
    }

    /// Passes that exist.
    pub(super) fn passes(&self) -> usize {
        self.table().passes
    }

    /// Lets a client in to negotiate.
    pub(super) fn enter(self: &Arc<Self>, peer: Option<IpAddr>, socket: &Arc<OwnedFd>) -> Result<Pass, Refusal> {
        let mut table = self.table();
        table.check(&self.places, peer)?;
        // Those that have lost their place are on their way out, and may not pile up.
        if table.passes >= self.places.served + 2 * self.places.negotiating {
            return Err(Refusal::Flood);
        }
        let full = table.negotiating.len() >= self.places.negotiating;
        let displaced = if full { table.displace(peer) } else { None };
        table.count += 1;
        table.passes += 1;
        let number = table.count;
        table.negotiating.push_back(Negotiating { number, peer, socket: Arc::clone(socket) });
        drop(table);
        if let Some(old) = displaced {
            // Its thread sees the end of the stream. A socket that cannot be shut down has ended by itself.
            let _ = rustix::net::shutdown(&old.socket, Shutdown::Both);
        }
        Ok(Pass { gate: Arc::clone(self), number, peer })
    }
}

/// The right to be there. Dropped at the connection's end, a panic included.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    number: u64,
    peer: Option<IpAddr>,
}

impl Pass {
    /// The client has chosen its export: may it be served?
    pub(super) fn admit(&self) -> Result<(), Refusal> {
        let mut table = self.gate.table();
        let place = table.negotiating.iter().position(|entry| entry.number == self.number);
        let place = place.ok_or(Refusal::Flood)?;
        table.check(&self.gate.places, self.peer)?;
        table.negotiating.remove(place);
        table.served.push((self.number, self.peer));
        Ok(())
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut table = self.gate.table();
        table.negotiating.retain(|entry| entry.number != self.number);
        table.served.retain(|(number, _)| *number != self.number);
        table.passes -= 1;
    }
}

#[cfg(test)]
mod tests;
