//! The Linux kernel's md as judge: each side assembles, reads, checks and goes on with what the other made and wrote.

use etherraid_tests::array::{Running, Spec};
use etherraid_tests::kernel::guest::{self, Disks, Reports};
use etherraid_tests::kernel::{self, Job};
use etherraid_tests::nbd::{self, Client};
use etherraid_tests::{md, pattern, require, rig};
use std::path::{Path, PathBuf};

const MEMBER_BYTES: u64 = 16 << 20;
const MEMBERS: usize = 4;

/// Runs a script with disks to its end.
fn under_the_kernel(body: &str, disks: &Disks<'_>) -> Reports {
    kernel::run(&Job::new(&guest::script(body), disks.paths())).unwrap().reports()
}

/// How an array is laid out.
struct Shape {
    level: u8,
    /// Its name, and md's number for it.
    layout: (&'static str, u8),
    members: usize,
    chunk_kib: u64,
    metadata: &'static str,
}

impl Shape {
    /// What most tests use.
    const USUAL: Self =
        Self { level: 5, layout: ("left-symmetric", 2), members: MEMBERS, chunk_kib: 64, metadata: "1.2" };

    /// Creates it with ours.
    fn create(&self, spec: &Spec<'_>) {
        let chunk = format!("{}K", self.chunk_kib);
        let layout = if self.level == 5 { &["-p", self.layout.0][..] } else { &[] };
        spec.create_level(&self.level.to_string(), &[&["-c", &chunk, "-e", self.metadata], layout].concat());
    }

    /// The command that creates it with theirs.
    fn mdadm_create(&self, array: &str, devices: &str) -> String {
        let Self { level, members, chunk_kib, metadata, .. } = self;
        let layout = if self.level == 5 { format!("-p {}", self.layout.0) } else { String::new() };
        format!(
            "mdadm -C /dev/{array} --run -l {level} -n {members} -c {chunk_kib} -e {metadata} {layout} {devices}; whole {array}"
        )
    }

    /// Checks what `facts` reported of a healthy array.
    fn is_seen(&self, reports: &Reports, array: &str) {
        reports.expect(&format!("{array}.level"), format!("raid{}", self.level));
        reports.expect(&format!("{array}.raid_disks"), self.members);
        reports.expect(&format!("{array}.chunk_size"), self.chunk_kib * 1024);
        reports.expect(&format!("{array}.metadata_version"), self.metadata);
        reports.expect(&format!("{array}.degraded"), 0);
        if self.level == 5 {
            reports.expect(&format!("{array}.layout"), self.layout.1);
        }
    }

    /// Ranges to overwrite in an array of `size` bytes: within a page, over the ends of chunks and rows, whole rows, the last
    /// bytes, and small ones here and there.
    fn patches(&self, size: u64) -> Vec<(u64, u64)> {
        let chunk = self.chunk_kib * 1024;
        let row = chunk * (self.members as u64 - 1);
        let fixed = [
            (1536, 512),
            (chunk - 512, 1024),
            (row - 4096, 8192),
            (2 * row, row),
            (4 * row + chunk / 2, row + 1536),
            (size - 4096, 4096),
        ];
        let scattered = (0..24).map(|n| {
            let random = pattern::mix(n);
            (random % (size / 4096 - 8) * 4096 + random % 8 * 512, (1 + random % 29) * 512)
        });
        fixed.into_iter().chain(scattered).collect()
    }
}

/// Script lines that copy `ranges` from one device to another.
fn puts(source: &str, to: &str, ranges: &[(u64, u64)]) -> String {
    ranges.iter().map(|(offset, len)| format!("put {source} {to} {offset} {len}\n")).collect()
}

/// Member files, how ours calls them, and what a client must read.
struct Array {
    files: Vec<PathBuf>,
    spec: Spec<'static>,
    image: PathBuf,
}

impl Array {
    /// Blank members and no array yet, in a new directory `name`.
    fn blank(dir: &Path, name: &str, members: usize) -> Self {
        let dir = dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        let files = rig::blank_files(&dir, members, MEMBER_BYTES);
        let spec = Spec::local(&files);
        Self { files, spec, image: dir.join("image") }
    }

    /// An array that ours created, brought in sync and filled.
    fn ours(dir: &Path, name: &str, shape: &Shape) -> (Self, Running) {
        let array = Self::blank(dir, name, shape.members);
        shape.create(&array.spec);
        let running = array.spec.run(&[]);
        running.wait_in_sync();
        pattern::image(&array.image, 1, size_of(&running)).unwrap();
        nbd::nbdcopy_in(&array.image, running.socket()).ok(nbd::TOOL_LIMIT);
        (array, running)
    }

    /// Overwrites ranges through ours.
    fn write(&self, running: &Running, seed: u64, ranges: &[(u64, u64)]) {
        let mut client = Client::connect(running.socket()).unwrap();
        for &(offset, len) in ranges {
            client.write(offset, &pattern::bytes(seed, offset, usize::try_from(len).unwrap()), false).unwrap();
        }
        client.flush().unwrap();
        client.disconnect().unwrap();
        pattern::overlay(&self.image, seed, ranges).unwrap();
    }

