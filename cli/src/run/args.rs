//! The options of `run`, from the command line and a file.

use std::path::{Path, PathBuf};

use raid_core::md::Uuid;
use raid_engine::member::spec::MemberSpec;
use raid_engine::tunables::Settings;
use raid_export::nbd::address::Address;

use super::config::{self, Config};
use crate::groups::CpuList;
use crate::interfaces::InterfaceArgs;
use crate::members::parse_member;
use crate::runtime_dir::parse_name;
use crate::tools::Others;
use crate::usage::usage;

/// Assemble an array and serve it over NBD until SIGTERM, SIGINT or `stop`
///
/// Without members and --scan, what is not on the command line is taken from /etc/etherraid/NAME.toml.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4 --nbd unix:/run/r5.nbd
  etherraid run r5 -i eth1 --scan --nbd tcp:127.0.0.1:10809                          # whatever belongs to it on the network
  etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 --nbd unix:/run/r5.nbd --run          # although e9.4 is away
  etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4 --nbd unix:/run/r5.nbd --takeover    # although another host holds it
  etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4 --nbd unix:/run/r5.nbd --reserve     # so that no other host can use them meanwhile
  etherraid run r5 -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4 --nbd unix:/run/r5.nbd --sysfs /run/r5.sys    # echo 2 > /run/r5.sys/block/r5/md/group_thread_cnt
  etherraid run r5                                                                   # as /etc/etherraid/r5.toml says

It prints a line that begins with `ready:` when clients may come. The exit status is 0 when the array was marked clean, 1 when it was not or
could not be started, 2 when the command line or the file is wrong. See docs/SERVICE.md for the file and for systemd.")]
pub(crate) struct Args {
    /// The array's name: what other commands call it, and with --scan what its superblocks say
    #[arg(value_parser = parse_name)]
    pub(super) name: String,

    #[command(flatten)]
    pub(super) interfaces: InterfaceArgs,

    /// e<shelf>.<slot>, or the path of a file or block device
    #[arg(value_name = "MEMBER", value_parser = parse_member, conflicts_with = "scan")]
    pub(super) members: Vec<MemberSpec>,

    /// File with what the command line does not say; see docs/SERVICE.md
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Use all AoE devices on the interfaces whose superblocks belong to the array
    #[arg(long)]
    pub(super) scan: bool,

    /// The array's UUID
    #[arg(long)]
    pub(super) uuid: Option<Uuid>,

    /// Where to serve it, once or several times: unix:PATH lets only this user in, tcp:HOST:PORT everybody who reaches it (port 0: any
    /// that is free)
    #[arg(long, value_name = "unix:PATH|tcp:HOST:PORT")]
    pub(super) nbd: Vec<Address>,

    /// Take no writes, and leave the superblocks as they are
    #[arg(long)]
    pub(super) readonly: bool,

    /// Start although members are missing that were there last time
    #[arg(long)]
    pub(super) run: bool,

    /// Start although data may be lost: dirty and degraded, or with members that are out of date
    #[arg(long)]
    pub(super) force: bool,

    /// Reserve the AoE members for this host, even if another host has: what that still sends them is refused, and it is fenced
    #[arg(long)]
    pub(super) takeover: bool,

    /// Reserve the AoE members for this host while it runs: others cannot use them by mistake. Refused if another host has; released when the
    /// array was stopped and is clean
    #[arg(long, conflicts_with = "takeover")]
    pub(super) reserve: bool,

    /// Rely on this member's flushes
    #[arg(long, value_name = "MEMBER", value_parser = parse_member)]
    pub(super) durable: Vec<MemberSpec>,

    /// Set a tunable; `etherraid tune --help` lists them
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub(super) set: Vec<String>,

    /// Control socket [default: /run/etherraid/NAME.sock]
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<PathBuf>,

    /// Directory to show the array in, as files with md's names: DIR/block/NAME/md/* and DIR/proc/mdstat; see docs/CONTROL.md. Needs root
    #[arg(long, value_name = "DIR")]
    pub(super) sysfs: Option<PathBuf>,

