//! Several paths to the members of a running array, over two switches: cut under load, back again; large frames that vanish; another device at a
//! member's address; other interfaces; reservations. What must go fast is measured by `benches/paths.sh` and, on virtual time, by `aoe/sim/tests/paths.rs`.

use etherraid_tests::nbd::TOOL_LIMIT;
use etherraid_tests::world::{Serving, World};
use etherraid_tests::{require, wait};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const COUNT: usize = 3;

/// Two switches, b1 and b2, with a cable to this host (eth1, eth2) and one to the shelf (disks1, disks2); the switches' ends are eth1-sw and so on.
const SWITCHES: &str = "
for n in 1 2; do
  ip link add dev b$n mtu 9000 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
  for end in eth disks; do
    ip link add dev $end$n mtu 9000 type veth peer name $end$n-sw mtu 9000
    ip link set $end$n-sw master b$n up
    ip link set $end$n up
  done
  ip link set b$n up
done";

/// A load of about ten seconds that verifies what it has written.
const LOAD: &str = "fio --name=job --ioengine=nbd --uri='nbd+unix:///?socket=/run/r5.nbd' --rw=randwrite --bs=16k --iodepth=16 --size=96M --rate=10m --verify=crc32c \
                    --verify_fatal=1 --verify_state_save=0";

fn world(options: &str) -> World {
    let world = World::new();
    world.ok(SWITCHES);
    world.start_shelf(&["disks1", "disks2"], COUNT);
    world.make_array(COUNT, Some(&format!("-i eth2 --nbd unix:/run/r5.nbd --set aoe_frame_lifetime=200 {options}")));
    wait_for_paths(&world, "both paths", |path| path["state"] == "up" && path["payload_bytes"] == 8704);
    world
}

/// The paths of all members.
fn paths(world: &World) -> Vec<Value> {
    let text = world.ok("etherraid stat -w --count 1 --json");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Waits until each member has a path over each interface, and all are as they should be.
fn wait_for_paths(world: &World, what: &str, good: impl Fn(&Value) -> bool) {
    wait::until(what, LIMIT, || {
        let paths = paths(world);
        (paths.len() == 2 * COUNT && paths.iter().all(&good)).then_some(())
    });
}

/// Waits until none of the members uses this interface, though it is there.
fn wait_until_left(world: &World, interface: &str) {
    wait::until("the path is left", LIMIT, || {
        let paths = paths(world);
        let left = |path: &&Value| path["interface"] == interface && path["state"] != "down" && path["taint"] == 0;
        (!paths.iter().any(|path| left(&path))).then_some(())
    });
}

fn load(world: &World) -> Serving<'_> {
    world.serve(LOAD, "Starting")
}

