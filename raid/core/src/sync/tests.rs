//! Tests of the cursor against a set of rows, and of the pacer's limits in simulated time.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn cursor(start: u64, end: u64, run_rows: u64, window: usize) -> SyncCursor {
    SyncCursor::new(StripeIndex(start), StripeIndex(end), run_rows, window)
}

fn run(start: u64, rows: u64) -> Run {
    Run { start: StripeIndex(start), rows }
}

#[test]
fn runs_in_order_within_the_window() {
    let mut cursor = cursor(5, 16, 4, 2);
    assert_eq!(cursor.next_run(), Some(run(5, 4)));
    assert_eq!(cursor.next_run(), Some(run(9, 4)));
    assert_eq!(cursor.next_run(), None);
    cursor.done(run(9, 4));
    assert_eq!(cursor.checkpoint(), StripeIndex(5));
    assert_eq!(cursor.next_run(), Some(run(13, 3)));
    assert_eq!(cursor.next_run(), None);
    cursor.done(run(5, 4));
    assert_eq!(cursor.checkpoint(), StripeIndex(13));
    assert!(!cursor.is_finished());
    cursor.done(run(13, 3));
    assert_eq!(cursor.checkpoint(), StripeIndex(16));
    assert!(cursor.is_finished());
    assert_eq!(cursor.next_run(), None);
}

#[test]
fn a_run_that_is_not_done_holds_the_checkpoint() {
    let mut cursor = cursor(0, 100, 1, 4);
    let runs: Vec<Run> = core::iter::from_fn(|| cursor.next_run()).collect();
    for run in &runs[1..] {
        cursor.done(*run);
    }
    assert_eq!(cursor.checkpoint(), StripeIndex(0));
    cursor.done(runs[0]);
    assert_eq!(cursor.checkpoint(), StripeIndex(4));
}

#[test]
fn one_slow_run_bounds_how_far_the_others_go() {
    let mut cursor = cursor(0, 1000, 1, 2);
    let slow = cursor.next_run().unwrap();
    let mut others = 0;
    while let Some(run) = cursor.next_run() {
        cursor.done(run);
        others += 1;
    }
    assert_eq!((others, cursor.checkpoint()), (WINDOW_MAX - 1, StripeIndex(0)));
    cursor.done(slow);
    assert_eq!(cursor.checkpoint(), StripeIndex(64));
    assert!(cursor.next_run().is_some());
}

#[test]
fn nothing_to_do_is_finished() {
    for end in [7, 5] {
        let mut cursor = cursor(7, end, 4, 1);
        assert!(cursor.is_finished());
        assert_eq!((cursor.next_run(), cursor.checkpoint()), (None, StripeIndex(7)));
    }
}

#[test]
#[should_panic(expected = "is not out")]
fn a_run_ends_once() {
    let mut cursor = cursor(0, 10, 4, 2);
    let run = cursor.next_run().unwrap();
    cursor.done(run);
    cursor.done(run);
}

#[test]
fn the_last_rows_that_can_be_counted() {
    let mut cursor = cursor(u64::MAX - 5, u64::MAX, 4, 8);
    assert_eq!(cursor.next_run(), Some(run(u64::MAX - 5, 4)));
    assert_eq!(cursor.next_run(), Some(run(u64::MAX - 1, 1)));
    assert_eq!(cursor.next_run(), None);
}

