//! The shelf server: threads that serve a shelf of devices over links.
//!
//! [`ShelfServer::spawn`] starts a thread per link; they share one `Shelf`, which a thread locks for one batch of frames. The
//! [`ShelfHandle`] stops them. Used by the `shelf` command, by the demo and by tests.
//!
//! A batch of up to 64 frames is received with one call, answered into preallocated reply buffers, and the replies are sent with one
//! call; read data go from the store straight into a reply buffer. Nothing is allocated for a data request.
//!
//! What a device must remember (config string, mask list, reservation) is saved in the state directory before the reply leaves.
//! Without one it lasts as long as the process.
//!
//! Bounds: the buffer counts told to initiators, over all devices and known stations, do not exceed what the links' receive queues
//! hold; answers to discovery wait in a queue of [`CONTROL_REPLIES`] frames.

mod port;
mod requesters;
mod state_dir;

pub use state_dir::{LoadError, StateDir};

use crate::clock::coarse_time;
use crate::link::{Link, LinkCounters};
use crate::store::AnyStore;
use crate::wake::Waker;
use aoe_proto::port::PortId;
use aoe_proto::shelf::{
    AddDeviceError, BlockStore, DeviceConfig, DeviceCounters, DeviceState, Shelf, ShelfConfig, ShelfCounters,
};
use aoe_proto::wire::{Address, MacAddr};
use core::hash::{BuildHasher, Hasher};
use core::time::Duration;
use port::ServedPort;
use rustix::time::ClockId;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// Replies to discovery and beacons that wait to be sent by one thread at most; more are dropped, and asked for again.
pub const CONTROL_REPLIES: usize = 1024;

/// A device to serve.
#[derive(Debug)]
pub struct ServedDevice {
    /// Its address and properties. The buffer count is the most that is told to initiators.
    pub config: DeviceConfig,
    /// Its data.
    pub store: AnyStore,
}

/// What to serve, and how.
#[derive(Debug)]
pub struct ServerConfig {
    /// The devices.
    pub devices: Vec<ServedDevice>,
    /// Who is listened to, for devices with no mask list saved; empty for everyone.
    pub mask: Vec<MacAddr>,
    /// Where config strings, masks and reservations are kept.
    pub state_dir: Option<PathBuf>,
    /// How long a frame can be under way.
    pub frame_lifetime: Duration,
    /// Drop writes for one frame lifetime after the start, because copies of frames from before it may still arrive. `false` only
    /// where nothing can be under way, as on a new in-process segment.
    pub settle: bool,
    /// CPUs that the threads are pinned to, in turn; empty for no pinning.
    pub cpus: Vec<usize>,
}

