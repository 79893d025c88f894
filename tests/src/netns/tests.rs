//! Names, leftovers, and frames that really cross.

use super::*;
use crate::require;

#[test]
fn names_tell_their_owner() {
    assert_eq!(owner("er-12-0"), Some(12));
    assert_eq!(owner(&unique_name()), Some(std::process::id()));
    for other in ["", "er-", "er-12", "er-x-0", "er-12-x", "xer-12-0", "demo"] {
        assert_eq!(owner(other), None, "{other}");
    }
}

#[test]
fn only_leftovers_of_the_dead_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    // Above the largest pid that Linux gives out.
    let dead = format!("er-{}-3", 1 << 23);
    let ours = unique_name();
    for name in [dead.as_str(), ours.as_str(), "somebody-elses", "er-odd"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let mut swept = Vec::new();
    sweep(dir.path(), |name| swept.push(name.to_owned()));
    assert_eq!(swept, [dead]);
}

#[test]
fn gone_after_drop_and_after_a_panic() {
    require!(netns);
    let netns = NetNs::new();
    let path = Path::new(NETNS_DIR).join(netns.name());
    assert!(path.exists());
    drop(netns);
    assert!(!path.exists());

    let path = std::panic::catch_unwind(|| {
        let netns = NetNs::new();
        std::panic::panic_any(Path::new(NETNS_DIR).join(netns.name()));
    })
    .unwrap_err()
    .downcast::<PathBuf>()
    .unwrap();
    assert!(!path.exists());
}

#[test]
fn cables_and_switch_carry_jumbo_frames() {
    require!(netns, "ping");
    let (a, b) = (NetNs::new(), NetNs::new());
    a.switch("sw", &["h0", "h1"], 9000);
    a.sh(&format!("ip link set h1 netns {}", b.name()));
    a.sh("ip addr add 10.0.0.1/24 dev h0");
    b.sh("ip link set h1 up; ip addr add 10.0.0.2/24 dev h1");
    a.sh("ping -c 1 -W 5 -M do -s 8900 10.0.0.2");
    assert_eq!(a.mac("h0").split(':').count(), 6);

    a.set_link("h0-sw", false);
    let lost = Cmd::new("ping").args(["-c", "1", "-W", "1", "10.0.0.2"]).netns(&a).finish(LIMIT);
    assert!(!lost.status.success(), "{}", lost.stdout);
    a.set_link("h0-sw", true);
    a.sh("ping -c 1 -w 15 10.0.0.2");
}

#[test]
fn a_shaped_port_drops_what_does_not_fit() {
    require!(netns, "tc");
    let netns = NetNs::new();
    netns.switch("sw", &["h0", "h1"], 1500);
    netns.shape("h1-sw", 100, 65536);
    let shown = netns.sh("tc qdisc show dev h1-sw");
    assert!(shown.contains("tbf"), "{shown}");
}