    fn sha256(&self) -> String {
        pattern::sha256(&self.image).unwrap()
    }

    fn size(&self) -> u64 {
        std::fs::metadata(&self.image).unwrap().len()
    }

    /// Fails unless ours reads what it must.
    fn reads_right(&self, running: &Running) {
        nbd::nbdcopy_out(running.socket(), &self.image.with_extension("read")).ok(nbd::TOOL_LIMIT);
        assert_eq!(size_of(running), self.size());
        md::same_bytes(&self.image, &self.image.with_extension("read"), self.size()).unwrap();
    }
}

fn size_of(running: &Running) -> u64 {
    Client::connect(running.socket()).unwrap().size()
}

/// An array that ours made and one that md made, of the same shape, each go to the other side and back.
fn interchange(shape: &Shape) {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let (ours, running) = Array::ours(dir.path(), "ours", shape);
    let size = ours.size();
    ours.write(&running, 2, &shape.patches(size));
    running.stop();

    // Theirs have room for as much as ours.
    let theirs = Array::blank(dir.path(), "theirs", shape.members);
    pattern::image(&theirs.image, 3, size).unwrap();
    let before = ours.sha256();
    let later: Vec<(u64, u64)> = shape.patches(size).into_iter().map(|(at, len)| (at / 8192 * 4096, len)).collect();
    let mut disks = Disks::default();
    let (a, b, source) = (disks.all(&ours.files), disks.all(&theirs.files), disks.one(&theirs.image));
    let script = format!(
        "md
         mdadm -A /dev/md0 {a}; idle md0; facts md0; check md0; sum before /dev/md0
         {puts} sum after /dev/md0; check md0; mdadm -S /dev/md0
         {create}; facts md1
         dd if={source} of=/dev/md1 bs=1M oflag=direct conv=fsync status=none; sum theirs /dev/md1; mdadm -S /dev/md1",
        puts = puts(&source, "/dev/md0", &later),
        create = shape.mdadm_create("md1", &b),
    );
    let reports = under_the_kernel(&script, &disks);
    shape.is_seen(&reports, "md0");
    shape.is_seen(&reports, "md1");
    reports.expect("md0.last_sync_action", "idle");
    assert_eq!(reports.all("md0.mismatch_cnt"), ["0", "0"], "{}", reports.output());
    reports.expect("before", before);
    pattern::overlay(&ours.image, 3, &later).unwrap();
    reports.expect("after", ours.sha256());
    reports.expect("theirs", theirs.sha256());
    for array in ["md0", "md1"] {
        reports.expect(&format!("{array}.sectors"), size / 512);
    }

    for array in [&ours, &theirs] {
        let running = array.spec.run(&[]);
        let detail = running.detail();
        assert!(detail.is_idle() && detail.degraded() == 0, "{detail:?}");
        array.reads_right(&running);
        array.write(&running, 4, &shape.patches(size));
        running.stop();
    }
    let mut disks = Disks::default();
    let (a, b) = (disks.all(&ours.files), disks.all(&theirs.files));
    let script = format!(
        "md
         mdadm -A /dev/md0 {a}; facts md0; check md0; sum ours /dev/md0; mdadm -S /dev/md0
         mdadm -A /dev/md1 {b}; facts md1; check md1; sum theirs /dev/md1; mdadm -S /dev/md1"
    );
    let reports = under_the_kernel(&script, &disks);
    for (key, array) in [("ours", &ours), ("theirs", &theirs)] {
        reports.expect(key, array.sha256());
    }
    for array in ["md0", "md1"] {
        shape.is_seen(&reports, array);
        reports.expect(&format!("{array}.last_sync_action"), "idle");
        reports.expect(&format!("{array}.mismatch_cnt"), 0);
    }
}

#[test]
fn left_symmetric_goes_both_ways() {
    interchange(&Shape::USUAL);
}

#[test]
fn left_asymmetric_goes_both_ways() {
    let layout = ("left-asymmetric", 0);
    interchange(&Shape { level: 5, layout, members: 3, chunk_kib: 4, metadata: "1.1" });
}

#[test]
fn right_symmetric_goes_both_ways() {
    let layout = ("right-symmetric", 3);
    interchange(&Shape { level: 5, layout, members: 5, chunk_kib: 16, metadata: "1.0" });
}

#[test]
fn right_asymmetric_goes_both_ways() {
    let layout = ("right-asymmetric", 1);
    interchange(&Shape { level: 5, layout, members: 6, chunk_kib: 128, metadata: "1.2" });
}

#[test]
fn parity_first_goes_both_ways() {
    let layout = ("parity-first", 4);
    interchange(&Shape { level: 5, layout, members: 4, chunk_kib: 512, metadata: "1.0" });
}

#[test]
fn parity_last_goes_both_ways() {
    let layout = ("parity-last", 5);
    interchange(&Shape { level: 5, layout, members: 7, chunk_kib: 1024, metadata: "1.1" });
}

#[test]
fn level_4_goes_both_ways() {
    interchange(&Shape { level: 4, metadata: "1.0", ..Shape::USUAL });
}

#[test]
fn two_members_go_both_ways() {
    interchange(&Shape { members: 2, chunk_kib: 32, metadata: "1.1", ..Shape::USUAL });
}
