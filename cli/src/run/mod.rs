//! `run`: assembles an array and serves it until it is stopped.
//!
//! In this order, so that a refusal changes nothing: settings, control and NBD sockets, members opened and looked at, the lock of
//! the array's UUID, assembly, then the engine, and last the NBD server. The end goes the other way round ([`serve`]).

mod assemble;
mod serve;
pub(crate) mod served;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use anyhow::{Context, bail};
use raid_core::md::Uuid;
use raid_core::md::text::{human_size, level_name};
use raid_engine::array::Detail;
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::running::Running;
use raid_engine::tunables::Settings;
use raid_export::engine::EngineBackends;
use raid_export::nbd::address::Address;
use raid_export::nbd::server::Server;

use crate::control::server::ControlServer;
use crate::groups::{CpuList, groups};
use crate::interfaces::InterfaceArgs;
use crate::members::{Members, parse_member, slab};
use crate::runtime_dir::{control_socket, make_runtime_dir, parse_name};
use crate::usage::usage;
use assemble::Assembled;
use served::Served;

/// Signals and stop requests on their way to the main thread.
const EVENTS_MAX: usize = 16;

/// Assemble an array and serve it over NBD until SIGTERM, SIGINT or `stop`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The array's name: what other commands call it, and with --scan what its superblocks say
    #[arg(value_parser = parse_name)]
    name: String,

    #[command(flatten)]
    interfaces: InterfaceArgs,

    /// e<shelf>.<slot>, or the path of a file or block device
    #[arg(value_name = "MEMBER", value_parser = parse_member, required_unless_present = "scan", conflicts_with = "scan")]
    members: Vec<MemberSpec>,

    /// Use all AoE devices on the interfaces whose superblocks belong to the array
    #[arg(long)]
    scan: bool,

    /// The array's UUID
    #[arg(long)]
    uuid: Option<Uuid>,

    /// Where to serve it, once or several times: unix:PATH lets only this user in, tcp:HOST:PORT everybody who reaches it (port 0: any
    /// that is free)
    #[arg(long, value_name = "unix:PATH|tcp:HOST:PORT", required = true)]
    nbd: Vec<Address>,

    /// Take no writes, and leave the superblocks as they are
    #[arg(long)]
    readonly: bool,

    /// Start although members are missing that were there last time
    #[arg(long)]
    run: bool,

    /// Start although data may be lost: dirty and degraded, or with members that are out of date
    #[arg(long)]
    force: bool,

    /// Rely on this member's flushes
    #[arg(long, value_name = "MEMBER", value_parser = parse_member)]
    durable: Vec<MemberSpec>,

    /// Set a tunable; `etherraid tune --help` lists them
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    set: Vec<String>,

    /// Control socket [default: /run/etherraid/NAME.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// CPUs to use, such as 0,2-3 [default: all]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,

    /// Print the line that tells that it is ready as JSON
    #[arg(long)]
    json: bool,
}

/// A setting that is valid by itself.
fn parse_setting(text: &str) -> Result<String, String> {
    Settings::default().set_pair(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let settings = settings(&args)?;
    // The kernel may have to write pages to us to get memory, so it must not wait for that when we ask for memory. Threads inherit it.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "PR_SET_IO_FLUSHER");
    }
    let groups = groups(args.cpus.as_ref(), settings.group_thread_cnt)?;
    let (to, events) = sync_channel(EVENTS_MAX);
    let path = match &args.control {
        Some(path) => path.clone(),
        None => {
            make_runtime_dir()?;
            control_socket(&args.name)
        }
    };
    let control = ControlServer::start(&path, to)?;
    let sockets = Server::bind(&args.nbd)?;
    let slab = slab()?;
    let links = args.interfaces.links(&settings.aoe);
    let members = Members::new(&slab, links.clone())?;
    let Assembled { start, devices, uuid, _lock } = assemble::assemble(&args, &settings, members, links.as_ref())?;
    if let Ok(event) = events.try_recv() {
        bail!("ended before it was started: {}", event.words());
    }
    let handles: Vec<_> =
        devices.iter().enumerate().map(|(index, named)| (MemberHandle(index as u16), named.device.clone())).collect();
    let running = Running::start(start, &slab, &groups, settings.stripe_cache_size, &handles)
        .context("starting the array's threads")?;
    let running = Arc::new(running);
    let backends = Arc::new(EngineBackends::new(Arc::clone(&running), &args.name, args.readonly));
    let server = match sockets.serve(backends) {
        Ok(server) => server,
        Err(error) => {
            running.stop(false);
            return Err(error.into());
        }
    };
    let served = Arc::new(Served::new(Arc::clone(&running), slab, links, uuid, settings));
    control.serve(served);
    print_ready(&args, &running, server.addresses())?;
    let exit = serve::until_stopped(&running, server, control, &events);
    Ok(ExitCode::from(u8::try_from(exit).unwrap_or(1)))
}

fn settings(args: &Args) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    for pair in &args.set {
        settings.set_pair(pair).map_err(|error| crate::usage::Usage(error.to_string()))?;
    }
    if args.scan && args.interfaces.interfaces.is_empty() {
        return usage("--scan needs interfaces: name those that lead to the shelves with -i");
    }
    args.interfaces.check(&args.members)?;
    Ok(settings)
}

/// One line, which tells others that clients may come.
fn print_ready(args: &Args, running: &Running, served: &[Address]) -> anyhow::Result<()> {
    let detail = running.detail()?;
    let uris: Vec<String> = served.iter().map(Address::uri).collect();
    let mut out = std::io::stdout().lock();
    let printed = if args.json {
        let value = serde_json::json!({
            "event": "ready", "name": args.name, "uuid": detail.uuid.to_string(), "state": detail.state,
            "size_bytes": detail.array_size.bytes().0, "nbd": uris,
        });
        writeln!(out, "{value}")
    } else {
        writeln!(out, "ready: {} {} at {}", args.name, summary(&detail), uris.join(" "))
    };
    // Who started us may not listen; the array is served all the same.
    if let Err(error) = printed.and_then(|()| out.flush()) {
        tracing::warn!(%error, "cannot print");
    }
    Ok(())
}

/// Level, size, members and state in a few words.
fn summary(detail: &Detail) -> String {
    let size = detail.array_size.bytes();
    let human = human_size(size);
    let letters: String = detail.devices.iter().filter(|row| row.raid_device.is_some()).map(letter).collect();
    format!("{} {} KiB{human} [{letters}] {}", level_name(detail.level), size.0 / 1024, detail.state)
}

/// As in /proc/mdstat.
fn letter(row: &raid_engine::array::DeviceRow) -> char {
    if row.state.starts_with("active sync") { 'U' } else { '_' }
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