/// Waits for the end of the load, which must be a good one.
fn verified(load: Serving<'_>) {
    load.line("Run status", TOOL_LIMIT);
    let done = load.ends();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn one_of_two_paths_is_cut_under_load_and_comes_back() {
    require!(netns, "nsenter", "fio");
    let world = world("");
    let load = load(&world);
    // Silently: the switch forwards nothing there, while all cables are in.
    world.ok("ip link set disks2-sw nomaster");
    wait_until_left(&world, "eth2");
    world.ok("ip link set disks2-sw master b2");
    wait_for_paths(&world, "both again", |path| path["state"] == "up" && path["taint"] == 0);
    // The cable of this host.
    world.ok("ip link set eth1-sw down");
    wait::until("the paths are gone", LIMIT, || {
        (!paths(&world).iter().any(|path| path["interface"] == "eth1")).then_some(())
    });
    world.ok("ip link set eth1-sw up");
    wait_for_paths(&world, "both again", |path| path["state"] == "up" && path["taint"] == 0);
    verified(load);
    let detail = world.ok("etherraid detail r5 --json");
    let detail: Value = serde_json::from_str(&detail).unwrap();
    assert_eq!((&detail["degraded"], &detail["array_state"] == "suspended"), (&0.into(), false), "{detail}");
    world.ok("etherraid stop r5");
}

#[test]
fn large_frames_that_vanish_are_noticed_and_told() {
    require!(netns, "nsenter", "fio");
    let world = world("");
    let load = load(&world);
    world.ok("ip link set eth1-sw mtu 1500");
    let narrow = |path: &Value| path["payload_bytes"] == if path["interface"] == "eth1" { 1024 } else { 8704 };
    wait_for_paths(&world, "small frames on one path", narrow);
    let told = world.ok("etherraid sancheck -i eth1 -i eth2 9.0");
    assert!(told.contains("e9.0            2      1024  eth1 eth2\n"), "{told}");
    assert!(told.contains("carries 2 sectors in a frame, both ends allow 17"), "{told}");
    assert_eq!(told.matches("warning").count(), 1, "{told}");
    world.ok("ip link set eth1-sw mtu 9000");
    wait_for_paths(&world, "large frames again", |path| path["payload_bytes"] == 8704);
    verified(load);
    // An interface of this host has another MTU: known at once.
    world.ok("ip link set eth2 mtu 4200");
    wait_for_paths(&world, "the MTU is followed", |path| {
        path["payload_bytes"] == if path["interface"] == "eth2" { 4096 } else { 8704 }
    });
    world.ok("etherraid stop r5");
}

#[test]
fn sancheck_looks_at_any_interfaces_there_are() {
    require!(netns, "nsenter");
    let world = World::new();
    // More than can be open at a time, with names of all kinds; the shelf is behind the last.
    world.ok("for n in $(seq 40); do ip link add dev san-$n.x mtu 9000 type veth peer name p$n mtu 9000; ip link set san-$n.x up; ip link set p$n up; done");
    world.ok("ip link add dev off type veth peer name off2; ip link set p40 mtu 4200");
    world.start_shelf(&["p7", "p40"], 1);
    let report: Value = serde_json::from_str(&world.ok("etherraid sancheck --json -t 0.3")).unwrap();
    assert_eq!(report["interfaces"].as_array().unwrap().len(), 82);
    let off = report["interfaces"].as_array().unwrap().iter().find(|found| found["name"] == "off").unwrap();
    assert_eq!(off["status"], "down");
    let device = &report["devices"][0];
    assert_eq!(device["local_interfaces"], serde_json::json!(["san-40.x", "san-7.x"]));
    assert_eq!((&device["payload_bytes"], device["macs"].as_array().unwrap().len()), (&4096.into(), 2));
    let none = world.ok("etherraid sancheck -t 0.2 -i san-1.x");
    assert!(none.contains("san-1.x          up             9000  -\n"), "{none}");
    let refused = world.sh("etherraid sancheck -i nosuch", LIMIT).fails_with(1);
    assert!(refused.contains("no interface named nosuch"), "{refused}");
}

#[test]
fn another_device_at_a_members_address_is_not_used() {
    require!(netns, "nsenter");
    let world = world("");
    world.ok("truncate -s 64M /mnt/other; ip link add dev disks3 mtu 9000 type veth peer name disks3-sw mtu 9000; \
              ip link set disks3-sw master b1 up; ip link set disks3 up");
    let other = "unshare --uts sh -c 'hostname elsewhere; exec etherraid shelf -i disks3 -d 9.1=/mnt/other'";
    let other = world.serve(other, "ready: e9.1");
    let conflict = wait::until("the alarm", LIMIT, || {
        let detail: Value = serde_json::from_str(&world.ok("etherraid detail r5 --json")).unwrap();
        detail["conflicts"].as_array().unwrap().first().cloned()
    });
    let mac = world.ok("ip -br link show disks3 | awk '{print $3}'");
    assert_eq!((&conflict["device"], &conflict["mac"]), (&"e9.1".into(), &mac.trim().into()), "{conflict}");
    let detail = world.ok("etherraid detail r5");
    assert!(detail.contains("Conflict : another device claims e9.1, at "), "{detail}");
    assert!(world.ok("etherraid stat").contains("up,conflict"));
    assert!(world.ok("etherraid stat -i eth1").contains("up,conflict"));
    assert!(world.ok("cat /mnt/background.log").contains("another device claims this shelf and slot"));
    world.ok("qemu-io -f raw -c 'write -P 3 0 8M' -c flush -c 'read -P 3 0 8M' 'nbd+unix:///?socket=/run/r5.nbd'");
    assert!(world.ok("tr -d '\\0' < /mnt/other | wc -c").trim() == "0", "the other device was written to");
    world.ok("etherraid stop r5");
    other.end();
}

#[test]
fn interfaces_are_changed_while_the_array_runs() {
    require!(netns, "nsenter", "fio");
    let world = world("");
    assert_eq!(world.ok("etherraid interfaces r5"), "eth1\te9.0 e9.1 e9.2\neth2\te9.0 e9.1 e9.2\n");
    let load = load(&world);
    for (set, count) in [("eth2", COUNT), ("eth1", COUNT), ("eth1 eth2", 2 * COUNT)] {
        world.ok(&format!("etherraid interfaces r5 {set}"));
        wait::until("the paths of these", LIMIT, || {
            let paths = paths(&world);
            let good = |path: &Value| path["state"] == "up" && set.contains(path["interface"].as_str().unwrap());
            (paths.len() == count && paths.iter().all(good)).then_some(())
        });
        for left in ["eth1", "eth2"].into_iter().filter(|name| !set.contains(name)) {
            let sockets = format!("awk -v on=$(ip -o link show {left} | cut -d: -f1) '$5 == on' /proc/net/packet");
            wait::until("what was left is closed", LIMIT, || world.ok(&sockets).is_empty().then_some(()));
        }
    }
    let refused = world.sh("etherraid interfaces r5 eth1 nosuch", LIMIT).fails_with(1);
    assert!(refused.contains("no interface named nosuch"), "{refused}");
    for flush in ["etherraid flush r5 --all", "etherraid flush r5 9.1"] {
        world.ok(flush);
        wait_for_paths(&world, "found again", |path| path["state"] == "up");
    }
    verified(load);
    let refused = world.sh("etherraid flush r5 9.7", LIMIT).fails_with(1);
    assert!(refused.contains("e9.7 is not a device of the array"), "{refused}");
    world.ok("etherraid stop r5");
}

#[test]
fn a_member_is_asked_for_its_size() {
    require!(netns, "nsenter");
    let world = world("");
    world.ok("etherraid revalidate r5 9.1 e9.0");
    let refused = world.sh("etherraid revalidate r5 9.7", LIMIT).fails_with(1);
    assert!(refused.contains("e9.7 is not a device of the array"), "{refused}");
    world.ok("etherraid stop r5");
}

#[test]
fn members_are_reserved_while_the_array_runs() {
    require!(netns, "nsenter");
    let (first, second) = (World::new(), World::new());
    first.connect("disks1", &first, "eth1");
    first.connect("disks2", &second, "eth1");
    first.start_shelf(&["disks1", "disks2"], COUNT + 1);
    first.make_array(COUNT, None);
    let run = "etherraid run r5 -i eth1 e9.0 e9.1 e9.2 --nbd unix:/tmp/r5.sock --reserve";
    let holders = || first.ok("for n in 0 1 2 3; do etherraid reserve -i eth1 9.$n; done");
    let held = first.serve(run, "ready");
    let mac = first.ok("ip -br link show eth1 | awk '{print $3}'");
    assert_eq!(holders().matches(mac.trim()).count(), COUNT);
    let refused = second.sh(run, LIMIT).fails_with(1);
    assert!(refused.contains("reserved by ") && refused.contains("run --takeover"), "{refused}");
    assert_eq!(holders().matches(mac.trim()).count(), COUNT);
    first.ok("etherraid add r5 e9.3");
    assert_eq!(holders().matches(mac.trim()).count(), COUNT + 1);
    let refused = first.sh("etherraid interfaces r5 lo", LIMIT).fails_with(1);
    assert!(refused.contains("members are reserved"), "{refused}");
    first.ok("etherraid stop r5");
    assert!(held.ends().status.success());
    assert_eq!(holders().matches("none").count(), COUNT + 1);
    // Lost: fenced though nothing is written, and what others hold stays theirs.
    let held = first.serve(run, "ready");
    let taken = second.serve("etherraid run r5 -i eth1 e9.0 e9.1 e9.2 --nbd unix:/tmp/r5.sock --takeover", "ready");
    wait::until("fenced", LIMIT, || first.ok("etherraid detail r5").contains("fenced").then_some(()));
    first.sh("etherraid stop r5", LIMIT).fails_with(1);
    assert_eq!(held.ends().status.code(), Some(1));
    assert!(!holders().contains("none\ne9.1"), "{}", holders());
    second.ok("etherraid stop r5");
    assert!(taken.ends().status.success());
}

#[test]
fn a_target_killed_again_and_again_under_load_ends_each_request_once() {
    require!(netns, "nsenter", "vblade");
    let world = World::new();
    world.connect("disks1", &world, "eth1");
    world.ok("truncate -s 64M /mnt/disk");
    let script = "(for n in $(seq 20); do vblade 9 0 disks1 /mnt/disk > /dev/null & pid=$!; sleep 0.3; kill -9 $pid; wait $pid; done; exec vblade 9 0 disks1 /mnt/disk) > /dev/null 2>&1 &";
    world.ok(script);
    let rows = world
        .ok("etherraid bench randread -i eth1 --device e9.0 --bs 16k --qd 32 --runtime 8 --set aoe_deadsecs=0 --json");
    let rows: Value = serde_json::from_str(&rows).unwrap();
    // The load counts an error for each that ends with one, and waits for all that it has out.
    assert_eq!(rows[0]["errors"], 0, "{rows}");
    assert!(rows[0]["retransmits"].as_u64().unwrap() > 20, "{rows}");
}
