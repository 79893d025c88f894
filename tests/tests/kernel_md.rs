//! The Linux kernel's md as judge: each side assembles, reads, checks and goes on with what the other made and wrote.

use etherraid_tests::array::{Running, Spec};
use etherraid_tests::crash::{self, Model};
use etherraid_tests::kernel::guest::{self, Disks, Reports, puts};
use etherraid_tests::kernel::{self, Job};
use etherraid_tests::nbd::{self, Client};
use etherraid_tests::{md, pattern, require, rig};
use std::path::{Path, PathBuf};

const MEMBER_BYTES: u64 = 16 << 20;
const MEMBERS: usize = 4;
/// Size of an array of [`Shape::USUAL`].
const USUAL_BYTES: u64 = 45 << 20;

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
         assemble md0 {a}; idle md0; facts md0; check md0; sum before /dev/md0
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
         assemble md0 {a}; facts md0; check md0; sum ours /dev/md0; mdadm -S /dev/md0
         assemble md1 {b}; facts md1; check md1; sum theirs /dev/md1; mdadm -S /dev/md1"
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

/// The devices of a job's disks, one by one.
fn device(devices: &str, n: usize) -> &str {
    devices.split(' ').nth(n).unwrap()
}

/// Slots as the kernel shows them: all in sync but these.
fn slots_without(absent: &[usize]) -> String {
    let states: Vec<&str> = (0..MEMBERS).map(|n| if absent.contains(&n) { "-" } else { "in_sync" }).collect();
    states.join(" ")
}

/// Starts ours, and fails unless it is whole, has no sync to do, and reads what it must.
fn ours_finds_it_whole(array: &Array) {
    let running = array.spec.run(&[]);
    let detail = running.detail();
    assert!(detail.is_idle() && detail.degraded() == 0, "{detail:?}");
    array.reads_right(&running);
    running.stop();
}

#[test]
fn what_ours_failed_is_missing_there_and_what_ours_rebuilt_is_whole() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let patches = shape.patches(USUAL_BYTES);
    let (failed, running) = Array::ours(dir.path(), "failed", &shape);
    running.fail(&failed.spec.members()[2]);
    running.wait_until("one member failed", |d| d.degraded() == 1);
    failed.write(&running, 2, &patches);
    running.stop();

    let (mut rebuilt, running) = Array::ours(dir.path(), "rebuilt", &shape);
    let fresh = rebuilt.files[1].with_file_name("fresh");
    pattern::image(&fresh, 9, MEMBER_BYTES).unwrap();
    running.fail(&rebuilt.spec.members()[1]);
    running.remove(&rebuilt.spec.members()[1]);
    rebuilt.write(&running, 2, &patches);
    running.add(fresh.to_str().unwrap());
    rebuilt.write(&running, 3, &patches);
    assert_eq!(running.wait_in_sync().last_sync_action(), Some("recover"));
    running.stop();
    let old = std::mem::replace(&mut rebuilt.files[1], fresh);

    let mut disks = Disks::default();
    let (a, b, old) = (disks.all(&failed.files), disks.all(&rebuilt.files), disks.one(&old));
    let script = format!(
        "md
         assemble md0 {a}; facts md0; slots md0 {MEMBERS}; sum failed /dev/md0
         mdadm /dev/md0 --add {missing}; whole md0; check md0; sum added /dev/md0; mdadm -S /dev/md0
         assemble md1 {b} {old}; facts md1; slots md1 {MEMBERS}; check md1; sum rebuilt /dev/md1; mdadm -S /dev/md1",
        missing = device(&a, 2),
    );
    let reports = under_the_kernel(&script, &disks);
    reports.expect("md0.degraded", 1);
    reports.expect("md0.slots", slots_without(&[2]));
    reports.expect("md0.last_sync_action", "idle");
    reports.expect("failed", failed.sha256());
    reports.expect("added", failed.sha256());
    reports.expect("md0.mismatch_cnt", 0);
    shape.is_seen(&reports, "md1");
    reports.expect("md1.slots", slots_without(&[]));
    reports.expect("md1.last_sync_action", "idle");
    reports.expect("md1.mismatch_cnt", 0);
    reports.expect("rebuilt", rebuilt.sha256());
    ours_finds_it_whole(&failed);
}

