//! Each algorithm against small models of a network.

use proptest::prelude::*;

use super::*;

const ALL: [Algorithm; 3] = [Algorithm::Sticky, Algorithm::Fixed, Algorithm::Reno];

/// A reply to a request that took so many microseconds.
fn reply(in_flight: u32, rtt_us: u64) -> Reply {
    Reply { in_flight, rtt: Some(Duration::from_micros(rtt_us)), data: true }
}

const FIRST: Loss = Loss { first: true, consecutive: false };
const CONSECUTIVE: Loss = Loss { first: true, consecutive: true };

/// One round trip: the whole window is in flight and answered, one after the other, as fast as ever.
fn round(controller: &mut Controller) {
    let window = controller.window();
    for _ in 0..window {
        controller.on_reply(reply(window, 100));
    }
}

/// Runs rounds over a queue that holds `depth` frames, each of which adds 50 us to a round trip of 100 us; what a larger window has beyond is
/// lost. Returns the windows.
fn queue(controller: &mut Controller, depth: u32, rounds: usize) -> Vec<u32> {
    let mut windows = Vec::new();
    for _ in 0..rounds {
        let window = controller.window();
        windows.push(window);
        let answered = window.min(depth);
        for _ in 0..answered {
            controller.on_reply(reply(window, 100 + 50 * u64::from(answered)));
        }
        for lost in answered..window {
            controller.on_loss(Loss { first: lost == answered, consecutive: false });
        }
    }
    windows
}

fn sticky(cap: u32) -> Controller {
    Controller::new(Algorithm::Sticky, cap, 0)
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
            controller.on_reply(reply(1, 100));
        }
        assert_eq!(controller.window(), 4, "{algorithm:?}");
    }
}

#[test]
fn fixed_moves_for_nothing_but_the_cap() {
    let mut controller = Controller::new(Algorithm::Fixed, 64, 16);
    round(&mut controller);
    controller.on_loss(CONSECUTIVE);
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
    reno.on_loss(FIRST);
    assert_eq!((reno.window(), reno.ssthresh()), (16, 16));
    round(&mut reno);
    assert_eq!(reno.window(), 17);
    reno.on_loss(CONSECUTIVE);
    assert_eq!((reno.window(), reno.ssthresh()), (1, 8));
    for _ in 0..3 {
        round(&mut reno);
    }
    assert_eq!(reno.window(), 8, "slow start up to ssthresh");
    round(&mut reno);
    assert_eq!(reno.window(), 9);
}

/// Rounds that lost frames to a queue of so many.
fn lost(windows: &[u32], depth: u32) -> Vec<usize> {
    (0..windows.len()).filter(|at| windows[*at] > depth).collect()
}

#[test]
fn sticky_learns_from_one_loss_and_holds_the_middle_of_the_queue() {
    let mut sticky = sticky(256);
    // Twice the shortest round trip ends slow start; growth by a frame a round leads to the first loss.
    let windows = queue(&mut sticky, 40, 500);
    assert_eq!(windows.iter().max(), Some(&41), "{windows:?}");
    // Soon it looks once whether that was all.
    let at = lost(&windows, 40);
    assert!(at.len() == 2 && at[0] < 60, "{at:?}");
    let held = &windows[at[1] + 20..];
    assert!(held.iter().min() >= Some(&12) && held.iter().max() <= Some(&24), "{windows:?}");
}

#[test]
fn sticky_probes_ever_more_seldom_and_returns() {
    let mut sticky = sticky(256);
    let windows = queue(&mut sticky, 40, 40_000);
    let at = lost(&windows, 40);
    let pauses: Vec<usize> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.windows(2).all(|pair| pair[0] * 3 < pair[1] || pair[1] > 16_000), "{at:?}");
    assert!(at.len() <= 6, "a frame in thousands of rounds: {at:?}");
    for at in at {
        assert!(windows[at + 1] <= 31, "at once below the full queue: {:?}", &windows[at - 4..at + 4]);
        assert!(windows[at + 10] <= 24, "and soon at what worked: {:?}", &windows[at - 4..at + 12]);
    }
    // The network has become better meanwhile: the next probe finds out.
    queue(&mut sticky, 200, 20_000);
    let windows = queue(&mut sticky, 200, 500);
    assert!(windows.iter().all(|window| *window > 60), "{windows:?}");
}

#[test]
fn sticky_learns_anew_where_a_path_was_away() {
    let mut sticky = sticky(64);
    queue(&mut sticky, 40, 200);
    sticky.forget();
    assert_eq!(sticky.window(), 4);
    let windows = queue(&mut sticky, 1000, 200);
    assert_eq!(windows.last(), Some(&64), "{windows:?}");
}

