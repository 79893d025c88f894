//! Sync work: resync, recovery, check and repair.
//!
//! Part of [`Array`]; its state is [`Sync`]. One action runs at a time: a recovery before a resync before what an operator asked for.
//! The rows to do next come from a [`SyncCursor`], when a [`SyncPacer`] lets them; they are sent in parts of at most
//! [`PART_SECTORS_MAX`] to the owners of their rows, who shut out writes to them meanwhile. Recovery starts when superblocks say that the
//! member is recovering and every worker writes to it.
//!
//! Sync yields to clients: while they are busy one part is outstanding at a time, with a pause after it that leaves clients
//! their share, unless sync is then slower than `sync_speed_min`. It is never faster than `sync_speed_max`.
//!
//! Bounds: [`PARTS_MAX`] parts outstanding, and not more than `sync_window` on each member.

use std::collections::BTreeMap;
use std::time::Duration;

use raid_core::sync::{Run, SyncCursor, SyncLimits, SyncPacer, WINDOW_MAX};
use raid_core::units::{Bytes, MemberIndex, Sector, Sectors, StripeIndex};

use super::Array;
use super::api::{CommandError, CommandErrorKind, Effect, LogLevel, SyncAction, SyncRun, Tunables};
use super::member::{Loss, Member, Standing};
use super::record::Entry;
use crate::message::{IoStatus, MemberHandle, MemberState, SyncKind};

/// Longest part, and where chunks are shorter, the size of a run of rows.
const PART_SECTORS_MAX: Sectors = Sectors(1024);

/// Most parts outstanding.
const PARTS_MAX: usize = 1024;

/// After a failed action, the next begins this much later.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Recoveries into one device that may end early before it counts as faulty.
const RECOVERY_FAILURES_MAX: u32 = 3;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Resync,
    Recover(MemberHandle, MemberIndex),
    Check,
    Repair,
}

impl Action {
    /// md's word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Action::Resync => "resync",
            Action::Recover(..) => "recover",
            Action::Check => "check",
            Action::Repair => "repair",
        }
    }

    fn kind(self) -> SyncKind {
        match self {
            Action::Resync => SyncKind::Resync,
            Action::Repair => SyncKind::Repair,
            Action::Recover(_, slot) => SyncKind::Recovery(slot),
            Action::Check => SyncKind::Check,
        }
    }
}

/// Rows that are out.
#[derive(Debug)]
struct Batch {
    run: Run,
    /// The next sector of the members' data area to send, up to `end`.
    next: Sector,
    end: Sector,
    /// Parts sent and not ended.
    outstanding: u32,
}

/// A part that is out.
#[derive(Clone, Copy, Debug)]
struct SentPart {
    /// First row of its batch.
    batch: StripeIndex,
    sectors: Sectors,
    sent_at: Duration,
}

/// An action under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) action: Action,
    cursor: SyncCursor,
    pacer: SyncPacer,
    batches: Vec<Batch>,
    parts: BTreeMap<u32, SentPart>,
    /// No more parts are sent.
    interrupted: bool,
    /// A part failed.
    failed: bool,
    chunk: Sectors,
    /// Sectors done since `begun_at`.
    sectors_done: Sectors,
    begun_at: Duration,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Sync {
    running: Option<Running>,
    /// A check or repair was asked for and has not ended.
    wanted: Option<Action>,
    frozen: bool,
    /// Clients have I/O outstanding.
    pub(super) busy: bool,
    next_request: u32,
    retry_at: Duration,
    /// md's `mismatch_cnt`: sectors of the last check, repair or resync whose parity did not match.
    pub(super) mismatches: u64,
    pub(super) last_action: Option<&'static str>,
}

impl Sync {
    /// Whether nothing runs.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen
    }

    pub(super) fn running(&self) -> Option<&Running> {
        self.running.as_ref()
    }

    /// Stops sending runs; those outstanding end first.
    pub(super) fn interrupt(&mut self) {
        if let Some(running) = &mut self.running {
            running.interrupted = true;
        }
    }

    /// Whether rows that superblocks call clean are being written.
    pub(super) fn needs_dirty(&self) -> bool {
        self.running.as_ref().is_some_and(|r| r.action == Action::Repair)
    }
}

impl Running {
    /// Right below this.
    pub(super) fn done(&self) -> Sector {
        Sector(self.cursor.checkpoint().0 * self.chunk.0)
    }

