//! Each algorithm against small models of a network.

use proptest::prelude::*;

use super::*;

const ALL: [Algorithm; 3] = [Algorithm::Sticky, Algorithm::Fixed, Algorithm::Reno];

/// One round trip: the whole window is in flight and answered, one after the other.
fn round(controller: &mut Controller) {
    let window = controller.window();
    for _ in 0..window {
        controller.on_reply(window);
    }
}

/// Runs rounds against a queue that holds `depth` frames: a larger window loses. Returns the windows.
fn queue(controller: &mut Controller, depth: u32, rounds: usize) -> Vec<u32> {
    let mut windows = Vec::new();
    for _ in 0..rounds {
        let window = controller.window();
        windows.push(window);
        let (answered, lost) = (window.min(depth), window > depth);
        for _ in 0..answered {
            controller.on_reply(window);
        }
        if lost {
            controller.on_loss(false);
        }
    }
    windows
}

#[test]
fn slow_start_doubles_per_round_up_to_the_cap() {
    for algorithm in [Algorithm::Sticky, Algorithm::Reno] {
        let mut controller = Controller::new(algorithm, 20, 0);
        let mut windows = vec![controller.window()];
        for _ in 0..4 {
            round(&mut controller);
            windows.push(controller.window());
        }
        assert_eq!(windows, [4, 8, 16, 20, 20], "{algorithm:?}");
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for algorithm in [Algorithm::Sticky, Algorithm::Reno] {
        let mut controller = Controller::new(algorithm, 64, 0);
        for _ in 0..1000 {
            controller.on_reply(1);
        }
        assert_eq!(controller.window(), 4, "{algorithm:?}");
    }
}

#[test]
fn fixed_moves_for_nothing_but_the_cap() {
    let mut controller = Controller::new(Algorithm::Fixed, 64, 16);
    round(&mut controller);
    controller.on_loss(true);
    assert_eq!(controller.window(), 16);
    controller.set_cap(3);
    assert_eq!(controller.window(), 3);
    controller.set_cap(64);
    assert_eq!(controller.window(), 16);
    assert_eq!(Controller::new(Algorithm::Fixed, 0, 0).window(), 1);
}

#[test]
fn reno_halves_then_grows_by_one_per_round() {
    let mut reno = Controller::new(Algorithm::Reno, 64, 0);
    for _ in 0..3 {
        round(&mut reno);
    }
    assert_eq!(reno.window(), 32);
    reno.on_loss(false);
    assert_eq!((reno.window(), reno.ssthresh()), (16, 16));
    round(&mut reno);
    assert_eq!(reno.window(), 17);
    reno.on_loss(true);
    assert_eq!((reno.window(), reno.ssthresh()), (1, 8));
    for _ in 0..3 {
        round(&mut reno);
    }
    assert_eq!(reno.window(), 8, "slow start up to ssthresh");
    round(&mut reno);
    assert_eq!(reno.window(), 9);
}

#[test]
fn sticky_returns_to_what_worked_and_stays() {
    let mut sticky = Controller::new(Algorithm::Sticky, 256, 0);
    // 4, 8, 16, 32 work, 64 does not: the queue holds 40.
    let windows = queue(&mut sticky, 40, 5);
    assert_eq!(windows, [4, 8, 16, 32, 64]);
    assert_eq!((sticky.window(), sticky.ssthresh()), (16, 32));
    let held = queue(&mut sticky, 40, 30);
    assert_eq!(held[1], 32, "back at once");
    assert!(held[1..].iter().all(|window| *window == 32), "{held:?}");
    // Then probes by one per round, loses at 41, and holds 40.
    let probed = queue(&mut sticky, 40, 60);
    assert_eq!(probed.iter().max(), Some(&41), "{probed:?}");
    assert_eq!(sticky.ssthresh(), 40);
    // From then on nearly every round goes at the full 40.
    let steady = queue(&mut sticky, 40, 1000);
    let full = steady.iter().filter(|window| **window == 40).count();
    assert!(full > 900, "{full} of 1000 rounds");
    let lost = steady.iter().filter(|window| **window > 40).count();
    assert!(lost <= 1000 / 32, "{lost} losses");
}

#[test]
fn sticky_overruns_a_shallow_queue_more_seldom_than_reno() {
    let losses = |algorithm| {
        let mut controller = Controller::new(algorithm, 256, 0);
        let windows = queue(&mut controller, 12, 2000);
        windows.iter().filter(|window| **window > 12).count()
    };
    let (sticky, reno) = (losses(Algorithm::Sticky), losses(Algorithm::Reno));
    assert!(sticky * 3 < reno, "sticky {sticky}, reno {reno}");
}

#[test]
fn sticky_shrinks_when_the_held_window_fails_and_grows_fast_after_a_long_quiet_time() {
    let mut sticky = Controller::new(Algorithm::Sticky, 128, 0);
    queue(&mut sticky, 40, 5);
    assert_eq!(sticky.ssthresh(), 32);
    // The network became slower.
    let windows = queue(&mut sticky, 10, 40);
    assert!(*windows.last().expect("rounds ran") <= 10, "{windows:?}");
    assert!(sticky.ssthresh() <= 10);
    // And fast again, without a limit: after 32 quiet rounds by one per round, after 256 more by doubling.
    let windows = queue(&mut sticky, 1000, 400);
    assert_eq!(*windows.last().expect("rounds ran"), 128);
}

#[test]
fn consecutive_losses_leave_one_frame() {
    for algorithm in [Algorithm::Sticky, Algorithm::Reno] {
        let mut controller = Controller::new(algorithm, 64, 0);
        round(&mut controller);
        controller.on_loss(false);
        controller.on_loss(true);
        assert_eq!(controller.window(), 1, "{algorithm:?}");
        round(&mut controller);
        assert_eq!(controller.window(), 2, "{algorithm:?}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Reply(u32),
    Loss(bool),
    Cap(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1u32..300).prop_map(Op::Reply),
        1 => any::<bool>().prop_map(Op::Loss),
        1 => (0u32..300).prop_map(Op::Cap),
    ]
}

proptest! {
    /// Whatever happens, the window is at least 1 and at most the cap.
    #[test]
    fn window_stays_in_its_bounds(ops in prop::collection::vec(op(), 0..600), cap in 0u32..300) {
        for algorithm in ALL {
            let mut cap = cap.max(1);
            let mut controller = Controller::new(algorithm, cap, 16);
            for op in &ops {
                let before = controller.window();
                match *op {
                    Op::Reply(in_flight) => {
                        controller.on_reply(in_flight);
                        prop_assert!(controller.window() <= before + 1);
                    }
                    Op::Loss(consecutive) => {
                        controller.on_loss(consecutive);
                        prop_assert!(controller.window() <= before);
                    }
                    Op::Cap(new) => {
                        controller.set_cap(new);
                        cap = new.max(1);
                    }
                }
                prop_assert!((1..=cap).contains(&controller.window()), "{algorithm:?} {controller:?}");
            }
        }
    }
}
