//! The tools for AoE devices on real interfaces: against our shelf and Debian's vblade, and compared with Debian's aoetools.

use etherraid_tests::binary;
use etherraid_tests::netns::NetNs;
use etherraid_tests::proc::{Cmd, Finished};
use etherraid_tests::rig::{self, DISKS, HOST, SHELF, ShelfRig};
use etherraid_tests::shelf::Shelf;
use etherraid_tests::vblade::Vblade;
use etherraid_tests::{md, require, wait};
use serde_json::Value;
use std::time::Duration;

const MEMBER_BYTES: u64 = 24 << 20;
/// Shelf and slot of the vblade.
const VBLADE: (u16, u8) = (8, 3);
/// Limit for any tool.
const LIMIT: Duration = Duration::from_secs(30);
/// Bytes that a frame carries at the rig's MTU.
const PAYLOAD: u64 = 17 * 512;

/// A tool on the host's interface.
fn tool(netns: &NetNs, command: &str, args: &[&str]) -> Cmd {
    binary::etherraid(command).netns(netns).args(["-i", HOST]).args(args)
}

fn done(netns: &NetNs, command: &str, args: &[&str]) -> Finished {
    tool(netns, command, args).finish(LIMIT)
}

fn ok(netns: &NetNs, command: &str, args: &[&str]) -> String {
    tool(netns, command, args).ok(LIMIT)
}

fn json(netns: &NetNs, command: &str, args: &[&str]) -> Value {
    let text = ok(netns, command, &[args, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command}: {error}: {text}"))
}

/// Exit status 1 and a message with these words.
fn fails(netns: &NetNs, command: &str, args: &[&str], words: &[&str]) -> String {
    let done = done(netns, command, args);
    assert_eq!(done.status.code(), Some(1), "{command} {args:?}: {} {}", done.stdout, done.stderr);
    for word in words {
        assert!(done.stderr.contains(word), "{command} {args:?}: {word:?} is not in {}", done.stderr);
    }
    done.stdout
}

/// What aoetools print of the device.
fn aoetools(netns: &NetNs, program: &str, args: &[&str]) -> String {
    Cmd::new(program).netns(netns).args(args).finish(LIMIT).stdout
}

/// Waits until both ends of a new cable are up: aoetools ask once, and have no patience.
fn wait_for_cable(netns: &NetNs) {
    ok(netns, "ping", &["-t", "10", "9.0"]);
}

/// A shelf of ours with two devices and a vblade, on one cable.
fn both() -> (ShelfRig, Vblade) {
    let rig = ShelfRig::new(2, MEMBER_BYTES, None);
    let file = rig.dir.path().join("vblade");
    etherraid_tests::pattern::blank(&file, MEMBER_BYTES).unwrap();
    let vblade = Vblade::start(&rig.netns, DISKS, VBLADE.0, VBLADE.1, &file);
    wait_for_cable(&rig.netns);
    (rig, vblade)
}

#[test]
fn discover_lists_each_way_to_each_device() {
    require!(netns, "vblade");
    let (rig, _vblade) = both();
    let mac = rig.netns.mac(DISKS);
    let rows = json(&rig.netns, "discover", &[]);
    let rows = rows.as_array().unwrap();
    let devices: Vec<&str> = rows.iter().map(|row| row["device"].as_str().unwrap()).collect();
    assert_eq!(devices, ["e8.3", "e9.0", "e9.1"]);
    for row in rows {
        assert_eq!((&row["size_bytes"], &row["mac"]), (&MEMBER_BYTES.into(), &mac.as_str().into()), "{row}");
        assert_eq!((&row["interface"], &row["payload_bytes"]), (&HOST.into(), &PAYLOAD.into()), "{row}");
    }
    assert_eq!(rows[0]["buffers"], 64);
    assert!(rows[0]["model"].as_str().unwrap().contains("vblade"), "{}", rows[0]);
    let text = ok(&rig.netns, "discover", &[]);
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.contains(&format!("      e9.1         0.025GB       {HOST} {mac} ")), "{text}");

    // A second cable, with small frames, to a second shelf process.
    rig.netns.veth("host2", "disks2", 1500);
    let file = rig.dir.path().join("small");
    etherraid_tests::pattern::blank(&file, MEMBER_BYTES).unwrap();
    let _second = Shelf::start(&rig.netns, "disks2", 7, std::slice::from_ref(&file), None);
    let rows = json(&rig.netns, "discover", &["-i", "host2", "-t", "0.5"]);
    let small = rows.as_array().unwrap().iter().find(|row| row["device"] == "e7.0").unwrap().clone();
    assert_eq!((&small["interface"], &small["payload_bytes"]), (&"host2".into(), &1024.into()));
    assert_eq!(rows.as_array().unwrap().len(), 4);
}

