//! Several paths and their sizes over the simulated Ethernet, on virtual time: one path cut under load, and large frames that vanish.

mod world;

use aoe_proto::initiator::{Event, PathState, Tunables};
use aoe_sim::{Direction, Faults, PortId, Ppm};
use core::time::Duration;
use world::{Shape, World};

const RATE: u64 = 300_000_000;
const QUEUE: u64 = 1 << 20;
/// When the cut comes, and for how long it lasts.
const CUT: Duration = Duration::from_millis(200);
const CUT_FOR: Duration = Duration::from_millis(700);
/// Rates are taken over so long.
const SPAN: Duration = Duration::from_millis(100);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A world whose ports are slow enough to be what limits it.
fn world(ports: u8, ours: bool) -> World {
    let tunables = Tunables { aoe_deadsecs: 0, aoe_frame_lifetime: 200, ..Tunables::default() };
    let shape = Shape {
        ports,
        ours,
        depth: 24,
        // So many that few writes wait for sectors that are closed behind one that was sent again.
        sectors: 1 << 18,
        requests: u64::MAX,
        even: true,
        tunables,
        lifetime: ms(200),
        ..Shape::new(9)
    };
    let mut world = World::new(shape);
    for port in [world.near.clone(), world.far.clone()].concat() {
        for direction in [Direction::ToSwitch, Direction::FromSwitch] {
            world.network.set_rate(port, direction, RATE, QUEUE);
        }
    }
    world
}

fn run_until(world: &mut World, until: Duration) {
    while world.now < until {
        world.turn(until);
    }
}

/// Requests that end within [`SPAN`] from `start` on.
fn ended_from(world: &mut World, start: Duration) -> u64 {
    run_until(world, start);
    let before = world.ended["ok"];
    run_until(world, start + SPAN);
    world.ended["ok"] - before
}

/// The rate with one port at each end and no fault.
fn of_one_path(ours: bool) -> u64 {
    ended_from(&mut world(1, ours), CUT)
}

fn drop_all(world: &mut World, port: PortId, drop: bool) {
    let faults = if drop { Faults { loss: Ppm::percent(100), ..Faults::NONE } } else { Faults::NONE };
    for direction in [Direction::ToSwitch, Direction::FromSwitch] {
        *world.network.faults(port, direction) = faults;
    }
}

/// Cuts the second port of the target silently, and checks that the load goes on over the first, and over both when it is back.
fn cut(ours: bool) {
    let alone = of_one_path(ours);
    let mut world = world(2, ours);
    let both = ended_from(&mut world, CUT - SPAN);
    let port = world.far[1];
    drop_all(&mut world, port, true);
    let after = ended_from(&mut world, CUT + ms(100));
    // The other path is in full use 100 ms after the cut.
    assert!(after * 100 >= alone * 90, "{after} in {SPAN:?} after the cut; {alone} with one path, {both} before");
    run_until(&mut world, CUT + CUT_FOR);
    drop_all(&mut world, port, false);
    let back = ended_from(&mut world, CUT + CUT_FOR + ms(2000));
    assert!(back * 100 >= both * 80, "{back} in {SPAN:?} 2 s after its return, {both} before");
    assert_eq!(world.ended.keys().copied().collect::<Vec<_>>(), ["ok"], "no error");
    assert!(world.longest < Duration::from_secs(1), "{:?}", world.longest);
    assert!(world.paths().iter().all(|(state, _)| *state == PathState::Up), "{:?}", world.paths());
    let silent = world.events.iter().any(|(_, event)| matches!(event, Event::Silent { .. }));
    assert!(!silent, "{:?}", world.events);
}

#[test]
fn a_path_of_our_shelf_that_is_cut_silently_is_left_at_once_and_used_again_soon() {
    cut(true);
}

#[test]
fn a_path_of_a_plain_target_that_is_cut_silently_is_left_at_once_and_used_again_soon() {
    cut(false);
}

#[test]
fn large_frames_that_vanish_cost_less_than_a_second_and_are_used_again() {
    for ours in [false, true] {
        let mut world = world(1, ours);
        run_until(&mut world, CUT);
        assert_eq!(world.paths(), [(PathState::Up, 17)]);
        // The switch port in front of the initiators drops what is longer than 1500 bytes, either way.
        let port = world.near[0];
        world.network.set_mtu(port, 1500);
        run_until(&mut world, CUT + ms(1000));
        assert_eq!(world.paths(), [(PathState::Up, 2)]);
        assert!(world.longest < Duration::from_secs(1), "{:?}", world.longest);
        let narrow = ended_from(&mut world, CUT + ms(1000));
        assert!(narrow > 100, "{narrow} requests in {SPAN:?}");
        world.network.set_mtu(port, 9000);
        run_until(&mut world, CUT + ms(4000));
        assert_eq!(world.paths(), [(PathState::Up, 17)]);
        assert_eq!(world.ended.keys().copied().collect::<Vec<_>>(), ["ok"], "no error");
    }
}
