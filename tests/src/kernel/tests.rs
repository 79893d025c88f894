//! The kernel boots, sees its disks and its network, and its death is seen.

use super::*;
use crate::{fixtures, pattern, require};

#[test]
fn the_mirror_is_debians_main_archive() {
    let targets = "Debian|Debian-Security|http://a/security/\nOther|Other|http://b/\nDebian|Debian|http://c/debian/\n";
    assert_eq!(pick_mirror(targets), Some("http://c/debian/"));
    assert_eq!(pick_mirror("Other|Other|http://b/\n"), None);
}

#[test]
fn status_and_disks_come_back() {
    require!(kernel);
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    pattern::blank(&disk, 1 << 20).unwrap();
    let disks = [disk.as_path()];
    let script = "uname -r; echo hello | dd of=/dev/ubdb conv=fsync; exit 3";
    let job = Job::new(script, &disks);
    let outcome = run(&job).unwrap();
    assert_eq!(outcome.status, Some(3), "{}", outcome.output);
    assert_eq!(&std::fs::read(&disk).unwrap()[..6], b"hello\n");
}

#[test]
fn a_power_cut_has_no_status() {
    require!(kernel);
    let job = Job::new("echo c > /proc/sysrq-trigger; sleep 100", &[]);
    assert_eq!(run(&job).unwrap().status, None);
}

#[test]
fn its_md_assembles_its_own_array() {
    require!(kernel);
    let dir = tempfile::tempdir().unwrap();
    let array = fixtures::md_array("r5-ls-64k-v12", dir.path()).unwrap();
    let disks: Vec<&Path> = array.members.iter().map(PathBuf::as_path).collect();
    let script =
        "modprobe raid456; mdadm -A /dev/md0 --readonly /dev/ubdb /dev/ubdc /dev/ubdd /dev/ubde && sha256sum /dev/md0";
    let output = run(&Job::new(script, &disks)).unwrap().ok();
    assert!(output.contains(&array.sha256), "{output}");
}

#[test]
fn its_aoe_driver_finds_a_vblade() {
    require!(kernel, netns, "vblade");
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    pattern::image(&disk, 4, 1 << 20).unwrap();
    let netns = NetNs::new();
    netns.veth("host", "disks", 9000);
    let _vblade = crate::vblade::Vblade::start(&netns, "disks", 20, 0, &disk);
    let script = "modprobe aoe; for i in $(seq 100); do [ -b /dev/etherd/e20.0 ] && break; echo > /dev/etherd/discover; sleep 0.1; done; sha256sum /dev/etherd/e20.0";
    let job = Job { net: Some(Net { netns: &netns, interface: "host", mtu: 9000 }), ..Job::new(script, &[]) };
    let output = run(&job).unwrap().ok();
    let digest = pattern::sha256(&disk).unwrap();
    assert!(output.contains(&digest), "{output}");
}