/// An array of the usual shape that md is to make: the members are blank, the image is what it will be filled with.
fn theirs(dir: &Path, name: &str) -> Array {
    let array = Array::blank(dir, name, MEMBERS);
    pattern::image(&array.image, 1, USUAL_BYTES).unwrap();
    array
}

/// An image of the usual size, to copy ranges from.
fn source(dir: &Path, seed: u64) -> PathBuf {
    let path = dir.join(format!("source-{seed}"));
    pattern::image(&path, seed, USUAL_BYTES).unwrap();
    path
}

#[test]
fn what_md_failed_is_missing_here_and_what_ours_adds_is_whole_there() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let patches = shape.patches(USUAL_BYTES);
    let array = theirs(dir.path(), "theirs");
    let source = source(dir.path(), 2);
    let mut disks = Disks::default();
    let (devices, image, patch) = (disks.all(&array.files), disks.one(&array.image), disks.one(&source));
    let script = format!(
        "md; {create}; put {image} /dev/md0 0 {USUAL_BYTES}
         mdadm /dev/md0 --fail {failed}
         {puts} slots md0 {MEMBERS}; facts md0; mdadm -S /dev/md0",
        create = shape.mdadm_create("md0", &devices),
        failed = device(&devices, 1),
        puts = puts(&patch, "/dev/md0", &patches),
    );
    let reports = under_the_kernel(&script, &disks);
    reports.expect("md0.degraded", 1);
    reports.expect("md0.sectors", USUAL_BYTES / 512);
    pattern::overlay(&array.image, 2, &patches).unwrap();

    let running = array.spec.run(&["--readonly"]);
    let detail = running.detail();
    assert_eq!(detail.degraded(), 1, "{detail:?}");
    assert_eq!(detail.slots(), ["active sync", "removed", "active sync", "active sync"]);
    array.reads_right(&running);
    running.stop();
    let mut members = array.spec.members().to_vec();
    members.remove(1);
    let running = array.spec.with_members(members).run(&[]);
    assert!(running.detail().is_idle());
    array.write(&running, 3, &patches[..12]);
    running.add(&array.spec.members()[1]);
    array.write(&running, 4, &patches[12..]);
    assert_eq!(running.wait_in_sync().last_sync_action(), Some("recover"));
    array.reads_right(&running);
    running.stop();
    md_finds_it_whole(&array, &shape);
}

/// md assembles the array, has no sync to do, finds parity right and reads what it must.
fn md_finds_it_whole(array: &Array, shape: &Shape) {
    let mut disks = Disks::default();
    let devices = disks.all(&array.files);
    let script = format!("md; assemble md0 {devices}; facts md0; check md0; sum read /dev/md0; mdadm -S /dev/md0");
    let reports = under_the_kernel(&script, &disks);
    shape.is_seen(&reports, "md0");
    reports.expect("md0.last_sync_action", "idle");
    reports.expect("md0.mismatch_cnt", 0);
    reports.expect("read", array.sha256());
}

#[test]
fn a_rebuild_that_ours_began_is_ended_there() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let (array, running) = Array::ours(dir.path(), "ours", &shape);
    running.stop();
    let running = array.spec.run(&["--set", "sync_speed_max=1000"]);
    running.fail(&array.spec.members()[3]);
    running.remove(&array.spec.members()[3]);
    array.write(&running, 2, &shape.patches(USUAL_BYTES));
    running.add(&array.spec.members()[3]);
    running.wait_until("a rebuild under way", |d| d.sync_action() == "recover" && d.sync_done_sectors() > 0);
    array.write(&running, 3, &shape.patches(USUAL_BYTES)[..12]);
    running.stop();

    let mut disks = Disks::default();
    let devices = disks.all(&array.files);
    let script =
        format!("md; assemble md0 {devices}; whole md0; facts md0; check md0; sum read /dev/md0; mdadm -S /dev/md0");
    let reports = under_the_kernel(&script, &disks);
    shape.is_seen(&reports, "md0");
    reports.expect("md0.last_sync_action", "recover");
    reports.expect("md0.mismatch_cnt", 0);
    reports.expect("read", array.sha256());
    ours_finds_it_whole(&array);
}

