//! The life cycle of a running array: superblocks, failures, sync, commands. A value: [`Array::turn`] takes the time and
//! one [`Input`], and appends [`Effect`]s; [`Array::wake_at`] says when it wants a [`Input::Timer`].
//!
//! Driven by the runtime's control thread, or by a simulation. It never touches data: workers do, under the [`View`]s that it makes.
//! It never waits for stripes, and workers never wait for it but for views.
//!
//! How to read it: [`api`] (what goes in and out), `member` (how a device stands), `record` (what superblocks say), `commit`
//! (the metadata writer), `mark` (dirty and clean), `loss` (silent, missing, faulty, restarted, fenced, suspended), `join` (add,
//! remove, return), `resync` (sync work), `stop`, [`detail`].
//!
//! An input changes the state that it is about; then steps run until none of them changes anything, each looking only at
//! the state: so events in any order and at any time come to the same end. The record that superblocks are to hold is
//! computed from the state, and the metadata writer makes it durable; a change that needs the record waits for it. A view is sent at
//! the end of a turn if it would differ from the last.
//!
//! Invariants:
//! - A view allows writes only while superblocks of every member that is not missing say dirty.
//! - A view has a member absent only when superblocks of all others say so (or the array takes no writes).
//! - No superblock is written while a member is silent, or restarted and what follows not decided, or the array suspended, broken, fenced
//!   or read-only.
//! - Device numbers of known devices differ, and fit in the role table.
//! - Event counts only grow. Each command is answered once.
//!
//! Bounds: `MEMBERS_KNOWN_MAX` devices; one commit, one probe and one sync at a time; `PARTS_MAX` parts
//! of sync; metadata requests at most four for each device (commit, probe, look, settle).

pub mod api;
mod commit;
pub mod detail;
mod join;
mod loss;
mod mark;
mod member;
mod record;
mod resync;
mod stop;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use raid_core::geometry::Geometry;
use raid_core::md::Superblock;
use raid_core::md::superblock::ROLES_MAX;
use raid_core::units::{MemberIndex, Sector};

pub use api::{
    Command, CommandError, CommandErrorKind, CommandId, Device, Effect, Input, LogLevel, MemberEvent, MetaId, MetaOp,
    Start, StartMember, StartRole, SyncAction, SyncRun, Tunables,
};
pub use detail::{ArrayState, Detail, DeviceRow, SyncProgress};

use crate::message::{Boots, IoStatus, MemberHandle, MemberState, MemberView, Report, ToWorker, View, WorkerId};
use commit::Commit;
use loss::{Probe, Settling};
use mark::Mark;
use member::{Loss, MEMBERS_KNOWN_MAX, Member, Progress, Return, Standing};
use record::Record;
use resync::Sync;
use stop::Stop;

/// Steps until nothing changes; more rounds than this are a fault of this module. Some steps take one device at a time: a round
/// each to be given up, to have its requests cancelled, to be looked at, and to have its command answered.
const ROUNDS_MAX: usize = 4 * MEMBERS_KNOWN_MAX + 64;

/// A metadata request that has not ended.
#[derive(Clone, Copy, Debug)]
struct Meta {
    handle: MemberHandle,
    whose: MetaUse,
    /// It writes.
    write: bool,
    /// It has been given up.
    cancelled: bool,
}

/// What a metadata request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetaUse {
    /// Part of a commit.
    Commit,
    /// To learn whether a member answers.
    Probe,
    /// To make durable what a member has, before another that was restarted is given up.
    Settle,
    /// To see what a candidate or returning device carries.
    Look,
}

/// See the module's text.
#[derive(Debug)]
pub struct Array {
    geometry: Geometry,
    /// What is common to all superblocks and does not change.
    head: Superblock,
    members: Vec<Member>,
    dev_number_next: u32,
    tunables: Tunables,
    read_only: bool,
    fenced: bool,
    suspended: bool,
    /// More slots have lost their member than parity covers, so the array cannot go on.
    broken: bool,
    ended: bool,

    /// The last event count given to a commit.
    events: u64,
    /// What every member in use is known to hold; unset when some may hold something else.
    durable: Option<Record>,
    /// What every member in use was found to say at the start, until that is known to be durable or has become moot.
    found: Option<Record>,
    commit: Option<Commit>,
    /// Metadata requests that have not ended.
    meta: BTreeMap<MetaId, Meta>,
    meta_next: u64,
    probe: Option<Probe>,
    settling: Option<Settling>,