proptest! {
    #[test]
    fn cursor_against_a_set_of_rows(
        start in 0u64..50, rows in 0u64..300, run_rows in 1u64..9, window in 1usize..=WINDOW_MAX,
        steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 0..400),
    ) {
        let mut cursor = cursor(start, start + rows, run_rows, window);
        let mut todo: BTreeSet<u64> = (start..start + rows).collect();
        let mut out: Vec<Run> = Vec::new();
        for (step, pick) in steps {
            if step < 2 {
                if let Some(run) = cursor.next_run() {
                    let rows = run.start.0..run.start.0 + run.rows;
                    prop_assert!(rows.clone().all(|row| todo.contains(&row)));
                    prop_assert!(!out.iter().any(|other| rows.contains(&other.start.0)));
                    out.push(run);
                }
            } else if !out.is_empty() {
                let run = out.swap_remove(pick.index(out.len()));
                cursor.done(run);
                todo.retain(|row| !(run.start.0..run.start.0 + run.rows).contains(row));
            }
            prop_assert_eq!(cursor.outstanding(), out.len());
            prop_assert!(out.len() <= window);
            prop_assert_eq!(cursor.checkpoint().0, todo.first().copied().unwrap_or(start + rows));
            prop_assert_eq!(cursor.is_finished(), todo.is_empty());
        }
        // Whatever happened, what is out ends and the rest gets done.
        out.into_iter().for_each(|run| cursor.done(run));
        while let Some(run) = cursor.next_run() {
            cursor.done(run);
        }
        prop_assert!(cursor.is_finished());
    }
}

/// Runs of 1 MiB that take `service` each, one at a time, for a minute; bytes per second.
fn speed(limits: SyncLimits, service: Duration, busy: bool) -> f64 {
    let (mut pacer, size, minute) = (SyncPacer::new(limits), Bytes(1 << 20), Duration::from_secs(60));
    let (mut now, mut runs) = (Duration::ZERO, 0);
    while now < minute {
        now = now.max(pacer.start_at(busy));
        pacer.started(now, size);
        now += service;
        pacer.finished(now, service);
        runs += 1;
    }
    runs as f64 * size.0 as f64 / now.as_secs_f64()
}

#[test]
fn the_same_limits_again_change_nothing() {
    let limits = SyncLimits { speed_min: Bytes(0), speed_max: Bytes(1 << 20), share_percent: 100 };
    let mut pacer = SyncPacer::new(limits);
    pacer.started(Duration::ZERO, Bytes(10 << 20));
    let start = pacer.start_at(false);
    assert!(start > Duration::from_secs(5));
    pacer.set_limits(limits);
    assert_eq!(pacer.start_at(false), start);
    pacer.set_limits(SyncLimits { speed_max: Bytes(2 << 20), ..limits });
    assert_eq!(pacer.start_at(false), Duration::ZERO);
}

#[test]
fn limits_hold() {
    let limits = SyncLimits { speed_min: Bytes(10 << 20), speed_max: Bytes(200 << 20), share_percent: 25 };
    let mib = f64::from(1 << 20);
    let close = |found: f64, want: f64| assert!((found / want - 1.0).abs() < 0.03, "{found} for {want}");
    // Alone: as fast as the members are, up to the maximum.
    close(speed(limits, Duration::from_millis(20), false), 50.0 * mib);
    close(speed(limits, Duration::from_millis(1), false), 200.0 * mib);
    // Busy: a quarter of the time.
    close(speed(limits, Duration::from_millis(2), true), 125.0 * mib);
    // Busy and slow: the minimum, where a quarter of the time would give 5.
    close(speed(limits, Duration::from_millis(50), true), 10.0 * mib);
    // Slower than the minimum: all of the time.
    close(speed(limits, Duration::from_millis(200), true), 5.0 * mib);
}

#[test]
fn extreme_limits_do_no_harm() {
    for speed in [0, 1, u64::MAX] {
        for share_percent in [0, 1, 100, 255] {
            let limits = SyncLimits { speed_min: Bytes(speed), speed_max: Bytes(speed), share_percent };
            let mut pacer = SyncPacer::new(limits);
            let now = Duration::from_secs(5);
            pacer.started(now, Bytes(u64::MAX));
            pacer.finished(now, Duration::from_secs(3600));
            assert!(pacer.start_at(true) < Duration::from_secs(1 << 30));
            pacer.set_limits(SyncLimits::default());
            assert_eq!(pacer.start_at(true), Duration::ZERO);
        }
    }
}