#[test]
fn nobody_there_is_told() {
    require!(netns);
    let netns = NetNs::new();
    netns.veth(HOST, DISKS, 9000);
    let found = done(&netns, "discover", &["-t", "0.2"]);
    assert_eq!((found.status.code(), found.stdout.as_str()), (Some(0), ""));
    assert!(found.stderr.contains("no AoE device answered within 0.2 s on host"), "{}", found.stderr);
    assert_eq!(json(&netns, "discover", &["-t", "0.2"]), serde_json::json!([]));
    for command in ["ping", "identify", "cfg", "mask", "reserve"] {
        fails(&netns, command, &["-t", "0.2", "9.0"], &["e9.0: no answer within 0.2 s on host"]);
    }
    let stat = fails(&netns, "stat", &["-t", "0.2", "9.0"], &[]);
    assert_eq!(stat, "      e9.0            (NA)       (NA) (NA)  down\n");

    netns.set_link(DISKS, false);
    // The kernel tells of a lost carrier when it has the time.
    wait::until("no carrier", LIMIT, || {
        let done = done(&netns, "ping", &["-t", "0.2", "9.0"]);
        assert_eq!(done.status.code(), Some(1));
        done.stderr.contains("within 0.2 s on host (no carrier)").then_some(())
    });
    netns.set_link(HOST, false);
    fails(&netns, "ping", &["-t", "0.2", "9.0"], &["host is down", "ip link set host up"]);
    let missing = binary::etherraid("ping").netns(&netns).args(["-i", "nosuch", "9.0"]).finish(LIMIT);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        missing.stderr.contains("no interface named nosuch") && missing.stderr.contains("host"),
        "{}",
        missing.stderr
    );
    netns.veth("tiny", "tiny2", 500);
    let tiny = binary::etherraid("ping").netns(&netns).args(["-i", "tiny", "9.0"]).finish(LIMIT);
    assert_eq!(tiny.status.code(), Some(1));
    assert!(tiny.stderr.contains("MTU 500") && tiny.stderr.contains("548"), "{}", tiny.stderr);
}

#[test]
fn without_rights_to_raw_sockets_is_told() {
    require!(netns, "setpriv");
    let netns = NetNs::new();
    netns.veth(HOST, DISKS, 9000);
    let path = binary::path();
    let done = Cmd::new("setpriv")
        .netns(&netns)
        .args(["--bounding-set=-net_raw", "--inh-caps=-net_raw"])
        .arg(path)
        .args(["discover", "-i", HOST])
        .finish(LIMIT);
    assert_eq!(done.status.code(), Some(1), "{} {}", done.stdout, done.stderr);
    assert!(done.stderr.contains("CAP_NET_RAW"), "{}", done.stderr);
}

