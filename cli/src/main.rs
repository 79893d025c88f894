//! `etherraid`: RAID5 over ATA over Ethernet, in user space. One binary, one command a module.
//!
//! Here the command line is parsed, logging set up, and an error printed with its causes. Exit status: 0 done, 1 failed, 2 usage.
//!
//! | module | command |
//! |---|---|
//! | [`demo`] | `demo`: the main job in one process |
//! | [`create`] | `create`: writes the superblocks of a new array |
//! | [`run`] | `run`: assembles an array and serves it |
//! | [`detail`], [`manage`] | `detail`, `add`, `fail`, `remove`, `stop`: talk to a running array |
//! | [`shelf`] | `shelf`: serves disks over AoE |
//! | [`capture`] | `capture`: writes what an interface saw of AoE into a file |
//! | [`mod@bench`] | `bench`: measures arrays and AoE devices |
//! | [`simulate`] | `simulate`: initiators and shelves over a simulated network |
//! | [`tools`] | all commands that look at members, arrays and AoE devices, or set a single thing |
//!
//! What they share: [`control`] (the socket of a running array), [`interfaces`] (links to the network), [`members`] (opened by name),
//! [`sysfs`] (a running array as files), [`drawing`] (charts), [`toml_file`], [`groups`] (CPUs), [`runtime_dir`] (sockets and locks), [`signals`], [`output`].

#![allow(rustdoc::invalid_html_tags, reason = "doc comments of arguments are help texts, which name e<shelf>.<slot>")]

use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};
use tracing::level_filters::LevelFilter;

mod bench;
mod capture;
mod control;
mod create;
mod demo;
mod detail;
mod drawing;
mod errors;
mod groups;
mod interfaces;
mod logging;
mod manage;
mod members;
mod notify;
mod output;
mod run;
mod runtime_dir;
mod sandbox;
mod shelf;
mod signals;
mod simulate;
mod sys;
mod sysfs;
mod toml_file;
mod tools;
mod usage;

/// RAID5 over ATA over Ethernet, in user space.
#[derive(Debug, Parser)]
#[command(name = "etherraid", version, arg_required_else_help = true)]
struct Cli {
    /// Log more: once for debugging, twice for everything
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 100)]
    verbose: u8,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Create(create::Args),
    Run(run::Args),
    Detail(detail::Args),
    Add(manage::AddArgs),
    Fail(manage::FailArgs),
    Remove(manage::RemoveArgs),
    Stop(manage::StopArgs),
    Bench(bench::Args),
    Shelf(shelf::Args),
    Simulate(simulate::Args),
    Capture(capture::Args),
    #[command(hide = true)]
    UnmountAfter(sysfs::UnmountArgs),
    #[command(flatten)]
    Tool(tools::Tool),
}

impl Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Demo(args) => demo::run(args),
            Command::Create(args) => create::run(args),
            Command::Run(args) => run::run(args),
            Command::Detail(args) => detail::run(args),
            Command::Add(args) => manage::add(args),
            Command::Fail(args) => manage::fail(args),
            Command::Remove(args) => manage::remove(args),
            Command::Stop(args) => manage::stop(args),
            Command::Bench(args) => bench::run(args),
            Command::Shelf(args) => shelf::run(args),
            Command::Simulate(args) => simulate::run(args),
            Command::Capture(args) => capture::run(args),
            Command::UnmountAfter(args) => sysfs::unmount_after(args),
            Command::Tool(tool) => tool.run(),
        }
    }

    /// How much is logged without `-v`.
    fn default_level(&self) -> LevelFilter {
        match self {
            // It tells what happens itself, and the failures are part of it.
            Command::Demo(_) => LevelFilter::OFF,
            Command::Bench(_) => LevelFilter::WARN,
            _ => LevelFilter::INFO,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::to_stderr(cli.verbose, cli.command.default_level());
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => {
            if !error.is::<output::ReaderGone>() {
                output::complain(errors::one_line(error.as_ref()));
            }
            if error.is::<usage::Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
