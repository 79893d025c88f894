//! Frames lost, doubled and reordered: every byte still verifies.

use etherraid_tests::array::{Running, Spec};
use etherraid_tests::fault::Faults;
use etherraid_tests::rig::{self, ShelfRig, VbladeRig};
use etherraid_tests::{md, nbd, pattern, require};
use std::path::Path;

const MEMBERS: usize = 5;
const MEMBER_BYTES: u64 = 32 << 20;
const LOAD_BYTES: u64 = 12 << 20;

/// Writes in several sizes, side by side, and reads everything back.
fn load(array: &Running, dir: &Path) {
    let sizes = ["4k", "60k", "1m"];
    let jobs: Vec<_> = (0..)
        .zip(sizes)
        .map(|(n, bs)| nbd::fio_randwrite_verify(array.socket(), bs, n * LOAD_BYTES, LOAD_BYTES).spawn())
        .collect();
    for job in jobs {
        job.finish(nbd::TOOL_LIMIT).ok();
    }
    let (image, back) = (dir.join("image"), dir.join("back"));
    pattern::image(&image, 8, LOAD_BYTES).unwrap();
    nbd::nbdcopy_in(&image, array.socket()).ok(nbd::TOOL_LIMIT);
    nbd::nbdcopy_out(array.socket(), &back).ok(nbd::TOOL_LIMIT);
    md::same_bytes(&image, &back, LOAD_BYTES).unwrap();
}

fn run_and_load(spec: &Spec<'_>, dir: &Path, extra: &[&str]) {
    spec.create(&["-c", rig::CHUNK]);
    let array = spec.run(extra);
    load(&array, dir);
    let detail = array.wait_in_sync();
    assert_eq!(detail.degraded(), 0, "lost frames are no reason to lose a member");
    array.stop();
}

#[test]
fn our_shelf_with_faults_at_our_end() {
    require!(netns, "fio", "nbdcopy", "mdadm");
    let rig = ShelfRig::new(MEMBERS, MEMBER_BYTES, None);
    let faults = Faults::for_our_shelf(1).to_string();
    run_and_load(&rig.spec(), rig.dir.path(), &["--fault", &faults]);
    assert_eq!(rig.shelf.stop().code(), Some(0));
    let files: Vec<&Path> = rig.files.iter().map(|p| p.as_path()).collect();
    md::parity_of_array_is_right(&files).unwrap();
}

#[test]
fn our_shelf_with_faults_at_its_end() {
    require!(netns, "fio", "nbdcopy", "mdadm");
    let rig = ShelfRig::new(MEMBERS, MEMBER_BYTES, Some(Faults::for_our_shelf(2)));
    run_and_load(&rig.spec(), rig.dir.path(), &[]);
    let files: Vec<&Path> = rig.files.iter().map(|p| p.as_path()).collect();
    md::parity_of_array_is_right(&files).unwrap();
}

#[test]
fn vblade_within_what_it_can_stand() {
    require!(netns, "vblade", "fio", "nbdcopy", "mdadm");
    let rig = VbladeRig::new(MEMBERS, MEMBER_BYTES);
    let faults = Faults::for_vblade(3).to_string();
    run_and_load(&rig.spec(), rig.dir.path(), &["--fault", &faults]);
    md::parity_of_array_is_right(&rig.files()).unwrap();
}