#[test]
fn a_rebuild_that_md_began_is_ended_here() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let array = theirs(dir.path(), "theirs");
    let source = source(dir.path(), 2);
    let patches = shape.patches(USUAL_BYTES);
    let mut disks = Disks::default();
    let (devices, image, patch) = (disks.all(&array.files), disks.one(&array.image), disks.one(&source));
    let script = format!(
        "md; {create}; put {image} /dev/md0 0 {USUAL_BYTES}
         mdadm /dev/md0 --fail {failed}; mdadm /dev/md0 --remove {failed}
         {puts} slow md0; mdadm /dev/md0 --add {failed}; syncing md0; mdadm -S /dev/md0; mdadm -E {failed}",
        create = shape.mdadm_create("md0", &devices),
        failed = device(&devices, 1),
        puts = puts(&patch, "/dev/md0", &patches),
    );
    let reports = under_the_kernel(&script, &disks);
    assert!(reports.output().contains("Recovery Offset"), "{}", reports.output());
    pattern::overlay(&array.image, 2, &patches).unwrap();

    let running = array.spec.run(&[]);
    array.write(&running, 3, &patches[..12]);
    assert_eq!(running.wait_in_sync().last_sync_action(), Some("recover"));
    array.reads_right(&running);
    running.stop();
    md_finds_it_whole(&array, &shape);
}

#[test]
fn a_resync_that_ours_began_is_ended_there() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let array = Array::blank(dir.path(), "ours", MEMBERS);
    // Not zeroes: parity is wrong until it has been written.
    for (seed, file) in (10..).zip(&array.files) {
        pattern::image(file, seed, MEMBER_BYTES).unwrap();
    }
    shape.create(&array.spec);
    let running = array.spec.run(&["--set", "sync_speed_max=1000"]);
    pattern::image(&array.image, 1, USUAL_BYTES).unwrap();
    nbd::nbdcopy_out(running.socket(), &array.image).ok(nbd::TOOL_LIMIT);
    running.wait_until("a resync under way", |d| d.sync_action() == "resync" && d.sync_done_sectors() > 0);
    array.write(&running, 2, &shape.patches(USUAL_BYTES));
    running.stop();

    let mut disks = Disks::default();
    let devices = disks.all(&array.files);
    let script =
        format!("md; assemble md0 {devices}; idle md0; facts md0; check md0; sum read /dev/md0; mdadm -S /dev/md0");
    let reports = under_the_kernel(&script, &disks);
    shape.is_seen(&reports, "md0");
    reports.expect("md0.last_sync_action", "resync");
    reports.expect("md0.mismatch_cnt", 0);
    reports.expect("read", array.sha256());
    ours_finds_it_whole(&array);
}

#[test]
fn a_resync_that_md_began_is_ended_here() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let array = theirs(dir.path(), "theirs");
    for (seed, file) in (10..).zip(&array.files) {
        pattern::image(file, seed, MEMBER_BYTES).unwrap();
    }
    let mut disks = Disks::default();
    let (devices, image) = (disks.all(&array.files), disks.one(&array.image));
    // With --force mdadm makes all members active, and has parity written.
    let create = shape.mdadm_create("md0", &devices).replace("--run", "--run --force").replace("whole md0", "slow md0");
    let script = format!(
        "md; echo 1 > /proc/sys/dev/raid/speed_limit_min; echo 1000 > /proc/sys/dev/raid/speed_limit_max
         {create}; put {image} /dev/md0 0 {USUAL_BYTES}
         syncing md0; say action $(cat /sys/block/md0/md/sync_action); mdadm -S /dev/md0"
    );
    let reports = under_the_kernel(&script, &disks);
    reports.expect("action", "resync");

    let running = array.spec.run(&[]);
    array.reads_right(&running);
    array.write(&running, 3, &shape.patches(USUAL_BYTES));
    assert_eq!(running.wait_in_sync().last_sync_action(), Some("resync"));
    running.stop();
    md_finds_it_whole(&array, &shape);
}