impl ServerConfig {
    /// Serves `devices` without a state directory, with a frame lifetime of one second.
    pub fn new(devices: Vec<ServedDevice>) -> ServerConfig {
        ServerConfig {
            devices,
            mask: Vec::new(),
            state_dir: None,
            frame_lifetime: Duration::from_secs(1),
            settle: true,
            cpus: Vec::new(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A device can't be served.
    #[error("device {address}")]
    Device {
        /// Which one.
        address: Address,
        /// Why.
        source: AddDeviceError,
    },
    /// A saved state can't be used.
    #[error(transparent)]
    State(#[from] LoadError),
    /// The state directory can't be made.
    #[error("state directory {}", path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There are no links, or too many.
    #[error("a shelf needs between 1 and 256 interfaces, not {0}")]
    Links(usize),
    /// The system refused a thread or a descriptor.
    #[error("starting a shelf thread")]
    Thread(#[source] io::Error),
}

/// What a shelf has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Of the shelf as a whole.
    pub shelf: ShelfCounters,
    /// Of each device.
    pub devices: Vec<(Address, DeviceCounters)>,
    /// Of each link, by name; as of the last [`crate::LINK_CHECK`].
    pub links: Vec<(String, LinkCounters)>,
    /// Changes that could not be saved in the state directory.
    pub save_failures: u64,
}

/// What the serving threads share.
struct Shared {
    shelf: Mutex<Shelf<AnyStore>>,
    states: Option<StateDir>,
    /// Buffer count that each device may have at most.
    configured: Vec<(Address, u16)>,
    /// Frames that each link's receive queue holds, divided by the stations that send to it.
    room: Vec<AtomicUsize>,
    links: Vec<Mutex<(String, LinkCounters)>>,
    save_failures: AtomicUsize,
    stop: AtomicBool,
    /// Woken once, at the end, and left readable for all threads to see.
    stopped: Waker,
    start: Duration,
}

impl Shared {
    fn now(&self) -> Duration {
        coarse_time(ClockId::MonotonicCoarse).saturating_sub(self.start)
    }

    fn lock(&self) -> MutexGuard<'_, Shelf<AnyStore>> {
        self.shelf.lock().expect("a serving thread that panicked has left the shelf half changed")
    }

    /// Saves a device's state; whether it is durable.
    fn save(&self, shelf: &Shelf<AnyStore>, address: Address) -> bool {
        let (Some(states), Some(state)) = (&self.states, shelf.state(address)) else { return true };
        match states.save(address, state) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%address, %error, "saving the device's state");
                self.save_failures.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Tells each device the buffer count that the links have room for.
    fn share_room(&self, shelf: &mut Shelf<AnyStore>) {
        let least = self.room.iter().map(|room| room.load(Ordering::Relaxed)).min().unwrap_or(1);
        let each = u16::try_from(least / self.configured.len().max(1)).unwrap_or(u16::MAX).max(1);
        for &(address, most) in &self.configured {
            shelf.set_buffer_count(address, most.min(each));
        }
    }
}

/// Starts shelves.
#[derive(Debug)]
pub struct ShelfServer;

impl ShelfServer {
    /// Serves as `config` says, one thread per link, until the handle is told to stop.
    pub fn spawn(config: ServerConfig, links: Vec<Box<dyn Link>>) -> Result<ShelfHandle, ServerError> {
        if links.is_empty() || links.len() > usize::from(u8::MAX) + 1 {
            return Err(ServerError::Links(links.len()));
        }
        let states = match &config.state_dir {
            None => None,
            Some(path) => {
                let made = StateDir::new(path);
                Some(made.map_err(|source| ServerError::StateDir { path: path.clone(), source })?)
            }
        };
        let mut shelf = Shelf::new(ShelfConfig {
            frame_lifetime: config.frame_lifetime,
            changes_from: if config.settle { config.frame_lifetime } else { Duration::ZERO },
            ..ShelfConfig::new(boot_number())
        });
        let mut configured = Vec::with_capacity(config.devices.len());
        for ServedDevice { config: device, store } in config.devices {
            let address = device.address;
            let mut state = states.as_ref().map_or(Ok(DeviceState::default()), |states| states.load(address))?;
            if state.mask.is_empty() {
                state.mask.clone_from(&config.mask);
            }
            configured.push((address, device.buffer_count));
            shelf.add_device(device, state, store).map_err(|source| ServerError::Device { address, source })?;
        }
        let shared = Arc::new(Shared {
            shelf: Mutex::new(shelf),
            states,
            configured,
            room: links.iter().map(|link| AtomicUsize::new(link.receive_frames())).collect(),
            links: links.iter().map(|link| Mutex::new((link.name().to_owned(), LinkCounters::default()))).collect(),
            save_failures: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            stopped: Waker::new().map_err(ServerError::Thread)?,
            start: coarse_time(ClockId::MonotonicCoarse),
        });
        shared.share_room(&mut shared.lock());
        // Made before the threads, so that an early return stops those that run already.
        let mut handle = ShelfHandle { shared, threads: Vec::new() };
        for (index, link) in links.into_iter().enumerate() {
            let id = PortId(u8::try_from(index).expect("the number of links was checked"));
            let cpu = (!config.cpus.is_empty()).then(|| config.cpus[index % config.cpus.len()]);
            let mut port = ServedPort::new(Arc::clone(&handle.shared), id, link);
            // The port is there before this returns: a caller may discover at once.
            port.check(handle.shared.now());
            let thread = std::thread::Builder::new().name(format!("shelf-{index}")).spawn(move || port.run(cpu));
            handle.threads.push(thread.map_err(ServerError::Thread)?);
        }
        Ok(handle)
    }
}

/// A number that differs from start to start.
fn boot_number() -> u32 {
    // Keys from the system's random generator, with time and process number for good measure.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    if let Ok(since) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        hasher.write_u128(since.as_nanos());
    }
    // 0 is what targets say that have no such number.
    (hasher.finish() as u32).max(1)
}

/// A running shelf. Dropping it kills the shelf.
pub struct ShelfHandle {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ShelfHandle {
    /// The devices served, in order.
    pub fn addresses(&self) -> Vec<Address> {
        self.shared.lock().addresses().collect()
    }

    /// A device's size in sectors.
    pub fn sectors(&self, address: Address) -> Option<u64> {
        self.shared.lock().store(address).map(BlockStore::sectors)
    }

    /// Whether all serving threads run.
    pub fn is_running(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// What was counted so far.
    pub fn counters(&self) -> ServerCounters {
        let shelf = self.shared.lock();
        let devices =
            shelf.addresses().filter_map(|address| Some((address, shelf.device_counters(address)?))).collect();
        let links = self.shared.links.iter();
        ServerCounters {
            shelf: shelf.counters(),
            devices,
            links: links.map(|link| link.lock().expect("nothing panics while holding counters").clone()).collect(),
            save_failures: self.shared.save_failures.load(Ordering::Relaxed) as u64,
        }
    }

    /// Serves no more, makes all stores durable, and returns when that is done.
    pub fn stop(mut self) -> Result<(), StopError> {
        self.join();
        let mut shelf = self.shared.lock();
        let addresses: Vec<_> = shelf.addresses().collect();
        let mut failed = Vec::new();
        for address in addresses {
            let store = shelf.store_mut(address).expect("the shelf named it");
            if !store.read_only() && store.flush().is_err() {
                failed.push(address);
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(StopError { failed }) }
    }

    /// Serves no more, as if the power had gone: nothing is flushed.
    pub fn kill(mut self) {
        self.join();
    }

    fn join(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.stopped.wake();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a shelf thread had panicked");
            }
        }
    }
}

impl Drop for ShelfHandle {
    fn drop(&mut self) {
        self.join();
    }
}

/// Devices whose data could not be made durable at the end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not flush {failed:?}: data written lately may be lost")]
pub struct StopError {
    /// The devices.
    pub failed: Vec<Address>,
}
