//! The Linux kernel's aoe driver, and the tools that come with it, against our shelf; and the kernel's md on top of that.

use etherraid_tests::array::Spec;
use etherraid_tests::fault::Faults;
use etherraid_tests::kernel::guest::{self, Disks, Reports, puts};
use etherraid_tests::kernel::{self, Job};
use etherraid_tests::nbd::{self, Client};
use etherraid_tests::netns::NetNs;
use etherraid_tests::proc::{Cmd, Finished};
use etherraid_tests::rig::{self, DISKS, HOST, SHELF};
use etherraid_tests::shelf::Shelf;
use etherraid_tests::{md, pattern, require, wait};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit for a tool that asks one question.
const TOOL_LIMIT: Duration = Duration::from_secs(20);
/// Bounds the wait for the kernel to get to its load.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// A namespace with a cable between the kernel and the shelves.
fn cable(mtu: u32) -> NetNs {
    let netns = NetNs::new();
    netns.veth(HOST, DISKS, mtu);
    netns
}

fn under_the_kernel(body: &str, disks: &Disks<'_>, netns: &NetNs, mtu: u32) -> Reports {
    kernel::run(&Job::new(&guest::script(body), disks.paths()).on(netns, HOST, mtu)).unwrap().reports()
}

/// A file system and plain reads and writes on e9.0, at this MTU of both ends; `payload` is what fits a frame.
fn reads_and_writes(mtu: u32, payload: u32) {
    require!(kernel, netns, "e2fsck");
    const BYTES: u64 = 192 << 20;
    const IMAGE_BYTES: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), 2, BYTES);
    let netns = cable(mtu);
    let shelf = Shelf::start(&netns, DISKS, SHELF, &files, None);
    let image = dir.path().join("image");
    pattern::image(&image, 1, IMAGE_BYTES).unwrap();
    let mut disks = Disks::default();
    let source = disks.one(&image);
    let script = format!(
        "aoe e9.0 e9.1
         say payload $(cat '/sys/block/etherd!e9.0/payload'); say sectors $(cat '/sys/block/etherd!e9.0/size')
         say stat $(aoe-stat | grep 'e9[.]1')
         put {source} /dev/etherd/e9.1 0 {len}; sum image /dev/etherd/e9.1
         load /dev/etherd/e9.0 --bsrange=512-64k --bs_unaligned=0 --blockalign=512 --size=4m
         load /dev/etherd/e9.0 --bs=1m --size=32m
         tree /dev/etherd/e9.0; sum tree /dev/etherd/e9.0",
        len = IMAGE_BYTES,
    );
    let reports = under_the_kernel(&script, &disks, &netns, mtu);
    reports.expect("payload", payload);
    reports.expect("sectors", BYTES / 512);
    reports.expect("stat", format!("e9.1 0.201GB vec0 {payload} up"));
    assert!(reports.get("files").parse::<u32>().unwrap() > 1000, "{}", reports.output());
    assert_eq!(shelf.stop().code(), Some(0));

    // What the kernel read is what lies in the files.
    reports.expect("image", pattern::sha256(&files[1]).unwrap());
    reports.expect("tree", pattern::sha256(&files[0]).unwrap());
    md::same_bytes(&files[1], &image, IMAGE_BYTES).unwrap();
    Cmd::new("e2fsck").arg("-fn").arg(&files[0]).ok(TOOL_LIMIT);
}

#[test]
fn the_kernel_reads_and_writes_at_mtu_1500() {
    reads_and_writes(1500, 1024);
}

#[test]
fn the_kernel_reads_and_writes_at_mtu_9000() {
    reads_and_writes(9000, 8704);
}

#[test]
fn the_kernel_gets_along_with_frames_lost_and_doubled() {
    require!(kernel, netns);
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), 1, 32 << 20);
    let netns = cable(9000);
    // No frame is overtaken: the kernel's driver sends a request again under another tag, and nothing can order the two then.
    let faults = Faults { reorder: 0.0, ..Faults::for_our_shelf(3) };
    let shelf = Shelf::start(&netns, DISKS, SHELF, &files, Some(faults));
    let script = "aoe e9.0; load /dev/etherd/e9.0 --bsrange=4k-64k; sum disk /dev/etherd/e9.0";
    let reports = under_the_kernel(script, &Disks::default(), &netns, 9000);
    assert_eq!(shelf.stop().code(), Some(0));
    reports.expect("disk", pattern::sha256(&files[0]).unwrap());
}

