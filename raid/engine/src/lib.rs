//! The stripe engine: everything between a front end's requests and the members' blocks.
//!
//! How to read this crate: [`message`] (what the parts say to each other), [`plug`] (requests become parts),
//! [`region`] (who owns which rows), [`letters`] and [`board`] (how parts get there), [`worker`] (parts become runs, runs become member requests), [`mod@array`] (the life
//! cycle: superblocks, failures, sync), [`member`] (devices that carry member requests out) and, last, [`runtime`],
//! which alone has threads and clocks and joins them all.
//!
//! [`worker::Worker`] and [`array::Array`] are values: they are given the time and their inputs, and answer with
//! effects. The same values run on threads here, and on one thread over a simulated Ethernet in the tests.

pub mod array;
pub mod assembly;
pub mod board;
pub mod letters;
pub mod member;
pub mod message;
pub mod plug;
pub mod region;
pub mod runtime;
pub mod slab;
mod sync;
pub mod tunables;
pub mod worker;

/// The units of the public handle, for front ends.
pub use raid_core::units;
