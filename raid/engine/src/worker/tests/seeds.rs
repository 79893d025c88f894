//! Many seeds: each makes a world, a load and faults, runs until all is quiet, and checks what is left on the devices.
//!
//! `ETHERRAID_SEED=n` replays one seed, `ETHERRAID_SEEDS=n` runs so many, both together so many from that one on.

use std::time::Duration;

use raid_core::geometry::Layout;
use raid_core::plan::RmwLevel;
use raid_core::units::MemberIndex;

use super::disk::Mode;
use super::fake_array::Task;
use super::model::Rng;
use super::world::{SLOTS, Shape, World};
use crate::message::{IoStatus, MemberHandle, MemberState, PartOp, SyncKind};

/// How many seeds run when nobody asks for more.
const SEEDS: u64 = 300;

/// What goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    None,
    /// Sectors that cannot be read.
    Medium,
    /// A member answers with errors and is replaced, again and again.
    Fail,
    /// A member falls silent, and answers again or is replaced.
    Silent,
    /// Several members fall silent and answer again.
    Suspend,
    /// Unreadable sectors and failing members: some requests cannot be carried out.
    Both,
    /// Parity is not right everywhere at first.
    Resync,
    /// Two members fall silent for good and the array is abandoned.
    Abandon,
    /// The array stops taking writes, with unreadable sectors.
    ReadOnly,
}

const FAULTS: [Faults; 9] = [
    Faults::None,
    Faults::Medium,
    Faults::Fail,
    Faults::Silent,
    Faults::Suspend,
    Faults::Both,
    Faults::Resync,
    Faults::Abandon,
    Faults::ReadOnly,
];

/// One seed's load.
#[derive(Debug)]
struct Run {
    world: World,
    faults: Faults,
    /// Requests still to be submitted.
    left: u32,
    depth: usize,
    largest: u32,
    /// In percent.
    writes: u64,
    aligned: bool,
    /// Where requests gather.
    spot: u64,
    quiesces: bool,
    drops: u32,
}

