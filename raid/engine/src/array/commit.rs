//! The metadata writer: makes the record durable on every device in use.
//!
//! Part of [`Array`]; its state is [`Commit`]. Nothing here waits for stripes. Whenever the record that the array's state
//! amounts to ([`Array::target`]) is not the durable one, one commit is started: a flush of all members where the new
//! record un-marks something, then the superblocks with a higher event count, then a flush of them. One commit is
//! under way at a time; it ends when every device has answered. A device that fails on the way fails the commit, and the next one
//! records its loss as well.
//!
//! Invariant: no superblock write is sent unless [`Array::may_write_superblocks`].

use std::time::Duration;

use raid_core::units::Sectors;

use super::api::{Effect, LogLevel, MetaId, MetaOp};
use super::member::Standing;
use super::record::{Entry, Record, SUPERBLOCK_SECTORS};
use super::{Array, MetaUse};
use crate::message::{IoStatus, MemberHandle};

/// What a commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Flushes of what the new record no longer marks.
    FlushBefore,
    /// Superblock writes.
    Write,
    /// Flushes of the superblocks.
    FlushAfter,
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
}

impl Array {
    /// Whether superblocks may be written now: not while a member is silent, more are gone than parity covers, or
    /// another host has the members.
    pub(super) fn may_write_superblocks(&self) -> bool {
        !self.suspended
            && !self.fenced
            && !self.read_only
            && !self.is_abandoned()
            && !self.members.iter().any(|m| m.is_silent())
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
        if commit.phase == Phase::FlushBefore && commit.record != self.target() {
            // Nothing has been written; its flushes end unheard.
            self.commit = None;
            return true;
        }
        if !commit.waiting.is_empty() || !self.may_write_superblocks() {
            return false;
        }
        if commit.failed {
            // Some superblocks may say the failed record.
            self.commit = None;
            self.durable = None;
            return true;
        }
        match commit.phase {
            Phase::FlushBefore => self.write_superblocks(effects),
            Phase::Write => self.enter(Phase::FlushAfter, effects),
            Phase::FlushAfter => self.end_commit(effects),
        }
        true
    }

    fn begin_commit(&mut self, effects: &mut Vec<Effect>) -> bool {
        let target = self.target();
        if self.durable.as_ref() == Some(&target) || !self.may_write_superblocks() {
            return false;
        }
        let unmarks = target.unmarks(self.durable.as_ref());
        self.commit = Some(Commit { record: target, phase: Phase::FlushBefore, waiting: Vec::new(), failed: false });
        if unmarks {
            self.enter(Phase::FlushBefore, effects);
        } else {
            self.write_superblocks(effects);
        }
        true
    }

    /// Sends the requests of a phase of flushes.
    fn enter(&mut self, phase: Phase, effects: &mut Vec<Effect>) {
        let to_flush = |m: &&super::member::Member| match phase {
            Phase::FlushBefore => m.is_active() && !m.device.volatile,
            Phase::Write | Phase::FlushAfter => m.is_used() && !m.device.volatile,
        };
        let handles: Vec<_> = self.members.iter().filter(to_flush).map(|m| m.handle()).collect();
        let waiting =
            handles.into_iter().map(|handle| (self.meta(handle, MetaUse::Commit, MetaOp::Flush, effects), handle));
        let waiting = waiting.collect();
        let commit = self.commit.as_mut().expect("a phase belongs to a commit");
        commit.phase = phase;
        commit.waiting = waiting;
    }

    fn write_superblocks(&mut self, effects: &mut Vec<Effect>) {
        self.events += 1;
        let commit = self.commit.as_mut().expect("superblocks are written in a commit");
        commit.phase = Phase::Write;
        let record = commit.record.clone();
        let mut waiting = Vec::new();
        for index in 0..self.members.len() {
            let member = &self.members[index];
            if !member.is_used() {
                continue;
            }
            let handle = member.handle();
            let lba = member.superblock.super_offset;
            let data = self.superblock_of(member, &record);
            debug_assert_eq!(Sectors(data.len() as u64 / 512), SUPERBLOCK_SECTORS);
            waiting.push((self.meta(handle, MetaUse::Commit, MetaOp::Write { lba, data }, effects), handle));
        }
        self.commit.as_mut().expect("still the same commit").waiting = waiting;
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

    /// A request of a commit ended. Commits given up meanwhile no longer care.
    pub(super) fn commit_answered(&mut self, now: Duration, id: MetaId, status: IoStatus, effects: &mut Vec<Effect>) {
        let Some(commit) = &mut self.commit else {
            return;
        };
        let Some(position) = commit.waiting.iter().position(|(waiting, _)| *waiting == id) else {
            return;
        };
        let (_, handle) = commit.waiting.swap_remove(position);
        if !status.is_ok() {
            commit.failed = true;
            self.member_error(now, handle, status, effects);
        }
    }

    /// A device was given up: its requests no longer count, and what they wrote is not known.
    pub(super) fn commit_without(&mut self, handle: MemberHandle) {
        if let Some(commit) = &mut self.commit {
            let before = commit.waiting.len();
            commit.waiting.retain(|(_, waiting)| *waiting != handle);
            commit.failed |= commit.waiting.len() != before;
        }
    }
}
