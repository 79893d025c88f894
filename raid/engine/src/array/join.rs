//! Devices that come and go: added, removed, failed by an operator, and missing ones that return.
//!
//! Part of [`Array`]. A slot is given to a device only when superblocks say that its last one is lost, and every worker has
//! nothing outstanding there. Without a write-intent bitmap every device that enters a slot is rebuilt in full.
//!
//! Bounds: [`MEMBERS_KNOWN_MAX`] devices; one command at a time for each.

use std::time::Duration;

use raid_core::units::{MemberIndex, Sector};

use super::api::{CommandError, CommandErrorKind, CommandId, Device, Effect, LogLevel};
use super::member::{Loss, MEMBERS_KNOWN_MAX, Member, Progress, Return, Standing, Waiting};
use super::record::parse;
use super::{Array, MetaUse};
use crate::message::{IoStatus, MemberHandle};

fn refused<T>(kind: CommandErrorKind, text: impl Into<String>) -> Result<T, CommandError> {
    Err(CommandError::new(kind, text))
}

fn fenced() -> CommandError {
    let text = "another host has reserved the members: stop the array, and run it with --takeover to take them back";
    CommandError::new(CommandErrorKind::ReadOnly, text)
}

fn broken() -> CommandError {
    let text = "the array has lost more members than parity covers: stop it and run it again when they are mended";
    CommandError::new(CommandErrorKind::Io, text)
}

impl Array {
    /// Commands that change members are refused while superblocks cannot follow.
    fn may_change(&self) -> Result<(), CommandError> {
        if self.read_only {
            refused(CommandErrorKind::ReadOnly, "the array is read-only: run it without --readonly")
        } else if self.fenced {
            Err(fenced())
        } else if self.broken {
            Err(broken())
        } else if self.suspended {
            refused(CommandErrorKind::Busy, "the array is suspended: bring its members back first")
        } else {
            Ok(())
        }
    }

    /// A device that is known and that no command is waiting for.
    fn known(&self, handle: MemberHandle) -> Result<&Member, CommandError> {
        let Some(member) = self.members.iter().find(|m| m.handle() == handle) else {
            return refused(CommandErrorKind::NoDevice, "the device is not a member of the array");
        };
        if member.waiting.is_some() {
            let text = format!("{}: another command for it is under way", member.device.name);
            return refused(CommandErrorKind::Busy, text);
        }
        Ok(member)
    }

    /// Takes a device in, to be answered when superblocks have it as a spare.
    pub(super) fn add(
        &mut self,
        id: CommandId,
        device: Device,
        device_uuid: [u8; 16],
        effects: &mut Vec<Effect>,
    ) -> Result<(), CommandError> {
        self.may_change()?;
        let name = &device.name;
        let known = self.members.iter().find(|m| {
            m.handle() == device.handle || m.device.name == *name && !matches!(m.standing, Standing::Lost { .. })
        });
        if let Some(member) = known {
            let what = super::detail::state_words(member);
            let text = format!("{name}: is {what} in the array already");
            return refused(CommandErrorKind::Busy, text);
        }
        if self.members.len() >= MEMBERS_KNOWN_MAX {
            return refused(
                CommandErrorKind::Busy,
                format!("{name}: the array knows {MEMBERS_KNOWN_MAX} devices; remove faulty ones"),
            );
        }
        let dev_number = self.free_dev_number();
        let superblock = match self.superblock_for_new(&device, device_uuid, dev_number) {
            Ok(superblock) => superblock,
            Err(text) => return refused(CommandErrorKind::TooSmall, text),
        };
        self.dev_number_next = dev_number + 1;
        let handle = device.handle;
        let mut member = Member::new(device, superblock, Standing::Candidate);
        member.waiting = Some(Waiting::Added(id));
        self.members.push(member);
        self.read_superblock(handle, MetaUse::Look, effects);
        Ok(())
    }

    /// A candidate's or a returning device's superblock has been read.
    pub(super) fn looked_at(&mut self, handle: MemberHandle, read: (IoStatus, &[u8]), effects: &mut Vec<Effect>) {
        let Some(index) = self.members.iter().position(|m| m.handle() == handle) else {
            return;
        };
        match (self.members[index].standing, self.members[index].returning) {
            (Standing::Candidate, _) => self.candidate_seen(index, read, effects),
            (Standing::Lost { slot, loss: Loss::Missing }, Return::Reading) => {
                self.returning_seen(index, slot, read, effects);
            }
            _ => {}
        }
    }

