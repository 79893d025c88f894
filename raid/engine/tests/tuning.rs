//! What operators see of the ways to AoE members, and what they change while an array runs.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use aoe_proto::initiator::Tunables as AoeTunables;
use common::ethernet::{Ports, shelf};
use common::{Rig, check, fill, open};
use raid_engine::assembly::random_uuid;
use raid_engine::member::aoe::paths::{DevicePaths, Way};
use raid_engine::runtime::groups::Groups;
use raid_engine::runtime::running::Running;
use raid_engine::runtime::topology;
use raid_engine::tunables::Settings;

/// Waits until each of the devices has this window at each owner that sends: the workers that work, and the control thread. Each owner has its own
/// port here, and so a path of its own.
fn wait_for_windows(array: &Running, devices: &[&str], window: u32) {
    let cpus = topology::allowed().expect("affinity");
    let working = 1 + cpus.len();
    // Workers that do not work have an initiator, too, and show no window.
    let owners = 1 + Groups::per_cpu(1, cpus).places();
    let start = Instant::now();
    loop {
        let paths = array.paths().expect("it runs");
        let names = paths.iter().map(|device| device.address.to_string());
        let set = |device: &DevicePaths| {
            let count = |cwnd| device.paths.iter().filter(|path| path.cwnd == cwnd).count();
            device.paths.len() == owners && count(window) == working && count(0) == owners - working
        };
        if names.eq(devices.iter().copied()) && paths.iter().all(set) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{window} for {working} of {owners}: {paths:?}");
        std::thread::yield_now();
    }
}

/// Settings with a fixed window.
fn window(rig: &Rig, window: u64) -> Settings {
    let aoe = AoeTunables { aoe_congestion: 1, aoe_window: window, ..AoeTunables::default() };
    Settings { array: rig.tunables.clone(), aoe, ..Settings::default() }
}

#[test]
fn initiators_are_tuned_while_they_run() {
    let ports = Ports::new(180);
    let _shelves: Vec<_> = (0..3).map(|slot| shelf(&ports, slot, 16 << 11)).collect();
    let names: Vec<String> = (0..3).map(|slot| format!("e7.{slot}")).collect();
    let mut rig = Rig::new(&names, true, Some(Arc::clone(&ports) as _));
    let array = rig.run(1);
    let mut client = array.client().expect("fd").expect("room");
    fill(&mut client, 0, 2000, 1);
    check(&mut client, 0, 2000, 1);
    for device in array.paths().expect("it runs") {
        let used = device.paths.iter().find(|path| path.answered > 10);
        let path = used.unwrap_or_else(|| panic!("not used: {device:?}"));
        assert!(
            path.state == Way::Up && path.sent >= path.answered && !path.srtt.is_zero() && path.payload == 17,
            "{path:?}"
        );
        assert_eq!((device.silent, device.buffer_count), (false, 32));
        assert_eq!(device.sectors.map(|sectors| sectors.0), Some(16 << 11));
    }
    for size in [3, 5] {
        array.tune(&window(&rig, size)).expect("it runs");
        wait_for_windows(&array, &["e7.0", "e7.1", "e7.2"], size as u32);
    }
    fill(&mut client, 0, 2000, 2);
    check(&mut client, 0, 2000, 2);
    drop(client);
    assert_eq!(array.stop(false), 0);
}

#[test]
fn what_was_tuned_holds_for_members_added_later() {
    let ports = Ports::new(180);
    let _shelf = shelf(&ports, 9, 32 << 11);
    let names = ["mem:16M", "mem:16M", "mem:16M"].map(str::to_owned);
    let mut rig = Rig::new(&names, true, Some(Arc::clone(&ports) as _));
    let array = rig.run(1);
    assert_eq!(array.paths(), Ok(Vec::new()), "no AoE member yet");
    array.tune(&window(&rig, 7)).expect("it runs");
    let spare = open(&mut rig.opener, "e7.9");
    array.add(spare.device.clone(), spare.name.clone(), random_uuid().0).expect("fits");
    wait_for_windows(&array, &["e7.9"], 7);
    assert_eq!(array.stop(false), 0);
}
