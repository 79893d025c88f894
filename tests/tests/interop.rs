//! On-disk interchange with Linux md: mdadm accepts what we write, we read what the kernel wrote, and the other way round.

use etherraid_tests::array::Spec;
use etherraid_tests::kernel::{self, Job};
use etherraid_tests::rig::{self, ShelfRig};
use etherraid_tests::{fixtures, md, nbd, pattern, require};
use std::path::{Path, PathBuf};

const MEMBERS: usize = 4;
const MEMBER_BYTES: u64 = 24 << 20;

fn as_paths(files: &[PathBuf]) -> Vec<&Path> {
    files.iter().map(PathBuf::as_path).collect()
}

/// What mdadm must say of every member of an array made here, however it has been used since.
fn mdadm_accepts(files: &[PathBuf], name: &str, state: &str) {
    let mut events = Vec::new();
    for (n, file) in files.iter().enumerate() {
        let examined = md::examine(file);
        assert!(examined.checksum_is_right(), "{}", examined.field("Checksum"));
        assert_eq!(examined.field("Version"), "1.2");
        assert_eq!(examined.field("Raid Level"), "raid5");
        assert_eq!(examined.field("Raid Devices"), MEMBERS.to_string());
        assert_eq!(examined.field("Layout"), "left-symmetric");
        assert_eq!(examined.field("Chunk Size"), "64K");
        assert_eq!(examined.field("Device Role"), format!("Active device {n}"));
        assert_eq!(examined.field("State"), state);
        assert!(examined.field("Name").contains(name), "{}", examined.field("Name"));
        assert!(examined.field("Array State").starts_with("AAAA "), "{}", examined.field("Array State"));
        events.push(examined.events());
    }
    assert!(events.iter().all(|e| *e == events[0]), "{events:?}");
}

#[test]
fn mdadm_accepts_each_member_that_we_wrote() {
    require!("mdadm", "nbdcopy");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    // mdadm's word for an array that still has to be resynced.
    mdadm_accepts(&files, spec.name(), "active");
    let created = md::examine(&files[0]).events();

    let array = spec.run(&[]);
    array.wait_in_sync();
    let image = dir.path().join("image");
    pattern::image(&image, 1, 8 << 20).unwrap();
    nbd::nbdcopy_in(&image, array.socket()).ok(nbd::TOOL_LIMIT);
    array.stop();
    mdadm_accepts(&files, spec.name(), "clean");
    assert!(md::examine(&files[0]).events() > created);
    md::parity_of_array_is_right(&as_paths(&files)).unwrap();
}

#[test]
fn mdadm_sees_a_failed_member_on_the_others() {
    require!("mdadm");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    let array = spec.run(&[]);
    array.wait_in_sync();
    array.fail(&spec.members()[1]);
    array.wait_until("one member failed", |d| d.degraded() == 1);
    array.stop();
    for file in [&files[0], &files[2], &files[3]] {
        let examined = md::examine(file);
        assert!(examined.field("Array State").starts_with("A.AA "), "{}", examined.field("Array State"));
        assert!(examined.events() > md::examine(&files[1]).events());
    }
}

/// The array reads as the kernel's SHA-256 says, whole and without any one member, from copies of the images.
fn reads_the_kernels(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let array = fixtures::md_array(name, dir.path()).unwrap();
    let spec = Spec::local(&array.members);
    let running = spec.run(&["--readonly"]);
    let image = dir.path().join("image");
    assert_eq!(rig::image_of(&running, &image), array.sha256);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), array.array_sectors * 512);
    running.stop();
    rig::reads_the_same_without_any_one(&spec, dir.path(), &array.sha256);
}

#[test]
fn the_kernels_arrays_read_in_every_layout() {
    require!("nbdcopy");
    for name in ["r5-ls-64k-v12", "r5-la-4k-v12", "r5-pf-16k-v12", "r5-pl-16k-v12"] {
        reads_the_kernels(name);
    }
}

#[test]
fn the_kernels_array_reads_over_the_wire() {
    require!(netns, "nbdcopy");
    let dir = tempfile::tempdir().unwrap();
    let array = fixtures::md_array("r5-ls-64k-v12", dir.path()).unwrap();
    let rig = ShelfRig::over(dir, array.members, None);
    let running = rig.spec().run(&[]);
    assert_eq!(rig::image_of(&running, &rig.dir.path().join("image")), array.sha256);
    running.stop();
}

/// Assembles under the kernel as /dev/md0, runs `then`, and stops it.
fn under_the_kernel(files: &[PathBuf], then: &str) -> String {
    let letters = "bcdefgh".chars().take(files.len());
    let disks: Vec<String> = letters.map(|letter| format!("/dev/ubd{letter}")).collect();
    let script = format!(
        "set -e; modprobe raid456; mdadm -A /dev/md0 --run {}; {then}; mdadm --wait /dev/md0 || true; mdadm -S /dev/md0",
        disks.join(" ")
    );
    kernel::run(&Job::new(&script, &as_paths(files))).unwrap().ok()
}

#[test]
fn the_kernel_assembles_reads_and_checks_our_array() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    let array = spec.run(&[]);
    array.wait_in_sync();
    let size = nbd::Client::connect(array.socket()).unwrap().size();
    let image = dir.path().join("image");
    pattern::image(&image, 5, size).unwrap();
    nbd::nbdcopy_in(&image, array.socket()).ok(nbd::TOOL_LIMIT);
    array.stop();
    let check = "sha256sum /dev/md0; echo check > /sys/block/md0/md/sync_action; \
                 while [ $(cat /sys/block/md0/md/sync_action) != idle ]; do sleep 0.1; done; \
                 echo mismatches $(cat /sys/block/md0/md/mismatch_cnt)";
    let output = under_the_kernel(&files, check);
    assert!(output.contains(&pattern::sha256(&image).unwrap()), "{output}");
    assert!(output.contains("mismatches 0"), "{output}");
    assert!(!output.contains("not clean"), "{output}");

    // It has written its superblocks; we go on with them.
    let array = spec.run(&[]);
    assert!(array.detail().is_idle());
    assert_eq!(rig::image_of(&array, &dir.path().join("back")), pattern::sha256(&image).unwrap());
    array.stop();
}

#[test]
fn we_read_what_the_kernel_wrote_into_our_array() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    let write = "dd if=/dev/urandom of=/dev/md0 bs=1M oflag=direct conv=fsync 2>/dev/null || true; sha256sum /dev/md0";
    let output = under_the_kernel(&files, write);
    let array = spec.run(&[]);
    let found = rig::image_of(&array, &dir.path().join("image"));
    assert!(output.contains(&found), "{found} is not in\n{output}");
    array.stop();
    rig::reads_the_same_without_any_one(&spec, dir.path(), &found);
}
