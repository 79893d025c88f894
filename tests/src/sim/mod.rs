//! The whole array on one thread: engine, initiators, a switch, shelves with volatile caches, clients, faults, all from one seed and on
//! virtual time. The test `simulation` runs it over many seeds.
//!
//! A run is a function of its seed: [`shape`] draws the array and the network, [`fault`] what goes wrong and when, [`load`] what the
//! clients ask for. [`world`] holds it all together and moves time from one event to the next; [`life`] starts, stops, crashes and
//! assembles the engine, which is the product's own ([`raid_engine::runtime::stepped::Stepped`]) over links of [`ether`] to
//! the targets of [`target`].
//!
//! What is checked, and where:
//! - [`model`]: what each sector of the array may hold, from what clients were told; every read, and all sectors at the end.
//! - [`disk`]: at each write to a member that it is covered by a durable dirty mark, that event counts do not go back, and that nothing new is
//!   recorded while the array is suspended.
//! - [`check`]: at each acknowledged write that members lacking it are recorded as failed on all others; at rest that parity matches, so that
//!   any one member can be left out.
//! - [`load`]: each request ends exactly once, and within [`world::PATIENCE`] of the last fault's end.
//!
//! Bounds: virtual time and steps of a run ([`world::RUN_TIME_MAX`], [`world::STEPS_MAX`]).

pub mod check;
pub mod disk;
pub mod ether;
pub mod fault;
pub mod life;
pub mod load;
pub mod model;
pub mod shape;
pub mod target;
pub mod world;

pub use world::{Report, run};
