//! Five Debian vblades, an array over them, clients under load, and one vblade killed half way.
//!
//! Each test has the same outline: what the client does while the vblade dies ends without an error and verifies; `detail` says
//! degraded; a fresh vblade is added and rebuilt; and then the same bytes are read with any single member absent.

use etherraid_tests::array::Running;
use etherraid_tests::rig::{self, VbladeRig};
use etherraid_tests::vblade::Vblade;
use etherraid_tests::{md, nbd, pattern, require};

const MEMBERS: usize = 5;
const MEMBER_BYTES: u64 = 64 << 20;
/// Bytes written in each test; a multiple of all block sizes.
const LOAD_BYTES: u64 = 60 << 20;
/// What a victim has written when it is killed: each of five members gets two fifths of a load or more, this is far less.
const HALF_WAY: u64 = LOAD_BYTES / 8;
const VICTIM: usize = 2;

/// Beyond what any test writes.
const UNALIGNED_READS_OF_ZEROES: &[&str] = &["read -P 0 200278528 131584", "read -P 0 201327104 512"];

/// The vblade that dies.
struct Victim {
    vblade: Option<Vblade>,
    since: u64,
}

impl Victim {
    /// Half way counts from now.
    fn load_begins(&mut self) {
        self.since = self.vblade.as_ref().map_or(0, Vblade::written_bytes);
    }

    /// Waits until the load is half way, and kills it.
    fn kill_half_way(&mut self) {
        let vblade = self.vblade.take().expect("it is killed once");
        rig::wait_for_load(&vblade, self.since, HALF_WAY);
        vblade.kill();
    }
}

/// Runs `load`, which kills the victim, on a fresh array, and checks all that comes after.
fn survives(load: impl FnOnce(&VbladeRig, &Running, &mut Victim)) {
    let mut rig = VbladeRig::new(MEMBERS, MEMBER_BYTES);
    let array = rig.start_array(&rig::SHORT_HOLD);
    let mut victim = Victim { vblade: Some(rig.vblades.remove(VICTIM)), since: 0 };
    victim.load_begins();
    load(&rig, &array, &mut victim);
    assert!(victim.vblade.is_none(), "nobody was killed");

    let detail = array.wait_until("one member gone", |d| d.degraded() == 1);
    assert!(detail.state().contains("degraded"), "{detail:?}");
    let dir = rig.dir.path().to_owned();
    let written = rig::image_of(&array, &dir.join("degraded"));
    nbd::qemu_io(array.socket(), UNALIGNED_READS_OF_ZEROES);

    let fresh = rig.plug_in();
    array.add(&fresh);
    let detail = array.wait_in_sync();
    assert!(!detail.state().contains("degraded"), "{detail:?}");
    assert_eq!(rig::image_of(&array, &dir.join("rebuilt")), written);
    array.stop();
    md::parity_of_array_is_right(&rig.files()).unwrap();
    rig::reads_the_same_without_any_one(&rig.spec(), &dir, &written);
}

fn fio_survives(bs: &str) {
    survives(|_, array, victim| {
        let fio = nbd::fio_randwrite_verify(array.socket(), bs, 0, LOAD_BYTES).spawn();
        victim.kill_half_way();
        fio.finish(nbd::TOOL_LIMIT).ok();
    });
}

#[test]
fn random_4k_writes_verify() {
    require!(netns, "vblade", "fio", "nbdcopy", "qemu-io", "mdadm");
    fio_survives("4k");
}

#[test]
fn random_60k_writes_verify() {
    require!(netns, "vblade", "fio", "nbdcopy", "qemu-io", "mdadm");
    fio_survives("60k");
}

#[test]
fn random_1m_writes_verify() {
    require!(netns, "vblade", "fio", "nbdcopy", "qemu-io", "mdadm");
    fio_survives("1m");
}

#[test]
fn copies_in_and_out_are_equal() {
    require!(netns, "vblade", "nbdcopy", "qemu-io", "mdadm");
    survives(|rig, array, victim| {
        let image = rig.dir.path().join("image");
        pattern::image(&image, 1, LOAD_BYTES).unwrap();
        let copy = nbd::nbdcopy_in(&image, array.socket()).spawn();
        victim.kill_half_way();
        copy.finish(nbd::TOOL_LIMIT).ok();
        let back = rig.dir.path().join("back");
        nbd::nbdcopy_out(array.socket(), &back).ok(nbd::TOOL_LIMIT);
        md::same_bytes(&image, &back, LOAD_BYTES).unwrap();
    });
}

#[test]
fn a_copy_out_is_equal_while_a_member_dies() {
    require!(netns, "vblade", "nbdcopy", "qemu-io", "mdadm");
    survives(|rig, array, victim| {
        let image = rig.dir.path().join("image");
        pattern::image(&image, 2, LOAD_BYTES).unwrap();
        nbd::nbdcopy_in(&image, array.socket()).ok(nbd::TOOL_LIMIT);
        let back = rig.dir.path().join("back");
        victim.load_begins();
        let copy = nbd::nbdcopy_out(array.socket(), &back).spawn();
        victim.kill_half_way();
        copy.finish(nbd::TOOL_LIMIT).ok();
        md::same_bytes(&image, &back, LOAD_BYTES).unwrap();
    });
}

#[test]
fn unaligned_requests_verify() {
    require!(netns, "vblade", "nbdcopy", "qemu-io", "mdadm");
    survives(|rig, array, victim| {
        let image = rig.dir.path().join("image");
        pattern::image(&image, 3, LOAD_BYTES).unwrap();
        let mut writes: Vec<String> = Vec::new();
        let mut reads: Vec<String> = Vec::new();
        // Sector-sized edges across chunks and rows, each on its own stretch of 1 MiB beyond the copy.
        for n in 0..16u64 {
            let (offset, len) = (LOAD_BYTES + (n << 20) + 512 * (2 * n + 1), 512 * (31 * n + 3));
            writes.push(format!("write -P {} {offset} {len}", 0x40 + n));
            reads.push(format!("read -P {} {offset} {len}", 0x40 + n));
        }
        let run = |commands: &[String]| {
            let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
            nbd::qemu_io(array.socket(), &commands);
        };
        let (first, second) = writes.split_at(8);
        run(first);
        let copy = nbd::nbdcopy_in(&image, array.socket()).spawn();
        victim.kill_half_way();
        // The victim is dead but not yet found missing: these wait for that, and succeed.
        run(second);
        copy.finish(nbd::TOOL_LIMIT).ok();
        run(&reads);
    });
}