    /// KiB/s per member since it began.
    pub(super) fn speed(&self, now: Duration) -> u64 {
        let kib = self.sectors_done.bytes().0 / 1024;
        let milliseconds = now.saturating_sub(self.begun_at).as_millis().max(1);
        u64::try_from(u128::from(kib) * 1000 / milliseconds).unwrap_or(u64::MAX)
    }

    fn sectors_outstanding(&self) -> Sectors {
        self.parts.values().map(|part| part.sectors).sum()
    }

    /// The next part, as the rows' sectors on each member.
    fn next_part(&mut self) -> Option<(StripeIndex, Sector, Sectors)> {
        if !self.batches.iter().any(|batch| batch.next < batch.end) {
            let run = self.cursor.next_run()?;
            let next = Sector(run.start.0 * self.chunk.0);
            let end = next + Sectors(run.rows * self.chunk.0);
            self.batches.push(Batch { run, next, end, outstanding: 0 });
        }
        let batch = self.batches.iter_mut().find(|batch| batch.next < batch.end)?;
        let from = batch.next;
        let row_end = Sector((from.0 / self.chunk.0 + 1) * self.chunk.0);
        let sectors = (row_end - from).min(PART_SECTORS_MAX);
        batch.next = from + sectors;
        batch.outstanding += 1;
        Some((batch.run.start, from, sectors))
    }

    /// A part ended well. Whether that ended its batch.
    fn part_done(&mut self, batch: StripeIndex) -> bool {
        let index = self.batches.iter().position(|b| b.run.start == batch).expect("a part belongs to a batch");
        let batch = &mut self.batches[index];
        batch.outstanding -= 1;
        let ended = batch.outstanding == 0 && batch.next == batch.end;
        if ended {
            let batch = self.batches.swap_remove(index);
            self.cursor.done(batch.run);
        }
        ended
    }
}

fn limits(tunables: &Tunables) -> SyncLimits {
    let bytes = |kib: u64| Bytes(kib.saturating_mul(1024));
    let max = if tunables.sync_speed_max == 0 { u64::MAX } else { tunables.sync_speed_max };
    SyncLimits { speed_min: bytes(tunables.sync_speed_min), speed_max: bytes(max), share_percent: tunables.sync_share }
}

impl Array {
    /// An operator wants sync work started or stopped.
    pub(super) fn action(&mut self, now: Duration, action: SyncAction) -> Result<(), CommandError> {
        if self.read_only || self.fenced {
            return Err(CommandError::new(CommandErrorKind::ReadOnly, "the array takes no writes"));
        }
        let wanted = match action {
            SyncAction::Frozen | SyncAction::Idle => {
                self.sync.frozen = action == SyncAction::Frozen;
                self.sync.wanted = None;
                self.sync.interrupt();
                return Ok(());
            }
            SyncAction::Check => Action::Check,
            SyncAction::Repair => Action::Repair,
        };
        if self.sync.running.is_some() || self.sync.wanted.is_some() || self.resync.is_some() {
            return Err(CommandError::new(CommandErrorKind::Busy, "sync work is under way; write idle first"));
        }
        if self.is_degraded() {
            return Err(CommandError::new(
                CommandErrorKind::Busy,
                "the array is degraded: there is no parity to compare",
            ));
        }
        self.sync.frozen = false;
        self.sync.wanted = Some(wanted);
        self.sync.retry_at = now;
        Ok(())
    }

    /// With no redundancy left, the missing block of each row is what the others say: there is nothing to resync.
    pub(super) fn step_resync_moot(&mut self, effects: &mut Vec<Effect>) -> bool {
        let rebuilt =
            |m: &Member| matches!(m.standing, Standing::Recovering { progress, .. } if progress.done > Sector::ZERO);
        let lost = self.geometry.members().len()
            - self.members.iter().filter(|m| matches!(m.standing, Standing::InSync(_))).count();
        if self.resync.is_none() || lost < self.geometry.parity_count() || self.members.iter().any(rebuilt) {
            return false;
        }
        self.resync = None;
        let text =
            "a member was lost before the resync ended: rows that were being written at the last crash may be wrong";
        effects.push(Effect::Log(LogLevel::Error, text.into()));
        true
    }

    /// Starts, continues or ends sync work. Whether the state changed.
    pub(super) fn step_sync(&mut self, now: Duration, effects: &mut Vec<Effect>) -> bool {
        let Some(running) = &self.sync.running else {
            return self.start_sync(now, effects);
        };
        if !running.interrupted && !self.still_wanted(running.action) {
            self.sync.interrupt();
        }
        let Some(running) = &self.sync.running else {
            return false;
        };
        let stopping = running.interrupted || running.failed;
        if stopping && running.parts.is_empty() {
            self.end_interrupted(now, effects);
            return true;
        }
        if !stopping && running.cursor.is_finished() {
            self.end_completed(now, effects);
            return true;
        }
        if !stopping && self.may_sync() {
            self.send_parts(now, effects);
        }
        false
    }

