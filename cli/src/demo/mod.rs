//! `etherraid demo`: the main job in one process, with nothing else installed.
//!
//! Five shelves, an array over them, writes with a known pattern, a shelf lost while they go on, everything read from those that are left, a
//! fresh shelf, a rebuild, another shelf lost, everything read again; then a small table of speed. All data are in memory, the network is this
//! process's own, so nothing is left behind however it ends.
//!
//! How to read this module: [`network`] (where the frames go) and [`veth`] below it, [`disk`] (what is written and compared), and here the story.

mod disk;
mod network;
mod veth;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use aoe_net::shelf_server::ShelfHandle;
use raid_core::geometry::Layout;
use raid_core::md::Minor;
use raid_core::md::assemble::Options;
use raid_core::md::create::NewArray;
use raid_core::units::{Bytes, MemberCount, Sectors};
use raid_engine::array::Detail;
use raid_engine::assembly::{Named, assemble_array, create_array, random_uuid};
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::opener::Opener;
use raid_engine::runtime::running::Running;
use raid_engine::slab::Slab;
use raid_engine::tunables::Settings;

use crate::groups::groups;
use crate::output::tell;
use disk::{Disk, Pass};
use network::{Network, address};

/// Members of the array.
const MEMBERS: u8 = 5;

/// Memory of each shelf.
const SHELF: Sectors = Bytes(32 << 20).sectors_within();

/// The array's chunk.
const CHUNK: Sectors = Sectors(128);

/// Random writes before something happens to a shelf.
const WRITES: u64 = 2000;

/// How long the array may take to resync, to rebuild, or to find a shelf missing.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the array is asked how it stands.
const LOOK: Duration = Duration::from_millis(50);

/// Tunables other than the defaults: a demo is in a hurry.
const HURRY: [&str; 3] = ["member_hold=1", "aoe_silence=300", "aoe_frame_lifetime=100"];

/// Show the main job in one process: shelves, an array, a shelf lost, a rebuild, and a small table of speed
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid demo                 # over a veth pair where one can be made, else inside the process
  etherraid demo --in-process

It needs no root, no disks and no network, takes about 10 seconds, and leaves nothing behind. The exit status is 1 when a byte was wrong or
a request failed.")]
pub(crate) struct Args {
    /// Stay inside this process, even where a veth pair could be had
    #[arg(long)]
    in_process: bool,
}

/// Runs the demo; exit status 1 when a byte was wrong or a request failed.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    tell("etherraid demo: five shelves, one array, two of the shelves lost one after the other\n")?;
    // Before any thread is started.
    let network = Network::new(args.in_process);
    let (mut stage, mut disk) = Stage::set(network)?;
    let told = stage.play(&mut disk).map_err(|error| stage.unlike(error));
    let ended = stage.array.stop(told.is_err());
    // Not before: it waits for its requests, which an array that lacks members ends only now.
    drop(disk);
    told?;
    if ended != 0 {
        bail!("the array could not be marked clean");
    }
    drop(stage);
    tell("\n5. How fast is the engine alone? Random writes to five memory members, on all CPUs:\n")?;
    tell(indent(&crate::bench::small_table()?))?;
    let seconds = start.elapsed().as_secs_f64();
    tell(format_args!("\nNo request failed, and every byte read was right. That took {seconds:.1} s."))?;
    Ok(ExitCode::SUCCESS)
}

/// Shelves, array, and disk.
struct Stage {
    array: Running,
    opener: Opener,
    /// By slot; those that were killed are gone.
    shelves: Vec<Option<ShelfHandle>>,
    network: Network,
}

impl Stage {
    /// Starts the shelves, makes the array and runs it.
    fn set(network: Network) -> anyhow::Result<(Stage, Disk)> {
        line("network", &network.to_string())?;
        let mut settings = Settings::default();
        for pair in HURRY {
            settings.set_pair(pair)?;
        }
        let shelves = (0..MEMBERS).map(|slot| network.shelf(address(slot), SHELF).map(Some));
        let shelves = shelves.collect::<anyhow::Result<Vec<_>>>()?;
        let names: Vec<String> = (0..MEMBERS).map(|slot| address(slot).to_string()).collect();
        line("shelves", &format!("{}, {} MiB of memory each", names.join(" "), SHELF.bytes().0 >> 20))?;
        let slab = crate::members::slab()?;
        let mut opener = Opener::new(&slab, Some(network.links(settings.aoe)))?;
        let array = make_array(&mut opener, &slab, &settings)?;
        let disk = Disk::new(array.client()?.context("a client of the array")?);
        let stage = Stage { array, opener, shelves, network };
        let detail = stage.wait_for("in sync", |detail| detail.resync_start.is_none())?;
        let size = stage.array.sectors().bytes().0 >> 20;
        let chunk = CHUNK.bytes().0 >> 10;
        line("array", &format!("RAID5 of {MEMBERS}, {chunk} KiB chunk, {size} MiB: {}", detail.state))?;
        line("in a hurry", &format!("{} (defaults: 30 s, 2000 ms, 1000 ms)", HURRY.join(" ")))?;
        Ok((stage, disk))
    }

    /// The story. Ends with an error at the first thing that is not as it should be.
    fn play(&mut self, disk: &mut Disk) -> anyhow::Result<()> {
        tell("\n1. Write, and read back")?;
        let fill = disk.fill()?;
        rate("written in order", disk.bytes(), &fill)?;
        let scatter = disk.scatter(|pass| Ok(pass.requests >= WRITES))?;
        right(&scatter)?;
        disk.flush()?;
        line("written", &format!("{} random pieces of 4 to 64 KiB over it, and flushed", scatter.requests))?;
        verify(disk)?;

        tell("\n2. A shelf is lost while writes go on")?;
        self.lose(disk, 2)?;
        verify(disk)?;

        tell("\n3. A fresh shelf takes its place")?;
        self.replace(disk, MEMBERS)?;

        tell("\n4. Another shelf is lost: is what was rebuilt right?")?;
        self.lose(disk, 0)?;
        verify(disk)
    }

