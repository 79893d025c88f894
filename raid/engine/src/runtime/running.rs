//! A running array: its workers, its control thread, and the handle by which front ends and operators reach them.
//!
//! Made from an assembled array ([`Array`]) and its opened devices. Dropping it without [`Running::stop`] leaves the superblocks as
//! they are, as a kill would.

use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raid_core::units::Sectors;

use super::bufs::Bufs;
use super::client::Client;
use super::control::{Ask, Asks, ControlThread, NotAsked};
use super::groups::Groups;
use super::seating::{Places, Seating};
use super::watch::Watch;
use super::worker_thread::WorkerThread;
use super::{Plan, Shared, Totals, Workers, open_client};
use crate::array::{Array, Command, CommandError, CommandErrorKind, Detail, Start};
use crate::member::Owner;
use crate::member::aoe::Care;
use crate::member::aoe::paths::{DevicePaths, merge};
use crate::member::devices::{Device, Devices};
use crate::message::MemberHandle;
use crate::slab::Slab;
use crate::tunables::Settings;

/// How long workers may take to tell their paths: they answer each turn, unless the array ends meanwhile.
const PATHS_PATIENCE: Duration = Duration::from_secs(5);

/// The insides of all threads of an array, not running yet.
pub(super) struct Parts {
    pub(super) shared: Arc<Shared>,
    pub(super) workers: Vec<WorkerThread>,
    pub(super) control: ControlThread,
    pub(super) asks: Arc<Asks>,
}

impl Parts {
    pub(super) fn build(
        start: Start,
        slab: &Arc<Slab>,
        places: Places,
        settings: &Settings,
        devices: &[(MemberHandle, Device)],
        now: Duration,
    ) -> io::Result<Parts> {
        let geometry = start.geometry;
        let array = Array::new(Start { workers: places.counts().0, ..start });
        let view = &array.view();
        let invalid = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
        let seating = Seating::new(places, geometry.members(), settings).map_err(invalid)?;
        let (shared, workers) = Plan { geometry, slab, seating: &seating, view, devices, now }.build()?;
        let asks = Arc::new(Asks::default());
        let mut own = Devices::new(slab, Owner::Control);
        for (handle, device) in devices {
            own.attach(*handle, device, now)?;
        }
        let bufs = Bufs::new(slab).ok_or(io::ErrorKind::OutOfMemory)?;
        let next = devices.iter().map(|(handle, _)| handle.0 + 1).max().unwrap_or(0);
        let control = ControlThread::new(Arc::clone(&shared), Arc::clone(&asks), array, own, bufs, next, seating);
        Ok(Parts { shared, workers, control, asks })
    }
}

/// See the module's text. Shared by all front ends and operators' threads.
#[derive(Debug)]
pub struct Running {
    workers: Workers,
    asks: Arc<Asks>,
    watch: Arc<Watch>,
    control: Mutex<Option<JoinHandle<i32>>>,
}

impl Running {
    /// Starts workers and control thread. The groups' kind and size take the place of those in `settings`. `devices` are those that `start` names by
    /// handle; later ones get handles above theirs.
    pub fn start(
        start: Start,
        slab: &Arc<Slab>,
        groups: &Groups,
        settings: &Settings,
        devices: &[(MemberHandle, Device)],
    ) -> io::Result<Running> {
        Running::start_after(start, slab, groups, settings, devices, || Ok(()))
    }

