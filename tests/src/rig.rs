//! The set-up that most end-to-end tests share: a namespace with a cable, disks at one end, room for the array at the other.
//!
//! Member files are sparse and lie in a temporary directory; targets die before the namespace does.

use crate::array::{self, Running, Spec};
use crate::fault::Faults;
use crate::netns::NetNs;
use crate::shelf::Shelf;
use crate::vblade::Vblade;
use crate::{nbd, pattern, wait};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Shelf number of all devices.
pub const SHELF: u16 = 9;
/// Interface of the array.
pub const HOST: &str = "host";
/// Interface of the targets.
pub const DISKS: &str = "disks";
/// MTU of the cable.
pub const MTU: u32 = 9000;
/// Chunk of the arrays made here.
pub const CHUNK: &str = "64K";
/// `member_hold` of the runs whose members die, so that a test need not wait for the default of 30 s.
pub const SHORT_HOLD: [&str; 2] = ["--set", "member_hold=3"];
/// Bounds the wait for a target to get its share of a load.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// Blank member files `disk0` and on in `dir`.
pub fn blank_files(dir: &Path, count: usize, len: u64) -> Vec<PathBuf> {
    (0..count)
        .map(|n| {
            let path = dir.join(format!("disk{n}"));
            pattern::blank(&path, len).expect("a temporary file");
            path
        })
        .collect()
}

/// A namespace, a directory, and vblades.
pub struct VbladeRig {
    /// The targets; a test takes out the one that it kills.
    pub vblades: Vec<Vblade>,
    /// Where the cable is.
    pub netns: NetNs,
    /// Member files and whatever else the test keeps.
    pub dir: TempDir,
    name: String,
    member_bytes: u64,
    next_slot: u8,
}

impl VbladeRig {
    /// `count` vblades over blank files of `member_bytes`.
    pub fn new(count: usize, member_bytes: u64) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let netns = NetNs::new();
        netns.veth(HOST, DISKS, MTU);
        let name = array::unique_name();
        let mut rig = Self { vblades: Vec::new(), netns, dir, name, member_bytes, next_slot: 0 };
        for _ in 0..count {
            rig.plug_in();
        }
        rig
    }

    /// Starts one more vblade over a blank file, in the next slot; returns its MEMBER name.
    pub fn plug_in(&mut self) -> String {
        let slot = self.next_slot;
        self.next_slot += 1;
        let file = self.dir.path().join(format!("disk{slot}"));
        pattern::blank(&file, self.member_bytes).expect("a temporary file");
        let vblade = Vblade::start(&self.netns, DISKS, SHELF, slot, &file);
        let member = vblade.member();
        self.vblades.push(vblade);
        member
    }

    /// The rig's array over all vblades that are there now.
    pub fn spec(&self) -> Spec<'_> {
        Spec::aoe(&self.netns, HOST, self.vblades.iter().map(Vblade::member)).named(&self.name)
    }

    /// Creates the array, runs it, and waits until it is in sync.
    pub fn start_array(&self, run_options: &[&str]) -> Running {
        let spec = self.spec();
        spec.create(&["-c", CHUNK]);
        let array = spec.run(run_options);
        array.wait_in_sync();
        array
    }

    /// The files behind them.
    pub fn files(&self) -> Vec<&Path> {
        self.vblades.iter().map(Vblade::file).collect()
    }
}

/// A namespace, a directory, and one shelf process of ours with all devices.
pub struct ShelfRig {
    /// The target.
    pub shelf: Shelf,
    /// The files behind it.
    pub files: Vec<PathBuf>,
    /// Where the cable is.
    pub netns: NetNs,
    /// Member files and whatever else the test keeps.
    pub dir: TempDir,
}

impl ShelfRig {
    /// A shelf with `count` devices over blank files of `member_bytes`.
    pub fn new(count: usize, member_bytes: u64, faults: Option<Faults>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let files = blank_files(dir.path(), count, member_bytes);
        Self::over(dir, files, faults)
    }

    /// A shelf over files that are there already, which lie in `dir`.
    pub fn over(dir: TempDir, files: Vec<PathBuf>, faults: Option<Faults>) -> Self {
        let netns = NetNs::new();
        netns.veth(HOST, DISKS, MTU);
        let shelf = Shelf::start(&netns, DISKS, SHELF, &files, faults);
        Self { shelf, files, netns, dir }
    }

    /// The array over all of its devices.
    pub fn spec(&self) -> Spec<'_> {
        Spec::aoe(&self.netns, HOST, self.shelf.members())
    }
}

/// Waits until `vblade` has written `bytes` more than `since`: then the load has reached it and goes on.
pub fn wait_for_load(vblade: &Vblade, since: u64, bytes: u64) {
    wait::until("the load reaches the vblade", LOAD_LIMIT, || (vblade.written_bytes() >= since + bytes).then_some(()));
}

/// Copies the array to a file, and returns its SHA-256.
pub fn image_of(array: &Running, to: &Path) -> String {
    nbd::nbdcopy_out(array.socket(), to).ok(nbd::TOOL_LIMIT);
    pattern::sha256(to).expect("the image just written")
}

/// Checks that the array reads as `sha256` with any single member left out, read-only.
pub fn reads_the_same_without_any_one(spec: &Spec<'_>, dir: &Path, sha256: &str) {
    for absent in 0..spec.members().len() {
        let mut members = spec.members().to_vec();
        let name = members.remove(absent);
        let array = spec.with_members(members).run(&["--run", "--readonly"]);
        assert_eq!(array.detail().degraded(), 1, "without {name}");
        let found = image_of(&array, &dir.join("without-one"));
        assert_eq!(found, sha256, "without {name}");
        array.stop();
    }
}