#[test]
fn a_spare_that_md_added_takes_over_here() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let mut array = theirs(dir.path(), "theirs");
    let spare = dir.path().join("spare");
    pattern::image(&spare, 9, MEMBER_BYTES).unwrap();
    let mut disks = Disks::default();
    let (devices, image, extra) = (disks.all(&array.files), disks.one(&array.image), disks.one(&spare));
    let script = format!(
        "md; {create}; mdadm /dev/md0 --add {extra}; put {image} /dev/md0 0 {USUAL_BYTES}; mdadm -S /dev/md0",
        create = shape.mdadm_create("md0", &devices),
    );
    under_the_kernel(&script, &disks);

    let spec = Spec::local(array.files.iter().chain([&spare]));
    let running = spec.run(&[]);
    assert!(running.detail().is_idle());
    running.fail(&spec.members()[0]);
    array.write(&running, 2, &shape.patches(USUAL_BYTES));
    assert_eq!(running.wait_in_sync().last_sync_action(), Some("recover"));
    running.stop();
    array.files[0] = spare;
    md_finds_it_whole(&array, &shape);
}

#[test]
fn what_a_crash_of_ours_left_is_resynced_there() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let array = Array::blank(dir.path(), "ours", MEMBERS);
    shape.create(&array.spec);
    let running = array.spec.run(&[]);
    running.wait_in_sync();
    let mut model = Model::new(2000);
    crash::write_and_kill(running, &mut model);

    pattern::blank(&array.image, USUAL_BYTES).unwrap();
    let mut disks = Disks::default();
    let (devices, copy) = (disks.all(&array.files), disks.one(&array.image));
    let script = format!(
        "md; assemble md0 {devices}; idle md0; facts md0; check md0
         put /dev/md0 {copy} 0 {USUAL_BYTES}; mdadm -S /dev/md0"
    );
    let reports = under_the_kernel(&script, &disks);
    shape.is_seen(&reports, "md0");
    reports.expect("md0.last_sync_action", "resync");
    reports.expect("md0.mismatch_cnt", 0);
    model.check_image(&array.image);
    ours_finds_it_whole(&array);
}

#[test]
fn what_a_power_cut_of_md_left_is_resynced_here() {
    require!(kernel, "nbdcopy", "mdadm");
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape::USUAL;
    let array = theirs(dir.path(), "theirs");
    let source = source(dir.path(), 2);
    let patches: Vec<_> = shape.patches(USUAL_BYTES / 2);
    let mut disks = Disks::default();
    let (devices, image, patch) = (disks.all(&array.files), disks.one(&array.image), disks.one(&source));
    let half = USUAL_BYTES / 2;
    // The first half is written and flushed while the second is being written when the power goes.
    let script = format!(
        "md; {create}; put {image} /dev/md0 0 {USUAL_BYTES}
         fio --name=load --filename=/dev/md0 --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=32 \
             --offset={half} --size={half} --time_based --runtime=60 > /dev/null &
         {puts} say flushed yes
         say state $(cat /sys/block/md0/md/array_state)
         echo c > /proc/sysrq-trigger; sleep 60",
        create = shape.mdadm_create("md0", &devices),
        puts = puts(&patch, "/dev/md0", &patches),
    );
    let job = guest::script(&script);
    let reports = kernel::run(&Job::new(&job, disks.paths())).unwrap().reports_before_death();
    reports.expect("flushed", "yes");
    reports.expect("state", "active");
    pattern::overlay(&array.image, 2, &patches).unwrap();

    let running = array.spec.run(&[]);
    let copy = array.image.with_extension("read");
    let reads_right = || {
        nbd::nbdcopy_out(running.socket(), &copy).ok(nbd::TOOL_LIMIT);
        md::same_bytes(&array.image, &copy, half).unwrap();
    };
    reads_right();
    assert_eq!(running.wait_in_sync().last_sync_action(), Some("resync"));
    reads_right();
    running.stop();
    std::fs::rename(&copy, &array.image).unwrap();
    md_finds_it_whole(&array, &shape);
}
