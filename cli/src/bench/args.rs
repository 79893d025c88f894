//! The command line of `bench`: its options, and the small languages of their values.
//!
//! A list of sizes may leave out what doubling gives (`4k,8k,..,1m`); `mem:256M*5` stands for five members. Everything is checked here,
//! before a device is opened.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, ValueEnum};
use raid_core::units::{MEMBERS_MAX, SECTOR_SIZE, Sectors};
use raid_engine::member::spec::{MemberSpec, parse_size};
use raid_engine::runtime::bufs::{BUF_BYTES_MAX, BYTES_MAX};
use raid_export::nbd::uri::Uri;

use crate::groups::CpuList;
use crate::interfaces::InterfaceArgs;
use crate::usage::usage;

/// Most requests that a load thread keeps outstanding.
const QD_MAX: u16 = 1024;

/// Longest time of measurement for one row, in seconds.
const RUNTIME_MAX: f64 = 3600.0;

/// Measure a new array, a running one, or one AoE device, under load
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("target").required(true).multiple(false).args(["members", "member", "device", "nbd"]))]
#[command(after_help = "Examples:
  etherraid bench randwrite --members 'mem:64M*5' --bs 4k --group-thread-cnt 0,1    # the engine alone
  etherraid bench randwrite --members 'mem:64M*5' --bs 4k,64k --runtime 1 --limit --plot bench.svg   # beside a bare loop, drawn
  etherraid bench read -i eth1 --device e9.0 --bs 64k --json                        # one AoE device, without RAID
  etherraid bench read -i eth1 --device e9.0 --bs 4k,64k --runtime 1 --limit        # beside a plain loop over the same interface
  etherraid bench randwrite -i eth1 e9.0 e9.1 e9.2 --bs 4k                          # an array of AoE devices

Members are made into a new array: WHAT THEY HELD IS LOST. Those that do not look empty are refused without \
                        --overwrite. Columns of the table and fields of the JSON: see docs/PERFORMANCE.md.")]
pub(crate) struct Args {
    /// What the load does
    #[arg(value_enum)]
    pub(crate) mode: Mode,
    /// Members of the array: e<shelf>.<slot>, files, block devices, mem:SIZE
    #[arg(value_name = "MEMBER")]
    pub(crate) member: Vec<String>,
    /// The same in one option; mem:256M*5 are five memory members
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) members: Vec<String>,
    /// One AoE device instead of an array, without RAID
    #[arg(long, value_name = "e<shelf>.<slot>")]
    pub(crate) device: Option<MemberSpec>,
    /// A running array, through its NBD server: nbd+unix:///?socket=PATH or nbd://HOST:PORT/NAME
    #[arg(long, value_name = "URI")]
    pub(crate) nbd: Option<Uri>,
    /// How to reach the shelves.
    #[command(flatten)]
    pub(crate) interfaces: InterfaceArgs,
    /// RAID level
    #[arg(short = 'l', long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(5..=5))]
    pub(crate) level: u8,
    /// Chunk
    #[arg(short = 'c', long, default_value = "64K", value_parser = sectors)]
    pub(crate) chunk: Sectors,
    /// Request sizes; '..' fills in by doubling
    #[arg(long, default_value = "4k,8k,..,1m", value_parser = sizes)]
    pub(crate) bs: Sizes,
    /// Workers per CPU; 0 is one thread for all stripes
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',')]
    pub(crate) group_thread_cnt: Vec<usize>,
    /// Requests that each load thread keeps outstanding
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=i64::from(QD_MAX)))]
    pub(crate) qd: u16,
    /// Seconds of measurement for each row
    #[arg(long, default_value = "3", value_parser = runtime)]
    pub(crate) runtime: Duration,
    /// CPUs that load, workers and control share, a load thread on each; all allowed ones unless given
    #[arg(long, value_name = "CPU,..")]
    pub(crate) cpus: Option<CpuList>,
    /// Sets a tunable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Use members, or write to a device or a running array, although they do not look empty
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Measure beside each row a loop that is the limit: of memory members one that does only the memory work of the same requests, of --device one
    /// that only sends and receives frames
    #[arg(long, conflicts_with = "nbd")]
    pub(crate) limit: bool,
    /// Show what has changed since an earlier run whose JSON is in this file
    #[arg(long, value_name = "FILE.json")]
    pub(crate) against: Option<PathBuf>,
    /// Draw rates and latencies into this file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Print a JSON list of rows
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print comma-separated values
    #[arg(long)]
    pub(crate) csv: bool,
}

/// What the load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Writes at random places
    Randwrite,
    /// Reads at random places
    Randread,
    /// Writes one after the other
    Write,
    /// Reads one after the other
    Read,
}

impl Mode {
    /// As on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mode::Randwrite => "randwrite",
            Mode::Randread => "randread",
            Mode::Write => "write",
            Mode::Read => "read",
        }
    }

    /// Whether it writes.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Mode::Randwrite | Mode::Write)
    }

    /// Whether its places are random.
    pub(crate) fn random(self) -> bool {
        matches!(self, Mode::Randwrite | Mode::Randread)
    }
}

