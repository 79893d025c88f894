//! The pure half of the RAID engine: where data lies, how parity is made, what md writes on members, and what to do for a request.
//!
//! No I/O, clock, thread or random source: everything is a function of its arguments, so the engine's runtime, the simulator, the offline
//! commands and the tests share it. Reading order:
//!
//! - [`units`]: sectors, chunks, rows, members, and sets of members;
//! - [`geometry`]: array sector to member sector and back, in md's six level 5 layouts;
//! - [`parity`]: XOR kernels (the only module with unsafe code);
//! - [`plan`]: the one planner, of reads, writes and sync;
//! - [`sync`]: which rows a resync or recovery works on next, and how fast;
//! - [`md`]: superblocks, new arrays, assembly.

#![deny(unsafe_code)]

pub mod geometry;
pub mod md;
pub mod parity;
pub mod plan;
pub mod sync;
pub mod units;
