//! Commands that look at members, arrays and devices on the network, and those that set them.
//!
//! | module | command |
//! |---|---|
//! | [`examine`], [`status`], [`tune`] | what is on members; all arrays of this host; tunables of a running one |
//! | [`discover`], [`stat`], [`ping`], [`identify`], [`mod@cfg`], [`mask`], [`reserve`] | AoE devices, as aoetools have it |
//! | [`sancheck`] | whether the network carries what its ends allow |
//! | [`interfaces`], [`revalidate`], [`flush`] | paths of a running array |
//! | [`pages`] | shell completions, man pages, the table of tunables |
//!
//! Those that use the network share [`raw`] (requests and replies on packet sockets), [`probe`] (which devices are there) and [`network`]
//! (their options). They neither need nor disturb a running array on the same interfaces. [`takeover`] is what
//! `run --takeover` does first.

mod cfg;
mod discover;
mod examine;
mod flush;
mod identify;
mod interfaces;
mod lists;
mod mask;
mod network;
mod pages;
mod ping;
mod probe;
mod raw;
mod reserve;
mod revalidate;
mod sancheck;
mod stat;
mod status;
mod takeover;
mod tune;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;

pub(crate) use status::mdstat_of;
pub(crate) use takeover::{Others, Takeover};

/// The commands of this module, among all others on the command line.
#[derive(Debug, Subcommand)]
pub(crate) enum Tool {
    Examine(examine::Args),
    Status(status::Args),
    Tune(tune::Args),
    Discover(discover::Args),
    Stat(stat::Args),
    Ping(ping::Args),
    Identify(identify::Args),
    Cfg(cfg::Args),
    Mask(mask::Args),
    Reserve(reserve::Args),
    Sancheck(sancheck::Args),
    Interfaces(interfaces::Args),
    Revalidate(revalidate::Args),
    Flush(flush::Args),
    Completions(pages::CompletionsArgs),
    Man(pages::ManArgs),
    #[command(hide = true)]
    Tunables(pages::TunablesArgs),
}

impl Tool {
    /// Carries the command out.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Tool::Examine(args) => examine::run(args),
            Tool::Status(args) => status::run(args),
            Tool::Tune(args) => tune::run(args),
            Tool::Discover(args) => discover::run(args),
            Tool::Stat(args) => stat::run(args),
            Tool::Ping(args) => ping::run(args),
            Tool::Identify(args) => identify::run(args),
            Tool::Cfg(args) => cfg::run(args),
            Tool::Mask(args) => mask::run(args),
            Tool::Reserve(args) => reserve::run(args),
            Tool::Sancheck(args) => sancheck::run(args),
            Tool::Interfaces(args) => interfaces::run(args),
            Tool::Revalidate(args) => revalidate::run(args),
            Tool::Flush(args) => flush::run(args),
            Tool::Completions(args) => pages::completions(args),
            Tool::Man(args) => pages::man(args),
            Tool::Tunables(_) => pages::tunables(),
        }
    }
}

/// A time in microseconds, for JSON.
fn micros(time: Duration) -> f64 {
    // So that three decimals stay three decimals.
    time.as_nanos() as f64 / 1000.0
}

/// Success, or failure after something was said about it.
fn exit(done: bool) -> ExitCode {
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