    fn candidate_seen(&mut self, index: usize, read: (IoStatus, &[u8]), effects: &mut Vec<Effect>) {
        let name = self.members[index].device.name.clone();
        if !read.0.is_ok() {
            let error = CommandError::new(CommandErrorKind::Io, format!("{name}: cannot be read"));
            return self.drop_candidate(index, error, effects);
        }
        if let Some(found) = parse(&self.members[index], read.1)
            && let Some(twin) = self.members.iter().find(|m| m.is_active() && self.is_ours(m, &found))
        {
            let text = format!("{name}: is the same device as {}, which is in use", twin.device.name);
            let error = CommandError::new(CommandErrorKind::Busy, text);
            return self.drop_candidate(index, error, effects);
        }
        for member in &mut self.members {
            if member.device.name == name && member.loss().is_some() && member.waiting.is_none() {
                member.returning = Return::Away;
                member.waiting = Some(Waiting::Replaced);
            }
        }
        self.members[index].standing = Standing::Spare;
    }

    fn drop_candidate(&mut self, index: usize, error: CommandError, effects: &mut Vec<Effect>) {
        let member = self.members.remove(index);
        if let Some(id) = member.waiting.and_then(Waiting::command) {
            self.answer(id, Err(error), effects);
        }
        effects.push(Effect::Released(member.handle()));
    }

    fn returning_seen(
        &mut self,
        index: usize,
        slot: Option<MemberIndex>,
        read: (IoStatus, &[u8]),
        effects: &mut Vec<Effect>,
    ) {
        let member = &self.members[index];
        let name = &member.device.name;
        let refusal = match parse(member, read.1) {
            _ if !read.0.is_ok() => Some("cannot be read"),
            Some(found) if self.is_ours(member, &found) => None,
            Some(_) => Some("carries another superblock"),
            None => Some("carries no superblock"),
        };
        if let Some(refusal) = refusal {
            let text = format!("{name}: is back but {refusal}; not taken in again");
            effects.push(Effect::Log(LogLevel::Error, text));
            self.members[index].returning = Return::Away;
            return;
        }
        let text = format!("{name}: is back");
        effects.push(Effect::Log(LogLevel::Info, text));
        // It joins as a new one does. Superblocks say of its old number that it has failed, also those of members that are lost before
        // they are told that it is back: it would look as if the two had gone on without each other.
        let dev_number = self.free_dev_number();
        self.dev_number_next = dev_number + 1;
        let member = &mut self.members[index];
        member.superblock.dev_number = dev_number;
        member.returning = Return::Away;
        member.absent_from = None;
        member.recovery_failures = 0;
        member.home = slot;
        member.standing = Standing::Spare;
    }

    /// Looks at devices that came back and fills free slots from spares. Whether anything changed.
    pub(super) fn step_join(&mut self, now: Duration, effects: &mut Vec<Effect>) -> bool {
        if !self.may_write_superblocks() || self.stop.is_some() || self.sync.is_frozen() {
            return false;
        }
        let back = |m: &&Member| {
            matches!(m.standing, Standing::Lost { loss: Loss::Missing, .. })
                && m.returning == Return::Wanted
                && m.silence.is_none()
                && m.waiting.is_none()
                && self.is_let_go(m)
        };
        if let Some(handle) = self.members.iter().find(back).map(Member::handle) {
            self.member_mut(handle).returning = Return::Reading;
            self.read_superblock(handle, MetaUse::Look, effects);
            return true;
        }
        let returning = self.members.iter().any(|m| m.returning == Return::Reading && m.silence.is_none());
        let Some(slot) = self.geometry.members().indices().find(|slot| self.is_free(*slot)) else {
            return false;
        };
        let fit = |m: &&Member| m.standing == Standing::Spare && m.silence.is_none() && m.waiting.is_none();
        let spares = self.members.iter().filter(fit);
        let spare = spares.max_by_key(|m| m.home == Some(slot)).map(Member::handle);
        match spare {
            Some(spare) if !returning && self.is_recorded() => {
                self.member_mut(spare).standing = Standing::recovering(slot, Progress::from(Sector::ZERO, now));
                true
            }
            _ => false,
        }
    }

    /// Whether a slot can be given to a device.
    fn is_free(&self, slot: MemberIndex) -> bool {
        let lost_here = |m: &&Member| matches!(m.standing, Standing::Lost { slot: Some(lost), .. } if lost == slot);
        self.members.iter().all(|m| m.slot() != Some(slot))
            && self.members.iter().filter(lost_here).all(|m| self.is_let_go(m))
    }