#[test]
fn identify_shows_what_aoeping_shows() {
    require!(netns, "vblade", "aoeping");
    let (rig, _vblade) = both();
    let theirs = aoetools(&rig.netns, "aoeping", &["-i", "-s", "10", "9", "0", HOST]);
    let ours = ok(&rig.netns, "identify", &["9.0", "--hex"]);
    let dump = |text: &str| {
        text.lines()
            .filter(|line| line.starts_with(|c: char| c.is_ascii_hexdigit()) && line.len() > 40)
            .map(str::trim)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(dump(&ours).len(), 32);
    assert_eq!(dump(&ours), dump(&theirs));

    let fields = aoetools(&rig.netns, "aoeping", &["-I", "-s", "10", "9", "0", HOST]);
    let field = |name: &str| {
        let line = fields.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is not in {fields}")).trim().to_owned()
    };
    let rows = json(&rig.netns, "identify", &["9.0"]);
    assert_eq!(rows[0]["serial"], field("serial_number:"));
    assert_eq!(rows[0]["model"], field("model:"));
    assert_eq!(rows[0]["firmware"], field("firmware_rev:"));
    assert_eq!((&rows[0]["size_bytes"], &rows[0]["write_cache"]), (&MEMBER_BYTES.into(), &"on".into()));

    let all = ok(&rig.netns, "identify", &[]);
    for device in ["e8.3:", "e9.0:", "e9.1:"] {
        assert!(all.lines().any(|line| line == device), "{all}");
    }
    assert!(all.contains("              Size : 49152 sectors (24.00 MiB 25.17 MB)"), "{all}");
}

#[test]
fn ping_counts_round_trips() {
    require!(netns, "vblade");
    let (rig, vblade) = both();
    let ways = json(&rig.netns, "ping", &["-c", "20", "9.1"]);
    for kind in ["config", "identify"] {
        let trips = &ways[0][kind];
        assert_eq!((&trips["sent"], &trips["answered"]), (&20.into(), &20.into()), "{trips}");
        let time = |name: &str| trips[name].as_f64().unwrap();
        assert!(
            0.0 < time("min_us") && time("min_us") <= time("avg_us") && time("avg_us") <= time("max_us"),
            "{trips}"
        );
    }
    let text = ok(&rig.netns, "ping", &["-c", "2", "8.3"]);
    assert!(text.starts_with("e8.3 at ") && text.contains("64 buffers"), "{text}");
    assert!(text.contains("config query: 2 sent, 2 answered, 0% lost, min/avg/max "), "{text}");
    assert!(text.contains("IDENTIFY: 2 sent, 2 answered, 0% lost, min/avg/max "), "{text}");
    vblade.suspend();
    fails(&rig.netns, "ping", &["-t", "0.3", "8.3"], &["e8.3: no answer"]);
}

#[test]
fn a_lossy_cable_is_seen_by_ping_and_stood_by_the_others() {
    require!(netns);
    let rig = ShelfRig::new(3, MEMBER_BYTES, None);
    wait_for_cable(&rig.netns);
    let trips = json(&rig.netns, "ping", &["--fault", "loss=0.1,seed=3", "-t", "0.5", "-c", "30", "9.0"]);
    let answered = |kind: &str| trips[0][kind]["answered"].as_u64().unwrap();
    let both = answered("config") + answered("identify");
    assert!((25..60).contains(&both), "about a fifth of 60 is lost: {trips}");
    let rows = json(&rig.netns, "identify", &["--fault", "loss=0.1,seed=4", "-t", "2"]);
    assert_eq!(rows.as_array().unwrap().len(), 3);
    // A request whose first copy worked and whose answer was lost is no failure.
    for seed in 0..8 {
        let faults = format!("loss=0.15,seed={seed}");
        let run =
            |command: &str, args: &[&str]| ok(&rig.netns, command, &[&["--fault", &faults, "-t", "4"], args].concat());
        assert_eq!(run("cfg", &["9.0", "-c", "set", "-s", "mine"]), "mine\n", "{faults}");
        assert_eq!(run("cfg", &["9.0", "-c", "fset", "-s", ""]), "\n", "{faults}");
        assert_eq!(run("reserve", &["9.0", "--set", "02:00:00:00:00:77"]), "e9.0\t02:00:00:00:00:77\n", "{faults}");
        assert_eq!(run("reserve", &["9.0", "--release", "--force"]), "e9.0\tnone\n", "{faults}");
        run("mask", &["9.0", "--add", "self,02:00:00:00:00:77"]);
        assert_eq!(run("mask", &["9.0", "--clear"]), "e9.0\tany\n", "{faults}");
    }
}

#[test]
fn cfg_agrees_with_aoecfg() {
    require!(netns, "vblade", "aoecfg");
    let (rig, _vblade) = both();
    let netns = &rig.netns;
    let theirs = |args: &[&str]| aoetools(netns, "aoecfg", &[&["-t", "1"], args, &[HOST]].concat());
    for (device, shelf, slot) in [("9.0", "9", "0"), ("8.3", "8", "3")] {
        assert_eq!(ok(netns, "cfg", &[device]), "\n");
        assert_eq!(ok(netns, "cfg", &["-c", "set", "-s", "host a", device]), "host a\n");
        assert_eq!(ok(netns, "cfg", &["-c", "set", "-s", "host a", device]), "host a\n", "it is there already");
        assert_eq!(
            fails(netns, "cfg", &["-c", "set", "-s", "host b", device], &["config string present", "fset"]),
            "*badcfg*\n"
        );
        // aoecfg waits in vain for replies of less than 60 bytes, which is what vblade sends over a virtual cable.
        if device == "9.0" {
            assert_eq!(theirs(&[shelf, slot]), "host a\n");
            assert_eq!(theirs(&["-c", "set", "-s", "host b", shelf, slot]), "*badcfg*\n");
            assert_eq!(theirs(&["-c", "fset", "-s", "host b", shelf, slot]), "host b\n");
        } else {
            assert_eq!(ok(netns, "cfg", &["-c", "fset", "-s", "host b", device]), "host b\n");
        }
        assert_eq!(ok(netns, "cfg", &[device]), "host b\n");
        assert_eq!(ok(netns, "cfg", &["-c", "test", "-s", "host b", device]), "host b\n");
        assert_eq!(ok(netns, "cfg", &["-c", "prefix", "-s", "host", device]), "host b\n");
        fails(netns, "cfg", &["-t", "0.3", "-c", "test", "-s", "host", device], &["no device with such a string"]);
    }
    assert_eq!(ok(netns, "cfg", &[]), "8.3\thost b\n9.0\thost b\n9.1\t\n");
    assert_eq!(ok(netns, "cfg", &["-c", "prefix", "-s", "h"]), "8.3\thost b\n9.0\thost b\n");
    let rows = json(netns, "cfg", &["9.0"]);
    assert_eq!((&rows[0]["device"], &rows[0]["config"]), (&"e9.0".into(), &"host b".into()));
    let mut list: Vec<String> = theirs(&[]).lines().map(str::to_owned).collect();
    list.sort();
    assert!(list.iter().any(|line| line == "9.0\thost b") && list.iter().any(|line| line == "9.1\t"), "{list:?}");
    assert_eq!(ok(netns, "cfg", &["-c", "fset", "-s", "", "--all"]), "8.3\t\n9.0\t\n9.1\t\n");
    let long = "x".repeat(1024);
    assert_eq!(ok(netns, "cfg", &["-c", "set", "-s", &long, "9.1"]).len(), 1025);
}

/// A switch with two hosts and a shelf.
fn two_hosts() -> (NetNs, Shelf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let netns = NetNs::new();
    netns.switch("sw", &[HOST, "other", DISKS], 9000);
    let files = rig::blank_files(dir.path(), 2, MEMBER_BYTES);
    let shelf = Shelf::start(&netns, DISKS, SHELF, &files, None);
    wait_for_cable(&netns);
    (netns, shelf, dir)
}

#[test]
fn a_mask_lets_in_those_on_it() {
    require!(netns);
    let (netns, _shelf, _dir) = two_hosts();
    let (own, other) = (netns.mac(HOST), netns.mac("other"));
    let from_other = |command: &str, args: &[&str]| {
        binary::etherraid(command).netns(&netns).args(["-i", "other", "-t", "0.4"]).args(args).finish(LIMIT)
    };
    assert_eq!(ok(&netns, "mask", &[]), "e9.0\tany\ne9.1\tany\n");
    // Nobody locks himself out by mistake.
    fails(&netns, "mask", &["9.0", "--add", &other], &[&own, "--add self", "--force"]);
    assert_eq!(ok(&netns, "mask", &["9.0"]), "e9.0\tany\n");

    assert_eq!(ok(&netns, "mask", &["9.0", "--add", "self"]), format!("e9.0\t{own}\n"));
    let seen = from_other("discover", &[]);
    assert!(!seen.stdout.contains("e9.0") && seen.stdout.contains("e9.1"), "{}", seen.stdout);
    assert_eq!(from_other("ping", &["9.0"]).status.code(), Some(1));
    ok(&netns, "mask", &["9.0", "--add", &other]);
    assert_eq!(from_other("ping", &["9.0"]).status.code(), Some(0));
    let rows = json(&netns, "mask", &["9.0"]);
    assert_eq!(rows[0]["macs"], serde_json::json!([own, other]));
    // Given up on purpose.
    assert_eq!(ok(&netns, "mask", &["9.0", "--delete", "self", "--force"]), format!("e9.0\t{other}\n"));
    fails(&netns, "mask", &["-t", "0.4", "9.0"], &["no answer"]);
    let cleared = from_other("mask", &["9.0", "--clear"]);
    assert_eq!((cleared.status.code(), cleared.stdout.as_str()), (Some(0), "e9.0\tany\n"), "{}", cleared.stderr);
    ok(&netns, "ping", &["9.0"]);
}

#[test]
fn a_reservation_is_held_released_and_taken_over() {
    require!(netns);
    let (netns, _shelf, _dir) = two_hosts();
    let (own, other) = (netns.mac(HOST), netns.mac("other"));
    let from_other =
        |args: &[&str]| binary::etherraid("reserve").netns(&netns).args(["-i", "other"]).args(args).finish(LIMIT);
    assert_eq!(ok(&netns, "reserve", &[]), "e9.0\tnone\ne9.1\tnone\n");
    assert_eq!(ok(&netns, "reserve", &["9.0", "--set", "self"]), format!("e9.0\t{own}\n"));
    let refused = from_other(&["9.0", "--set", "self"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains(&own) && refused.stderr.contains("--force"), "{}", refused.stderr);
    assert_eq!(from_other(&["9.0", "--release"]).status.code(), Some(1));
    assert_eq!(from_other(&["9.0"]).stdout, format!("e9.0\t{own}\n"));
    // IDENTIFY is for all, data are not.
    ok(&netns, "identify", &["9.0"]);
    let identify = binary::etherraid("identify").netns(&netns).args(["-i", "other", "9.0"]).finish(LIMIT);
    assert!(identify.status.success(), "{}", identify.stderr);
    let examine = binary::etherraid("examine").netns(&netns).args(["-i", "other", "e9.0"]).finish(LIMIT);
    assert!(
        examine.status.code() == Some(1) && examine.stderr.contains("reserved by another host"),
        "{}",
        examine.stderr
    );

    let taken = from_other(&["9.0", "--set", "self", "--force"]);
    assert_eq!(taken.stdout, format!("e9.0\t{other}\n"));
    fails(&netns, "reserve", &["9.0", "--release"], &["reserved by", &other]);
    assert_eq!(ok(&netns, "reserve", &["9.0", "--release", "--force"]), "e9.0\tnone\n");
    // Both interfaces of one host.
    let both = ok(&netns, "reserve", &["-i", "other", "9.1", "--set", "self"]);
    assert_eq!(both, format!("e9.1\t{own} {other}\n"));
    assert_eq!(from_other(&["9.1", "--release"]).stdout, "e9.1\tnone\n");
}

#[test]
fn stat_and_tune_of_a_running_array() {
    require!(netns, "vblade");
    let rig = ShelfRig::new(3, MEMBER_BYTES, None);
    wait_for_cable(&rig.netns);
    let probed = ok(&rig.netns, "stat", &[]);
    for line in probed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1..5], ["0.025GB", HOST, "8704", "up"], "{line}");
        assert!(words[5].starts_with("rtt=") && words[6] == "lost=0.00%", "{line}");
    }
    assert_eq!(probed.lines().count(), 3);

    let spec = rig.spec();
    spec.create(&["-c", rig::CHUNK]);
    let array = spec.run(&["--cpus", "0", "--set", "aoe_congestion=1", "--set", "aoe_window=9"]);
    array.wait_in_sync();
    let rows = json(&rig.netns, "stat", &[]);
    for row in rows.as_array().unwrap() {
        assert_eq!((&row["array"], &row["state"]), (&spec.name().into(), &"up".into()), "{row}");
        assert!(row["rtt_us"].as_f64().unwrap() > 0.0 && row["lost_percent"].as_f64().unwrap() <= 100.0, "{row}");
        assert_eq!(row["window"], 18, "a worker and the control thread: {row}");
    }
    let tune = |args: &[&str]| binary::etherraid("tune").arg(spec.name()).args(args).ok(LIMIT);
    assert_eq!(tune(&["aoe_window=4"]), "aoe_window=4\n");
    let rows = json(&rig.netns, "stat", &["9.1"]);
    assert_eq!((&rows[0]["device"], &rows[0]["window"]), (&"e9.1".into(), &8.into()));
    // Interfaces and devices of the same names in another network are others.
    let elsewhere = NetNs::new();
    elsewhere.veth(HOST, DISKS, rig::MTU);
    let stat = fails(&elsewhere, "stat", &["-t", "0.2", "9.1"], &[]);
    assert_eq!(stat, "      e9.1            (NA)       (NA) (NA)  down\n");
    // The same without a look at the network.
    let members = binary::etherraid("stat").ok(LIMIT);
    let mine: Vec<&str> = members.lines().filter(|line| line.ends_with(&format!("array={}", spec.name()))).collect();
    assert_eq!(mine.len(), 3, "{members}");
    array.stop();
}

#[test]
fn examine_over_the_network_is_mdadms() {
    require!(netns, "mdadm");
    let rig = ShelfRig::new(3, MEMBER_BYTES, None);
    rig.spec().create(&["-c", rig::CHUNK]);
    let ours = ok(&rig.netns, "examine", &["e9.0", "e9.1", "e9.2"]);
    let mut theirs = String::new();
    for (slot, file) in rig.files.iter().enumerate() {
        assert!(md::examine(file).checksum_is_right());
        let text = Cmd::new("mdadm").arg("-E").arg(file).ok(LIMIT);
        theirs.push_str(&text.replace(&file.display().to_string(), &format!("e9.{slot}")));
    }
    assert_eq!(ours, theirs);
    fails(&rig.netns, "examine", &["e9.7"], &["e9.7", "no answer"]);
}
