//! The worker against fake devices and a fake array: what reaches the members ([`shapes`], [`cached`]), what failures do ([`faults`], [`restarted`]), and
//! seeded histories in which everything happens at once ([`seeds`]).

mod cached;
mod disk;
mod fake_array;
mod faults;
mod model;
mod restarted;
mod seeds;
mod shapes;
mod world;

use super::Worker;

/// Nothing is left over inside.
fn assert_at_rest(worker: &Worker) {
    assert!(worker.stripes.is_empty() && worker.stripe_pool.is_empty());
    assert!(worker.runs.is_empty() && worker.touched.is_empty() && worker.fresh.is_empty());
    assert!(worker.held.is_empty() && worker.closed.is_empty());
    assert!(worker.starved.is_empty() && worker.starved_readers.is_empty());
    assert_eq!(worker.writes_pending, 0, "writes are counted as pending");
}
