//! Members that fail, fall silent, restart or are fenced off.
//!
//! Part of [`Array`]. A silent member is waited for; when its hold time is over all others are probed, and only if they answer
//! is it given up as missing. Whenever more slots lack an answering, in-sync member than parity covers, the array
//! is suspended and nobody is given up. Once more are given up than parity covers it is broken, and stays so. Giving up is a decision only: the record of it is the metadata writer's work,
//! and workers are told when it is durable.

use std::time::Duration;

use raid_core::md::Superblock;
use raid_core::units::Sector;

use super::api::{Effect, LogLevel, MemberEvent, MetaId, MetaOp};
use super::mark::Mark;
use super::member::{Loss, Member, Progress, Return, Silence, Standing};
use super::record::{SUPERBLOCK_SECTORS, parse};
use super::{Array, MetaUse};
use crate::message::{AnsweredBy, IoStatus, MemberHandle};

/// Reads of the superblocks of all other members, to learn whether it is the silent ones that are gone, or we.
#[derive(Debug)]
pub(super) struct Probe {
    /// Who is about to be given up.
    silent: Vec<MemberHandle>,
    waiting: Vec<MetaId>,
}

/// Flushes of all members that were not restarted.
#[derive(Debug)]
pub(super) struct Settling {
    /// Who is about to be given up.
    restarted: Vec<MemberHandle>,
    waiting: Vec<MetaId>,
    /// A flush was not carried out.
    failed: bool,
}

impl Array {
    /// Something became known of a member.
    pub(super) fn member_event(
        &mut self,
        now: Duration,
        handle: MemberHandle,
        event: MemberEvent,
        effects: &mut Vec<Effect>,
    ) {
        let Some(member) = self.members.iter_mut().find(|m| m.handle() == handle) else {
            return;
        };
        let name = member.device.name.clone();
        match event {
            MemberEvent::Silent { since } => {
                if member.silence.is_none() {
                    member.silence = Some(Silence { since, gone: false });
                    effects.push(Effect::Log(LogLevel::Warn, format!("{name}: does not answer")));
                }
            }
            MemberEvent::Gone => self.gone(now, handle, effects),
            MemberEvent::Answers => self.answers(handle, effects),
            MemberEvent::Restarted => self.restarted(handle, effects),
            MemberEvent::Boot(boot) => self.boot_heard(handle, boot, effects),
            MemberEvent::Fenced => self.fence(&name, effects),
            MemberEvent::Volatile => {
                if !member.device.volatile {
                    member.device.volatile = true;
                    let text = format!(
                        "{name}: is volatile: a flush was aborted or ignored; what it acknowledges counts as stored"
                    );
                    effects.push(Effect::Log(LogLevel::Warn, text));
                    self.mark_volatile(now);
                }
            }
        }
    }

    fn gone(&mut self, now: Duration, handle: MemberHandle, effects: &mut Vec<Effect>) {
        let Some(member) = self.members.iter_mut().find(|m| m.handle() == handle) else {
            return;
        };
        match &mut member.silence {
            Some(silence) => silence.gone = true,
            None => {
                member.silence = Some(Silence { since: now, gone: true });
                effects.push(Effect::Log(LogLevel::Warn, format!("{}: is gone", member.device.name)));
            }
        }
    }

    fn answers(&mut self, handle: MemberHandle, effects: &mut Vec<Effect>) {
        let Some(member) = self.members.iter_mut().find(|m| m.handle() == handle) else {
            return;
        };
        if member.silence.take().is_some() {
            effects.push(Effect::Log(LogLevel::Info, format!("{}: answers again", member.device.name)));
        }
        if member.loss() == Some(Loss::Missing) && member.returning == Return::Away {
            member.returning = Return::Wanted;
        }
    }

    /// A device was started anew.
    fn restarted(&mut self, handle: MemberHandle, effects: &mut Vec<Effect>) {
        let Some(member) = self.members.iter_mut().find(|m| m.handle() == handle) else {
            return;
        };
        if member.is_active() {
            member.restarted = true;
        } else {
            // Nothing that counts was written to it.
            member.goes_on();
        }
        if member.device.volatile {
            self.durable = None;
        }
        effects.push(Effect::Log(LogLevel::Warn, format!("{}: was restarted", member.device.name)));
        self.commit_forgotten(handle);
    }

    /// A device answers, and the start that does has this boot number.
    pub(super) fn boot_heard(&mut self, handle: MemberHandle, boot: u32, effects: &mut Vec<Effect>) {
        let member = self.members.iter_mut().find(|m| m.handle() == handle);
        if member.is_some_and(|m| m.hears(boot)) {
            self.restarted(handle, effects);
        }
    }

