//! `shelf`: serves files and block devices as AoE devices until SIGTERM or SIGINT.

mod spec;

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use aoe_net::link::{Link, LinkError, PacketConfig, RING, Role};
use aoe_net::shelf_server::{ServedDevice, ServerConfig, ShelfHandle, ShelfServer, StateDir};
use aoe_net::store::{AnyStore, FileStore, NullStore};
use aoe_proto::shelf::DeviceConfig;
use aoe_proto::wire::{Address, MacAddr};
use raid_core::md::text::human_size;
use raid_core::units::{Bytes, SECTOR_SIZE};
use rustix::thread::CapabilitySet;

use crate::interfaces::{InterfaceArgs, RING_MAX};
use crate::notify;
use crate::sandbox::Sandbox;
use crate::signals::Signals;
use crate::usage::usage;
use spec::{DeviceSpec, Medium};

/// How often the serving threads are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Serve files and block devices over AoE until SIGTERM or SIGINT
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid shelf -i eth1 -d 1.0=/dev/sdb -d 1.1=/dev/sdc
  etherraid shelf -i eth1 -i eth2 -d 1.0=disk0.img,ro -d 1.1=disk1.img,offset=1M,length=32M
  etherraid shelf -i eth1 -d 1.0=/dev/sdb --state /var/lib/etherraid -m 02:00:00:00:00:02    # for one station alone
  etherraid shelf -i eth1 -d 1.0=null:16G    # stores nothing: to measure the network

null:SIZE stores nothing but its first MiB, where superblocks are; the rest reads as zeros.
It prints a line that begins with `ready:` for each device. Unlike with vblade a flush reaches the disk. Anybody on the network may read and
write what is not kept from them by -m or by a reservation.")]
pub(crate) struct Args {
    #[command(flatten)]
    interfaces: InterfaceArgs,

    /// A device: SHELF.SLOT=PATH, and after it ,ro ,offset=SIZE ,length=SIZE ,direct ,sync; or SHELF.SLOT=null:SIZE
    #[arg(short, long = "device", value_name = "SHELF.SLOT=PATH[,..]", required = true)]
    devices: Vec<DeviceSpec>,

    /// Requests that an initiator may have outstanding at a device, at most
    #[arg(short, long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    buffers: u16,

    /// Serve only these stations; kept in the state directory
    #[arg(short, long, value_name = "MAC,..", value_delimiter = ',', requires = "state")]
    mac: Vec<MacAddr>,

    /// Where config strings, MAC lists and reservations are kept
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Keep all privileges, and the rights to files and system calls that are not needed
    #[arg(long)]
    no_sandbox: bool,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    check(&args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on a signal ends the shelf in order.
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new()?
    };
    let mut config = ServerConfig::new(devices(&args)?);
    config.state_dir = args.state.clone();
    set_masks(&args)?;
    let links = links(&args)?;
    let sandbox = sandbox(&args)?;
    // No thread of the shelf is there yet.
    sandbox.enter()?;
    let shelf = ShelfServer::spawn(config, links)?;
    sandbox.seal()?;
    print_ready(&args, &shelf)?;
    let ended = runtime.block_on(async {
        loop {
            tokio::select! {
                name = signals.next() => break Ok(name),
                () = tokio::time::sleep(LOOK) => if !shelf.is_running() {
                    break Err(anyhow!("a serving thread has died"));
                },
            }
        }
    });
    let name = ended?;
    notify::stopping();
    tracing::info!("{name}: stopping");
    shelf.stop()?;
    Ok(ExitCode::SUCCESS)
}

/// A link on each interface.
fn links(args: &Args) -> Result<Vec<Box<dyn Link>>, LinkError> {
    const WINDOW: usize = 64;
    // For an initiator of each device with its usual window, and all that one device may be sent.
    let frames = (args.devices.len() * WINDOW).max(args.buffers.into()).clamp(RING, RING_MAX);
    let devices: Vec<Address> = args.devices.iter().map(|device| device.address).collect();
    args.interfaces.open(0, |interface| PacketConfig {
        receive_ring: Some(frames),
        devices: devices.clone(),
        ..PacketConfig::new(interface, Role::Shelf)
    })
}

/// What the process keeps: its sockets and disks are open, and it opens no more.
fn sandbox(args: &Args) -> anyhow::Result<Sandbox> {
    if args.no_sandbox {
        return Ok(Sandbox::none());
    }
    let own: Vec<PathBuf> = args.state.iter().cloned().collect();
    if let Some(dir) = &args.state {
        // It must be there to be kept.
        StateDir::new(dir).with_context(|| format!("state directory {}", dir.display()))?;
    }
    Sandbox::new(CapabilitySet::empty(), &[], &own)
}

fn check(args: &Args) -> anyhow::Result<()> {
    if args.interfaces.interfaces.is_empty() {
        return usage("a shelf needs an interface: name it with -i");
    }
    let mut seen = HashSet::new();
    for device in &args.devices {
        if !seen.insert(device.address) {
            return usage(format!("{} is given twice", device.address));
        }
    }
    Ok(())
}

fn devices(args: &Args) -> anyhow::Result<Vec<ServedDevice>> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let mut devices = Vec::new();
    for device in &args.devices {
        let store = match &device.medium {
            Medium::File(path, options) => AnyStore::new(FileStore::open(path, *options)?),
            Medium::Null(size) => AnyStore::new(NullStore::new(size.0 / SECTOR_SIZE)),
        };
        let options = device.medium.options();
        let (shelf, slot) = (device.address.shelf.0, device.address.slot.0);
        let serial: String = format!("{shelf}.{slot}:{host}").chars().filter(char::is_ascii_graphic).take(20).collect();
        let config = DeviceConfig {
            write_cache: !options.sync,
            trim: !options.read_only,
            trim_zeroes: !options.read_only,
            ..DeviceConfig::new(device.address, args.buffers, &serial)
        };
        devices.push(ServedDevice { config, store });
    }
    Ok(devices)
}

/// `-m`: the list of each device, as if it had been set over the network.
fn set_masks(args: &Args) -> anyhow::Result<()> {
    let (Some(dir), false) = (&args.state, args.mac.is_empty()) else { return Ok(()) };
    let at = || format!("state directory {}", dir.display());
    let states = StateDir::new(dir).with_context(at)?;
    for device in &args.devices {
        let mut state = states.load(device.address)?;
        state.mask.clone_from(&args.mac);
        if !state.is_bounded() {
            bail!("{} stations are too many for one device", args.mac.len());
        }
        states.save(device.address, &state).with_context(at)?;
    }
    Ok(())
}

/// A line for each device.
fn print_ready(args: &Args, shelf: &ShelfHandle) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let interfaces = args.interfaces.interfaces.join(", ");
    for device in &args.devices {
        let sectors = shelf.sectors(device.address).unwrap_or(0);
        let also = if device.medium.options().read_only { ", read-only" } else { "" };
        let (kib, human) = (sectors / 2, human_size(Bytes(sectors * 512)));
        writeln!(out, "ready: {} {} {kib} KiB{human} on {interfaces}{also}", device.address, device.medium)?;
    }
    notify::ready(&format!("{} devices on {interfaces}", args.devices.len()));
    Ok(out.flush()?)
}
