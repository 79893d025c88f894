//! `etherraid bench`: how fast an array, new or running, or one AoE device is under a load.
//!
//! How to read this module: [`args`] (the command line), [`members`] (what the array is made of), [`mod@array`], [`device`] and [`nbd`] (what is
//! under load), [`load`] (a load thread), [`bare`] and [`plain`] (the loops that are the limit), [`server`] (the process of a running array), [`mod@measure`] and [`host`] (phases,
//! clocks, counting), [`progress`] (what a terminal shows meanwhile), [`report`], [`against`] and [`plot`] (rows, and how they are shown).
//!
//! Load, workers and control share the CPUs that are named, and all of their processor time counts.

mod against;
mod args;
mod array;
mod bare;
mod device;
mod host;
mod load;
mod measure;
mod members;
mod nbd;
mod plain;
mod plot;
mod progress;
mod report;
mod server;

use std::process::ExitCode;

use anyhow::bail;
use raid_engine::tunables::Settings;

use crate::drawing::Plot;
use crate::output::print;
use crate::usage::usage;
use against::Against;
pub(crate) use args::Args;
use report::Row;

/// Runs the bench and prints its rows; fails when a request failed.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let against = args.against.as_deref().map(Against::read).transpose()?;
    let plot = args.plot.as_deref().map(Plot::create).transpose()?;
    let mut rows = measure(&args)?;
    if let Some(against) = against {
        against.compare(&mut rows);
    }
    let text = match (args.json, args.csv) {
        (true, _) => report::json(&rows)?,
        (_, true) => report::csv(&rows)?,
        _ => report::table(&rows).to_string(),
    };
    print(&(text + "\n"))?;
    if let Some(plot) = plot {
        plot.write(&plot::svg(&rows)?)?;
    }
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
    match (&args.device, &args.nbd) {
        (Some(device), _) => device::bench(args, device, &settings),
        (_, Some(uri)) => nbd::bench(args, uri),
        _ => array::bench(args, settings),
    }
}

/// A small table for the demo: random writes to an array of memory members.
pub(crate) fn small_table() -> anyhow::Result<String> {
    let args = Args::small()?;
    Ok(report::table(&measure(&args)?).to_string())
}
