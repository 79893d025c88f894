//! Random histories: whatever happens in whatever order, what the array promises holds at every step, and when all is well again it comes to rest.

use std::time::Duration;

use proptest::prelude::*;

use super::world::{Setup, World};
use crate::array::{ArrayState, Command, Input, MemberEvent, SyncAction};
use crate::message::{IoStatus, MemberHandle, MemberState};

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    Steps(u8),
    Meta(u8),
    Sync(u8),
    Pass(u16),
    Write(u8),
    Busy(u8, bool),
    Stuck(u8, bool),
    Silence(u8),
    Answers(u8),
    Gone(u8),
    Restart(u8),
    Error(u8, IoStatus),
    Status(u8, IoStatus),
    Add,
    Fail(u8),
    Remove(u8),
    Action(SyncAction),
    ClientsBusy(bool),
    Fence(u8),
    Stop(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let status = prop_oneof![Just(IoStatus::Failed), Just(IoStatus::Medium), Just(IoStatus::Gone)];
    let action = prop_oneof![
        Just(SyncAction::Check),
        Just(SyncAction::Repair),
        Just(SyncAction::Idle),
        Just(SyncAction::Frozen)
    ];
    prop_oneof![
        10 => (1u8..20).prop_map(Event::Steps),
        6 => any::<u8>().prop_map(Event::Meta),
        4 => any::<u8>().prop_map(Event::Sync),
        6 => (0u16..40_000).prop_map(Event::Pass),
        6 => any::<u8>().prop_map(Event::Write),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(w, busy)| Event::Busy(w, busy)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(w, stuck)| Event::Stuck(w, stuck)),
        4 => any::<u8>().prop_map(Event::Silence),
        5 => any::<u8>().prop_map(Event::Answers),
        1 => any::<u8>().prop_map(Event::Gone),
        2 => any::<u8>().prop_map(Event::Restart),
        1 => (any::<u8>(), status.clone()).prop_map(|(d, status)| Event::Error(d, status)),
        1 => (any::<u8>(), status).prop_map(|(d, status)| Event::Status(d, status)),
        2 => Just(Event::Add),
        2 => any::<u8>().prop_map(Event::Fail),
        2 => any::<u8>().prop_map(Event::Remove),
        2 => action.prop_map(Event::Action),
        1 => any::<bool>().prop_map(Event::ClientsBusy),
    ]
}

/// Rare: ends or freezes a history.
fn last() -> impl Strategy<Value = Option<Event>> {
    prop_oneof![
        3 => Just(None),
        2 => any::<bool>().prop_map(|abandon| Some(Event::Stop(abandon))),
        1 => any::<u8>().prop_map(|device| Some(Event::Fence(device))),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    (0usize..3, any::<bool>(), prop::bool::weighted(0.3)).prop_map(|(spares, assume_clean, volatile)| Setup {
        spares,
        assume_clean,
        volatile,
        ..Setup::default()
    })
}

fn device(world: &World, n: u8) -> u16 {
    let handles: Vec<_> = world.devices.keys().copied().filter(|handle| !world.released.contains(handle)).collect();
    handles[usize::from(n) % handles.len()]
}

fn happen(world: &mut World, event: &Event) {
    let worker = |n: u8| usize::from(n) % 2;
    match event {
        Event::Steps(count) => {
            for _ in 0..*count {
                world.step();
            }
        }
        Event::Meta(nth) => drop(world.step_meta(usize::from(*nth))),
        Event::Sync(nth) => drop(world.step_sync(usize::from(*nth))),
        Event::Pass(milliseconds) => world.pass(Duration::from_millis((*milliseconds).into())),
        Event::Write(n) => world.write(worker(*n)),
        Event::Busy(n, busy) => world.workers[worker(*n)].busy = *busy,
        Event::Stuck(n, stuck) => world.set_stuck(worker(*n), *stuck),
        Event::Silence(n) => world.silence(device(world, *n)),
        Event::Answers(n) => world.unsilence(device(world, *n)),
        Event::Gone(n) => world.event(device(world, *n), MemberEvent::Gone),
        Event::Restart(n) => {
            let device = device(world, *n);
            world.devices.get_mut(&device).unwrap().mute = false;
            world.event(device, MemberEvent::Restarted);
            world.unsilence(device);
        }
        Event::Error(n, status) => world.member_error(device(world, *n), *status),
        Event::Status(n, status) => {
            let device = device(world, *n);
            world.devices.get_mut(&device).unwrap().status = *status;
        }
        Event::Add => {
            let handle = 20 + world.commands() as u16;
            world.add(handle);
        }
        Event::Fail(n) => drop(world.command(Command::Fail(MemberHandle(device(world, *n))))),
        Event::Remove(n) => drop(world.command(Command::Remove(MemberHandle(device(world, *n))))),
        Event::Action(action) => drop(world.command(Command::Action(*action))),
        Event::ClientsBusy(busy) => world.input(Input::Busy(*busy)),
        Event::Fence(n) => world.event(device(world, *n), MemberEvent::Fenced),
        Event::Stop(abandon) => drop(world.command(Command::Stop { abandon: *abandon })),
    }
}

/// Everything works again.
fn heal(world: &mut World) {
    world.set_stuck(0, false);
    world.set_stuck(1, false);
    let handles: Vec<_> = world.devices.keys().copied().collect();
    for handle in handles {
        world.devices.get_mut(&handle).unwrap().status = IoStatus::Ok;
        world.unsilence(handle);
    }
    for worker in &mut world.workers {
        worker.busy = false;
    }
    world.input(Input::Busy(false));
    world.command(Command::Action(SyncAction::Idle));
}

fn check_rest(world: &World) {
    let detail = world.detail();
    if world.stopped.is_some() || detail.array_state == ArrayState::Suspended {
        return;
    }
    for id in 1..=world.commands() {
        assert!(world.answers.contains_key(&id), "command {id} was not answered");
    }
    assert!(world.meta.is_empty() && world.sync.is_empty());
    if detail.fenced {
        return;
    }
    assert!(!world.is_waiting(0) && !world.is_waiting(1));
    if detail.array_state == ArrayState::Broken {
        return;
    }
    assert_eq!(detail.array_state, ArrayState::Clean);
    assert_eq!(detail.sync_action, "idle");
    assert_eq!(detail.resync_start, None);
    let absent = world.view().members.iter().filter(|m| m.state == MemberState::Absent).count();
    assert_eq!(detail.degraded as usize, absent, "what is there is in sync");
    if absent > 0 {
        assert_eq!(detail.spare_devices, 0, "a free slot and a spare");
    }
    for member in world.view().members.iter().filter(|m| m.state != MemberState::Absent) {
        let superblock = world.superblock(member.handle.0);
        assert_eq!((superblock.resync_offset, superblock.events), (None, detail.events));
    }
}

/// A few histories; as many as PROPTEST_CASES says if it is set.
fn config() -> ProptestConfig {
    let usual = ProptestConfig { max_shrink_iters: 3000, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { usual } else { ProptestConfig { cases: 24, ..usual } }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn promises_hold_and_rest_is_reached(
        setup in setup(),
        events in prop::collection::vec(event(), 1..60),
        last in last(),
    ) {
        let mut world = World::new(setup);
        for event in events.iter().chain(&last) {
            if world.stopped.is_some() {
                break;
            }
            happen(&mut world, event);
        }
        if world.stopped.is_none() {
            heal(&mut world);
            world.pass(Duration::from_secs(300));
        }
        check_rest(&world);
        if matches!(last, Some(Event::Stop(_))) {
            prop_assert!(world.stopped.is_some());
        }
    }
}
