//! Which workers work, as the control thread decides it: from the settings, and from the CPUs that are there.
//!
//! A change takes effect for front ends at once. Each worker that it concerns is told, finishes what it must finish first, and says so; the
//! change has ended when all have. A change that is made meanwhile overtakes it. Bound: one change, and whoever waits for it.

use std::io;

use raid_core::units::MemberCount;

use super::control::Answer;
use super::groups::{Groups, Seat};
use super::topology::Cpu;
use super::{Shape, Shared, WorkerMsg, cache_memory, pages_of};
use crate::array::{CommandError, CommandErrorKind};
use crate::tunables::Settings;

/// CPUs are told apart by number up to here.
const CPUS_MAX: usize = 1024;

/// Where workers may sit.
#[derive(Clone, Debug)]
pub(super) enum Places {
    /// In groups on CPUs.
    Groups(Groups),
    /// So many, each a group of its own, on no CPU: in a simulation.
    Fixed(usize),
}

impl Places {
    /// How many workers and groups there may be.
    pub(super) fn counts(&self) -> (usize, usize) {
        match self {
            Places::Groups(groups) => (groups.places(), groups.cpus.len().max(1)),
            Places::Fixed(count) => (*count, *count),
        }
    }

    /// Where each worker sits under these settings, or what is possible.
    fn seats(&self, settings: &Settings, present: &[Cpu]) -> Result<Vec<Option<Seat>>, String> {
        match self {
            Places::Groups(groups) => {
                let groups = groups.with(settings);
                groups.check()?;
                Ok(groups.seats(present))
            }
            Places::Fixed(count) => {
                let works = |group| group < settings.group_thread_cnt.max(1);
                Ok((0..*count).map(|group| works(group).then(|| Seat { group, cpus: Vec::new() })).collect())
            }
        }
    }

    fn homes(&self, settings: &Settings, seats: &[Option<Seat>]) -> Vec<u16> {
        match self {
            Places::Groups(groups) => groups.with(settings).homes(seats, CPUS_MAX),
            Places::Fixed(_) => Vec::new(),
        }
    }
}

/// Who sits where.
#[derive(Clone, Debug)]
pub(super) struct Seating {
    places: Places,
    present: Vec<Cpu>,
    members: MemberCount,
    /// The settings in force.
    settings: Settings,
    pub(super) seats: Vec<Option<Seat>>,
    pub(super) homes: Vec<u16>,
}

impl Seating {
    pub(super) fn new(places: Places, members: MemberCount, settings: &Settings) -> Result<Seating, String> {
        let present = match &places {
            Places::Groups(groups) => groups.cpus.clone(),
            Places::Fixed(_) => Vec::new(),
        };
        Seating::made(places, present, members, settings)
    }

    fn made(places: Places, present: Vec<Cpu>, members: MemberCount, settings: &Settings) -> Result<Seating, String> {
        let seats = places.seats(settings, &present)?;
        let homes = places.homes(settings, &seats);
        Ok(Seating { places, present, members, settings: settings.clone(), seats, homes })
    }

    /// How many groups there may be.
    pub(super) fn groups(&self) -> usize {
        self.places.counts().1
    }

    /// Pages of a worker's cache.
    pub(super) fn pages(&self, worker: usize) -> usize {
        pages_of(self.members, self.settings.stripe_cache_size, &self.seats, worker)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    fn changed(&self, settings: &Settings, present: &[Cpu]) -> Result<Seating, String> {
        Seating::made(self.places.clone(), present.to_vec(), self.members, settings)
    }
}

/// A change that workers are at.
#[derive(Debug, Default)]
pub(super) struct Change {
    token: u32,
    /// Workers that have not finished.
    waiting: usize,
    answer: Option<Answer>,
}

impl Change {
    /// A worker has finished what it was told with this token.
    pub(super) fn shaped(&mut self, token: u32) {
        if token == self.token {
            self.waiting -= 1;
            if self.waiting == 0 {
                self.end();
            }
        }
    }

    /// Answers whoever waits: what was asked for is in force.
    pub(super) fn end(&mut self) {
        if let Some(answer) = self.answer.take() {
            // Who asked may have gone away.
            let _ = answer.try_send(Ok(()));
        }
    }

    /// Changes what the settings change, and takes over `answer`; a change that is refused changes nothing and gives it back.
    pub(super) fn begin(
        &mut self,
        shared: &Shared,
        seating: &mut Seating,
        settings: &Settings,
        answer: Answer,
    ) -> Result<(), (CommandError, Answer)> {
        let present = seating.present.clone();
        let next = seating.changed(settings, &present).map_err(|text| (CommandErrorKind::Invalid, text));
        let made = next.and_then(|next| {
            let out_of_memory =
                |error: io::Error| (CommandErrorKind::Io, format!("no memory for the stripe cache: {error}"));
            self.make(shared, seating, next).map_err(out_of_memory)
        });
        match made {
            Ok(()) => {
                self.answer = Some(answer);
                if self.waiting == 0 {
                    self.end();
                }
                Ok(())
            }
            Err((kind, text)) => Err((CommandError { kind, text }, answer)),
        }
    }

    /// Only these CPUs are there now: groups lose their workers, or get them back.
    pub(super) fn cpus(&mut self, shared: &Shared, seating: &mut Seating, mut present: Vec<Cpu>) {
        let Places::Groups(groups) = &seating.places else { return };
        present.retain(|cpu| groups.cpus.contains(cpu));
        if present == seating.present {
            return;
        }
        tracing::warn!(?present, "the CPUs that there are for workers have changed");
        let settings = seating.settings.clone();
        let made = match seating.changed(&settings, &present) {
            Ok(next) => self.make(shared, seating, next),
            Err(text) => Err(io::Error::other(text)),
        };
        if let Err(error) = made {
            tracing::error!(%error, "workers stay where they are");
            seating.present = present;
        }
    }

    fn make(&mut self, shared: &Shared, seating: &mut Seating, next: Seating) -> io::Result<()> {
        let mut shapes = Vec::new();
        let token = self.token.wrapping_add(1);
        for worker in 0..next.seats.len() {
            let (old, pages) = (seating.pages(worker), next.pages(worker));
            let seat = next.seats[worker].clone();
            // One that was told something and is not done with it is told anew, as it may be told less this time.
            if self.waiting == 0 && old == pages && seat == seating.seats[worker] {
                continue;
            }
            let same = self.waiting == 0 && old == pages;
            let memory = if same { None } else { Some((cache_memory(&shared.slab, pages)?, pages)) };
            shapes.push((worker, Shape { token, seat, memory }));
        }
        // From here on nothing fails.
        self.end();
        self.token = token;
        self.waiting = shapes.len();
        *seating = next;
        shared.seat(&seating.seats, &seating.homes);
        for (worker, shape) in shapes {
            shared.tell(worker, WorkerMsg::Shape(shape));
        }
        Ok(())
    }
}
