//! More members stopped than parity covers: the array waits, writes nothing, and goes on when they are back.

use etherraid_tests::proc::Proc;
use etherraid_tests::rig::{self, VbladeRig};
use etherraid_tests::{array::Running, md, nbd, require};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const MEMBERS: usize = 5;
const MEMBER_BYTES: u64 = 32 << 20;
const LOAD_BYTES: u64 = 60 << 20;
/// Both are stopped once the first has written this much.
const UNDER_WAY: u64 = 4 << 20;
const STOPPED: [usize; 2] = [1, 3];
/// How long the suspended array is watched: twice `member_hold`, after which a single silent member would long be given up.
const WATCHED: Duration = Duration::from_secs(6);

fn superblocks(rig: &VbladeRig) -> Vec<Vec<u8>> {
    rig.files().iter().map(|file| md::superblock_bytes(file).unwrap()).collect()
}

/// An array with fio under way and two vblades stopped; waits until it is suspended.
fn suspend(rig: &VbladeRig) -> (Running, Proc) {
    let array = rig.start_array(&rig::SHORT_HOLD);
    let before = rig.vblades[STOPPED[0]].written_bytes();
    let fio = nbd::fio_randwrite_verify(array.socket(), "16k", 0, LOAD_BYTES).spawn();
    rig::wait_for_load(&rig.vblades[STOPPED[0]], before, UNDER_WAY);
    for slot in STOPPED {
        rig.vblades[slot].suspend();
    }
    array.wait_until("suspended", |d| d.array_state() == "suspended");
    (array, fio)
}

#[test]
fn two_stopped_members_suspend_the_array_until_they_answer() {
    require!(netns, "vblade", "fio", "mdadm");
    let rig = VbladeRig::new(MEMBERS, MEMBER_BYTES);
    let (array, mut fio) = suspend(&rig);

    let before = superblocks(&rig);
    let watched_until = Instant::now() + WATCHED;
    while Instant::now() < watched_until {
        assert_eq!(array.detail().array_state(), "suspended");
        assert!(superblocks(&rig) == before, "a superblock was written while suspended");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(fio.is_running(), "the client must wait, not fail");

    for slot in STOPPED {
        rig.vblades[slot].resume();
    }
    fio.finish(nbd::TOOL_LIMIT).ok();
    array.wait_in_sync();
    array.stop();
    md::parity_of_array_is_right(&rig.files()).unwrap();
}

#[test]
fn sigterm_while_suspended_fails_what_is_held_and_leaves_the_array_dirty() {
    require!(netns, "vblade", "fio", "mdadm");
    let rig = VbladeRig::new(MEMBERS, MEMBER_BYTES);
    let (mut array, fio) = suspend(&rig);
    let before = superblocks(&rig);
    array.sigterm();
    assert_eq!(array.wait_exit().code(), Some(1));
    assert!(!fio.finish(nbd::TOOL_LIMIT).status.success(), "held writes must end with an error");
    assert!(superblocks(&rig) == before);
    for file in rig.files() {
        assert_eq!(md::examine(file).field("State"), "active", "{}", file.display());
    }

    // Everybody is back: it is found dirty, resynced, and whole again.
    for slot in STOPPED {
        rig.vblades[slot].resume();
    }
    let array = rig.spec().run(&[]);
    array.wait_in_sync();
    array.stop();
    md::parity_of_array_is_right(&rig.files()).unwrap();
}

#[test]
fn a_single_stopped_member_is_waited_for_and_then_given_up() {
    require!(netns, "vblade", "fio", "mdadm");
    let rig = VbladeRig::new(MEMBERS, MEMBER_BYTES);
    let array = rig.start_array(&rig::SHORT_HOLD);
    let before = rig.vblades[0].written_bytes();
    let fio = nbd::fio_randwrite_verify(array.socket(), "16k", 0, LOAD_BYTES).spawn();
    rig::wait_for_load(&rig.vblades[0], before, UNDER_WAY);
    rig.vblades[0].suspend();
    array.wait_until("given up", |d| d.degraded() == 1);
    fio.finish(nbd::TOOL_LIMIT).ok();
    // It comes back by itself, in full as there is no bitmap.
    rig.vblades[0].resume();
    array.wait_in_sync();
    array.stop();
    md::parity_of_array_is_right(&rig.files()).unwrap();
}

#[test]
fn the_whole_switch_down_ejects_nobody() {
    require!(netns, "vblade", "fio", "mdadm");
    let rig = VbladeRig::new(MEMBERS, MEMBER_BYTES);
    let array = rig.start_array(&rig::SHORT_HOLD);
    let before = rig.vblades[0].written_bytes();
    let fio = nbd::fio_randwrite_verify(array.socket(), "16k", 0, LOAD_BYTES).spawn();
    rig::wait_for_load(&rig.vblades[0], before, UNDER_WAY);
    // vblade ends when its own interface goes down, so the cable is cut by making every vblade deaf at once.
    for vblade in &rig.vblades {
        vblade.suspend();
    }
    array.wait_until("suspended", |d| d.array_state() == "suspended");
    for vblade in &rig.vblades {
        vblade.resume();
    }
    fio.finish(nbd::TOOL_LIMIT).ok();
    array.wait_in_sync();
    array.stop();
    md::parity_of_array_is_right(&rig.files()).unwrap();
}

#[test]
fn a_stopped_client_holds_nobody_up() {
    require!(netns, "vblade", "fio", "mdadm");
    let rig = VbladeRig::new(MEMBERS, MEMBER_BYTES);
    let array = rig.start_array(&rig::SHORT_HOLD);
    let before = rig.vblades[0].written_bytes();
    let stuck = nbd::fio(
        array.socket(),
        &["--rw=randread", "--bs=256k", "--size=64m", "--iodepth=32", "--time_based", "--runtime=3600", "--eta=never"],
    )
    .spawn();
    rig::wait_for_load(&rig.vblades[0], before, 1 << 20);
    stuck.signal(Signal::STOP);
    nbd::fio_randwrite_verify(array.socket(), "64k", 0, 16 << 20).ok(nbd::TOOL_LIMIT);
    drop(stuck);
    array.wait_in_sync();
    array.stop();
}
