//! The atomics of this module come through here, so that a model checker can stand in for them.

pub(super) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
