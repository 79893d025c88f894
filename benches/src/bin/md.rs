//! The Linux kernel's md under the same load as `etherraid bench` puts on an array, in a kernel that runs as a process (see `etherraid_tests::kernel`):
//! RAID5 over ram disks, fio beside it, on whatever CPUs this process may use.
//!
//! `md MODE SIZES` prints CSV: mode, bs, group_thread_cnt, qd, mb_per_s, iops. The environment says more: `MEMBERS` (5),
//! `MEMBER_MIB` (256), `CHUNK_KIB` (64), `QD` (128, over two jobs), `RUNTIME` (2 seconds a size), `COUNTS` (0: values of group_thread_cnt),
//! `STRIPE_CACHE` (256). One boot measures all of them.

use std::time::Duration;

use anyhow::ensure;
use etherraid_benches::fio::{self, Load, number};
use etherraid_tests::kernel::guest;
use etherraid_tests::kernel::{Job, run};

/// What one boot may take beside the measuring.
const BOOT: Duration = Duration::from_secs(60);

/// Memory of the kernel beside the ram disks and fio's buffers, in MiB.
const KERNEL_MIB: u32 = 512;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, sizes] = &arguments[..] else { anyhow::bail!("usage: md MODE SIZES, such as md randwrite 4k,64k,1m") };
    ensure!(fio::is_mode(mode), "MODE is as for `etherraid bench`");
    let sizes: Vec<&str> = sizes.split(',').collect();
    let rig = Rig::from_environment()?;
    let script = guest::script(&rig.script(mode, &sizes));
    let runs = (sizes.len() * rig.counts.len()) as u32;
    let limit = BOOT + (fio::START + Duration::from_secs(rig.runtime)) * runs;
    let buffers_mib = rig.depth;
    let memory_mib = KERNEL_MIB + rig.members * rig.member_mib + buffers_mib;
    let reports = run(&Job { limit, memory_mib, ..Job::new(&script, &[]) })?.reports();
    println!("{}", fio::COLUMNS);
    for size in &sizes {
        for count in &rig.counts {
            println!("{}", fio::row(&reports, &format!("fio.{size}.{count}"), mode, size, count, rig.depth)?);
        }
    }
    Ok(())
}

/// What is measured.
struct Rig {
    members: u32,
    member_mib: u32,
    chunk_kib: u32,
    depth: u32,
    runtime: u64,
    counts: Vec<String>,
    stripe_cache: u32,
}

impl Rig {
    fn from_environment() -> anyhow::Result<Rig> {
        let counts = std::env::var("COUNTS").unwrap_or_else(|_| "0".into());
        Ok(Rig {
            members: number("MEMBERS", 5)?,
            member_mib: number("MEMBER_MIB", 256)?,
            chunk_kib: number("CHUNK_KIB", 64)?,
            depth: number("QD", 128)?,
            runtime: number("RUNTIME", 2)?.into(),
            counts: counts.split(',').map(str::to_owned).collect(),
            stripe_cache: number("STRIPE_CACHE", 256)?,
        })
    }

    /// Makes the array and loads it with each size under each count.
    fn script(&self, mode: &str, sizes: &[&str]) -> String {
        let Rig { members, member_mib, chunk_kib, depth, runtime, stripe_cache, .. } = self;
        let jobs = 2.min(*depth);
        let each = depth / jobs;
        let mut text = format!(
            "md\nmodprobe brd rd_nr={members} rd_size={}\n\
             disks=$(seq -f /dev/ram%g 0 {})\n\
             for disk in $disks; do dd if=/dev/zero of=$disk bs=1M status=none 2>/dev/null || true; done\n\
             mdadm -C /dev/md0 -R -q -l 5 -n {members} -c {chunk_kib} -b none --assume-clean $disks\n\
             echo {stripe_cache} > /sys/block/md0/md/stripe_cache_size\n",
            member_mib * 1024,
            members - 1,
        );
        for size in sizes {
            for count in &self.counts {
                text += &format!("echo {count} > /sys/block/md0/md/group_thread_cnt\n");
                let load = Load { device: "/dev/md0", mode, size, jobs, depth: each, runtime: *runtime };
                text += &load.script(&format!("fio.{size}.{count}"));
            }
        }
        text
    }
}
