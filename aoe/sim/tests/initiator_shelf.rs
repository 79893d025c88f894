//! Initiator and shelf against each other over the simulated Ethernet.
//!
//! Under loss, duplication, reordering, delay and corruption every request ends once and every byte is right; late copies of writes
//! that were sent again never undo a newer write, and without the rule that sees to it, they do.

mod world;

use aoe_proto::initiator::{Event, Tunables};
use aoe_sim::{Direction, Faults, Ppm, Rng, Span};
use core::time::Duration;
use world::{Shape, World, seeds};

/// Faults within what is promised for our shelf: copies arrive up to 0.9 s late.
fn hard(rng: &mut Rng) -> Faults {
    let upto = |rng: &mut Rng, percent: u32| Ppm(rng.below(u64::from(Ppm::percent(percent).0) + 1) as u32);
    Faults {
        loss: upto(rng, 10),
        corrupt: upto(rng, 3),
        duplicate: upto(rng, 10),
        duplicate_delay: Span::millis(0, 1 + rng.below(400)),
        reorder: upto(rng, 10),
        reorder_delay: Span::millis(0, 1 + rng.below(40)),
        jitter: Span::micros(0, rng.below(2000)),
        ..Faults::NONE
    }
}

#[test]
fn without_faults_every_request_ends_and_nothing_is_sent_twice() {
    for (ports, workers, mtu) in [(1, 1, 9000), (2, 1, 9000), (1, 2, 1500), (2, 3, 9000)] {
        let mut world = World::new(Shape { ports, workers, mtu, ..Shape::new(1) });
        world.run(|_| {});
        assert_eq!(world.ended["ok"], 300 * u64::from(workers));
        assert_eq!(world.retransmits(), 0);
    }
}

#[test]
fn under_all_faults_every_request_ends_once_and_every_byte_is_right() {
    for seed in seeds(1, 60) {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            ports: 1 + rng.below(2) as u8,
            workers: 1 + rng.below(3) as u8,
            mtu: [1500, 9000][rng.below(2) as usize],
            sectors: [24, 128, 1024][rng.below(3) as usize],
            depth: 1 + rng.below(32) as usize,
            cancels: rng.below(2) == 0,
            requests: 200,
            ..Shape::new(seed)
        };
        let mut world = World::new(shape);
        let faults = hard(&mut rng);
        world.network.set_all_faults(faults);
        world.run(|_| {});
    }
}

#[test]
fn links_that_flap_and_a_shelf_that_restarts_lose_nothing() {
    for seed in seeds(1000, 30) {
        let mut rng = Rng::new(seed);
        let ports = 1 + rng.below(2) as u8;
        let mut world = World::new(Shape { ports, requests: 200, ..Shape::new(seed) });
        let faults = hard(&mut rng);
        world.network.set_all_faults(faults);
        let mut next = Duration::from_millis(20);
        let mut down = None;
        world.run(|world| {
            if world.now < next {
                return;
            }
            next = world.now + Duration::from_millis(1 + rng.below(1500));
            if let Some(port) = down.take() {
                return world.network.set_link(world.now, port, true);
            }
            match rng.below(3) {
                0 => world.restart_target(),
                1 => {
                    let port = world.far[rng.below(world.far.len() as u64) as usize];
                    world.network.set_link(world.now, port, false);
                    down = Some(port);
                }
                _ => {
                    let port = world.near[rng.below(world.near.len() as u64) as usize];
                    world.network.set_link(world.now, port, false);
                    down = Some(port);
                }
            }
        });
    }
}

#[test]
fn each_request_ends_once_though_the_target_is_killed_a_thousand_times() {
    const KILLS: u64 = 1000;
    const REQUESTS: u64 = 2000;
    let (mut kills, mut seed) = (0, 4000);
    while kills < KILLS {
        let mut rng = Rng::new(seed);
        let ports = 1 + rng.below(2) as u8;
        let ours = rng.below(4) != 0;
        let mut world = World::new(Shape { ports, workers: 2, requests: REQUESTS, ours, ..Shape::new(seed) });
        let (mut next, mut back) = (rng.below(40), None);
        world.run(|world| {
            let host = world.target_host;
            if back.is_some_and(|at| world.now >= at) {
                back = None;
                if ours {
                    world.restart_target();
                }
                world.network.set_host(world.now, host, true);
                next = world.ended.values().sum::<u64>() + 1 + rng.below(60);
            } else if back.is_none() && world.outstanding() > 0 && world.ended.values().sum::<u64>() >= next {
                // In mid-load, with frames of its requests anywhere.
                world.network.set_host(world.now, host, false);
                back = Some(world.now + Duration::from_micros(rng.below(400_000)));
                kills += 1;
            }
        });
        assert_eq!(world.ended.values().sum::<u64>(), 2 * REQUESTS, "each ends, and none twice: {:?}", world.ended);
        seed += 1;
    }
}