    /// How a metadata request counts, given which start of the device answered it: one of a start that we do not go on yet, or no more, was not
    /// carried out.
    pub(super) fn judged(
        &mut self,
        handle: MemberHandle,
        status: IoStatus,
        boot: Option<u32>,
        effects: &mut Vec<Effect>,
    ) -> IoStatus {
        let Some(boot) = boot else {
            return status;
        };
        self.boot_heard(handle, boot, effects);
        let member = self.members.iter().find(|m| m.handle() == handle);
        match member.map(|m| m.boots.judge(boot)) {
            Some(AnsweredBy::Earlier | AnsweredBy::Later) => IoStatus::Restarted,
            Some(AnsweredBy::This) | None => status,
        }
    }

    fn fence(&mut self, name: &str, effects: &mut Vec<Effect>) {
        if !self.fenced {
            self.fenced = true;
            self.sync.interrupt();
            let text = format!(
                "{name}: reserved by another host; the array writes nothing more: stop it, and run it with \
                 --takeover to take its members back"
            );
            effects.push(Effect::Log(LogLevel::Error, text));
        }
    }

    /// A member ended a request with an error: a worker's, or one of ours.
    pub(super) fn member_error(
        &mut self,
        now: Duration,
        handle: MemberHandle,
        status: IoStatus,
        effects: &mut Vec<Effect>,
    ) {
        match status {
            IoStatus::Ok => {}
            IoStatus::Fenced => self.member_event(now, handle, MemberEvent::Fenced, effects),
            // Known by the boot number that came along.
            IoStatus::Restarted => {}
            IoStatus::Gone | IoStatus::Cancelled | IoStatus::Stopped => self.gone(now, handle, effects),
            IoStatus::Medium | IoStatus::Failed | IoStatus::ReadOnly | IoStatus::OutOfRange => {
                self.lose(handle, Loss::Faulty, effects);
            }
        }
    }

    /// Gives a device up. Superblocks and workers follow.
    pub(super) fn lose(&mut self, handle: MemberHandle, loss: Loss, effects: &mut Vec<Effect>) {
        let read_only = self.read_only;
        let Some(member) = self.members.iter_mut().find(|m| m.handle() == handle) else {
            return;
        };
        let slot = match member.standing {
            Standing::InSync(slot) | Standing::Recovering { slot, .. } => Some(slot),
            Standing::Spare => None,
            Standing::Losing { slot, loss: Loss::Missing } if loss == Loss::Faulty => slot,
            Standing::Lost { slot, loss: Loss::Missing } if loss == Loss::Faulty => {
                // Superblocks do not tell the two apart.
                member.standing = Standing::Lost { slot, loss };
                member.returning = Return::Away;
                return;
            }
            Standing::Losing { .. } | Standing::Lost { .. } | Standing::Leaving | Standing::Candidate => return,
        };
        member.goes_on();
        member.returning =
            if loss == Loss::Missing && member.silence.is_none() { Return::Wanted } else { Return::Away };
        // A read-only array acknowledges no writes, so there is nothing to record.
        member.standing = if read_only { Standing::Lost { slot, loss } } else { Standing::Losing { slot, loss } };
        let text = match slot {
            Some(slot) => format!("{}: {loss}; slot {slot} is lost", member.device.name),
            None => format!("{}: spare is {loss}", member.device.name),
        };
        effects.push(Effect::Log(LogLevel::Error, text));
        self.commit_without(handle);
    }

    /// How many slots lack an in-sync member that answers.
    pub(super) fn slots_unavailable(&self) -> usize {
        self.geometry.members().len() - self.members.iter().filter(|m| m.is_available()).count()
    }

    /// Whether a slot has no member in sync. One being given up counts as gone already, silent ones do not.
    pub(super) fn is_degraded(&self) -> bool {
        let in_sync = self.members.iter().filter(|m| matches!(m.standing, Standing::InSync(_))).count();
        in_sync < self.geometry.members().len()
    }

    /// Suspends the array or lets it go on; breaks it if members that would have to come back never will, as what was given up
    /// returns only by being rebuilt. Whether it was suspended or let go on.
    pub(super) fn step_suspend(&mut self, effects: &mut Vec<Effect>) -> bool {
        let lost = self.degraded() as usize;
        if lost > self.geometry.parity_count() && !self.broken {
            self.broken = true;
            self.sync.interrupt();
            let text = format!(
                "broken: {lost} members are lost, more than parity covers; requests end with errors, superblocks stay as they are"
            );
            effects.push(Effect::Log(LogLevel::Error, text));
        }
        let unavailable = self.slots_unavailable();
        let suspended = unavailable > self.geometry.parity_count();
        if suspended == self.suspended {
            return false;
        }
        self.suspended = suspended;
        effects.push(if suspended {
            Effect::Log(LogLevel::Error, format!("suspended: {unavailable} members do not answer or are lost"))
        } else {
            Effect::Log(LogLevel::Info, "no longer suspended".into())
        });
        true
    }

