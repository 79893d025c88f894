//! The metadata writer: makes the record durable on every device in use.
//!
//! Part of [`Array`]; its state is [`Commit`]. Nothing here waits for stripes. Whenever the record that the array's state
//! amounts to ([`Array::target`]) is not the durable one, one commit is started: a flush of all members where the new
//! record un-marks something, then the superblocks with a higher event count, then a flush of them. One commit is
//! under way at a time; it ends when every device has answered. A device that fails on the way fails the commit, and the next one
//! records its loss as well, after what this one wrote has been flushed: two that lag by more than one event could not be assembled.
//!
//! Superblocks are written in two waves, the second for devices that are being rebuilt or have just been. If such a device were written first, a
//! crash could leave it alone with the highest event count, and md would take others that do not know it for members that have failed it.
//! Written last, it may lag by one event behind others that say it has a slot; so a spare's superblock says already that nothing
//! of it is rebuilt, or md would take it for a member in sync.
//!
//! When workers have come to rest, members are flushed even if superblocks already say what they are to say, as during a resync that has got
//! nowhere. That is a commit without writes, [`Phase::Keep`].
//!
//! What superblocks say when the array starts may be in caches alone, if the last writer was killed: it counts as durable only once every
//! device has been flushed. That is another one without writes, [`Phase::Found`].
//!
//! Invariant: no superblock write is sent unless [`Array::may_write_superblocks`].

use std::time::Duration;

use super::api::{Effect, LogLevel, MetaId, MetaOp};
use super::member::{Member, Standing};
use super::record::{Entry, Record};
use super::{Array, MetaUse};
use crate::message::{IoStatus, MemberHandle};

/// What a commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Flushes of superblocks that say the record already, as they were read at the start.
    Found,
    /// Flushes of what workers wrote, while superblocks stay as they are.
    Keep,
    /// Flushes of what the new record no longer marks.
    FlushBefore,
    /// Superblock writes of this wave.
    Write(Wave),
    /// Flushes of these superblocks.
    FlushAfter(Wave),
}

/// Which devices are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wave {
    /// Those that were and are in sync, and spares.
    First,
    /// Those that are or were being rebuilt.
    Second,
}

impl Phase {
    /// Whether nothing has been written yet.
    fn is_before(self) -> bool {
        matches!(self, Phase::Found | Phase::Keep | Phase::FlushBefore)
    }

    fn wave(self) -> Wave {
        match self {
            Phase::Found | Phase::Keep | Phase::FlushBefore => Wave::First,
            Phase::Write(wave) | Phase::FlushAfter(wave) => wave,
        }
    }
}

/// A record on its way to the devices.
#[derive(Debug)]
pub(super) struct Commit {
    pub(super) record: Record,
    pub(super) phase: Phase,
    /// Requests not ended, of devices not given up since.
    waiting: Vec<(MetaId, MemberHandle)>,
    /// A device did not take it.
    failed: bool,
    /// Devices written and not flushed since.
    unflushed: Vec<MemberHandle>,
    /// Devices that may not have what was written to them of it: restarted, or given up below us and back.
    forgot: Vec<MemberHandle>,
}

impl Array {
    /// Whether superblocks may be written now: not while a member is silent or it is not decided what its restart means, more are gone than
    /// parity covers, or another host has the members.
    pub(super) fn may_write_superblocks(&self) -> bool {
        !self.suspended
            && !self.fenced
            && !self.read_only
            && !self.is_abandoned()
            && !self.members.iter().any(|m| m.is_silent() || m.restarted)
    }

    /// Whether what superblocks are to say is durable.
    pub(super) fn is_recorded(&self) -> bool {
        self.commit.is_none() && self.durable.as_ref() == Some(&self.target())
    }

