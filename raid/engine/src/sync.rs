//! The one place that names atomics, so that a model checker's can stand in for them.

#[cfg(not(feature = "model"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(feature = "model")]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
