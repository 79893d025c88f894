//! `etherraid simulate`: the real initiators and the real shelves over a simulated network, on virtual time.
//!
//! How to read this module: [`scenario`] (the file), [`world`] (hosts and network, from instant to instant), [`station`] (an initiator and its load),
//! [`target`] (a shelf), [`measure`] (figures), [`report`] and [`plot`] (how they are shown).
//!
//! The same file and seed give the same figures, on any machine and however long it takes.

mod measure;
mod plot;
mod report;
mod scenario;
mod station;
mod target;
#[cfg(test)]
mod tests;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use crate::drawing::Plot;
use crate::output::{print, print_json};

/// Run initiators and shelves over a simulated network
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid simulate four_shelves.toml                                              # a scenario of benches/scenarios
  etherraid simulate four_shelves.toml --set aoe_congestion=1 --set aoe_window=16   # the same with a fixed window
  etherraid simulate four_shelves.toml --json --plot windows.svg

The file names links, initiators and shelves; benches/scenarios has examples. Time is virtual: the same file and seed give the same figures.")]
pub(crate) struct Args {
    /// The scenario
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Sets a tunable of all initiators, or seed, warmup or runtime
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Draw windows and goodput over time into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the scenario and prints its figures; fails when a request failed.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let scenario = scenario::read(&args.file, &args.set)?;
    let plot = args.plot.as_deref().map(Plot::create).transpose()?;
    let report = world::run(&scenario);
    match args.json {
        true => print_json(&report)?,
        false => print(&report::text(&report))?,
    }
    if let Some(plot) = plot {
        let name = args.file.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        plot.write(&plot::svg(&name, &report)?)?;
    }
    if report.errors > 0 {
        bail!("{} requests failed or brought wrong data", report.errors);
    }
    Ok(ExitCode::SUCCESS)
}
