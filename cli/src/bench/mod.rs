//! `etherraid bench`: how fast an array, or one AoE device, is under a load.
//!
//! How to read this module: [`args`] (the command line), [`members`] (what the array is made of), [`array`] and [`device`] (what is under
//! load), [`load`] (a load thread), [`measure`] (phases, clocks, counting), [`report`] (rows, and how they are shown).
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

use anyhow::{Context, bail};
use raid_engine::runtime::topology;
use raid_engine::tunables::Settings;

pub(crate) use args::BenchArgs;
use report::Row;

/// Runs the bench and prints its rows; fails when a request failed.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let rows = measure(args)?;
    let text = match (args.json, args.csv) {
        (true, _) => report::json(&rows)?,
        (_, true) => report::csv(&rows)?,
        _ => report::table(&rows).to_string(),
    };
    println!("{text}");
    let errors: u64 = rows.iter().map(|row| row.errors).sum();
    if errors > 0 {
        bail!("{errors} requests failed, so the figures mean little; -v tells more");
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &BenchArgs) -> anyhow::Result<Vec<Row>> {
    let mut settings = Settings::default();
    for pair in &args.set {
        settings.set_pair(pair)?;
    }
    let allowed = topology::allowed()?;
    let cpus = match &args.cpus {
        None => allowed,
        Some(cpus) => {
            if let Some(cpu) = cpus.0.iter().find(|cpu| !allowed.contains(cpu)) {
                let allowed: Vec<_> = allowed.iter().map(|cpu| cpu.0.to_string()).collect();
                bail!("--cpus {}: this process may use CPUs {}", cpu.0, allowed.join(", "));
            }
            cpus.0.clone()
        }
    };
    // Before any thread is started, so that all of them keep to it.
    topology::confine(&cpus).context("keeping to the CPUs named")?;
    match &args.device {
        Some(device) => device::bench(args, device, settings, cpus),
        None => array::bench(args, settings, cpus),
    }
}
