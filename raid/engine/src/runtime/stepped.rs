//! A whole array on the caller's thread and the caller's time: for simulations.
//!
//! The same workers, control logic, front-end handles and devices as a [`Running`](super::running::Running) array, stepped one after
//! the other instead of on threads. With links over a simulated network and a seed the whole history can be replayed.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use super::client::Client;
use super::control::{Ask, Asks, ControlThread};
use super::running::Parts;
use super::seating::Places;
use super::worker_thread::WorkerThread;
use super::{Shared, Totals, open_client};
use crate::array::{Command, CommandError, Detail, Start};
use crate::member::devices::Device;
use crate::message::MemberHandle;
use crate::slab::Slab;
use crate::tunables::Settings;

/// See the module's text.
pub struct Stepped {
    shared: Arc<Shared>,
    workers: Vec<WorkerThread>,
    control: ControlThread,
    asks: Arc<Asks>,
    exit: Option<i32>,
}

impl Stepped {
    /// As [`Running::start`](super::running::Running::start), with so many workers, at the time `now`.
    pub fn new(
        start: Start,
        slab: &Arc<Slab>,
        workers: usize,
        stripe_cache_size: usize,
        devices: &[(MemberHandle, Device)],
        now: Duration,
    ) -> io::Result<Stepped> {
        let settings = Settings { stripe_cache_size, group_thread_cnt: workers, ..Settings::default() };
        let parts = Parts::build(start, slab, Places::Fixed(workers), &settings, devices, now)?;
        let Parts { shared, workers, control, asks } = parts;
        Ok(Stepped { shared, workers, control, asks, exit: None })
    }

    /// Steps control and every worker once. `wall` is in seconds since 1970. Answers when to step again though nothing arrives.
    pub fn step(&mut self, now: Duration, wall: u64) -> Duration {
        let mut next = now + Duration::from_secs(1);
        if self.exit.is_none() {
            match self.control.step(now, wall) {
                Ok(at) => next = next.min(at),
                Err(exit) => self.exit = Some(exit),
            }
        }
        for worker in &mut self.workers {
            let at = worker.step(|| now).flatten();
            worker.desk.idle();
            let devices = worker.devices.wake_at(now);
            next = [at, devices].into_iter().flatten().fold(next, Duration::min);
        }
        if self.exit.is_some() {
            // Nobody listens any more.
            while self.shared.to_array.pop().is_some() {}
        }
        // What a worker has told the array, or the array a later worker, is for the next step.
        let working = self.workers.iter().any(|worker| worker.desk.has_work(&worker.worker));
        if self.shared.is_quiet() && !working { next } else { now }
    }

    /// The exit status, once the array has ended.
    pub fn exit(&self) -> Option<i32> {
        self.exit
    }

    /// A handle for a front end. Its requests end as the array is stepped: poll it, do not wait, and drop it only when nothing is in flight.
    pub fn client(&self) -> io::Result<Option<Client>> {
        open_client(&self.shared, None)
    }

    /// Ends it as a kill does: superblocks stay as they are, and what clients have in flight gets no reply.
    pub fn kill(self, clients: Vec<Client>) {
        drop(self);
        clients.into_iter().for_each(Client::abandon);
    }

    /// What the workers have done.
    pub fn totals(&self) -> Totals {
        self.shared.totals()
    }

    /// Asks for a command; the answer comes as the array is stepped.
    pub fn command(&self, command: Command) -> Receiver<Result<(), CommandError>> {
        let (answer, answered) = sync_channel(1);
        assert!(self.asks.push(Ask::Command(command, answer)).is_ok(), "a simulation asks for few things at a time");
        answered
    }

    /// Asks to take a device in.
    pub fn add(&self, device: Device, name: String, device_uuid: [u8; 16]) -> Receiver<Result<(), CommandError>> {
        let (answer, answered) = sync_channel(1);
        let ask = Ask::Add { device, name, device_uuid, answer };
        assert!(self.asks.push(ask).is_ok(), "a simulation asks for few things at a time");
        answered
    }

    /// Asks for new settings; the answer comes once they are in force.
    pub fn tune(&self, settings: &Settings) -> Receiver<Result<(), CommandError>> {
        let (answer, answered) = sync_channel(1);
        let asked = self.asks.push(Ask::Tune(Box::new(settings.clone()), answer));
        assert!(asked.is_ok(), "a simulation asks for few things at a time");
        answered
    }

    /// How the array stands.
    pub fn detail(&self) -> Detail {
        self.control.detail()
    }

    /// The device with this name.
    pub fn find(&self, name: &str) -> Option<MemberHandle> {
        self.control.find(name)
    }
}