    /// As [`Running::start`]; calls `prepared` when files, sockets and memory are there and no thread is: what it changes of the calling
    /// thread, privileges above all, the threads inherit.
    pub fn start_after(
        start: Start,
        slab: &Arc<Slab>,
        groups: &Groups,
        settings: &Settings,
        devices: &[(MemberHandle, Device)],
        prepared: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Running> {
        let (group_thread_cnt, worker_group) = (groups.group_thread_cnt, groups.worker_group);
        let settings = Settings { group_thread_cnt, worker_group, ..settings.clone() };
        let parts = Parts::build(start, slab, Places::Groups(groups.clone()), &settings, devices, Duration::ZERO)?;
        let Parts { shared, workers, control, asks } = parts;
        prepared()?;
        let workers = Workers::start(shared, workers)?;
        let watch = control.watch();
        let control = std::thread::Builder::new().name("raid5-array".into()).spawn(move || control.run())?;
        Ok(Running { workers, asks, watch, control: Mutex::new(Some(control)) })
    }

    /// Size of the array.
    pub fn sectors(&self) -> Sectors {
        self.workers.shared.geometry.array_sectors()
    }

    /// The array's shape.
    pub fn geometry(&self) -> &raid_core::geometry::Geometry {
        &self.workers.shared.geometry
    }

    /// A handle for a front end; `None` when there are too many, or memory is short.
    pub fn client(&self) -> io::Result<Option<Client>> {
        open_client(&self.workers.shared, Some(&self.workers.turns))
    }

    /// Where to wait for changes of its state.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// What the workers have done.
    pub fn totals(&self) -> Totals {
        self.workers.totals()
    }

    /// Takes a device in: as a spare, which goes into a free slot by itself.
    pub fn add(&self, device: Device, name: String, device_uuid: [u8; 16]) -> Result<(), CommandError> {
        self.ask(|answer| Ask::Add { device, name, device_uuid, answer })?
    }

    /// Carries a command out.
    pub fn command(&self, command: Command) -> Result<(), CommandError> {
        self.ask(|answer| Ask::Command(command, answer))?
    }

    /// The device with this name.
    pub fn find(&self, name: &str) -> Result<Option<MemberHandle>, CommandError> {
        self.ask(|to| Ask::Find(name.to_owned(), to))
    }

    /// How the array stands.
    pub fn detail(&self) -> Result<Detail, CommandError> {
        self.ask(Ask::Detail)
    }

    /// New settings, from the table of tunables: all or none of them. A change of the worker groups or of the stripe cache waits for work under way; it is
    /// refused while members are silent, or the array is suspended.
    pub fn tune(&self, settings: &Settings) -> Result<(), CommandError> {
        self.ask(|answer| Ask::Tune(Box::new(settings.clone()), answer))?
    }

    /// Uses the links to AoE members that there are now: interfaces were named or taken away. Fails when one can't be opened, and changes nothing then.
    pub fn relink(&self) -> Result<(), CommandError> {
        self.ask(Ask::Relink)?
    }

    /// Looks after the paths to the AoE member that is `handle`, or to all. Answers when it is under way.
    pub fn care(&self, handle: Option<MemberHandle>, care: Care) -> Result<(), CommandError> {
        self.ask(|answer| Ask::Care(handle, care, answer))?
    }

    /// The AoE members, and the paths to them.
    pub fn paths(&self) -> Result<Vec<DevicePaths>, CommandError> {
        let owners = 1 + self.workers.shared.workers.len();
        let (to, from) = sync_channel(owners);
        self.send(Ask::Paths(to))?;
        let deadline = Instant::now() + PATHS_PATIENCE;
        let mut lists = Vec::with_capacity(owners);
        for _ in 0..owners {
            let left = deadline.saturating_duration_since(Instant::now());
            lists.push(from.recv_timeout(left).map_err(|_| ended())?);
        }
        Ok(merge(lists))
    }

    /// Ends the array once the front ends have stopped sending; answers with the exit status: 0, or 1 when superblocks were left dirty.
    /// With `abandon` it does not wait for silent members.
    pub fn stop(&self, abandon: bool) -> i32 {
        // A refusal means that it has ended already.
        let _ = self.command(Command::Stop { abandon });
        let control = self.control.lock().expect("no panic while held").take();
        control.map_or(0, |thread| thread.join().unwrap_or(1))
    }

    /// Ends the threads of an array that has been stopped: from now on nothing of it is sent to a member. To be called when no front end holds
    /// a [`Client`] any more; dropping it does the same.
    pub fn end(&self) {
        self.workers.end();
    }

    fn ask<T>(&self, ask: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Ask) -> Result<T, CommandError> {
        let (to, from) = sync_channel(1);
        self.send(ask(to))?;
        from.recv().map_err(|_| ended())
    }

    fn send(&self, ask: Ask) -> Result<(), CommandError> {
        self.asks.push(ask).map_err(|why| match why {
            NotAsked::Ended => ended(),
            NotAsked::Full => {
                let text = "too many commands are waiting: try again".into();
                CommandError { kind: CommandErrorKind::Busy, text }
            }
        })?;
        self.workers.shared.array_wake.notify();
        Ok(())
    }
}

fn ended() -> CommandError {
    CommandError { kind: CommandErrorKind::Stopping, text: "the array has ended".into() }
}
