//! The one place that names atomics, so that a model checker's can stand in for them.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