    mark: Mark,
    last_token: u32,
    /// Parity is not known to be right everywhere.
    resync: Option<Progress>,
    sync: Sync,
    stop: Option<Stop>,

    view: Arc<View>,
    /// A view goes out at the end of this turn even if it is as the last.
    view_due: bool,
    /// By worker: the generation of the last view that it has in force.
    workers: Vec<u32>,

    /// The time of the current turn.
    now: Duration,
    /// Seconds since 1970.
    wall: u64,
    /// `wall` of the last commit.
    updated_at: u64,
}

impl Array {
    /// Makes the array of what assembly found. Nothing is sent before the first [`turn`](Self::turn).
    pub fn new(start: Start) -> Self {
        assert!(start.workers > 0, "an array has workers");
        let head = start.superblock;
        let members: Vec<_> = start.members.into_iter().map(started).collect();
        // A member taken by force missed writes, so no row's parity can be trusted.
        let forced = members.iter().any(|m| m.is_active() && m.superblock.events + 1 < head.events);
        let resync_from = if forced { Some(Sector::ZERO) } else { head.resync_offset };
        let resync = resync_from.filter(|_| !start.read_only).map(|from| Progress::from(from, Duration::ZERO));
        let numbers = members.iter().map(|m| m.superblock.dev_number).filter(|number| (*number as usize) < ROLES_MAX);
        let lowest = u32::from(start.geometry.members().0);
        let dev_number_next = numbers.max().map_or(lowest, |number| lowest.max(number + 1));
        let mut array = Self {
            events: head.events,
            updated_at: head.utime.seconds(),
            wall: head.utime.seconds(),
            geometry: start.geometry,
            head,
            members,
            dev_number_next,
            sync: Sync::default(),
            read_only: start.read_only,
            fenced: false,
            suspended: false,
            broken: false,
            ended: false,
            durable: None,
            found: None,
            commit: None,
            meta: BTreeMap::new(),
            meta_next: 0,
            probe: None,
            settling: None,
            mark: Mark::Quiet,
            last_token: 0,
            resync,
            stop: None,
            view: Arc::new(View {
                generation: 0,
                members: Vec::new(),
                parity_trusted_below: Sector::ZERO,
                write_ok: false,
                suspended: false,
                read_only: start.read_only,
                fenced: false,
                rmw_level: start.tunables.rmw_level,
                abandon: false,
            }),
            view_due: false,
            workers: vec![0; start.workers],
            tunables: start.tunables,
            now: Duration::ZERO,
        };
        let renumbered = array.renumber();
        let target = array.target();
        if !renumbered
            && array
                .members
                .iter()
                .filter(|m| m.is_used())
                .all(|m| m.superblock.events == array.events && array.says(m, &target))
        {
            array.found = Some(target);
        }
        array.suspended = array.slots_unavailable() > array.geometry.parity_count();
        array.view = Arc::new(array.build_view(1));
        array.workers.fill(1);
        array.note_absent();
        array
    }

    /// The state that workers are to begin with, or have been told last.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// The array's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Tells the array what the clock on the wall says, in seconds since 1970: for superblocks only.
    pub fn set_wall_clock(&mut self, seconds: u64) {
        self.wall = seconds;
    }

    /// The device with this name: the one in use, if others of that name are known to be lost.
    pub fn handle_of(&self, name: &str) -> Option<MemberHandle> {
        let named = || self.members.iter().filter(|m| m.device.name == name);
        named().find(|m| m.is_used()).or_else(|| named().next()).map(Member::handle)
    }

    /// Whether the number of workers may be changed now: not while requests are held for silent members.
    pub fn may_change_workers(&self) -> bool {
        !self.suspended && self.stop.is_none() && !self.members.iter().any(|m| m.is_silent())
    }

    /// Takes in one input and appends what is to be done. `now` never goes back.
    pub fn turn(&mut self, now: Duration, input: Input, effects: &mut Vec<Effect>) {
        if self.ended {
            return self.after_end(input, effects);
        }
        self.now = self.now.max(now);
        let now = self.now;
        match input {
            Input::Report(worker, report) => self.report(now, worker, report, effects),
            Input::Member(handle, event) => self.member_event(now, handle, event, effects),
            Input::MetaDone { id, status, boot, data } => self.meta_done(now, id, (status, boot), &data, effects),
            Input::Command(id, command) => self.command(now, id, command, effects),
            Input::SyncDone { request, status, mismatches } => {
                self.sync_done(now, request, (status, mismatches), effects)
            }
            Input::Busy(busy) => self.sync.busy = busy,
            Input::Tune(tunables) => self.tune(now, tunables),
            Input::Timer => {}
        }
        self.steps(now, effects);
        if !self.ended {
            self.publish(now, effects);
        }
    }

