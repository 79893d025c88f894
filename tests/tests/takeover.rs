//! Two hosts and one array: `run --takeover` takes the members' reservations, who held the array is fenced and writes nothing more, and gets it
//! back only by another takeover.

use etherraid_tests::require;
use etherraid_tests::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const COUNT: usize = 3;
const MEMBERS: &str = "e9.0 e9.1 e9.2";
const RUN: &str = "etherraid run r5 -i eth1 e9.0 e9.1 e9.2 --nbd unix:/tmp/r5.sock";

/// Two hosts, each with a cable to the shelf, which is at the first.
fn hosts() -> (World, World) {
    let (first, second) = (World::new(), World::new());
    first.connect("disks1", &first, "eth1");
    first.connect("disks2", &second, "eth1");
    first.start_shelf(&["disks1", "disks2"], COUNT + 2);
    first.make_array(COUNT, None);
    (first, second)
}

fn io(host: &World, commands: &str) -> String {
    host.sh(&format!("qemu-io -f raw {commands} 'nbd+unix:///?socket=/tmp/r5.sock'"), LIMIT).ok()
}

/// The SHA-256 of all members.
fn members(shelf: &World) -> String {
    shelf.ok("sha256sum /mnt/shelf/*")
}

fn holders(host: &World) -> String {
    host.ok(&format!("for m in {MEMBERS}; do etherraid reserve -i eth1 $m; done"))
}

/// The address of its end of the cable.
fn mac(host: &World) -> String {
    host.ok("ip -br link show eth1 | awk '{print $3}'").trim().to_owned()
}

#[test]
fn who_held_the_array_is_fenced() {
    require!(netns, "nsenter", "qemu-io");
    let (first, second) = hosts();
    let held = first.serve(RUN, "ready");
    io(&first, "-c 'write -P 1 0 4M' -c flush");
    let taken = second.serve(&format!("{RUN} --takeover"), "ready");
    // A write that the first host sends now reaches no disk, and neither does a superblock.
    let before = members(&first);
    let write = "timeout 3 qemu-io -f raw -c 'write -P 9 0 64k' -c flush 'nbd+unix:///?socket=/tmp/r5.sock' || true";
    first.sh(write, LIMIT).ok();
    let detail = first.ok("etherraid detail r5");
    assert!(detail.contains("fenced"), "{detail}");
    assert!(members(&first) == before, "the fenced host has written");
    let refused = first.sh("etherraid fail r5 e9.1", LIMIT).fails_with(1);
    assert!(refused.contains("--takeover"), "{refused}");
    first.sh("etherraid stop r5", LIMIT).fails_with(1);
    let log = held.ends();
    assert_eq!(log.status.code(), Some(1), "{log:?}");
    assert_eq!(log.stderr.matches("reserved by another host").count(), 1, "{}", log.stderr);
    // Nor does it come back by itself.
    let refused = first.sh(RUN, LIMIT).fails_with(1);
    assert!(refused.contains("reserved by another host") && refused.contains("run --takeover"), "{refused}");
    assert_eq!(refused.lines().count(), 1, "{refused}");
    assert!(members(&first) == before, "a refused run has written");

    io(&second, "-c 'read -P 1 0 4M' -c 'write -P 2 0 1M' -c flush");
    second.ok("etherraid stop r5");
    assert_eq!(taken.ends().status.code(), Some(0));
    // The reservation stays until somebody takes it or releases it.
    assert_eq!(holders(&second).matches(&mac(&second)).count(), COUNT);
    let back = first.serve(&format!("{RUN} --takeover"), "ready");
    io(&first, "-c 'read -P 2 0 1M' -c 'read -P 1 1M 3M'");
    first.ok("etherraid stop r5");
    let log = back.ends();
    assert!(log.status.success() && log.stderr.contains("taken over from"), "{log:?}");
    for member in MEMBERS.split(' ') {
        first.ok(&format!("etherraid reserve -i eth1 {member} --release"));
    }
    let free = second.serve(RUN, "ready");
    second.ok("etherraid stop r5");
    free.ends().ok();
}

#[test]
fn a_takeover_that_is_refused_gives_back_what_it_took() {
    require!(netns, "nsenter", "qemu-io");
    let (first, second) = hosts();
    let held = first.serve(&format!("{RUN} --takeover"), "ready");
    // A member that is added is reserved as well, and not when it is refused.
    first.ok("etherraid add r5 e9.3");
    first.sh("etherraid add r5 e9.2", LIMIT).fails_with(1);
    let reserved =
        first.ok("etherraid reserve -i eth1 9.3; etherraid reserve -i eth1 9.2; etherraid reserve -i eth1 9.4");
    assert_eq!((reserved.matches(&mac(&first)).count(), reserved.matches("e9.4\tnone").count()), (2, 1), "{reserved}");
    first.ok("etherraid remove r5 e9.3");
    let (before, who) = (members(&first), holders(&first));
    let uuid = "--uuid 00000000:00000000:00000000:00000001";
    let refused = second.sh(&format!("{RUN} --takeover {uuid}"), LIMIT).fails_with(1);
    assert!(refused.contains("belongs to array"), "{refused}");
    assert_eq!(holders(&first), who);
    assert!(members(&first) == before);
    first.ok("etherraid stop r5");
    held.ends();
    for (more, words) in [("--scan", "would reserve all"), ("/mnt/bin/etherraid", "reserves AoE members")] {
        let text = format!("etherraid run r5 -i eth1 --nbd unix:/tmp/r5.sock --takeover {more}");
        let refused = second.sh(&text, LIMIT).fails_with(2);
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn a_target_that_keeps_no_reservations_is_told() {
    require!(netns, "nsenter", "python3");
    let world = World::new();
    world.connect("disks1", &world, "eth1");
    // Answers config queries and nothing else.
    let target = r#"
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x88a2)
s.bind(("disks1", 0x88a2))
me = s.getsockname()[4]
print("ready", flush=True)
while True:
    f = s.recv(9100)
    if f[14] & 8 == 0 and f[19] == 1:
        s.send(f[6:12] + me + f[12:14] + b"\x18\0" + struct.pack(">HBB", 9, 0, 1) + f[20:24] + struct.pack(">HHBBH", 16, 1, 2, 0x10, 0) + bytes(40))
"#;
    let target = world.serve(&format!("python3 -c '{target}'"), "ready");
    let refused = world.sh(&format!("{RUN} --takeover"), LIMIT).fails_with(1);
    assert!(refused.contains("e9.0: it cannot be reserved") && refused.contains("without --takeover"), "{refused}");
    target.end();
}