    /// Moves the writer on. Whether anything changed.
    pub(super) fn step_commit(&mut self, effects: &mut Vec<Effect>) -> bool {
        let Some(commit) = &self.commit else {
            return self.begin_commit(effects);
        };
        // A write that waits is not held up until members have been flushed.
        let woken = commit.phase == Phase::Keep && !self.mark.wants_flush();
        let moot = woken || commit.phase.is_before() && commit.record != self.target();
        if moot || commit.phase == Phase::Found && !commit.forgot.is_empty() {
            // Nothing has been written; its flushes end unheard.
            self.commit = None;
            self.found = None;
            return true;
        }
        if !commit.waiting.is_empty() || !self.may_write_superblocks() {
            return false;
        }
        // What was written is flushed in any case: devices must never be two events apart.
        let to_flush = matches!(commit.phase, Phase::Write(_)) || !commit.forgot.is_empty();
        if commit.failed && (commit.phase.is_before() || !to_flush) {
            // Some superblocks may say the failed record.
            self.commit = None;
            self.durable = None;
            self.found = None;
            return true;
        }
        if !commit.phase.is_before() && !commit.forgot.is_empty() {
            self.write_again(effects);
            return true;
        }
        match commit.phase {
            Phase::Found => {
                self.durable = self.found.take();
                self.commit = None;
            }
            Phase::Keep => {
                self.commit = None;
                self.mark_flushed();
            }
            Phase::FlushBefore => {
                // Superblocks go to every member, and a flush after them.
                self.mark_flushed();
                self.write_superblocks(Wave::First, effects);
            }
            Phase::Write(wave) => {
                let commit = self.commit.as_mut().expect("the commit under way");
                let unflushed = std::mem::take(&mut commit.unflushed);
                let waiting = self.flush(|_, m| m.is_used() && unflushed.contains(&m.handle()), effects);
                self.enter(Phase::FlushAfter(wave), waiting);
            }
            Phase::FlushAfter(Wave::First) => self.write_superblocks(Wave::Second, effects),
            Phase::FlushAfter(Wave::Second) => self.end_commit(effects),
        }
        true
    }

    fn begin_commit(&mut self, effects: &mut Vec<Effect>) -> bool {
        let target = self.target();
        let recorded = self.durable.as_ref() == Some(&target);
        if recorded && !self.mark.wants_flush() || !self.may_write_superblocks() {
            return false;
        }
        let found = self.found.as_ref() == Some(&target);
        if !found {
            // From the first write on they say something else.
            self.found = None;
        }
        let (phase, waiting) = if found {
            (Phase::Found, self.flush(|_, m| m.is_used(), effects))
        } else if recorded {
            (Phase::Keep, self.flush(|_, m| m.is_active(), effects))
        } else if target.unmarks(self.durable.as_ref()) {
            (Phase::FlushBefore, self.flush(|_, m| m.is_active(), effects))
        } else {
            (Phase::FlushBefore, Vec::new())
        };
        self.commit =
            Some(Commit { record: target, phase, waiting, failed: false, unflushed: Vec::new(), forgot: Vec::new() });
        true
    }

    fn enter(&mut self, phase: Phase, waiting: Vec<(MetaId, MemberHandle)>) {
        let commit = self.commit.as_mut().expect("a phase belongs to a commit");
        commit.phase = phase;
        commit.waiting = waiting;
    }

    /// Flushes those of these devices for which that means something.
    fn flush(
        &mut self,
        which: impl Fn(&Self, &Member) -> bool,
        effects: &mut Vec<Effect>,
    ) -> Vec<(MetaId, MemberHandle)> {
        let flushed = self.members.iter().filter(|m| !m.device.volatile && which(self, m));
        let handles: Vec<_> = flushed.map(Member::handle).collect();
        let ask = |handle| (self.meta(handle, MetaUse::Commit, MetaOp::Flush, effects), handle);
        handles.into_iter().map(ask).collect()
    }

    /// Whether a device is written in this wave of the commit under way.
    fn is_in_wave(&self, member: &Member, wave: Wave) -> bool {
        let number = member.superblock.dev_number;
        let Some(entry) = self.commit.as_ref().and_then(|commit| commit.record.entry(number)) else {
            return false;
        };
        let counts = match (entry, &self.durable) {
            (Entry::Spare, _) => true,
            (Entry::Slot(..), Some(durable)) => durable.entry(number) == Some(entry) && entry.is_in_sync(),
            // What was written last is not known.
            (Entry::Slot(..), None) => entry.is_in_sync(),
        };
        member.is_used() && counts == (wave == Wave::First)
    }

    /// Whether a device has been written when this wave has.
    fn is_written(&self, member: &Member, wave: Wave) -> bool {
        self.is_in_wave(member, Wave::First) || wave == Wave::Second && self.is_in_wave(member, Wave::Second)
    }

