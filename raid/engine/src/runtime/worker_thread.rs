//! What is around a worker: collects its inputs, lets it turn, carries its effects out; and its thread, which sleeps in between.
//!
//! Nothing is decided here. A worker that does not work has its thread all the same: it acts on views and gives up what it still owns. Who takes a
//! worker's turns, its thread or a front end, is [`super::turns`]' affair.
//! Bounds: what a worker takes for a turn, by [`crate::board`]; what it has in all, by what the clients have in flight.

use std::sync::Arc;
use std::time::Duration;

use super::client::ClientShared;
use super::topology::{self, Cpu};
use super::{Shape, Shared, ToArray, WorkerMsg};
use crate::board::{Desk, Sleeper};
use crate::member::Owner;
use crate::member::devices::{DeviceEvent, Devices};
use crate::message::{ClientId, PartReply};
use crate::sync::Ordering;
use crate::worker::{Effects, Inputs, Worker};

/// Longest sleep, so that a lost wake could cost at most that; there is none known.
const SLEEP_MAX: Duration = Duration::from_secs(1);

pub(super) struct WorkerThread {
    pub(super) worker: Worker,
    pub(super) index: usize,
    /// The CPUs it is to keep to; none: wherever the scheduler puts it.
    pub(super) cpus: Vec<Cpu>,
    /// The thread has not heard of them yet.
    pub(super) moved: bool,
    /// It was told to end.
    pub(super) ended: bool,
    /// When the worker wants to be turned again though nothing arrives.
    pub(super) next: Option<Duration>,
    /// When the thread wakes up though nobody wakes it.
    pub(super) wakes_at: Duration,
    /// How often the links were opened anew: descriptors from before are of no use.
    pub(super) links: u32,
    pub(super) desk: Desk,
    /// What the worker is becoming.
    pub(super) shape: Option<Shape>,
    pub(super) shared: Arc<Shared>,
    pub(super) devices: Devices,
    pub(super) inputs: Inputs,
    pub(super) effects: Effects,
    pub(super) events: Vec<DeviceEvent>,
    /// Some members carried requests out at once in the last turn, which took parts on.
    pub(super) hot: bool,
    /// Replies of this turn, by client.
    pub(super) replies: Vec<(ClientId, Arc<ClientShared>, Vec<PartReply>)>,
}

/// What a turn leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// More to do.
    More,
    /// Nothing to do now.
    Done,
    /// It is to end.
    End,
}

impl WorkerThread {
    /// Keeps to the CPUs of its seat. In a simulation it has none.
    pub(super) fn pin(&mut self) {
        if std::mem::take(&mut self.moved) && !self.cpus.is_empty() && !topology::pin(&self.cpus) {
            tracing::warn!(cpus = ?self.cpus, "a worker could not be pinned and runs where the scheduler puts it");
        }
    }

    /// Takes turns until nothing is left to do at once. Answers when it wants to be stepped again though nothing arrives; `None` when it is to
    /// end.
    pub(super) fn step(&mut self, clock: impl Fn() -> Duration) -> Option<Option<Duration>> {
        loop {
            match self.turn(&clock) {
                Turned::More => {}
                Turned::Done => return Some(self.next),
                Turned::End => return None,
            }
        }
    }

    /// Takes in what has arrived, turns the worker and carries out what it wants.
    pub(super) fn turn(&mut self, clock: impl Fn() -> Duration) -> Turned {
        if !self.collect(clock()) {
            return Turned::End;
        }
        let takes = !self.inputs.parts.is_empty();
        self.next = self.worker.turn(clock(), &mut self.inputs, &mut self.effects);
        self.carry_out(clock(), takes);
        self.take_shape();
        let (traffic, taken) = (self.devices.traffic(), self.desk.traffic);
        self.shared.workers[self.index].publish(&self.worker.counters(), self.worker.cache_bytes(), traffic, taken);
        let more = !self.inputs.done.is_empty() || self.desk.has_work(&self.worker);
        if more { Turned::More } else { Turned::Done }
    }

    /// Empties the queues into the inputs; false when the thread is to end.
    fn collect(&mut self, now: Duration) -> bool {
        // What members have read at once is in the CPU's caches: it is seen to before more is taken on, which would push it out.
        if !std::mem::take(&mut self.hot) {
            self.take_parts();
        }
        // After the parts: whatever the array said before it sent a part is here by now.
        while let Some(msg) = self.shared.workers[self.index].control.pop() {
            match msg {
                WorkerMsg::Array(control) => self.inputs.control.push(control),
                WorkerMsg::Attach(handle, device) => {
                    // Requests to it then end as `Gone`, and the array lets it go again.
                    if let Err(error) = self.devices.attach(handle, &device, now) {
                        tracing::error!(%error, "a worker cannot open a channel to a new member");
                    }
                }
                WorkerMsg::Detach(handle) => self.devices.detach(handle, now),
                WorkerMsg::Tune(tunables) => self.devices.tune(now, tunables),
                WorkerMsg::Paths(to) => {
                    let mut devices = self.devices.paths();
                    if !self.desk.is_seated() {
                        // Nothing is sent from here, so what could be does not add to what the array has under way at most.
                        devices.iter_mut().flat_map(|device| &mut device.paths).for_each(|path| path.cwnd = 0);
                    }
                    // Who asked may have gone away.
                    let _ = to.try_send(devices);
                }
                WorkerMsg::Relink => {
                    self.links += 1;
                    if let Err(error) = self.devices.relink(now) {
                        tracing::error!(%error, "a worker cannot open the interfaces: it goes on with those that it has");
                    }
                }
                WorkerMsg::Care(handle, care) => self.devices.care(now, handle, care),
                WorkerMsg::Shape(shape) => self.begin_shape(shape),
                WorkerMsg::End => self.ended = true,
            }
        }
        if self.ended {
            return false;
        }
        self.devices.pump(now, &mut self.inputs.done);
        self.pass_events(now);
        true
    }

