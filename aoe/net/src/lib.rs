//! AoE on real links: packet sockets, in-process Ethernet, fault injection, the initiator's driver and the shelf server.
//!
//! This is the shell around the state machines of `aoe-proto`: it alone reads clocks, opens sockets and starts threads.
//!
//! - [`driver`] moves frames and data for an initiator.
//! - [`link`] moves raw frames in batches.
//! - [`shelf_server`] serves a shelf over links.
//! - [`store`] has what a shelf serves: files, block devices, memory.
//! - [`wake`] waits for links, and wakes a thread that waits.

#![deny(unsafe_code)]

mod clock;
pub mod driver;
pub mod link;
pub mod shelf_server;
pub mod store;
pub mod wake;

use core::time::Duration;

/// How often the state of a link (down, MTU, another interface of the same name) is looked at where nobody watches. What happened in
/// between is noticed by the frames that are lost.
pub const LINK_CHECK: Duration = Duration::from_millis(100);

/// The same where a [`link::LinkWatch`] tells of changes.
pub const LINK_CHECK_WATCHED: Duration = Duration::from_secs(1);
