//! The Linux kernel's md under the same load as `etherraid bench` puts on an array, in a kernel that runs as a process (see `etherraid_tests::kernel`):
//! RAID5 over ram disks, fio beside it, on whatever CPUs this process may use.
//!
//! `md MODE SIZES` prints CSV: mode, bs, group_thread_cnt, qd, mb_per_s, iops. The environment says more: `MEMBERS` (5),
//! `MEMBER_MIB` (256), `CHUNK_KIB` (64), `QD` (128, over two jobs), `RUNTIME` (2 seconds a size), `COUNTS` (0: values of group_thread_cnt),
//! `STRIPE_CACHE` (256). One boot measures all of them.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, ensure};
use etherraid_tests::kernel::guest::{self, Reports};
use etherraid_tests::kernel::{Job, run};

/// What one boot may take beside the measuring.
const BOOT: Duration = Duration::from_secs(60);

/// What a size may take beside the measuring: fio starts and ends.
const FIO: Duration = Duration::from_secs(10);

/// Memory of the kernel beside the ram disks and fio's buffers, in MiB.
const KERNEL_MIB: u32 = 512;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, sizes] = &arguments[..] else { anyhow::bail!("usage: md MODE SIZES, such as md randwrite 4k,64k,1m") };
    ensure!(["randwrite", "randread", "write", "read"].contains(&mode.as_str()), "MODE is as for `etherraid bench`");
    let sizes: Vec<&str> = sizes.split(',').collect();
    let rig = Rig::from_environment()?;
    let script = guest::script(&rig.script(mode, &sizes));
    let runs = (sizes.len() * rig.counts.len()) as u32;
    let limit = BOOT + (FIO + Duration::from_secs(rig.runtime)) * runs;
    let buffers_mib = rig.depth;
    let memory_mib = KERNEL_MIB + rig.members * rig.member_mib + buffers_mib;
    let reports = run(&Job { limit, memory_mib, ..Job::new(&script, &[]) })?.reports();
    println!("mode,bs,group_thread_cnt,qd,mb_per_s,iops");
    for size in &sizes {
        for count in &rig.counts {
            println!("{}", line(&reports, mode, size, count, rig.depth)?);
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
                let _ = writeln!(
                    text,
                    "echo {count} > /sys/block/md0/md/group_thread_cnt\n\
                     fio --name=load --filename=/dev/md0 --ioengine=libaio --direct=1 --rw={mode} --bs={size} --iodepth={each} \
                     --numjobs={jobs} --norandommap --group_reporting --time_based --runtime={runtime} --ramp_time=0.5 --output-format=terse \
                     --terse-version=3 --output=/run/fio || {{ cat /run/fio; exit 1; }}\n\
                     say fio.{size}.{count} $(cat /run/fio)"
                );
            }
        }
        text
    }
}

/// One row: fio's terse output has bandwidth in KiB/s and IOPS at fields 7 and 8 for reads, 48 and 49 for writes.
fn line(reports: &Reports, mode: &str, size: &str, count: &str, depth: u32) -> anyhow::Result<String> {
    let fields: Vec<&str> = reports.get(&format!("fio.{size}.{count}")).split(';').collect();
    let at = if mode.ends_with("read") { 6 } else { 47 };
    let field =
        |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).context("fio's output is cut short");
    let (rate, iops) = (field(at)? * 1024.0 / 1e6, field(at + 1)?);
    Ok(format!("{mode},{},{count},{depth},{rate:.1},{iops:.0}", bytes(size)?))
}

fn bytes(size: &str) -> anyhow::Result<u64> {
    let split = size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len());
    let (digits, unit) = size.split_at(split);
    let shift = ["", "k", "m", "g"].iter().position(|known| *known == unit).context("sizes are such as 4k or 1m")?;
    Ok(digits.parse::<u64>().context("sizes are such as 4k or 1m")? << (10 * shift))
}

fn number(name: &str, default: u32) -> anyhow::Result<u32> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}