    /// CPUs to use, such as 0,2-3 [default: all]
    #[arg(long, value_name = "LIST")]
    pub(super) cpus: Option<CpuList>,

    /// Directory that `add` may take files from, besides /dev and those of the members given here
    #[arg(long, value_name = "DIR")]
    pub(super) member_dir: Vec<PathBuf>,

    /// Keep all privileges, and the rights to files and system calls that are not needed
    #[arg(long)]
    pub(super) no_sandbox: bool,

    /// Print the line that tells that it is ready as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    /// Takes what is missing from a file, and checks that nothing is missing then.
    pub(super) fn complete(&mut self) -> anyhow::Result<()> {
        let usual = config::usual(&self.name);
        match &self.config {
            Some(path) => self.merge(config::read(&path.clone())?),
            None if self.members.is_empty() && !self.scan && usual.exists() => self.merge(config::read(&usual)?),
            None => {}
        }
        self.check(&usual)
    }

    /// What the command line says counts; lists of it take the place of the file's. Settings are added up, the command line's last.
    fn merge(&mut self, file: Config) {
        fn or<T>(mine: &mut Vec<T>, theirs: Vec<T>) {
            if mine.is_empty() {
                *mine = theirs;
            }
        }
        if self.members.is_empty() && !self.scan {
            self.members = file.members;
            self.scan = file.scan;
        }
        or(&mut self.interfaces.interfaces, file.interfaces);
        or(&mut self.nbd, file.nbd);
        or(&mut self.durable, file.durable);
        or(&mut self.member_dir, file.member_dir);
        self.uuid = self.uuid.or(file.uuid);
        self.control = self.control.take().or(file.control);
        self.sysfs = self.sysfs.take().or(file.sysfs);
        self.cpus = self.cpus.take().or(file.cpus);
        self.readonly |= file.readonly;
        self.run |= file.run;
        self.no_sandbox |= !file.sandbox;
        self.set.splice(..0, file.set);
    }

    /// Whether members are to be reserved, and what about those that others have.
    pub(super) fn reserves(&self) -> Option<Others> {
        match (self.takeover, self.reserve) {
            (true, _) => Some(Others::Fence),
            (false, true) => Some(Others::Respect),
            (false, false) => None,
        }
    }

    fn check(&self, usual: &Path) -> anyhow::Result<()> {
        if self.members.is_empty() && !self.scan {
            let file = self.config.as_deref().unwrap_or(usual).display();
            return usage(format!("no MEMBER: name the array's members, or --scan for them, or write them to {file}"));
        }
        if !self.members.is_empty() && self.scan {
            return usage("members and scan: name the array's members, or scan for them");
        }
        let option = if self.takeover { "--takeover" } else { "--reserve" };
        if self.reserves().is_some() && self.scan {
            return usage(format!(
                "{option} needs the members' names: a scan would reserve all devices on the network"
            ));
        }
        if self.reserves().is_some() && !self.members.iter().any(|member| matches!(member, MemberSpec::Aoe(_))) {
            return usage(format!("{option} reserves AoE members for this host: name them"));
        }
        if self.nbd.is_empty() {
            return usage("say where to serve it: --nbd unix:PATH or --nbd tcp:HOST:PORT");
        }
        if self.scan && self.interfaces.interfaces.is_empty() {
            return usage("--scan needs interfaces: name those that lead to the shelves with -i");
        }
        self.interfaces.check(&self.members)
    }
}

/// A setting that is valid by itself.
pub(super) fn parse_setting(text: &str) -> Result<String, String> {
    Settings::default().set_pair(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_one_by_one() {
        assert_eq!(parse_setting("member_hold=3").as_deref(), Ok("member_hold=3"));
        assert!(parse_setting("member_hold=x").expect_err("bad").contains("seconds"));
        assert!(parse_setting("member_holt=3").expect_err("bad").contains("member_hold"));
    }
}