    /// Whether nobody has anything outstanding at a device: all workers know that it is absent, and so do we.
    fn is_let_go(&self, member: &Member) -> bool {
        let workers = member.absent_from.is_none_or(|absent| self.workers_done() >= absent);
        self.view_lacks(member.handle()) && workers && !self.meta_outstanding(member.handle())
    }

    /// Whether durable superblocks have a device as part of the array.
    fn has_entry(&self, member: &Member) -> bool {
        let number = member.superblock.dev_number;
        self.durable.as_ref().is_some_and(|durable| durable.entry(number).is_some())
    }

    /// Marks a device faulty, to be answered when that is recorded.
    pub(super) fn fail(
        &mut self,
        id: CommandId,
        handle: MemberHandle,
        effects: &mut Vec<Effect>,
    ) -> Result<(), CommandError> {
        let member = self.known(handle)?;
        let name = &member.device.name;
        match member.standing {
            Standing::Lost { loss: Loss::Faulty, .. } | Standing::Losing { loss: Loss::Faulty, .. } => {}
            Standing::Candidate | Standing::Leaving => {
                return refused(CommandErrorKind::Busy, format!("{name}: another command for it is under way"));
            }
            Standing::InSync(_) => {
                self.may_change()?;
                let left = self.members.iter().filter(|m| m.is_available() && m.handle() != handle).count();
                if left + self.geometry.parity_count() < self.geometry.members().len() {
                    let text = format!("{name}: the array would fail without it");
                    return refused(CommandErrorKind::Busy, text);
                }
                if self.resync.is_some() {
                    let text = format!("{name}: parity is not yet right everywhere; let the resync end first");
                    return refused(CommandErrorKind::Busy, text);
                }
            }
            Standing::Recovering { .. } | Standing::Spare | Standing::Losing { .. } | Standing::Lost { .. } => {
                self.may_change()?;
            }
        }
        self.lose(handle, Loss::Faulty, effects);
        self.member_mut(handle).waiting = Some(Waiting::Failed(id));
        Ok(())
    }

    /// Lets go of a device, to be answered when it is released.
    pub(super) fn remove(&mut self, id: CommandId, handle: MemberHandle) -> Result<(), CommandError> {
        let member = self.known(handle)?;
        let name = &member.device.name;
        match member.standing {
            Standing::Lost { .. } => {}
            Standing::Spare => self.may_change()?,
            Standing::Losing { .. } => {
                return refused(CommandErrorKind::Busy, format!("{name}: its failure is not recorded yet"));
            }
            _ => return refused(CommandErrorKind::Busy, format!("{name}: is in use; fail it first")),
        }
        let member = self.member_mut(handle);
        if member.standing == Standing::Spare {
            member.standing = Standing::Leaving;
        }
        member.returning = Return::Away;
        member.waiting = Some(Waiting::Removed(id));
        Ok(())
    }

    /// Answers commands whose device has become what they wanted. Whether anything changed.
    pub(super) fn step_waiting(&mut self, effects: &mut Vec<Effect>) -> bool {
        for index in 0..self.members.len() {
            let member = &self.members[index];
            let Some(waiting) = member.waiting else {
                continue;
            };
            let result = match (waiting, member.standing) {
                (Waiting::Added(_), Standing::Losing { .. } | Standing::Lost { .. }) => {
                    let text = format!("{}: failed while it was added", member.device.name);
                    Err(CommandError::new(CommandErrorKind::Io, text))
                }
                (Waiting::Added(_), _) if member.is_used() && self.has_entry(member) => Ok(()),
                (Waiting::Failed(_), Standing::Lost { .. }) => Ok(()),
                (Waiting::Removed(_) | Waiting::Replaced, Standing::Lost { .. } | Standing::Leaving)
                    if self.is_let_go(member) && (member.loss().is_some() || self.is_recorded()) =>
                {
                    let handle = member.handle();
                    self.members.remove(index);
                    if let Some(id) = waiting.command() {
                        self.answer(id, Ok(()), effects);
                    }
                    effects.push(Effect::Released(handle));
                    return true;
                }
                // It will not be recorded any more.
                (Waiting::Added(_) | Waiting::Failed(_) | Waiting::Removed(_), _) if self.fenced => Err(fenced()),
                (Waiting::Added(_) | Waiting::Failed(_) | Waiting::Removed(_), _) if self.broken => Err(broken()),
                _ => continue,
            };
            self.members[index].waiting = None;
            if let Some(id) = waiting.command() {
                self.answer(id, result, effects);
            }
            return true;
        }
        false
    }
}
