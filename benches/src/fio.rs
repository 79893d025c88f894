//! fio under the other kernel, and its figures as rows of CSV; and numbers from the environment.

use anyhow::Context;
use etherraid_tests::kernel::guest::Reports;
use std::time::Duration;

/// What a run may take beside the measuring: fio starts and ends.
pub const START: Duration = Duration::from_secs(10);

/// The columns of [`row`].
pub const COLUMNS: &str = "mode,bs,group_thread_cnt,qd,mb_per_s,iops";

/// A load on a block device.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// The device.
    pub device: &'a str,
    /// As for `etherraid bench`.
    pub mode: &'a str,
    /// Request size, such as 4k.
    pub size: &'a str,
    /// Jobs, and requests that each keeps outstanding.
    pub jobs: u32,
    /// Of each job.
    pub depth: u32,
    /// Measured time in seconds.
    pub runtime: u64,
}

impl Load<'_> {
    /// Script lines that put the load on the device, and report its figures under `key`.
    pub fn script(&self, key: &str) -> String {
        let Load { device, mode, size, jobs, depth, runtime } = self;
        format!(
            "fio --name=load --filename={device} --ioengine=libaio --direct=1 --rw={mode} --bs={size} --iodepth={depth} --numjobs={jobs} \
             --norandommap --group_reporting --time_based --runtime={runtime} --ramp_time=0.5 --output-format=terse --terse-version=3 \
             --output=/run/fio || {{ cat /run/fio; exit 1; }}\n\
             say {key} $(cat /run/fio)\n"
        )
    }
}

/// Whether `etherraid bench` has such a mode.
pub fn is_mode(mode: &str) -> bool {
    ["randwrite", "randread", "write", "read"].contains(&mode)
}

/// The row of what was reported under `key`: fio's terse output has bandwidth in KiB/s and IOPS at fields 7 and 8 for reads, 48 and 49 for writes.
pub fn row(reports: &Reports, key: &str, mode: &str, size: &str, count: &str, qd: u32) -> anyhow::Result<String> {
    let fields: Vec<&str> = reports.get(key).split(';').collect();
    let at = if mode.ends_with("read") { 6 } else { 47 };
    let field =
        |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).context("fio's output is cut short");
    let (rate, iops) = (field(at)? * 1024.0 / 1e6, field(at + 1)?);
    Ok(format!("{mode},{},{count},{qd},{rate:.1},{iops:.0}", bytes(size)?))
}

fn bytes(size: &str) -> anyhow::Result<u64> {
    let split = size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len());
    let (digits, unit) = size.split_at(split);
    let shift = ["", "k", "m", "g"].iter().position(|known| *known == unit).context("sizes are such as 4k or 1m")?;
    Ok(digits.parse::<u64>().context("sizes are such as 4k or 1m")? << (10 * shift))
}

/// A number from the environment.
pub fn number(name: &str, default: u32) -> anyhow::Result<u32> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}