    /// When the next [`Input::Timer`] is due.
    pub fn wake_at(&self) -> Option<Duration> {
        if self.ended {
            return None;
        }
        [self.mark_wakes_at(), self.silence_wakes_at(), self.sync_wakes_at()].into_iter().flatten().min()
    }

    fn steps(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        for _ in 0..ROUNDS_MAX {
            // The order decides only who goes first where several could: suspension before anything that it forbids.
            let changed = self.step_suspend(effects)
                || self.step_restarted(effects)
                || self.step_silence(now, effects)
                || self.step_cancel(effects)
                || self.step_resync_moot(effects)
                || self.step_commit(effects)
                || self.step_mark(now, effects)
                || self.step_join(now, effects)
                || self.step_sync(now, effects)
                || self.step_waiting(effects)
                || self.step_stop(effects);
            if !changed || self.ended {
                return;
            }
        }
        unreachable!("the steps of a turn come to an end");
    }

    fn report(&mut self, now: Duration, worker: WorkerId, report: Report, effects: &mut Vec<Effect>) {
        match report {
            Report::WantWrite => self.write_wanted(now),
            Report::Quiet { token, idle } => self.worker_quiet(now, worker, (token, idle)),
            Report::ViewDone { generation } => {
                if let Some(done) = self.workers.get_mut(usize::from(worker.0)) {
                    *done = generation.max(*done);
                }
            }
            Report::MemberError { handle, status } => self.member_error(now, handle, status, effects),
            Report::MemberBoot { handle, boot } => self.boot_heard(handle, boot, effects),
            Report::Corrected { member, sectors } => self.corrected(member, sectors, effects),
        }
    }

    fn corrected(&mut self, slot: MemberIndex, sectors: u32, effects: &mut Vec<Effect>) {
        if let Some(member) = self.members.iter_mut().find(|m| m.slot() == Some(slot)) {
            let count = &mut member.superblock.cnt_corrected_read;
            let before = *count;
            *count = count.saturating_add(sectors);
            // A line for each block of a large bad place would tell less.
            if count.checked_ilog2() > before.checked_ilog2() {
                let text = format!("{}: {count} sectors so far were unreadable, and written anew", member.device.name);
                effects.push(Effect::Log(LogLevel::Warn, text));
            }
        }
    }

    fn command(&mut self, now: Duration, id: CommandId, command: Command, effects: &mut Vec<Effect>) {
        if let Command::Stop { abandon } = command {
            return self.begin_stop(now, id, abandon);
        }
        let added = match &command {
            Command::Add { device, .. } => Some(device.handle),
            _ => None,
        };
        let result = match command {
            _ if self.stop.is_some() => Err(stop::stopping()),
            Command::Add { device, device_uuid } => self.add(id, device, device_uuid, effects),
            Command::Fail(handle) => self.fail(id, handle, effects),
            Command::Remove(handle) => self.remove(id, handle),
            Command::Action(action) => {
                let result = self.action(now, action);
                return self.answer(id, result, effects);
            }
            Command::Stop { .. } => unreachable!("answered above"),
        };
        if result.is_err() {
            self.answer(id, result, effects);
            if let Some(handle) = added
                && self.members.iter().all(|m| m.handle() != handle)
            {
                effects.push(Effect::Released(handle));
            }
        }
    }

    fn answer(&mut self, id: CommandId, result: Result<(), CommandError>, effects: &mut Vec<Effect>) {
        effects.push(Effect::Answer(id, result));
    }

    fn tune(&mut self, now: Duration, tunables: Tunables) {
        self.tunables = tunables;
        self.sync_tuned();
        self.mark_tuned(now);
    }

    /// Sends a metadata request.
    fn meta(&mut self, handle: MemberHandle, whose: MetaUse, op: MetaOp, effects: &mut Vec<Effect>) -> MetaId {
        let id = MetaId(self.meta_next);
        self.meta_next += 1;
        let write = matches!(op, MetaOp::Write { .. });
        self.meta.insert(id, Meta { handle, whose, write, cancelled: false });
        effects.push(Effect::Meta { id, handle, op });
        id
    }