/// Request sizes, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<Sectors>);

impl Args {
    /// A short bench of random writes to memory members.
    pub(crate) fn small() -> anyhow::Result<Args> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = "bench randwrite --members mem:32M*5 --bs 4k,64k,1m --runtime 0.3";
        Ok(<Line as clap::Parser>::try_parse_from(line.split(' '))?.args)
    }

    /// Requests that a load thread keeps outstanding, if each takes so much of the load's memory.
    pub(super) fn depth(&self, bytes: usize) -> usize {
        usize::from(self.qd).min((BYTES_MAX / bytes).max(1))
    }

    /// The members, `*N` spelled out.
    pub(crate) fn specs(&self) -> anyhow::Result<Vec<MemberSpec>> {
        let mut specs = Vec::new();
        for text in self.members.iter().chain(&self.member) {
            let (name, count) = match text.strip_prefix("mem:").and_then(|_| text.split_once('*')) {
                Some((name, count)) => (name, count.parse().unwrap_or(0)),
                None => (text.as_str(), 1),
            };
            if !(1..=MEMBERS_MAX).contains(&count) {
                return usage(format!("{text:?}: what follows '*' is how many members, as in mem:256M*5"));
            }
            match name.parse::<MemberSpec>() {
                Ok(spec) => specs.extend(std::iter::repeat_n(spec, count)),
                Err(error) => return usage(error.to_string()),
            }
        }
        Ok(specs)
    }
}

fn sectors(text: &str) -> Result<Sectors, String> {
    let bytes = parse_size(text).map_err(|e| e.to_string())?;
    let sectors = bytes.whole_sectors().filter(|s| !s.is_empty());
    sectors.ok_or_else(|| format!("{text:?}: a size is a multiple of {SECTOR_SIZE} bytes"))
}

fn sizes(text: &str) -> Result<Sizes, String> {
    let max = BUF_BYTES_MAX as u64 / SECTOR_SIZE;
    let mut list: Vec<Sectors> = Vec::new();
    let mut doubling = false;
    for item in text.split(',') {
        if item == ".." {
            if doubling || list.is_empty() {
                return Err("'..' stands between two sizes, as in 4k,8k,..,1m".into());
            }
            doubling = true;
            continue;
        }
        let size = sectors(item)?;
        if size.0 > max {
            return Err(format!("{item:?}: the largest request is {} MiB", BUF_BYTES_MAX >> 20));
        }
        if std::mem::take(&mut doubling) {
            let last = *list.last().expect("'..' was not first");
            let steps = std::iter::successors(Some(last), |s| Some(Sectors(s.0 * 2))).skip(1);
            list.extend(steps.take_while(|s| s.0 < size.0));
        }
        list.push(size);
    }
    if doubling {
        return Err("'..' stands between two sizes, as in 4k,8k,..,1m".into());
    }
    Ok(Sizes(list))
}

fn runtime(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.05..=RUNTIME_MAX).contains(s));
    let seconds = seconds.ok_or_else(|| format!("{text:?}: seconds from 0.05 to {RUNTIME_MAX}"))?;
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Cli::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).map(|cli| cli.args)
    }

    #[test]
    fn sizes_double_where_dots_stand() {
        let k = |list: &[u64]| Ok(Sizes(list.iter().map(|k| Sectors(k * 2)).collect()));
        assert_eq!(sizes("4k,8k,..,64k"), k(&[4, 8, 16, 32, 64]));
        assert_eq!(sizes("4k,..,4k"), k(&[4, 4]));
        assert_eq!(sizes("1m,4k,..,10k"), k(&[1024, 4, 8, 10]));
        for bad in ["", "..", "4k,..", "..,4k", "4k,..,..,8k", "1000", "64M", "4k,", "x"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn members_are_spelled_out() {
        let args = parse("randwrite --members mem:1M*3,/dev/x*2").expect("valid");
        let specs: Vec<String> = args.specs().expect("valid").iter().map(MemberSpec::to_string).collect();
        assert_eq!(specs, ["mem:1048576", "mem:1048576", "mem:1048576", "/dev/x*2"]);
        assert!(parse("read mem:1M*0").expect("clap takes it").specs().is_err());
        assert!(parse("read mem:1M*x").expect("clap takes it").specs().is_err());
        assert!(parse("read mem:1M*65").expect("clap takes it").specs().is_err());
    }

    #[test]
    fn one_target_is_needed() {
        assert!(parse("read").is_err());
        assert!(parse("read --device e1.1 mem:1M").is_err());
        assert!(parse("read --members mem:1M mem:1M").is_err());
        assert!(parse("read --device e1.1").is_ok());
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for bad in ["--qd 0", "--qd 1025", "--runtime 0", "--runtime x", "-l 6", "-c 100", "--bs 0", "--json --csv"] {
            assert!(parse(&format!("read mem:1M {bad}")).is_err(), "{bad}");
        }
        assert!(parse("read mem:1M --qd 1024 --runtime 0.5 -l 5 -c 512 --bs 512,32M").is_ok());
    }
}