    fn write_superblocks(&mut self, wave: Wave, effects: &mut Vec<Effect>) {
        if wave == Wave::First {
            self.events += 1;
        }
        let record = self.commit.as_ref().expect("superblocks are written in a commit").record.clone();
        let waiting = self.send_superblocks(&record, |array, m| array.is_in_wave(m, wave), effects);
        self.enter(Phase::Write(wave), waiting);
    }

    /// Writes once more what devices may have forgotten; the flush after it is done again, too.
    fn write_again(&mut self, effects: &mut Vec<Effect>) {
        let commit = self.commit.as_mut().expect("what was forgotten belongs to a commit");
        let forgot = std::mem::take(&mut commit.forgot);
        let record = commit.record.clone();
        let wave = commit.phase.wave();
        let again = |array: &Self, m: &Member| array.is_written(m, wave) && forgot.contains(&m.handle());
        let waiting = self.send_superblocks(&record, again, effects);
        self.enter(Phase::Write(wave), waiting);
    }

    fn send_superblocks(
        &mut self,
        record: &Record,
        which: impl Fn(&Self, &Member) -> bool,
        effects: &mut Vec<Effect>,
    ) -> Vec<(MetaId, MemberHandle)> {
        let write = |m: &Member| {
            let data = self.superblock_of(m, record);
            (m.handle(), MetaOp::Write { lba: m.superblock.super_offset, data })
        };
        let writes: Vec<_> = self.members.iter().filter(|m| which(self, m)).map(write).collect();
        if let Some(commit) = &mut self.commit {
            commit.unflushed.extend(writes.iter().map(|(handle, _)| *handle));
        }
        let send = |(handle, op)| (self.meta(handle, MetaUse::Commit, op, effects), handle);
        writes.into_iter().map(send).collect()
    }

    fn end_commit(&mut self, effects: &mut Vec<Effect>) {
        let commit = self.commit.take().expect("the commit that ended");
        for member in &mut self.members {
            let entry = commit.record.entry(member.superblock.dev_number);
            match member.standing {
                Standing::Losing { slot, loss } if entry.is_none() => {
                    member.standing = Standing::Lost { slot, loss };
                    effects.push(Effect::Log(LogLevel::Warn, format!("{}: recorded as {loss}", member.device.name)));
                }
                Standing::Recovering { slot, finished: true, .. } if entry == Some(Entry::Slot(slot, None)) => {
                    member.standing = Standing::InSync(slot);
                    effects
                        .push(Effect::Log(LogLevel::Info, format!("{}: in sync in slot {slot}", member.device.name)));
                }
                _ => {}
            }
        }
        self.updated_at = self.wall;
        self.durable = Some(commit.record);
    }

    /// A request of a commit ended. Commits given up meanwhile no longer care. One that we `cancelled` says nothing of its device.
    pub(super) fn commit_answered(
        &mut self,
        now: Duration,
        id: MetaId,
        (status, cancelled): (IoStatus, bool),
        effects: &mut Vec<Effect>,
    ) {
        let Some(commit) = &mut self.commit else {
            return;
        };
        let Some(position) = commit.waiting.iter().position(|(waiting, _)| *waiting == id) else {
            return;
        };
        let (_, handle) = commit.waiting.swap_remove(position);
        if status.is_ok() {
            return;
        }
        match status {
            // Not known to have taken it: it will have to once it answers, or it is given up.
            IoStatus::Gone | IoStatus::Cancelled | IoStatus::Stopped | IoStatus::Restarted
                if !commit.phase.is_before() =>
            {
                commit.forgot.push(handle);
            }
            _ => commit.failed = true,
        }
        if !(cancelled && status == IoStatus::Cancelled) {
            self.member_error(now, handle, status, effects);
        }
    }

    /// A device may have forgotten superblocks that it acknowledged.
    pub(super) fn commit_forgotten(&mut self, handle: MemberHandle) {
        if let Some(commit) = &mut self.commit {
            commit.forgot.push(handle);
        }
    }

    /// A device was given up: its requests no longer count, and what they wrote is not known.
    pub(super) fn commit_without(&mut self, handle: MemberHandle) {
        if let Some(commit) = &mut self.commit {
            let before = commit.waiting.len() + commit.forgot.len();
            commit.waiting.retain(|(_, waiting)| *waiting != handle);
            commit.forgot.retain(|forgot| *forgot != handle);
            commit.failed |= commit.waiting.len() + commit.forgot.len() != before;
        }
    }
}
