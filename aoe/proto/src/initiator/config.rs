//! How an initiator is made.

use super::{Tunables, WorkerId};

/// What an initiator is told at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The worker that runs it: replies carry it in bits 30 to 23 of their tags.
    pub worker: WorkerId,
    /// Whether this one looks for all devices, and tells of those that are not open. One initiator of a process does.
    pub discovers: bool,
    /// Where tags start. Different at each start of the process, the same to replay a history.
    pub seed: u64,
    /// Values of the tunables.
    pub tunables: Tunables,
}

impl Config {
    /// An initiator that does not discover, with default tunables.
    pub fn new(worker: WorkerId, seed: u64) -> Config {
        Config { worker, discovers: false, seed, tunables: Tunables::default() }
    }
}

/// Spreads a seed over all bits (the finaliser of splitmix64).
pub(super) fn random(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}
