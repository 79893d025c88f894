//! Credits on one thread against a model, and on several threads against their invariants.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;

const A: WorkerId = WorkerId(0);
const B: WorkerId = WorkerId(64);
const C: WorkerId = WorkerId(255);

fn credits(limit: u32) -> Credits {
    let credits = Credits::new();
    credits.set_limit(limit);
    credits
}

#[test]
fn takes_up_to_the_limit_which_is_never_below_one() {
    let pool = Credits::new();
    pool.set_limit(0);
    assert_eq!(pool.limit(), 1);
    assert!(pool.try_take(A));
    assert!(!pool.try_take(A));
    pool.set_limit(3);
    assert!(pool.try_take(A));
    assert!(pool.try_take(B));
    assert!(!pool.try_take(B));
    assert_eq!(pool.taken(), 3);
}

#[test]
fn freed_credits_go_round_the_waiting_workers() {
    let pool = credits(1);
    assert!(pool.try_take(A));
    for worker in [C, A, B] {
        assert_eq!(pool.wait(worker), None);
    }
    for next in [A, B, C] {
        assert_eq!(pool.give_back(), Some(next));
        assert!(!pool.try_take(WorkerId(7)), "handed over, not up for grabs");
        assert!(pool.is_granted(next));
        assert!(pool.try_take(next));
        assert!(!pool.is_granted(next));
    }
    assert_eq!(pool.give_back(), None);
    assert_eq!(pool.taken(), 0);
}

#[test]
fn nobody_overtakes_a_waiting_worker() {
    let pool = credits(2);
    assert!(pool.try_take(A) && pool.try_take(A));
    assert_eq!(pool.wait(B), None);
    pool.set_limit(3);
    assert!(!pool.try_take(A), "B comes first");
    assert_eq!(pool.hand_over(), Some(B));
    assert_eq!(pool.hand_over(), None);
    assert!(pool.try_take(B));
}

#[test]
fn waiting_while_a_credit_is_free_grants_at_once() {
    let pool = credits(1);
    assert_eq!(pool.wait(A), Some(A));
    assert!(pool.try_take(A));
}

#[test]
fn withdrawing_passes_a_grant_on() {
    let pool = credits(1);
    assert!(pool.try_take(A));
    assert_eq!(pool.wait(A), None);
    assert_eq!(pool.wait(A), None, "registering twice counts once");
    assert_eq!(pool.wait(B), None);
    assert_eq!(pool.give_back(), Some(A));
    assert_eq!(pool.withdraw(A), Some(B));
    assert!(pool.try_take(B));
    assert_eq!(pool.withdraw(A), None);
    assert_eq!(pool.give_back(), None);
    assert_eq!(pool.taken(), 0);
    assert!(pool.try_take(C));
}

#[test]
fn a_lowered_limit_hands_out_nothing_until_enough_came_back() {
    let pool = credits(4);
    for _ in 0..4 {
        assert!(pool.try_take(A));
    }
    pool.set_limit(2);
    assert_eq!(pool.wait(B), None);
    assert_eq!(pool.give_back(), None);
    assert_eq!(pool.give_back(), None);
    assert_eq!(pool.give_back(), Some(B));
    assert_eq!(pool.taken(), 2);
}

#[test]
#[should_panic(expected = "given back once")]
fn giving_back_what_was_not_taken_panics() {
    let _ = Credits::new().give_back();
}

proptest! {
    /// One thread, three workers, against sets and counters.
    #[test]
    fn follows_a_model(ops in prop::collection::vec((0u8..5, 0usize..3, 1u32..6), 0..200)) {
        let workers = [A, B, C];
        let pool = credits(2);
        let mut limit = 2u32;
        let mut held = [0u32; 3];
        let mut granted = [0u32; 3];
        let mut waiting = BTreeSet::new();
        for (op, index, number) in ops {
            let worker = workers[index];
            let mut woken = Vec::new();
            match op {
                0 => {
                    let taken: u32 = held.iter().sum::<u32>() + granted.iter().sum::<u32>();
                    let expected = granted[index] > 0 || (waiting.is_empty() && taken < limit);
                    prop_assert_eq!(pool.try_take(worker), expected);
                    if expected {
                        granted[index] = granted[index].saturating_sub(1);
                        held[index] += 1;
                    }
                }
                1 => {
                    waiting.insert(worker);
                    woken.extend(pool.wait(worker));
                }
                2 if held[index] > 0 => {
                    held[index] -= 1;
                    woken.extend(pool.give_back());
                }
                3 => {
                    waiting.remove(&worker);
                    granted[index] = 0;
                    woken.extend(pool.withdraw(worker));
                }
                4 => {
                    limit = number;
                    pool.set_limit(limit);
                }
                _ => {}
            }
            while let Some(worker) = pool.hand_over() {
                woken.push(worker);
            }
            for worker in woken {
                prop_assert!(waiting.remove(&worker), "only waiting workers are woken");
                let index = workers.iter().position(|other| *other == worker).expect("one of ours");
                granted[index] += 1;
            }
            let taken: u32 = held.iter().sum::<u32>() + granted.iter().sum::<u32>();
            prop_assert_eq!(pool.taken(), taken);
            prop_assert!(waiting.is_empty() || taken >= limit, "a free credit and a waiting worker");
            for (worker, granted) in workers.iter().zip(granted) {
                prop_assert_eq!(pool.is_granted(*worker), granted > 0);
            }
        }
    }
}

/// Each worker takes and gives back many credits, one at a time; it sleeps when it is refused, until it is woken.
#[test]
fn threads_share_without_loss_or_excess() {
    const WORKERS: usize = 4;
    const TAKES: u32 = 2_000;
    const LIMIT: u32 = 2;
    let pool = Arc::new(credits(LIMIT));
    let in_use = Arc::new(AtomicU32::new(0));
    let woken: Arc<Vec<AtomicBool>> = Arc::new((0..WORKERS).map(|_| AtomicBool::new(false)).collect());
    let spins = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..WORKERS)
        .map(|index| {
            let (pool, in_use, woken, spins) = (pool.clone(), in_use.clone(), woken.clone(), spins.clone());
            std::thread::spawn(move || {
                let worker = WorkerId(index as u8 * 60);
                let wake = |worker: Option<WorkerId>| {
                    if let Some(worker) = worker {
                        woken[usize::from(worker.0) / 60].store(true, Ordering::SeqCst);
                    }
                };
                let mut takes = 0;
                while takes < TAKES {
                    if !pool.try_take(worker) {
                        wake(pool.wait(worker));
                        // Sleeps until somebody wakes it: a lost wake-up hangs the test.
                        while !woken[index].swap(false, Ordering::SeqCst) {
                            spins.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                        }
                        continue;
                    }
                    takes += 1;
                    assert!(in_use.fetch_add(1, Ordering::SeqCst) < LIMIT);
                    if takes % 7 == 0 {
                        std::thread::yield_now();
                    }
                    in_use.fetch_sub(1, Ordering::SeqCst);
                    wake(pool.give_back());
                    if takes % 11 == 0 {
                        wake(pool.withdraw(worker));
                    }
                }
                wake(pool.withdraw(worker));
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    assert_eq!(pool.taken(), 0);
    assert_eq!(pool.hand_over(), None);
}
