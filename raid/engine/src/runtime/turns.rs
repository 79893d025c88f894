//! Who takes a worker's turns: its thread, or a front end that would otherwise have to wake that.
//!
//! A front end that has posted parts takes the turns of a worker of its own CPU's group itself, unless somebody is at them: what it has just touched is in
//! this CPU's caches, no thread is woken, and none waits for the other's time on the CPU. Whoever takes turns holds the worker's lock. Front
//! ends never wait for it, and let it go after [`TURNS_MAX`] turns; the worker's thread sleeps without it.
//!
//! Nothing is lost on the way: who posts has cleared the flag of a worker that slept ([`Board::post`](crate::board::Board::post)), and must either
//! wake its thread or, before it lets go of the worker, announce for the thread that it sleeps and look once more. What the thread alone can see to (its CPUs, new
//! descriptors, an earlier timeout, its end) it is woken for. The model checker goes through it (`raid/engine/tests/model.rs`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::wake::{Bell, Spin};
use super::worker_thread::{Turned, WorkerThread};
use super::{AbortOnPanic, Shared, topology};
use crate::board::WorkerSet;
use crate::message::WorkerId;

/// Most turns that a front end takes at a time: reads, writes and replies of its own plug take three, and a few come after it.
const TURNS_MAX: usize = 16;

/// How often a worker looks at descriptors that it cannot wait for, as it found none for itself to have.
const NOT_HEARD: Duration = Duration::from_millis(1);

/// The insides of a worker; none once it has ended.
type Place = Mutex<Option<WorkerThread>>;

/// Descriptors that a worker's thread waits for: its own, as others may be at the worker meanwhile.
#[derive(Default)]
struct Heard {
    /// The worker's links that they are of.
    links: u32,
    fds: Vec<OwnedFd>,
}

impl Heard {
    /// Takes in what the worker has now; false where some could not be had.
    fn refresh(&mut self, worker: &WorkerThread) -> bool {
        if self.links != worker.links {
            *self = Heard { links: worker.links, fds: Vec::new() };
        }
        // With the same links there are never fewer.
        let more = worker.devices.fds().skip(self.fds.len()).map(|fd| fd.try_clone_to_owned());
        let more: io::Result<Vec<OwnedFd>> = more.collect();
        let whole = more.is_ok();
        self.fds.extend(more.into_iter().flatten());
        whole
    }
}

/// See the module's text.
pub(super) struct Turns {
    shared: Arc<Shared>,
    places: Vec<Place>,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns").field("workers", &self.places.len()).finish_non_exhaustive()
    }
}

fn locked(place: &Place) -> MutexGuard<'_, Option<WorkerThread>> {
    place.lock().expect("who panics at a worker ends the process")
}

impl Turns {
    pub(super) fn new(shared: Arc<Shared>, workers: Vec<WorkerThread>) -> Turns {
        Turns { shared, places: workers.into_iter().map(|worker| Mutex::new(Some(worker))).collect() }
    }

    /// The life of a worker's thread.
    pub(super) fn run(&self, index: usize) {
        let _guard = AbortOnPanic;
        let start = self.shared.start;
        let mut spin = Spin::default();
        let mut heard = Heard::default();
        loop {
            let mut place = locked(&self.places[index]);
            let Some(worker) = place.as_mut() else { return };
            worker.pin();
            worker.desk.stay(false);
            if worker.step(|| start.elapsed()).is_none() {
                // Its channels to members close when nobody can be at it any more.
                drop(place.take());
                return;
            }
            worker.desk.idle();
            worker.pin();
            drop(place);
            self.wait(index, &mut spin, &mut heard);
        }
    }

    /// Waits until there may be something to do: looks for it a while, and then sleeps.
    fn wait(&self, index: usize, spin: &mut Spin, heard: &mut Heard) {
        let (most, start) = (self.shared.spin(), self.shared.start);
        let began = start.elapsed();
        let mut pump = false;
        // Not the first time: that was done a moment ago.
        let found = spin.look(most, || {
            let mut place = locked(&self.places[index]);
            place.as_mut().is_none_or(|worker| {
                worker.desk.stay(false);
                worker.look(std::mem::replace(&mut pump, true))
            })
        });
        if !found {
            self.sleep(index, heard);
        }
        spin.waited(start.elapsed() - began, most);
    }