    fn may_sync(&self) -> bool {
        self.may_write_superblocks()
            && self.stop.is_none()
            && !self.sync.frozen
            && !self.members.iter().any(|m| m.restarted)
    }

    fn still_wanted(&self, action: Action) -> bool {
        match action {
            Action::Recover(handle, _) => self
                .members
                .iter()
                .any(|m| m.handle() == handle && matches!(m.standing, Standing::Recovering { finished: false, .. })),
            Action::Resync => self.resync.is_some() && !self.is_degraded(),
            Action::Check | Action::Repair => !self.is_degraded(),
        }
    }

    fn start_sync(&mut self, now: Duration, effects: &mut Vec<Effect>) -> bool {
        if now < self.sync.retry_at || !self.may_sync() {
            return false;
        }
        let Some((action, from)) = self.next_action() else {
            return false;
        };
        if action == Action::Repair && !self.mark.allows_writes() {
            // Its writes must be covered by a dirty mark.
            return if self.mark.wants_dirty() {
                false
            } else {
                self.write_wanted(now);
                true
            };
        }
        if action == Action::Repair {
            self.drop_question(now);
        }
        let chunk = self.geometry.chunk();
        let (row, _) = self.geometry.stripe_at(from);
        let run_rows = (PART_SECTORS_MAX.0 / chunk.0).max(1);
        let window = (self.tunables.sync_window.0 / (run_rows * chunk.0)).clamp(1, WINDOW_MAX as u64);
        if !matches!(action, Action::Recover(..)) && from == Sector::ZERO {
            self.sync.mismatches = 0;
        }
        self.sync.running = Some(Running {
            action,
            cursor: SyncCursor::new(row, StripeIndex(self.geometry.stripes()), run_rows, window as usize),
            pacer: SyncPacer::new(limits(&self.tunables)),
            batches: Vec::new(),
            parts: BTreeMap::new(),
            interrupted: false,
            failed: false,
            chunk,
            sectors_done: Sectors::ZERO,
            begun_at: now,
        });
        effects.push(Effect::Log(LogLevel::Info, format!("{} from sector {from}", action.word())));
        true
    }

    /// What is due, and from where.
    fn next_action(&self) -> Option<(Action, Sector)> {
        let recovering = self.members.iter().find_map(|m| match m.standing {
            Standing::Recovering { slot, progress, finished: false } => Some((m.handle(), slot, progress.done)),
            _ => None,
        });
        if let Some((handle, slot, done)) = recovering {
            let in_view = matches!(self.view.members[slot.index()].state, MemberState::Recovering { .. });
            let ready = in_view
                && self.view.members[slot.index()].handle == handle
                && self.workers_done() == self.view.generation;
            return (ready && self.is_recovery_recorded(handle)).then_some((Action::Recover(handle, slot), done));
        }
        if self.is_degraded() {
            return None;
        }
        if let Some(resync) = self.resync {
            return Some((Action::Resync, resync.done));
        }
        Some((self.sync.wanted?, Sector::ZERO))
    }

    fn send_parts(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let busy = self.sync.busy;
        let window = if busy { PART_SECTORS_MAX } else { self.tunables.sync_window };
        let running = self.sync.running.as_mut().expect("parts belong to an action");
        let mut outstanding = running.sectors_outstanding();
        let mut runs = Vec::new();
        while running.parts.len() < PARTS_MAX
            && (outstanding.is_empty() || outstanding < window)
            && running.pacer.start_at(busy) <= now
        {
            let Some((batch, at, sectors)) = running.next_part() else {
                break;
            };
            running.pacer.started(now, sectors.bytes());
            outstanding += sectors;
            let request = self.sync.next_request;
            self.sync.next_request = request.wrapping_add(1);
            running.parts.insert(request, SentPart { batch, sectors, sent_at: now });
            let (stripe, from) = self.geometry.stripe_at(at);
            let kind = running.action.kind();
            runs.push(SyncRun { request, kind, stripe, from: from.0 as u32, sectors: sectors.0 as u32 });
        }
        if !runs.is_empty() {
            effects.push(Effect::Sync(runs));
        }
    }

