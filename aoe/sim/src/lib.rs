//! A simulated Ethernet: hosts and their ports, links with a rate, a queue and a delay, one switch, and faults.
//!
//! It moves raw frames on virtual time and knows nothing about what is in them beyond the two MAC addresses. Initiators, shelves
//! and whole arrays are tested over it on one thread: the caller owns the clock (a [`core::time::Duration`] since an arbitrary
//! origin), hands frames in by [`Network::send`], takes them out by [`Network::poll`], and sleeps until [`Network::next_event`].
//!
//! The same seed and the same calls give the same frames at the same instants, so any history can be replayed.
//!
//! Map: [`Network`] is the whole of it; [`Faults`] says what goes wrong on one direction of one link; [`Counters`] say what became
//! of each frame; [`Rng`] is the seeded generator, public because test workloads want the same one.
//!
//! ```
//! use aoe_sim::{Network, PortConfig};
//! use core::time::Duration;
//!
//! let mut network = Network::new(1);
//! let host = network.add_host();
//! let a = network.add_port(host, PortConfig::new([2, 0, 0, 0, 0, 1]));
//! let b = network.add_port(host, PortConfig::new([2, 0, 0, 0, 0, 2]));
//! let mut frame = vec![0; 60];
//! frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
//! frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
//! network.send(Duration::ZERO, a, &frame);
//! let mut now = Duration::ZERO;
//! while let Some(at) = network.next_event() {
//!     now = now.max(at);
//!     if let Some((port, arrived)) = network.poll(now) {
//!         assert_eq!((port, &arrived), (b, &frame));
//!         network.recycle(arrived);
//!     }
//! }
//! ```

mod counters;
mod faults;
mod network;
mod rng;

pub use counters::{Counters, Loss};
pub use faults::{Faults, Ppm, Span};
pub use network::{Direction, HostId, MacId, Network, PortConfig, PortId};
pub use rng::Rng;