    /// Decides about members that were restarted, once all others are known to be there, with all that they acknowledged: what a restarted member
    /// has lost is in the others, and if one of them turned out to be restarted as well after the first was given up, that would cost more than
    /// what was not flushed. So they are flushed first, which shows whether they are as they were. Whether anything changed.
    pub(super) fn step_restarted(&mut self, effects: &mut Vec<Effect>) -> bool {
        let restarted: Vec<_> = self.members.iter().filter(|m| m.restarted).map(|m| m.handle()).collect();
        if restarted.is_empty() || self.fenced {
            self.settling = None;
            return false;
        }
        if self.read_only || self.nothing_unflushed(&restarted) {
            self.restarted_stay();
            return true;
        }
        if self.members.iter().any(|m| m.is_silent()) {
            // What was flushed may be long ago when it answers.
            self.settling = None;
            return false;
        }
        // Where parity is not right, the others do not tell what a restarted member had.
        if self.slots_unavailable() > self.geometry.parity_count() || self.resync.is_some() {
            self.keep_restarted(effects);
            return true;
        }
        match &self.settling {
            Some(settling) if settling.restarted == restarted && !settling.failed => {
                if !settling.waiting.is_empty() {
                    return false;
                }
                for handle in restarted {
                    self.lose(handle, Loss::Missing, effects);
                }
            }
            // What an earlier one asked for tells nothing now, and ends first.
            _ if self.meta.values().any(|meta| meta.whose == MetaUse::Settle) => return false,
            _ => self.settle(restarted, effects),
        }
        true
    }

    /// Flushes all members but these.
    fn settle(&mut self, restarted: Vec<MemberHandle>, effects: &mut Vec<Effect>) {
        let others = self.members.iter().filter(|m| m.is_active() && !m.restarted && !m.device.volatile);
        let others: Vec<_> = others.map(Member::handle).collect();
        let flush = |handle| self.meta(handle, MetaUse::Settle, MetaOp::Flush, effects);
        let waiting = others.into_iter().map(flush).collect();
        self.settling = Some(Settling { restarted, waiting, failed: false });
    }

    /// A flush of [`settle`](Array::settle) ended.
    pub(super) fn settled(
        &mut self,
        now: Duration,
        id: MetaId,
        handle: MemberHandle,
        status: IoStatus,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(settling) = &mut self.settling
            && settling.waiting.contains(&id)
        {
            settling.waiting.retain(|waiting| *waiting != id);
            settling.failed |= !status.is_ok();
        }
        self.member_error(now, handle, status, effects);
    }

    /// Restarted members keep their places; workers learn of it.
    fn restarted_stay(&mut self) {
        for member in self.members.iter_mut().filter(|m| m.restarted) {
            member.goes_on();
        }
    }

    /// Whether superblocks say clean and nothing was written since all members were flushed: then a restart lost nothing.
    fn nothing_unflushed(&self, restarted: &[MemberHandle]) -> bool {
        let quiet = self.mark == Mark::Quiet && self.resync.is_none() && self.sync.is_idle() && self.is_recorded();
        let stores = |m: &Member| matches!(m.standing, Standing::InSync(_)) && !m.device.volatile;
        quiet && self.members.iter().filter(|m| restarted.contains(&m.handle())).all(stores)
    }

    /// More members forgot unflushed writes than parity covers: they stay, clients learn of it, and parity is made anew.
    fn keep_restarted(&mut self, effects: &mut Vec<Effect>) {
        self.restarted_stay();
        let why = match self.resync {
            Some(_) => "a member was restarted while parity is not right everywhere",
            None => "more members were restarted than parity covers",
        };
        effects.push(Effect::Log(LogLevel::Error, format!("{why}: unflushed writes may be lost")));
        effects.push(Effect::FlushFault);
        if self.is_degraded() {
            let text = "rows written last cannot be checked while the array is degraded";
            effects.push(Effect::Log(LogLevel::Error, text.into()));
        } else {
            self.resync = Some(Progress::from(Sector::ZERO, self.now));
            self.sync.interrupt();
        }
    }