#[test]
fn the_kernel_goes_on_when_the_shelf_was_started_anew() {
    require!(kernel, netns);
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), 1, 64 << 20);
    let netns = cable(9000);
    let shelf = Shelf::start(&netns, DISKS, SHELF, &files, None);
    let script = guest::script("aoe e9.0; load /dev/etherd/e9.0 --bs=16k; sum disk /dev/etherd/e9.0");
    let job = Job::new(&script, &[]).on(&netns, HOST, 9000);
    let reports = std::thread::scope(|scope| {
        let job = scope.spawn(|| kernel::run(&job).unwrap().reports());
        wait::until("the load reaches the shelf", LOAD_LIMIT, || {
            let count = netns.sh(&format!("awk '$1 == \"{DISKS}:\" {{ print $2 }}' /proc/net/dev"));
            (count.trim().parse::<u64>().unwrap() > 4 << 20).then_some(())
        });
        shelf.kill();
        let shelf = Shelf::start(&netns, DISKS, SHELF, &files, None);
        let reports = job.join().unwrap();
        assert_eq!(shelf.stop().code(), Some(0));
        reports
    });
    reports.expect("disk", pattern::sha256(&files[0]).unwrap());
}

fn tool(netns: &NetNs, command: &str) -> Finished {
    let mut words = command.split_whitespace();
    Cmd::new(words.next().unwrap()).args(words).netns(netns).finish(TOOL_LIMIT)
}

#[test]
fn aoeping_finds_the_shelf() {
    require!(netns, "aoeping");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), 1, 1 << 20);
    let netns = cable(1500);
    let _shelf = Shelf::start(&netns, DISKS, SHELF, &files, None);
    tool(&netns, &format!("aoeping -s 5 9 0 {HOST}")).ok();
    let text = tool(&netns, &format!("aoeping -v -s 5 9 0 {HOST}")).ok();
    let mac = netns.mac(DISKS).replace(':', "");
    assert!(text.contains(&format!("found e9.0 with mac {mac}")), "{text}");
    let text = tool(&netns, &format!("aoeping -I -s 5 9 0 {HOST}")).ok();
    let model = text.lines().find_map(|line| line.strip_prefix("model:"));
    assert_eq!(model.map(str::trim), Some("etherraid shelf"), "{text}");
    let text = tool(&netns, &format!("aoeping -i -s 5 9 0 {HOST}")).ok();
    let bytes: Vec<u8> = text.split_whitespace().filter_map(|word| u8::from_str_radix(word, 16).ok()).collect();
    // Words 60 and 61: sectors that 28 bits can name.
    assert_eq!(bytes[120..124], 2048u32.to_le_bytes(), "{text}");
    assert!(!tool(&netns, &format!("aoeping -s 1 9 1 {HOST}")).status.success(), "there is no e9.1");
}

#[test]
fn aoecfg_sets_and_tests_the_config_string() {
    require!(netns, "aoecfg");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), 2, 1 << 20);
    let state = dir.path().join("state");
    let netns = cable(1500);
    let start = || Shelf::start_with(&netns, DISKS, SHELF, &files, [Path::new("--state"), &state]);
    let cfg = |options: &str| tool(&netns, &format!("aoecfg -t 1 {options} 9 0 {HOST}"));
    let says = |options: &str| cfg(options).ok().trim().to_owned();
    let shelf = start();
    assert_eq!(says("-c read"), "");
    assert_eq!(says("-c set -s first"), "first");
    assert_eq!(says("-c read"), "first");
    assert_eq!(says("-c test -s first"), "first");
    assert_eq!(says("-c prefix -s fir"), "first");
    for silent in ["-c test -s fir", "-c prefix -s sec"] {
        assert_eq!(cfg(silent).stdout.trim(), "", "{silent}");
    }
    // Set only where there is none.
    assert_eq!(says("-c set -s second"), "*badcfg*");
    assert_eq!(says("-c read"), "first");
    assert_eq!(says("-c fset -s second"), "second");
    assert_eq!(shelf.stop().code(), Some(0));

    let _shelf = start();
    assert_eq!(says("-c read"), "second", "it is kept");
    assert_eq!(tool(&netns, &format!("aoecfg -t 1 -c read 9 1 {HOST}")).ok().trim(), "", "the other device has none");
}