    /// Passes on what the devices' channels brought: others may wait for it.
    fn pass_events(&mut self, now: Duration) {
        self.devices.events(now, &mut self.events);
        let owner = Owner::Worker(self.shared.workers[self.index].id);
        for event in self.events.drain(..) {
            match event {
                DeviceEvent::Member(handle, event) => self.shared.tell_array(ToArray::Member(owner, handle, event)),
                DeviceEvent::Wake(owner) => self.shared.wake(owner),
            }
        }
    }

    fn take_parts(&mut self) {
        let from = self.inputs.parts.len();
        let kicks = self.desk.collect(&mut self.worker, &mut self.inputs.parts);
        self.shared.kick(kicks);
        let clients = self.inputs.parts[from..].iter().filter(|part| part.client != ClientId::ARRAY).count();
        if clients > 0 {
            let parts = &self.shared.workers[self.index].parts;
            parts.store(parts.load(Ordering::Relaxed) + clients as u64, Ordering::Relaxed);
        }
    }

    /// Sits down where it is told to. A former change that is not finished is overtaken by this one.
    fn begin_shape(&mut self, shape: Shape) {
        self.desk.sit(shape.seat.as_ref().map(|seat| seat.group));
        if let Some(seat) = &shape.seat
            && self.cpus != seat.cpus
        {
            self.cpus.clone_from(&seat.cpus);
            self.moved = true;
        }
        self.shape = Some(shape);
    }

    /// Finishes a change of shape once it can: a worker's memory is changed when no run uses it, for which it takes nothing on meanwhile, unless
    /// it would have to wait for members; and one that works no more has first given up what it owns.
    fn take_shape(&mut self) {
        let Some(shape) = &mut self.shape else { return };
        let ready = if shape.seat.is_some() {
            shape.memory.is_none() || self.worker.is_drained()
        } else {
            self.worker.is_idle()
        };
        self.desk.pause(!ready && shape.seat.is_some() && !self.worker.may_be_held());
        if ready {
            let spare = shape.memory.take().map(|(arena, pages)| self.worker.resize(arena, pages));
            let token = shape.token;
            self.shape = None;
            self.shared.tell_array(ToArray::Shaped(token, spare));
        }
    }

    fn carry_out(&mut self, now: Duration, takes: bool) {
        let effects = &mut self.effects;
        for cancel in effects.cancels.drain(..) {
            self.devices.cancel(now, cancel.handle, cancel.id);
        }
        for request in effects.requests.drain(..) {
            let segs = &effects.segs[request.segs_from as usize..(request.segs_from + request.segs) as usize];
            self.devices.submit(now, &request, segs, &mut self.inputs.done);
        }
        effects.segs.clear();
        self.hot = takes && !self.inputs.done.is_empty();
        self.devices.pump(now, &mut self.inputs.done);
        self.pass_events(now);
        let effects = &mut self.effects;
        let id = self.shared.workers[self.index].id;
        for report in effects.reports.drain(..) {
            self.shared.tell_array(ToArray::Report(id, report));
        }
        self.reply();
    }

    /// Hands this turn's replies to their clients, one batch each.
    fn reply(&mut self) {
        for reply in self.effects.replies.drain(..) {
            match self.replies.iter_mut().find(|(client, ..)| *client == reply.client) {
                Some((_, _, batch)) => batch.push(reply),
                None if reply.client == ClientId::ARRAY => self.shared.tell_array(ToArray::Sync(reply)),
                None => {
                    let Some(client) = self.shared.client(reply.client) else { continue };
                    let mut batch = client.reply_spares.pop().unwrap_or_default();
                    batch.push(reply);
                    self.replies.push((reply.client, client, batch));
                }
            }
        }
        for (_, client, batch) in self.replies.drain(..) {
            assert!(client.replies.push(batch).is_ok(), "a client has at most PARTS_MAX parts in flight");
            client.wake.notify();
        }
    }

    /// Whether there is something to do that [`turn`](WorkerThread::turn) finds; of the devices, what `pump` brings if that is asked for.
    pub(super) fn look(&mut self, pump: bool) -> bool {
        if pump {
            let now = self.shared.start.elapsed();
            self.devices.pump(now, &mut self.inputs.done);
            self.pass_events(now);
        }
        !self.inputs.done.is_empty() || self.has_work()
    }

    pub(super) fn has_work(&self) -> bool {
        !self.shared.workers[self.index].control.is_empty() || self.desk.has_work(&self.worker)
    }

    /// When a turn is to be taken although nothing arrives.
    pub(super) fn due(&self, now: Duration) -> Duration {
        [self.next, self.devices.wake_at(now)].into_iter().flatten().fold(now + SLEEP_MAX, Duration::min)
    }

    /// Announces that the thread is about to sleep; answers for how long it may, zero if there is something to do.
    pub(super) fn may_sleep(&mut self) -> Duration {
        self.sleeper().announce();
        let now = self.shared.start.elapsed();
        self.wakes_at = self.due(now);
        if self.has_work() { Duration::ZERO } else { self.wakes_at.saturating_sub(now) }
    }

    pub(super) fn sleeper(&self) -> &Sleeper {
        self.shared.board.sleeper(self.shared.workers[self.index].id)
    }
}