#[test]
fn a_target_that_is_away_is_silent_and_everything_goes_on_when_it_is_back() {
    let mut world = World::new(Shape { requests: 400, ..Shape::new(5) });
    let (mut away, mut back) = (false, false);
    let secs = Duration::from_secs;
    world.run(|world| {
        let host = world.target_host;
        if !away && world.ended.get("ok").is_some_and(|&done| done > 100) {
            away = true;
            world.network.set_host(world.now, host, false);
        }
        if away && !back && world.now > secs(30) {
            back = true;
            world.network.set_host(world.now, host, true);
        }
    });
    assert_eq!(world.ended["ok"], 400);
    let silent = world.events.iter().position(|event| matches!(event.1, Event::Silent { .. }));
    let answers = world.events.iter().position(|event| matches!(event.1, Event::Answers { .. }));
    assert!(away && back && silent.unwrap() < answers.unwrap(), "{:?}", world.events);
    // Asked for again every second at first, with back-off, and back within one such interval of the longest.
    assert!(world.last_ended < secs(30 + 12), "{:?}", world.last_ended);
}

#[test]
fn a_target_that_stays_away_ends_every_request_once() {
    let tunables = Tunables { aoe_deadsecs: 20, ..Tunables::default() };
    let mut world = World::new(Shape { requests: 120, tunables, ..Shape::new(6) });
    let mut away = false;
    let mut turns = 0;
    while turns < 2_000_000 && !(away && world.events.iter().any(|event| matches!(event.1, Event::Gone { .. }))) {
        if !away && world.ended.get("ok").is_some_and(|&done| done > 50) {
            away = true;
            let host = world.target_host;
            world.network.set_host(world.now, host, false);
        }
        // The workload stops when the device is gone.
        world.turn(Duration::from_secs(3000));
        turns += 1;
    }
    assert!(world.ended["gone"] > 0, "{:?}", world.ended);
    assert!(world.now >= Duration::from_secs(20) && world.now < Duration::from_secs(23), "{:?}", world.now);
}

#[test]
fn damaged_frames_do_no_other_harm() {
    for seed in seeds(3000, 30) {
        let tunables = Tunables { aoe_deadsecs: 60, ..Tunables::default() };
        let mut world = World::new(Shape { damaged: true, requests: 200, tunables, ..Shape::new(seed) });
        world.network.set_all_faults(Faults { garble: Ppm::percent(5), loss: Ppm::percent(1), ..Faults::NONE });
        world.run(|_| {});
        assert_eq!(world.ended.values().sum::<u64>(), 200);
        assert!(world.network.totals().garbled > 0);
    }
}

/// Long delays both ways and quick retransmission, so that copies of writes arrive after newer writes could.
fn stale(seed: u64, lifetime_ms: u64, ours: bool) -> World {
    let tunables = Tunables {
        aoe_deadsecs: 0,
        aoe_frame_lifetime: lifetime_ms,
        aoe_rto_initial: 10_000,
        aoe_rto_max: 40_000,
        ..Tunables::default()
    };
    let shape = Shape { sectors: 16, depth: 6, requests: 150, ours, tunables, ..Shape::new(seed) };
    let mut world = World::new(shape);
    let late = Faults {
        loss: Ppm::percent(2),
        reorder: Ppm::percent(10),
        reorder_delay: Span::millis(20, 400),
        // Towards a target without a duplicate cache the network must make no copies of its own.
        duplicate: if ours { Ppm::percent(5) } else { Ppm::ZERO },
        duplicate_delay: Span::millis(20, 500),
        ..Faults::NONE
    };
    for port in [world.near[0], world.far[0]] {
        *world.network.faults(port, Direction::ToSwitch) = late;
    }
    world
}

#[test]
fn late_copies_of_writes_undo_nothing_with_the_rule() {
    let (mut resent, mut runs) = (0, 0);
    for seed in seeds(2000, 25) {
        for ours in [false, true] {
            let mut world = stale(seed, 1000, ours);
            world.run(|_| {});
            resent += world.retransmits();
            runs += 1;
        }
    }
    assert!(resent > 10 * runs, "the network was too kind: {resent} frames sent again");
}

#[test]
fn without_the_rule_some_late_copy_undoes_a_newer_write() {
    let mut lost = 0;
    for seed in 2000..2025 {
        let run = std::panic::catch_unwind(|| stale(seed, 0, false).run(|_| {}));
        if let Err(panic) = run {
            let what = panic.downcast_ref::<String>().expect("the world fails with a text");
            assert!(what.contains(" has write "), "it failed otherwise: {what}");
            lost += 1;
        }
    }
    assert!(lost > 0, "the rule would not be needed");
}