    /// Gives silent members up when it is time and all others answer. Whether anything changed.
    pub(super) fn step_silence(&mut self, now: Duration, effects: &mut Vec<Effect>) -> bool {
        let spare = self.members.iter().find(|m| m.standing == Standing::Spare && m.silence.is_some());
        if let Some(spare) = spare.map(Member::handle)
            && !self.fenced
        {
            self.lose(spare, Loss::Missing, effects);
            return true;
        }
        let silent: Vec<_> = self.members.iter().filter(|m| m.is_silent()).map(Member::handle).collect();
        if silent.is_empty() || self.suspended || self.fenced || !self.holds_over(now) {
            return self.probe.take().is_some();
        }
        match &self.probe {
            Some(probe) if probe.silent == silent && probe.waiting.is_empty() => {
                self.probe = None;
                for handle in silent {
                    self.lose(handle, Loss::Missing, effects);
                }
                true
            }
            Some(probe) if probe.silent == silent => false,
            _ => {
                self.start_probe(silent, effects);
                true
            }
        }
    }

    /// Gives up what is outstanding at devices that do not answer and are not in use: nobody waits for it, and while it is out
    /// their places cannot be given to others. While nothing may be written, superblocks on their way are called back: if that ends, they
    /// are written again. Whether anything changed.
    pub(super) fn step_cancel(&mut self, effects: &mut Vec<Effect>) -> bool {
        let unheard = |m: &&Member| m.silence.is_some() && !m.is_used();
        let devices: Vec<_> = self.members.iter().filter(unheard).map(Member::handle).collect();
        let mut changed = false;
        let halted = self.suspended || self.fenced;
        for (id, meta) in &mut self.meta {
            if !meta.cancelled && (devices.contains(&meta.handle) || halted && meta.write) {
                meta.cancelled = true;
                changed = true;
                effects.push(Effect::CancelMeta { id: *id, handle: meta.handle });
            }
        }
        changed
    }

    fn holds_over(&self, now: Duration) -> bool {
        let hold = self.tunables.member_hold;
        let mut silent = self.members.iter().filter(|m| m.is_silent());
        silent.all(|m| m.hold_ends(hold).is_some_and(|end| end <= now))
    }

    fn start_probe(&mut self, silent: Vec<MemberHandle>, effects: &mut Vec<Effect>) {
        let others: Vec<_> =
            self.members.iter().filter(|m| m.is_active() && !m.is_silent()).map(Member::handle).collect();
        let waiting = others.into_iter().map(|handle| self.read_superblock(handle, MetaUse::Probe, effects));
        let waiting = waiting.collect();
        self.probe = Some(Probe { silent, waiting });
    }

    /// Asks for a device's superblock.
    pub(super) fn read_superblock(
        &mut self,
        handle: MemberHandle,
        whose: MetaUse,
        effects: &mut Vec<Effect>,
    ) -> MetaId {
        let member = self.members.iter().find(|m| m.handle() == handle).expect("only known devices are read");
        let op = MetaOp::Read { lba: member.superblock.super_offset, sectors: SUPERBLOCK_SECTORS };
        self.meta(handle, whose, op, effects)
    }

    /// A probe was answered.
    pub(super) fn probe_answered(
        &mut self,
        now: Duration,
        id: MetaId,
        handle: MemberHandle,
        read: (IoStatus, &[u8]),
        effects: &mut Vec<Effect>,
    ) {
        if let Some(probe) = &mut self.probe {
            probe.waiting.retain(|waiting| *waiting != id);
        }
        if !read.0.is_ok() {
            return self.member_error(now, handle, read.0, effects);
        }
        let Some(member) = self.members.iter().find(|m| m.handle() == handle) else {
            return;
        };
        // A torn read beside a superblock write does not parse, and is an answer all the same.
        let other = parse(member, read.1).is_some_and(|found| !self.is_ours(member, &found));
        if other {
            let text = format!("{}: carries the superblock of another member or array", member.device.name);
            effects.push(Effect::Log(LogLevel::Error, text));
            self.lose(handle, Loss::Faulty, effects);
        }
    }

    /// Whether a superblock is that of this device in this array.
    pub(super) fn is_ours(&self, member: &Member, found: &Superblock) -> bool {
        found.set_uuid == self.head.set_uuid && found.device_uuid == member.superblock.device_uuid
    }

    /// When the next hold time is over.
    pub(super) fn silence_wakes_at(&self) -> Option<Duration> {
        if self.suspended || self.fenced || self.probe.is_some() {
            return None;
        }
        let hold = self.tunables.member_hold;
        let ends: Option<Vec<_>> = self.members.iter().filter(|m| m.is_silent()).map(|m| m.hold_ends(hold)).collect();
        ends?.into_iter().max()
    }
}