    /// An error, with what the array makes of it.
    fn unlike(&self, error: anyhow::Error) -> anyhow::Error {
        match self.array.detail() {
            Ok(detail) if detail.state.contains("suspended") => error.context(
                "the array is suspended: more shelves than one seem lost, as they do where the machine is too busy for them to answer within a second",
            ),
            _ => error,
        }
    }

    /// Kills a shelf under random writes, and goes on until the array counts it as missing.
    fn lose(&mut self, disk: &mut Disk, slot: u8) -> anyhow::Result<()> {
        let mut shelf = self.shelves[usize::from(slot)].take();
        let mut looked = Instant::now();
        let array = &self.array;
        let pass = disk.scatter(|pass| {
            if pass.requests < WRITES {
                return Ok(false);
            }
            if let Some(shelf) = shelf.take() {
                shelf.kill();
            }
            // Looks rarely, so that the writes are what keeps it busy.
            if looked.elapsed() < LOOK {
                return Ok(false);
            }
            looked = Instant::now();
            Ok(array.detail()?.degraded > 0)
        })?;
        right(&pass)?;
        line("killed", &format!("{}, without a word, amid {} random writes", address(slot), pass.requests))?;
        line("writes", &format!("none failed; the longest waited {:.1} s for the shelf", pass.longest.as_secs_f64()))?;
        line("array", &self.array.detail()?.state)
    }

    /// Starts a shelf, adds it, and writes until it is rebuilt.
    fn replace(&mut self, disk: &mut Disk, slot: u8) -> anyhow::Result<()> {
        self.shelves.push(Some(self.network.shelf(address(slot), SHELF)?));
        let name = address(slot).to_string();
        let device = self.opener.open(&MemberSpec::Aoe(address(slot)), false)?;
        let start = Instant::now();
        self.array.add(device, name.clone(), random_uuid().0)?;
        line("added", &name)?;
        let mut looked = start;
        let array = &self.array;
        let pass = disk.scatter(|_| {
            if looked.elapsed() < LOOK {
                return Ok(false);
            }
            looked = Instant::now();
            if start.elapsed() > PATIENCE {
                bail!("{name} is not rebuilt after {} s", PATIENCE.as_secs());
            }
            Ok(array.detail()?.degraded == 0)
        })?;
        right(&pass)?;
        let time = start.elapsed().as_secs_f64();
        line("rebuilt", &format!("in {time:.1} s, while {} random writes went on", pass.requests))?;
        line("array", &self.array.detail()?.state)
    }

    fn wait_for(&self, what: &str, wanted: impl Fn(&Detail) -> bool) -> anyhow::Result<Detail> {
        let start = Instant::now();
        loop {
            let detail = self.array.detail()?;
            if wanted(&detail) {
                return Ok(detail);
            }
            if start.elapsed() > PATIENCE {
                bail!("the array is not {what} after {} s: {}", PATIENCE.as_secs(), detail.state);
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn make_array(opener: &mut Opener, slab: &Arc<Slab>, settings: &Settings) -> anyhow::Result<Running> {
    let mut members = Vec::new();
    for slot in 0..MEMBERS {
        let device = opener.open(&MemberSpec::Aoe(address(slot)), false)?;
        members.push(Named { name: address(slot).to_string(), device });
    }
    let new = NewArray {
        name: "demo",
        homehost: None,
        minor: Minor::V2,
        level: 5,
        layout: Layout::LeftSymmetric,
        chunk: CHUNK,
        members: MemberCount(MEMBERS),
        size: None,
        assume_clean: false,
        set_uuid: random_uuid(),
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    };
    create_array(opener, &new, &members)?;
    let start = assemble_array(opener, &members, &Options::default(), false, settings.array.clone())?;
    let devices: Vec<_> = (0..).map(MemberHandle).zip(members.into_iter().map(|member| member.device)).collect();
    let groups = groups(None, settings.group_thread_cnt, settings.worker_group)?;
    Running::start(start, slab, &groups, settings, &devices).context("starting the array")
}

fn verify(disk: &mut Disk) -> anyhow::Result<()> {
    let pass = disk.verify()?;
    rate("read", disk.bytes(), &pass)?;
    line("", "every byte is right")
}

/// Fails when something was not as it should be.
fn right(pass: &Pass) -> anyhow::Result<()> {
    match (pass.failed, pass.wrong) {
        (0, 0) => Ok(()),
        (0, wrong) => bail!("{wrong} blocks of {} bytes hold something else than was written", disk::BLOCK),
        (failed, _) => bail!("{failed} of {} requests failed", pass.requests),
    }
}

fn rate(what: &str, bytes: u64, pass: &Pass) -> anyhow::Result<()> {
    right(pass)?;
    let seconds = pass.time.as_secs_f64();
    let rate = bytes as f64 / 1e6 / seconds;
    line(what, &format!("{} MiB in {seconds:.2} s, {rate:.0} MB/s", bytes >> 20))
}

fn line(what: &str, text: &str) -> anyhow::Result<()> {
    tell(format_args!("   {what:<18}{text}"))
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("   {line}")).collect::<Vec<_>>().join("\n")
}
