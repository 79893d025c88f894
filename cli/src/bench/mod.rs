//! `etherraid bench`: how fast an array, or one AoE device, is under a load.
//!
//! How to read this module: [`args`] (the command line), [`members`] (what the array is made of), [`mod@array`] and [`device`] (what is under
//! load), [`load`] (a load thread), [`mod@measure`] (phases, clocks, counting), [`report`] (rows, and how they are shown).
//!
//! Load, workers and control share the CPUs that are named, and all of their processor time counts.

mod args;
mod array;
mod device;
mod load;
mod measure;
mod members;
mod report;

use std::process::ExitCode;

use anyhow::bail;
use raid_engine::tunables::Settings;

use crate::usage::usage;
pub(crate) use args::Args;
use report::Row;

/// Runs the bench and prints its rows; fails when a request failed.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rows = measure(&args)?;
    let text = match (args.json, args.csv) {
        (true, _) => report::json(&rows)?,
        (_, true) => report::csv(&rows)?,
        _ => report::table(&rows).to_string(),
    };
    crate::output::print(&(text + "\n"))?;
    let errors: u64 = rows.iter().map(|row| row.errors).sum();
    if errors > 0 {
        bail!("{errors} requests failed, so the figures mean little; -v tells more");
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args) -> anyhow::Result<Vec<Row>> {
    let mut settings = Settings::default();
    for pair in &args.set {
        if let Err(error) = settings.set_pair(pair) {
            return usage(error.to_string());
        }
    }
    match &args.device {
        Some(device) => device::bench(args, device, &settings),
        None => array::bench(args, settings),
    }
}

/// A small table for the demo: random writes to an array of memory members.
pub(crate) fn small_table() -> anyhow::Result<String> {
    let args = Args::small()?;
    Ok(report::table(&measure(&args)?).to_string())
}