    fn sleep(&self, index: usize, heard: &mut Heard) {
        let mut place = locked(&self.places[index]);
        let Some(worker) = place.as_mut() else { return };
        let whole = heard.refresh(worker);
        worker.desk.stay(false);
        let mut timeout = worker.may_sleep();
        if !whole {
            timeout = timeout.min(NOT_HEARD);
        }
        let rest = worker.devices.rest();
        drop(place);
        let fds: &[OwnedFd] = if rest.is_some() { &[] } else { &heard.fds };
        let timeout = rest.map_or(timeout, |rest| rest.min(timeout));
        if !timeout.is_zero() {
            self.bell(index).sleep(fds.iter().map(OwnedFd::as_fd), Some(timeout));
        }
        self.shared.board.sleeper(self.shared.workers[index].id).awake();
    }

    fn bell(&self, index: usize) -> &Bell {
        &self.shared.workers[index].bell
    }

    /// Comes after posting to the group `home`, which answered with `kicks`: wakes those workers, but takes the turns of one that keeps to the CPU of
    /// the calling thread, if it can.
    pub(super) fn take(&self, home: usize, kicks: WorkerSet) {
        let taken = self.taken(home);
        let mut slept = false;
        for id in kicks.iter() {
            match &taken {
                Some((own, _)) if *own == id => slept = true,
                _ => self.bell(usize::from(id.0)).ring(),
            }
        }
        let Some((id, mut place)) = taken else { return };
        let wake = place.as_mut().is_some_and(|worker| self.turns(worker, slept, true));
        drop(place);
        if wake {
            self.bell(usize::from(id.0)).ring();
        }
    }

    /// The caller, whose CPU is that of the group `home`, has nothing to do: it takes turns with what waits anywhere.
    pub(super) fn help(&self, home: usize) {
        let Some((id, mut place)) = self.taken(home) else { return };
        let Some(worker) = place.as_mut() else { return };
        let wake = self.turns(worker, false, false);
        if !wake {
            worker.desk.idle();
        }
        drop(place);
        if wake {
            self.bell(usize::from(id.0)).ring();
        }
    }

    /// A worker of the group that keeps to the CPU of the calling thread and that nobody is at.
    fn taken(&self, home: usize) -> Option<(WorkerId, MutexGuard<'_, Option<WorkerThread>>)> {
        self.shared.board.members(home).iter().find_map(|id| {
            let place = self.places[usize::from(id.0)].try_lock().ok()?;
            place.as_ref().is_some_and(may_take).then_some((id, place))
        })
    }

    /// Takes turns for the thread, which `slept`, with what waits for its group if it `stays`; answers whether the thread must be woken.
    fn turns(&self, worker: &mut WorkerThread, slept: bool, stays: bool) -> bool {
        worker.desk.stay(stays);
        let _guard = AbortOnPanic;
        let start = self.shared.start;
        let descriptors = |worker: &WorkerThread| (worker.links, worker.devices.fds().count());
        let before = descriptors(worker);
        for _ in 0..TURNS_MAX {
            if worker.look(false) {
                match worker.turn(|| start.elapsed()) {
                    Turned::More => continue,
                    Turned::End => return true,
                    Turned::Done => {}
                }
                if worker.moved || worker.due(start.elapsed()) < worker.wakes_at || descriptors(worker) != before {
                    return true;
                }
            }
            if !slept {
                return false;
            }
            // As the thread would: what was posted to a group that is gone is nobody else's.
            worker.desk.stay(false);
            worker.sleeper().announce();
            if !worker.has_work() || !worker.sleeper().must_kick() {
                return false;
            }
        }
        true
    }
}

/// Whether a front end on this CPU may take the worker's turns.
fn may_take(worker: &WorkerThread) -> bool {
    matches!(&worker.cpus[..], [cpu] if cpu.0 == topology::current()) && !worker.devices.need_one_thread()
}