    fn meta_done(
        &mut self,
        now: Duration,
        id: MetaId,
        (status, boot): (IoStatus, Option<u32>),
        data: &[u8],
        effects: &mut Vec<Effect>,
    ) {
        let Some(Meta { handle, whose, cancelled, .. }) = self.meta.remove(&id) else {
            panic!("a metadata request ends once");
        };
        let status = self.judged(handle, status, boot, effects);
        match whose {
            MetaUse::Commit => self.commit_answered(now, id, (status, cancelled), effects),
            MetaUse::Probe => self.probe_answered(now, id, handle, (status, data), effects),
            MetaUse::Settle => self.settled(now, id, handle, status, effects),
            MetaUse::Look => self.looked_at(handle, (status, data), effects),
        }
    }

    fn meta_outstanding(&self, handle: MemberHandle) -> bool {
        self.meta.values().any(|meta| meta.handle == handle)
    }

    fn member_mut(&mut self, handle: MemberHandle) -> &mut Member {
        self.members.iter_mut().find(|m| m.handle() == handle).expect("the device is known")
    }

    /// The generation that every worker has in force.
    fn workers_done(&self) -> u32 {
        self.workers.iter().copied().min().expect("an array has workers")
    }

    /// Whether the last view has no slot with this device.
    fn view_lacks(&self, handle: MemberHandle) -> bool {
        self.view.members.iter().all(|m| m.state == MemberState::Absent || m.handle != handle)
    }

    /// Sends a view if it differs from the last, or must go out.
    fn publish(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let next = self.build_view(self.view.generation);
        if !self.view_due && same(&next, &self.view) {
            return;
        }
        // An idle answer to a question asked before does not hold under a view that allows writes.
        self.drop_question(now);
        self.view_due = false;
        let generation = self.view.generation.checked_add(1).expect("views are few");
        self.view = Arc::new(self.build_view(generation));
        self.note_absent();
        effects.push(Effect::ToWorkers(ToWorker::View(Arc::clone(&self.view))));
    }

    /// Remembers since which view lost devices are absent.
    fn note_absent(&mut self) {
        let generation = self.view.generation;
        for member in &mut self.members {
            if matches!(member.standing, Standing::Lost { .. }) && member.absent_from.is_none() {
                member.absent_from = Some(generation);
            }
        }
    }

    fn build_view(&self, generation: u32) -> View {
        let slots = self.geometry.members().indices();
        View {
            generation,
            members: slots.map(|slot| self.slot_view(slot)).collect(),
            parity_trusted_below: self.resync.map_or(Sector(u64::MAX), |resync| resync.shown),
            write_ok: self.mark.allows_writes() && !self.fenced && !self.read_only && !self.broken,
            suspended: self.suspended,
            read_only: self.read_only || self.fenced || self.broken,
            fenced: self.fenced,
            rmw_level: self.tunables.rmw_level,
            abandon: self.is_abandoned(),
        }
    }

    fn slot_view(&self, slot: MemberIndex) -> MemberView {
        let Some(member) = self.members.iter().find(|m| m.slot() == Some(slot)) else {
            return MemberView {
                state: MemberState::Absent,
                handle: NO_DEVICE,
                data_offset: Sector::ZERO,
                boots: Boots::default(),
            };
        };
        let state = match member.standing {
            // What it missed is not recorded yet, so writes that need it wait.
            Standing::Losing { .. } => MemberState::Silent,
            _ if member.silence.is_some() || member.restarted => MemberState::Silent,
            Standing::Recovering { progress, .. } => MemberState::Recovering { below: progress.shown },
            _ => MemberState::InSync,
        };
        MemberView { state, handle: member.handle(), data_offset: member.superblock.data_offset, boots: member.boots }
    }
}

/// In the place of a device in slots that have none.
const NO_DEVICE: MemberHandle = MemberHandle(u16::MAX);

/// Whether two views say the same, whatever their generations.
fn same(a: &View, b: &View) -> bool {
    a.members == b.members
        && a.parity_trusted_below == b.parity_trusted_below
        && (a.write_ok, a.suspended, a.read_only) == (b.write_ok, b.suspended, b.read_only)
        && (a.fenced, a.abandon) == (b.fenced, b.abandon)
        && a.rmw_level == b.rmw_level
}

/// A device as assembly gives it.
fn started(start: StartMember) -> Member {
    let standing = match start.role {
        StartRole::InSync(slot) => Standing::InSync(slot),
        StartRole::Recovering(slot, from) => Standing::recovering(slot, Progress::from(from, Duration::ZERO)),
        StartRole::Spare => Standing::Spare,
        StartRole::Stale(slot) => Standing::Lost { slot, loss: Loss::Missing },
    };
    let mut member = Member::new(start.device, start.superblock, standing);
    if member.loss().is_some() {
        member.returning = Return::Wanted;
    }
    member
}