#[test]
fn sticky_follows_a_network_that_becomes_slower() {
    let mut sticky = sticky(128);
    queue(&mut sticky, 40, 200);
    queue(&mut sticky, 10, 1000);
    let windows = queue(&mut sticky, 10, 1000);
    assert!(windows.iter().all(|window| *window <= 11), "{windows:?}");
}

#[test]
fn sticky_overruns_a_shallow_queue_more_seldom_than_reno() {
    let losses = |algorithm| {
        let mut controller = Controller::new(algorithm, 256, 0);
        let windows = queue(&mut controller, 12, 20_000);
        windows.iter().filter(|window| **window > 12).count()
    };
    let (sticky, reno) = (losses(Algorithm::Sticky), losses(Algorithm::Reno));
    assert!(sticky * 100 < reno, "sticky {sticky}, reno {reno}");
}

#[test]
fn losses_at_short_round_trips_leave_the_window_alone() {
    let mut sticky = sticky(64);
    for _ in 0..10 {
        round(&mut sticky);
    }
    for _ in 0..200 {
        round(&mut sticky);
        sticky.on_loss(FIRST);
    }
    assert_eq!(sticky.window(), 64);
    // Unless they are very many.
    for _ in 0..200 {
        for _ in 0..4 {
            sticky.on_reply(reply(64, 100));
            sticky.on_loss(FIRST);
        }
    }
    assert!(sticky.window() < 8, "{}", sticky.window());
}

/// Runs rounds over hosts that queue without end, and a cable that loses one frame of `every`: each frame adds 8 us to a round trip of 20 us, and each
/// seventh round a host has something else to do. Returns the mean window.
fn slow_hosts(controller: &mut Controller, every: u32, rounds: u32) -> u32 {
    let (mut sent, mut sum) = (0, 0);
    for round in 0..rounds {
        let window = controller.window();
        sum += window;
        for _ in 0..window {
            sent += 1;
            match sent % every {
                0 => controller.on_loss(FIRST),
                _ => controller.on_reply(reply(window, 20 + u64::from(8 * window * (1 + u32::from(round % 7 == 0))))),
            }
        }
    }
    sum / rounds
}

#[test]
fn round_trips_that_hosts_make_long_teach_nothing_when_a_cable_loses_frames() {
    for every in [50, 20, 10] {
        let mut sticky = sticky(64);
        slow_hosts(&mut sticky, every, 2000);
        let mean = slow_hosts(&mut sticky, every, 20_000);
        assert!(mean >= 48, "one of {every}: {mean}");
    }
}

#[test]
fn a_window_below_one_frame_is_one_with_pauses() {
    let mut sticky = sticky(64);
    assert_eq!(sticky.pause(), None);
    for _ in 0..4 {
        sticky.on_reply(reply(4, 100));
    }
    for _ in 0..40 {
        sticky.on_reply(reply(sticky.window(), 1000));
        sticky.on_loss(FIRST);
    }
    // However small its window, round trips stay long: others fill the queue, and more than one frame is lost.
    for _ in 0..400 {
        sticky.on_reply(reply(1, 1000));
        if sticky.window() > 1 {
            sticky.on_loss(FIRST);
        }
    }
    assert_eq!(sticky.window(), 1);
    assert!(sticky.pause() > Some(Duration::from_millis(10)), "{:?}", sticky.pause());
    for _ in 0..100 {
        sticky.on_reply(reply(sticky.window(), 100));
    }
    assert_eq!(sticky.pause(), None);
}

#[test]
fn consecutive_losses_leave_one_frame() {
    for algorithm in [Algorithm::Sticky, Algorithm::Reno] {
        let mut controller = Controller::new(algorithm, 64, 0);
        round(&mut controller);
        controller.on_loss(FIRST);
        controller.on_loss(CONSECUTIVE);
        assert_eq!(controller.window(), 1, "{algorithm:?}");
        for _ in 0..8 {
            round(&mut controller);
        }
        assert!(controller.window() >= 2, "{algorithm:?}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Reply(u32, u64),
    Loss(bool, bool),
    Cap(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1u32..300, 0u64..1 << 40).prop_map(|(in_flight, rtt)| Op::Reply(in_flight, rtt >> (rtt % 40))),
        1 => any::<(bool, bool)>().prop_map(|(first, consecutive)| Op::Loss(first, first && consecutive)),
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
                    Op::Reply(in_flight, rtt) => {
                        controller.on_reply(reply(in_flight, rtt));
                        prop_assert!(controller.window() <= before + 1, "{before} {controller:?}");
                    }
                    Op::Loss(first, consecutive) => {
                        controller.on_loss(Loss { first, consecutive });
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