/// The array of the kernel's md over its aoe driver: five shelves, each a process of its own.
struct Stack {
    dir: tempfile::TempDir,
    files: Vec<PathBuf>,
    netns: NetNs,
}

impl Stack {
    const MEMBERS: usize = 5;
    const MTU: u32 = 9000;
    const MEMBER_BYTES: u64 = 24 << 20;
    /// Four members of data, less the MiB before it that mdadm keeps.
    const BYTES: u64 = 4 * (23 << 20);

    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = rig::blank_files(dir.path(), Self::MEMBERS, Self::MEMBER_BYTES);
        Self { dir, files, netns: cable(Self::MTU) }
    }

    fn start(&self) -> Vec<Shelf> {
        let shelves = (1..).zip(self.files.chunks(1));
        shelves.map(|(shelf, files)| Shelf::start(&self.netns, DISKS, shelf, files, None)).collect()
    }

    fn under_the_kernel(&self, body: &str, disks: &Disks<'_>) -> Reports {
        let script = format!("md; aoe e1.0 e2.0 e3.0 e4.0 e5.0; disks=$(echo /dev/etherd/e[1-5].0)\n{body}");
        under_the_kernel(&script, disks, &self.netns, Self::MTU)
    }
}

#[test]
fn md_over_the_kernels_aoe_and_ours_take_turns_on_the_same_shelves() {
    require!(kernel, netns, "nbdcopy", "mdadm");
    let stack = Stack::new();
    let shelves = stack.start();
    let [image, patch] = ["image", "patch"].map(|name| stack.dir.path().join(name));
    pattern::image(&image, 1, Stack::BYTES).unwrap();
    pattern::image(&patch, 2, Stack::BYTES).unwrap();
    let ranges =
        [(0, 512), (65_024, 1024), (1 << 20, 4 << 20), ((40 << 20) + 512, 3 << 20), (Stack::BYTES - 4096, 4096)];
    let mut disks = Disks::default();
    let (source, other) = (disks.one(&image), disks.one(&patch));
    let script = format!(
        "mdadm -C /dev/md0 --run -l 5 -n 5 -c 64 $disks; whole md0; facts md0
         put {source} /dev/md0 0 {bytes}; {puts} check md0; sum made /dev/md0; mdadm -S /dev/md0",
        bytes = Stack::BYTES,
        puts = puts(&other, "/dev/md0", &ranges),
    );
    let reports = stack.under_the_kernel(&script, &disks);
    reports.expect("md0.sectors", Stack::BYTES / 512);
    reports.expect("md0.mismatch_cnt", 0);
    pattern::overlay(&image, 2, &ranges).unwrap();
    reports.expect("made", pattern::sha256(&image).unwrap());

    let members: Vec<&str> = shelves.iter().flat_map(|shelf| shelf.members()).map(String::as_str).collect();
    let spec = Spec::aoe(&stack.netns, HOST, members);
    let running = spec.run(&[]);
    let detail = running.detail();
    assert!(detail.is_idle() && detail.degraded() == 0, "{detail:?}");
    let read = stack.dir.path().join("read");
    nbd::nbdcopy_out(running.socket(), &read).ok(nbd::TOOL_LIMIT);
    md::same_bytes(&image, &read, Stack::BYTES).unwrap();
    let mut client = Client::connect(running.socket()).unwrap();
    assert_eq!(client.size(), Stack::BYTES);
    let ours: Vec<(u64, u64)> = ranges.iter().map(|(at, len)| (at / 3 / 4096 * 4096, *len)).collect();
    for &(offset, len) in &ours {
        client.write(offset, &pattern::bytes(3, offset, usize::try_from(len).unwrap()), false).unwrap();
    }
    client.flush().unwrap();
    client.disconnect().unwrap();
    running.stop();
    pattern::overlay(&image, 3, &ours).unwrap();

    let script = "assemble md0 $disks; facts md0; check md0; sum read /dev/md0; mdadm -S /dev/md0";
    let reports = stack.under_the_kernel(script, &Disks::default());
    reports.expect("md0.degraded", 0);
    reports.expect("md0.last_sync_action", "idle");
    reports.expect("md0.mismatch_cnt", 0);
    reports.expect("read", pattern::sha256(&image).unwrap());
    for shelf in shelves {
        assert_eq!(shelf.stop().code(), Some(0));
    }
}