    /// A part ended.
    pub(super) fn sync_done(&mut self, now: Duration, request: u32, end: (IoStatus, u32), effects: &mut Vec<Effect>) {
        let size = self.geometry.component_size();
        let Some(running) = &mut self.sync.running else {
            panic!("a part ends once, before its action");
        };
        let part = running.parts.remove(&request).expect("a part ends once");
        running.pacer.finished(now, now - part.sent_at);
        if !end.0.is_ok() {
            if !running.interrupted && !running.failed {
                let text = format!("{} failed near chunk row {}: {:?}", running.action.word(), part.batch, end.0);
                effects.push(Effect::Log(LogLevel::Error, text));
            }
            running.failed = true;
            return;
        }
        running.sectors_done += part.sectors;
        self.sync.mismatches += u64::from(end.1);
        // After an interruption, what it did may no longer be what is to be done.
        if !running.part_done(part.batch) || running.interrupted {
            return;
        }
        let done = running.done();
        match running.action {
            Action::Resync => {
                if let Some(resync) = &mut self.resync {
                    resync.advance(done, size, now);
                }
            }
            Action::Recover(handle, _) => {
                let member = self.members.iter_mut().find(|m| m.handle() == handle);
                if let Some(Standing::Recovering { progress, .. }) = member.map(|m| &mut m.standing) {
                    progress.advance(done, size, now);
                }
            }
            Action::Check | Action::Repair => {}
        }
    }

    fn end_interrupted(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let running = self.sync.running.take().expect("an action ends once");
        self.sync.last_action = Some(running.action.word());
        let text = format!("{} interrupted at sector {}", running.action.word(), running.done());
        effects.push(Effect::Log(LogLevel::Info, text));
        if !running.failed {
            return;
        }
        self.sync.retry_at = now + RETRY_DELAY;
        match running.action {
            Action::Recover(handle, _) => self.recovery_failed(handle, effects),
            Action::Check | Action::Repair => self.sync.wanted = None,
            Action::Resync => {}
        }
    }

    /// A recovery ended early. It is tried again from where it got to, but not for ever.
    fn recovery_failed(&mut self, handle: MemberHandle, effects: &mut Vec<Effect>) {
        let Some(member) = self.members.iter_mut().find(|m| m.handle() == handle) else {
            return;
        };
        member.recovery_failures += 1;
        if member.recovery_failures >= RECOVERY_FAILURES_MAX {
            let text = format!("{}: could not be rebuilt in {RECOVERY_FAILURES_MAX} attempts", member.device.name);
            effects.push(Effect::Log(LogLevel::Error, text));
            self.lose(handle, Loss::Faulty, effects);
        }
    }

    /// Whether superblocks say that a device is being rebuilt.
    fn is_recovery_recorded(&self, handle: MemberHandle) -> bool {
        let member = self.members.iter().find(|m| m.handle() == handle);
        let number = member.map(|m| m.superblock.dev_number);
        let entry = self.durable.as_ref().zip(number).and_then(|(durable, number)| durable.entry(number));
        matches!(entry, Some(Entry::Slot(_, Some(_))))
    }

    fn end_completed(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let running = self.sync.running.take().expect("an action ends once");
        let word = running.action.word();
        self.sync.last_action = Some(word);
        let text = match running.action {
            Action::Recover(..) => "recover done".to_string(),
            _ => format!("{word} done, mismatch_cnt {}", self.sync.mismatches),
        };
        effects.push(Effect::Log(LogLevel::Info, text));
        match running.action {
            Action::Resync => self.resync = None,
            Action::Check | Action::Repair => self.sync.wanted = None,
            Action::Recover(handle, _) => {
                let member = self.members.iter_mut().find(|m| m.handle() == handle);
                if let Some(Standing::Recovering { finished, progress, .. }) = member.map(|m| &mut m.standing) {
                    *finished = true;
                    progress.recorded = progress.done;
                    progress.shown = progress.done;
                }
            }
        }
        self.sync.retry_at = now;
    }

    /// When the speed limit or a delay lets sync go on.
    pub(super) fn sync_wakes_at(&self) -> Option<Duration> {
        if !self.may_sync() {
            return None;
        }
        match &self.sync.running {
            Some(running) if running.interrupted || running.failed => None,
            Some(running) => Some(running.pacer.start_at(self.sync.busy)).filter(|at| *at > self.now),
            None if self.sync.retry_at > self.now => Some(self.sync.retry_at),
            None => None,
        }
    }

    /// New settings are in force.
    pub(super) fn sync_tuned(&mut self) {
        if let Some(running) = &mut self.sync.running {
            running.pacer.set_limits(limits(&self.tunables));
        }
    }
}