fn shape(rng: &mut Rng) -> Shape {
    let members = 3 + rng.below(6) as u8;
    let chunk = 8 << rng.below(8);
    let stripe = chunk * u64::from(members - 1);
    let rows = (4096 / stripe).clamp(2, 8);
    let pages = match rng.below(4) {
        0 => usize::from(members),
        1 => usize::from(members) * (1 + rng.index(8)),
        2 => usize::from(members) * 32 + rng.index(7),
        _ => usize::from(members) * 256,
    };
    Shape {
        members,
        layout: rng.pick(&Layout::ALL),
        chunk,
        rows,
        workers: 1 + rng.index(2),
        pages,
        rmw_level: rng.pick(&[RmwLevel::Fewer, RmwLevel::Fewer, RmwLevel::Never, RmwLevel::Tie]),
    }
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed ^ 0xe7);
        let mut world = World::new(seed, shape(&mut rng));
        let faults = FAULTS[(seed % FAULTS.len() as u64) as usize];
        world.closes = rng.percent(30);
        world.may_fail = matches!(faults, Faults::Both | Faults::Abandon | Faults::ReadOnly);
        if faults == Faults::Resync {
            let rows = world.shape.rows;
            world.distrust(rng.below(rows));
        }
        let span = world.span();
        Run {
            world,
            faults,
            left: 60 + rng.below(200) as u32,
            depth: 1 + rng.index(24),
            largest: rng.pick(&[8, 64, 512, 2048]),
            writes: 20 + rng.below(80),
            aligned: rng.percent(50),
            spot: span.0 + rng.below(span.1),
            quiesces: rng.percent(50),
            drops: 0,
        }
    }

    /// A request's place: near the spot, or anywhere; odd sectors or 4 KiB ones; now and then whole chunks and rows.
    fn place(&mut self) -> (u64, u32) {
        let (first, count) = self.world.span();
        let largest = u64::from(self.largest).min(count);
        let shape = self.world.shape;
        let rng = &mut self.world.rng;
        let unit = match rng.below(10) {
            0 => shape.chunk * u64::from(shape.members - 1),
            1 => shape.chunk,
            _ if self.aligned => 8,
            _ => 1,
        };
        let length = match rng.below(3) {
            0 => unit,
            1 => (1 + rng.below(4)) * unit,
            _ => (1 + rng.below(largest)).next_multiple_of(unit),
        };
        let length = length.min(largest.max(unit)).min(2048).min(count);
        let at =
            if rng.percent(50) { self.spot.saturating_sub(rng.below(64)).max(first) } else { first + rng.below(count) };
        let at = (at - first) / unit * unit;
        let at = first + at.min(count - length);
        (at, length as u32)
    }

    fn submit(&mut self) {
        let mut requests = Vec::new();
        let most = 1 + self.world.rng.index(8);
        for _ in 0..most.min(self.left as usize) {
            let (at, length) = self.place();
            let fua = self.world.rng.percent(5);
            let op = match self.world.rng.below(100) {
                n if n < 3 => PartOp::Flush,
                n if n < self.writes => PartOp::Write { fua },
                _ => PartOp::Read,
            };
            let length = if op == PartOp::Flush { 0 } else { length };
            requests.push((op, at, length));
            self.left -= 1;
            if self.world.outstanding.len() + requests.len() >= self.depth {
                break;
            }
        }
        let room = SLOTS - self.world.outstanding.len();
        requests.truncate(room);
        self.world.submit(&requests);
        if self.world.rng.percent(10) {
            let (first, count) = self.world.span();
            self.spot = first + self.world.rng.below(count);
        }
    }

    fn after(&mut self, most: u64) -> Duration {
        self.world.now + Duration::from_micros(self.world.rng.below(most))
    }

    /// Lets something go wrong.
    fn fault(&mut self) {
        if self.quiesces && self.world.rng.percent(50) {
            let at = self.after(100);
            self.world.array.plan(at, Task::Quiesce);
            return;
        }
        let bad = matches!(self.faults, Faults::Medium | Faults::Both | Faults::ReadOnly);
        if bad && self.world.rng.percent(70) {
            return self.world.make_bad();
        }
        match self.faults {
            Faults::Fail | Faults::Both => self.fail_member(),
            Faults::Silent => self.silence(1),
            Faults::Suspend => {
                let count = 2 + self.world.rng.index(2);
                self.silence(count);
            }
            Faults::Medium | Faults::None if self.world.array.sync.is_none() => {
                let start = self.world.span().0 / u64::from(self.world.shape.members - 1);
                let kind = self.world.rng.pick(&[SyncKind::Check, SyncKind::Repair]);
                self.world.array.start_sync(kind, start);
            }
            _ => {}
        }
    }

    /// In sync and working members, if nothing is wrong at present.
    fn healthy(&self) -> Option<Vec<MemberHandle>> {
        let works = self.world.array.is_whole()
            && self
                .world
                .array
                .tasks
                .iter()
                .all(|t| !matches!(t.1, Task::Drop(_) | Task::Silent(_) | Task::Answers(_)));
        let handles: Vec<MemberHandle> = self.world.array.view.members.iter().map(|m| m.handle).collect();
        let fine = |h: &MemberHandle| self.world.disks[h.0 as usize].mode == Mode::Works;
        (works && self.world.array.sync.is_none() && handles.iter().all(fine)).then_some(handles)
    }

    fn fail_member(&mut self) {
        let Some(handles) = self.healthy() else {
            return;
        };
        self.world.mend_all();
        let handle = self.world.rng.pick(&handles);
        let status = self.world.rng.pick(&[IoStatus::Failed, IoStatus::Gone]);
        let at = self.after(500);
        if self.world.rng.percent(70) {
            self.world.disks[handle.0 as usize].mode = Mode::Fails(status);
            // Somebody may have to find out.
            let at = at + Duration::from_millis(2);
            self.world.array.plan(at, Task::Drop(handle));
        } else {
            self.world.array.plan(at, Task::Drop(handle));
        }
        self.replace_later(handle);
    }

    fn replace_later(&mut self, handle: MemberHandle) {
        let role = self.world.array.view.members.iter().position(|m| m.handle == handle).expect("it has a role");
        let role = MemberIndex(role as u8);
        self.drops += 1;
        let at = self.after(3000) + Duration::from_millis(3);
        let new = if self.world.rng.percent(50) { handle } else { self.world.add_disk(role) };
        self.world.array.plan(at, Task::Replace(role, new));
    }

    fn silence(&mut self, count: usize) {
        let Some(mut handles) = self.healthy() else {
            return;
        };
        for _ in 0..count.min(handles.len()) {
            let handle = handles.swap_remove(self.world.rng.index(handles.len()));
            self.world.disks[handle.0 as usize].mode = Mode::Silent;
            let at = self.after(500);
            self.world.array.plan(at, Task::Silent(handle));
            let back = self.after(2000) + Duration::from_micros(500);
            if self.faults == Faults::Silent && self.world.rng.percent(50) {
                self.world.array.plan(back, Task::Drop(handle));
                self.replace_later(handle);
            } else {
                self.world.array.plan(back, Task::Answers(handle));
            }
        }
    }

    /// What happens to devices when the array's tasks are carried out.
    fn array_step(&mut self) {
        let due: Vec<Task> = self.world.array.tasks.iter().filter(|t| t.0 <= self.world.now).map(|t| t.1).collect();
        for task in &due {
            match task {
                // The last copy of what the bad sectors held goes with the member.
                Task::Drop(_) => self.world.mend_all(),
                Task::Answers(handle) => self.world.disks[handle.0 as usize].mode = Mode::Works,
                // Workers have cancelled all that was outstanding at a device that comes back after it was dropped.
                Task::Replace(_, handle) => {
                    self.world.forget_written(*handle);
                    self.world.disks[handle.0 as usize].mode = Mode::Works;
                }
                _ => {}
            }
        }
        self.world.array_step();
    }

    /// What can happen now; one of these is done.
    fn step(&mut self, submitting: bool) -> bool {
        let world = &self.world;
        let mut can = Vec::new();
        if submitting && self.left > 0 && world.outstanding.len() < self.depth && world.can_submit() {
            can.extend([Event::Submit; 2]);
        }
        for (i, disk) in world.disks.iter().enumerate() {
            if disk.can_apply() {
                can.push(Event::Apply(i));
            }
            if disk.can_answer() {
                can.push(Event::Answer(i));
            }
        }
        for i in world.runnable() {
            can.extend([Event::Turn(i); 2]);
        }
        if world.array.tasks.iter().any(|t| t.0 <= world.now) {
            can.push(Event::Array);
        }
        if world.array.sync.is_some() {
            can.push(Event::Sync);
        }
        let Some(&event) = can.get(self.world.rng.index(can.len().max(1))) else {
            return false;
        };
        self.world.now += Duration::from_micros(self.world.rng.below(30));
        self.carry_out(event)
    }

    fn carry_out(&mut self, event: Event) -> bool {
        match event {
            Event::Submit => self.submit(),
            Event::Apply(disk) => self.world.apply(disk),
            Event::Answer(disk) => self.world.answer(disk),
            Event::Turn(worker) => self.world.turn(worker),
            Event::Array => self.array_step(),
            Event::Sync => {
                let progress = self.world.array.has_progress() || self.world.rng.percent(5);
                if progress {
                    let now = self.world.now;
                    self.world.array.plan(now, Task::Progress);
                    self.array_step();
                } else {
                    self.world.sync_step();
                }
            }
        }
        true
    }

    /// Lets all end.
    fn drain(&mut self) {
        for _ in 0..4_000_000_u64 {
            if self.step(false) {
                continue;
            }
            match self.world.next_wake() {
                Some(at) => self.world.now = self.world.now.max(at),
                None => return,
            }
        }
        panic!("the world does not come to rest");
    }

    fn run(mut self) {
        let mut steps = 0_u64;
        while self.left > 0 {
            if !self.step(true) {
                match self.world.next_wake() {
                    Some(at) => self.world.now = self.world.now.max(at),
                    None => break,
                }
            }
            if self.world.rng.percent(2) {
                self.fault();
            }
            if self.world.rng.percent(2) {
                self.world.reshape();
            }
            steps += 1;
            assert!(steps < 2_000_000, "no progress");
        }
        match self.faults {
            Faults::Abandon => return self.abandon(),
            Faults::ReadOnly => self.read_only(),
            _ => {}
        }
        self.drain();
        self.world.assert_idle();
        let recovering =
            |m: &crate::message::MemberView| matches!(m.state, MemberState::Recovering { .. } | MemberState::Silent);
        assert!(!self.world.array.view.members.iter().any(recovering));
        self.world.check_rows();
    }

    /// Two members stay silent: the array is suspended, then given up.
    fn abandon(mut self) {
        self.left = 30;
        let silent = self.healthy().map_or(0, |h| h.len());
        if silent >= 2 {
            for handle in 0..2 {
                self.world.disks[handle].mode = Mode::Silent;
                let at = self.after(300);
                let handle = MemberHandle(handle as u16);
                self.world.array.plan(at, Task::Silent(handle));
            }
        }
        while self.left > 0 && self.step(true) {}
        self.drain();
        assert!(self.world.array.view.suspended, "two members are silent");
        self.world.abandon();
        self.drain();
        self.world.assert_idle();
    }

    fn read_only(&mut self) {
        self.left = 40;
        let now = self.world.now;
        self.world.array.plan(now, Task::ReadOnly);
        while self.left > 0 && self.step(true) {
            if self.world.rng.percent(5) {
                self.world.make_bad();
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Submit,
    Apply(usize),
    Answer(usize),
    Turn(usize),
    Array,
    Sync,
}

/// Says which seed to replay when the test panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: ETHERRAID_SEED={} cargo test -p raid-engine worker::tests::seeds", self.0);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn seeded_histories() {
    let first = number("ETHERRAID_SEED");
    let count = number("ETHERRAID_SEEDS").unwrap_or(if first.is_some() { 1 } else { SEEDS });
    let first = first.unwrap_or(0);
    for seed in first..first + count {
        let _named = Named(seed);
        Run::new(seed).run();
    }
}
