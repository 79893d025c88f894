//! The Linux kernel's aoe driver under the same load as `etherraid bench --device` puts on a device, in a kernel that runs as a process (see
//! `etherraid_tests::kernel`), against an `etherraid shelf` of devices that store nothing; or the kernel's md over five of them.
//!
//! `aoe MODE SIZES` prints CSV: mode, bs, group_thread_cnt (0 for md, else empty), qd, mb_per_s, iops. The environment says more: `DEVICES` (1; more are made
//! into a RAID5), `QD` (64), `RUNTIME` (2 seconds a size), `CHUNK_KIB` (64), `STRIPE_CACHE` (256), `MAXOUT` (8: the driver's `aoe_maxout`), `SHELF_CPU` (1: where the shelf is; the kernel is
//! where this process may be), `ETHERRAID_BIN` (the binary that is the shelf). One boot measures all sizes.

use std::time::Duration;

use anyhow::ensure;
use etherraid_benches::fio::{self, Load, number};
use etherraid_tests::binary;
use etherraid_tests::kernel::guest;
use etherraid_tests::kernel::{Job, run};
use etherraid_tests::netns::NetNs;
use etherraid_tests::proc::{Cmd, Proc};

/// What one boot may take beside the measuring.
const BOOT: Duration = Duration::from_secs(60);

/// The shelf starts.
const SHELF_START: Duration = Duration::from_secs(15);

/// Interfaces of the kernel and of the shelf, and their MTU.
const HOST: &str = "host";
const DISKS: &str = "disks";
const MTU: u32 = 9000;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, sizes] = &arguments[..] else { anyhow::bail!("usage: aoe MODE SIZES, such as aoe read 4k,64k") };
    ensure!(fio::is_mode(mode), "MODE is as for `etherraid bench`");
    let sizes: Vec<&str> = sizes.split(',').collect();
    let (devices, depth) = (number("DEVICES", 1)?, number("QD", 64)?);
    ensure!(devices == 1 || (3..=16).contains(&devices), "DEVICES is 1, or 3 to 16 for a RAID5");
    let runtime = number("RUNTIME", 2)?.into();
    let netns = NetNs::new();
    netns.veth(HOST, DISKS, MTU);
    let shelf = shelf(&netns, devices)?;
    let script = guest::script(&script(mode, &sizes, devices, depth, runtime)?);
    let limit = BOOT + (fio::START + Duration::from_secs(runtime)) * sizes.len() as u32;
    let job = Job::new(&script, &[]).on(&netns, HOST, MTU);
    let done = run(&Job { limit, ..job });
    drop(shelf);
    let reports = done?.reports();
    println!("{}", fio::COLUMNS);
    let count = if devices > 1 { "0" } else { "" };
    for size in &sizes {
        println!("{}", fio::row(&reports, &format!("fio.{size}"), mode, size, count, depth)?);
    }
    Ok(())
}

/// A shelf of devices that store nothing, 1 GiB each.
fn shelf(netns: &NetNs, devices: u32) -> anyhow::Result<Proc> {
    let mut cmd = Cmd::new("taskset").args(["-c", &number("SHELF_CPU", 1)?.to_string()]).netns(netns);
    cmd = cmd.arg(binary::path()).args(["shelf", "-i", DISKS]);
    for slot in 0..devices {
        cmd = cmd.args(["-d", &format!("9.{slot}=null:1G")]);
    }
    let shelf = cmd.spawn();
    for slot in 0..devices {
        shelf.wait_for_line(&format!("ready: e9.{slot} "), SHELF_START);
    }
    Ok(shelf)
}

/// Finds the devices, makes an array of several, and puts each size's load on what there is.
fn script(mode: &str, sizes: &[&str], devices: u32, depth: u32, runtime: u64) -> anyhow::Result<String> {
    let names: Vec<String> = (0..devices).map(|slot| format!("e9.{slot}")).collect();
    let mut text = format!("MAXOUT={}\naoe {}\n", number("MAXOUT", 8)?, names.join(" "));
    let mut device = format!("/dev/etherd/{}", names[0]);
    let mut jobs = 1;
    if devices > 1 {
        let members: String = names.iter().map(|name| format!(" /dev/etherd/{name}")).collect();
        text += &format!(
            "md\nmdadm -C /dev/md0 -R -q -l 5 -n {devices} -c {} -b none --assume-clean{members}\n\
             echo {} > /sys/block/md0/md/stripe_cache_size\n",
            number("CHUNK_KIB", 64)?,
            number("STRIPE_CACHE", 256)?,
        );
        device = "/dev/md0".into();
        jobs = 2.min(depth);
    }
    for size in sizes {
        let load = Load { device: &device, mode, size, jobs, depth: depth / jobs, runtime };
        text += &load.script(&format!("fio.{size}"));
    }
    Ok(text)
}
