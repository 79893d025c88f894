//! The thread around a worker: collects its inputs, lets it turn, carries its effects out, sleeps.
//!
//! Nothing is decided here. Bounds: the inbox holds what the clients have in flight; a report that finds the array's
//! queue full waits for the next turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::ClientShared;
use super::topology::{self, Cpu};
use super::{Shared, ToArray, WorkerMsg};
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
    pub(super) cpu: Option<Cpu>,
    pub(super) shared: Arc<Shared>,
    pub(super) devices: Devices,
    pub(super) inputs: Inputs,
    pub(super) effects: Effects,
    pub(super) events: Vec<DeviceEvent>,
    /// Replies of this turn, by client.
    pub(super) replies: Vec<(ClientId, Arc<ClientShared>, Vec<PartReply>)>,
}

impl WorkerThread {
    pub(super) fn run(mut self) {
        let _guard = super::AbortOnPanic;
        if let Some(cpu) = self.cpu
            && !topology::pin(cpu)
        {
            tracing::warn!(cpu = cpu.0, "a worker could not be pinned and runs where the scheduler puts it");
        }
        let start = self.shared.start;
        while let Some(next) = self.step(|| start.elapsed()) {
            self.sleep(next, start);
        }
    }

    /// Takes in what has arrived, turns the worker and carries out what it wants, until nothing is left to do at once. Answers when it wants to
    /// be stepped again though nothing arrives; `None` when it is to end.
    pub(super) fn step(&mut self, clock: impl Fn() -> Duration) -> Option<Option<Duration>> {
        loop {
            if !self.collect(clock()) {
                return None;
            }
            let next = self.worker.turn(clock(), &mut self.inputs, &mut self.effects);
            self.carry_out(clock());
            let traffic = self.devices.traffic();
            self.shared.workers[self.index].publish(&self.worker.counters(), self.worker.cache_bytes(), traffic);
            if self.inputs.done.is_empty() {
                return Some(next);
            }
        }
    }

    /// Empties the queues into the inputs; false when the thread is to end.
    fn collect(&mut self, now: Duration) -> bool {
        self.take_parts();
        // After the parts: whatever the array said before it sent a part is here by now.
        let mine = &self.shared.workers[self.index];
        while let Some(msg) = mine.control.pop() {
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
                    // Who asked may have gone away.
                    let _ = to.try_send(self.devices.paths());
                }
                WorkerMsg::End => return false,
            }
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
        let mine = &self.shared.workers[self.index];
        while let Some(mut batch) = mine.inbox.pop() {
            let Some(first) = batch.first() else { continue };
            let client = first.client;
            if client != ClientId::ARRAY {
                let seen = mine.parts.load(Ordering::Relaxed) + batch.len() as u64;
                mine.parts.store(seen, Ordering::Relaxed);
            }
            self.inputs.parts.append(&mut batch);
            if let Some(client) = self.shared.client(client) {
                // A full list of spares only means that this one is freed.
                let _ = client.part_spares.push(batch);
            }
        }
    }

    fn carry_out(&mut self, now: Duration) {
        let effects = &mut self.effects;
        for cancel in effects.cancels.drain(..) {
            self.devices.cancel(now, cancel.handle, cancel.id);
        }
        for request in effects.requests.drain(..) {
            let segs = &effects.segs[request.segs_from as usize..(request.segs_from + request.segs) as usize];
            self.devices.submit(now, &request, segs, &mut self.inputs.done);
        }
        effects.segs.clear();
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

    fn sleep(&mut self, next: Option<Duration>, start: Instant) {
        let mine = &self.shared.workers[self.index];
        mine.wake.announce();
        if !mine.inbox.is_empty() || !mine.control.is_empty() {
            mine.wake.awake();
            return;
        }
        let next = [next, self.devices.wake_at(start.elapsed())].into_iter().flatten().min();
        let timeout = next.map_or(SLEEP_MAX, |at| at.saturating_sub(start.elapsed()).min(SLEEP_MAX));
        if timeout.is_zero() {
            mine.wake.awake();
            return;
        }
        mine.wake.sleep(self.devices.fds(), Some(timeout));
    }
}
