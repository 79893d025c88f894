//! `run`: assembles an array and serves it until it is stopped.
//!
//! In this order, so that a refusal changes nothing: settings, control and NBD sockets, the directory for files, the members taken over if that is wanted, opened and looked at, the lock of
//! the array's UUID, assembly, then the engine, and last the NBD server. The end goes the other way round ([`serve`]).

mod args;
mod assemble;
mod config;
mod serve;
pub(crate) mod served;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use anyhow::{Context, bail};
use raid_core::md::text::{human_size, level_name};
use raid_engine::array::Detail;
use raid_engine::member::aoe::Links;
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::running::Running;
use raid_engine::tunables::Settings;
use raid_export::engine::EngineBackends;
use raid_export::nbd::address::Address;
use raid_export::nbd::server::Server;
use rustix::thread::CapabilitySet;

use crate::control::server::ControlServer;
use crate::errors::one_line;
use crate::groups::groups;
use crate::interfaces::Interfaces;
use crate::members::{Members, slab};
use crate::notify;
use crate::runtime_dir::{control_socket, make_runtime_dir};
use crate::sandbox::{Sandbox, directory, memory};
use crate::sysfs::Tree;
use crate::tools::Takeover;
pub(crate) use args::Args;
use assemble::Assembled;
use served::{Reserves, Served};

/// Signals and stop requests on their way to the main thread.
const EVENTS_MAX: usize = 16;

/// Members that sockets have room for at least: how many --scan will find is not known yet.
const MEMBERS_LEAST: usize = 8;

/// Carries the command out.
pub(crate) fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    args.complete()?;
    let settings = settings(&args)?;
    let needed = memory::lock();
    let groups = groups(args.cpus.as_ref(), settings.group_thread_cnt, settings.worker_group)?;
    let (to, events) = sync_channel(EVENTS_MAX);
    let path = match &args.control {
        Some(path) => path.clone(),
        None => {
            make_runtime_dir()?;
            control_socket(&args.name)
        }
    };
    let sandbox = Arc::new(sandbox(&args, &path, needed)?);
    let control = ControlServer::start(&path, to, Arc::clone(&sandbox))?;
    let sockets = Server::bind(&args.nbd)?;
    let files = args.sysfs.as_deref().map(|dir| Tree::start(dir, &args.name, &sandbox)).transpose()?;
    let slab = slab()?;
    let links = args.interfaces.tunable_links(&settings.aoe, args.members.len().max(MEMBERS_LEAST));
    let (Assembled { start, devices, uuid, lock }, reserved) = reserved(&args, || {
        let members = Members::new(&slab, as_links(&links))?;
        assemble::assemble(&args, &settings, members, as_links(&links).as_ref())
    })?;
    if let Ok(event) = events.try_recv() {
        bail!("ended before it was started: {}", event.words());
    }
    let handles: Vec<_> =
        devices.iter().enumerate().map(|(index, named)| (MemberHandle(index as u16), named.device.clone())).collect();
    let enter = || sandbox.enter().map_err(|error| std::io::Error::other(one_line(error.as_ref())));
    let running = Running::start_after(start, &slab, &groups, &settings, &handles, enter)
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
    sandbox.seal()?;
    let reserves = args.reserves().map(|others| Reserves::new(args.interfaces.clone(), others, reserved));
    let served = Arc::new(Served::new(Arc::clone(&running), slab, links, uuid, settings, sandbox, reserves));
    if let Some(files) = &files {
        files.serve(Arc::clone(&served))?;
    }
    control.serve(Arc::clone(&served));
    lock.announce(&args.name, &path)?;
    print_ready(&args, &running, server.addresses())?;
    let exit = serve::until_stopped(&running, server, control, files, &events, lock, |exit| {
        if exit == 0 {
            served.release();
        }
    });
    Ok(ExitCode::from(u8::try_from(exit).unwrap_or(1)))
}

/// Assembles the array, after its members were reserved if that is wanted.
fn reserved(
    args: &Args,
    assemble: impl FnOnce() -> anyhow::Result<Assembled>,
) -> anyhow::Result<(Assembled, Option<Takeover>)> {
    let take = |others| Takeover::take(&args.interfaces, &args.members, others);
    let reserved = args.reserves().map(take).transpose()?;
    match assemble() {
        Ok(assembled) => Ok((assembled, reserved)),
        Err(error) => {
            if let Some(reserved) = reserved {
                reserved.give_back();
            }
            Err(error)
        }
    }
}

/// As the engine knows them.
fn as_links(interfaces: &Option<Arc<Interfaces>>) -> Option<Arc<dyn Links>> {
    interfaces.clone().map(|links| links as Arc<dyn Links>)
}

/// What the process keeps once the array runs.
fn sandbox(args: &Args, control: &Path, needed: CapabilitySet) -> anyhow::Result<Sandbox> {
    if args.no_sandbox {
        return Ok(Sandbox::none());
    }
    let mut members = args.member_dir.clone();
    for member in &args.members {
        if let MemberSpec::Path(path) = member {
            // Where a link leads to is where the member is.
            members.push(directory(&path.canonicalize().unwrap_or_else(|_| path.clone())));
        }
    }
    let mut own = vec![make_runtime_dir()?, directory(control)];
    for address in &args.nbd {
        if let Address::Unix(path) = address {
            own.push(directory(path));
        }
    }
    let has_network = !args.interfaces.interfaces.is_empty();
    let network = if has_network { CapabilitySet::NET_RAW } else { CapabilitySet::empty() };
    Sandbox::new(network | needed, &members, &own)
}

fn settings(args: &Args) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    for pair in &args.set {
        settings.set_pair(pair).map_err(|error| crate::usage::Usage(error.to_string()))?;
    }
    Ok(settings)
}

/// One line, which tells others that clients may come.
fn print_ready(args: &Args, running: &Running, served: &[Address]) -> anyhow::Result<()> {
    let detail = running.detail()?;
    let uris: Vec<String> = served.iter().map(Address::uri).collect();
    let status = format!("{} at {}", summary(&detail), uris.join(" "));
    let mut out = std::io::stdout().lock();
    let printed = if args.json {
        let value = serde_json::json!({
            "event": "ready", "name": args.name, "uuid": detail.uuid.to_string(), "state": detail.state,
            "size_bytes": detail.array_size.bytes().0, "nbd": uris,
        });
        writeln!(out, "{value}")
    } else {
        writeln!(out, "ready: {} {status}", args.name)
    };
    notify::ready(&status);
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
