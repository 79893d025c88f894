//! The devices that the array knows, and how each stands.
//!
//! Owned by [`Array`](super::Array). A device is in a slot while its standing says so; at most one device is in a
//! slot. What is decided and what is recorded are different standings: a device that failed is [`Standing::Losing`]
//! until superblocks on all others say so, and only then [`Standing::Lost`].
//!
//! Bound: [`MEMBERS_KNOWN_MAX`] devices.

use std::fmt;
use std::time::Duration;

use raid_core::md::Superblock;
use raid_core::units::{MemberIndex, Sector, Sectors};

use super::api::{CommandId, Device};
use crate::message::{AnsweredBy, Boots, MemberHandle};

/// Most devices an array knows at a time: two for each possible slot.
pub(super) const MEMBERS_KNOWN_MAX: usize = 128;

/// How often views tell workers how far sync is.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);

/// Checkpoints are written at least this often, as md does, if there was progress.
const RECORD_INTERVAL: Duration = Duration::from_secs(300);

/// And each time this part of a member is done.
const RECORD_PARTS: u64 = 16;

/// Why a device is not used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// It answered with errors, or an operator said so. Stays out.
    Faulty,
    /// It did not answer, or forgot what it had acknowledged. Comes back by itself.
    Missing,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Faulty => "faulty",
            Loss::Missing => "missing",
        })
    }
}

/// How far a resync or recovery is. Sectors of the members' data areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// Right below this, in memory.
    pub(super) done: Sector,
    /// Right below this, to be said in views. Never above `done`.
    pub(super) shown: Sector,
    /// When `shown` was last moved.
    pub(super) shown_at: Duration,
    /// Right below this, to be said in superblocks. Never above `done`.
    pub(super) recorded: Sector,
    /// When `recorded` was last moved.
    pub(super) recorded_at: Duration,
}

impl Progress {
    pub(super) fn from(at: Sector, now: Duration) -> Self {
        Self { done: at, shown: at, shown_at: now, recorded: at, recorded_at: now }
    }

    /// Takes in that all below `done` is right, of `size`. Views and superblocks follow now and then.
    pub(super) fn advance(&mut self, done: Sector, size: Sectors, now: Duration) {
        assert!(done >= self.done, "what is right stays right");
        self.done = done;
        if done > self.shown && now >= self.shown_at + SHOW_INTERVAL {
            (self.shown, self.shown_at) = (done, now);
        }
        let due = now >= self.recorded_at + RECORD_INTERVAL || done - self.recorded >= Sectors(size.0 / RECORD_PARTS);
        if due && done > self.recorded {
            (self.recorded, self.recorded_at) = (done, now);
        }
    }
}

/// What a device is to the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Given by an operator; its old superblock is being looked at.
    Candidate,
    /// Waits for a slot.
    Spare,
    /// Holds right data everywhere.
    InSync(MemberIndex),
    /// Is being rebuilt; `finished`: all of it is right, and superblocks are to say so.
    Recovering { slot: MemberIndex, progress: Progress, finished: bool },
    /// Not to be used any more; superblocks do not say so yet.
    Losing { slot: Option<MemberIndex>, loss: Loss },
    /// Not used, and recorded so; `slot` is where it was.
    Lost { slot: Option<MemberIndex>, loss: Loss },
    /// A spare that is being removed; superblocks do not say so yet.
    Leaving,
}

impl Standing {
    pub(super) fn recovering(slot: MemberIndex, progress: Progress) -> Self {
        Standing::Recovering { slot, progress, finished: false }
    }
}

/// A device that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silence {
    /// First send of the unanswered request.
    pub(super) since: Duration,
    /// Given up below us: the hold time counts as over.
    pub(super) gone: bool,
}

/// How far a missing device's return is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// It has not answered since it went, or was looked at and refused.
    Away,
    /// It answers; its superblock is to be read once no worker has anything outstanding at it.
    Wanted,
    /// Its superblock is being read.
    Reading,
}

/// The command that waits for something to become of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// To be recorded as part of the array.
    Added(CommandId),
    /// To be recorded as faulty.
    Failed(CommandId),
    /// To be let go of.
    Removed(CommandId),
    /// To be let go of, as another device took its name. Nobody waits for it.
    Replaced,
}

impl Waiting {
    pub(super) fn command(self) -> Option<CommandId> {
        match self {
            Waiting::Added(id) | Waiting::Failed(id) | Waiting::Removed(id) => Some(id),
            Waiting::Replaced => None,
        }
    }
}

/// One device.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) device: Device,
    /// Its own superblock: the fields that differ by device count, the others are filled in when it is written.
    pub(super) superblock: Superblock,
    pub(super) standing: Standing,
    pub(super) silence: Option<Silence>,
    /// It was started anew and what follows is not decided.
    pub(super) restarted: bool,
    /// The start of it that we go on, and those of before.
    pub(super) boots: Boots,
    /// The last start that was heard of, until it is decided what follows.
    pub(super) boot_heard: Option<u32>,
    pub(super) returning: Return,
    /// Generation of the first view in which it is absent; unset while views have it.
    pub(super) absent_from: Option<u32>,
    pub(super) waiting: Option<Waiting>,
    /// The slot that it had before it went missing, if it is back as a spare.
    pub(super) home: Option<MemberIndex>,
    /// Recoveries into it that were given up since something last changed.
    pub(super) recovery_failures: u32,
}

impl Member {
    pub(super) fn new(device: Device, superblock: Superblock, standing: Standing) -> Self {
        Self {
            boots: Boots::new(device.boot),
            boot_heard: None,
            device,
            superblock,
            standing,
            silence: None,
            restarted: false,
            returning: Return::Away,
            absent_from: None,
            waiting: None,
            home: None,
            recovery_failures: 0,
        }
    }

    pub(super) fn handle(&self) -> MemberHandle {
        self.device.handle
    }

    /// The slot it is in, also while its loss is not recorded yet.
    pub(super) fn slot(&self) -> Option<MemberIndex> {
        match self.standing {
            Standing::InSync(slot) | Standing::Recovering { slot, .. } => Some(slot),
            Standing::Losing { slot, .. } => slot,
            Standing::Candidate | Standing::Spare | Standing::Lost { .. } | Standing::Leaving => None,
        }
    }

    /// Part of the array in superblocks: in sync, recovering or spare.
    pub(super) fn is_used(&self) -> bool {
        matches!(self.standing, Standing::InSync(_) | Standing::Recovering { .. } | Standing::Spare)
    }

    /// Has a slot and is not given up.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.standing, Standing::InSync(_) | Standing::Recovering { .. })
    }

    /// In sync and answering, with all that it acknowledged.
    pub(super) fn is_available(&self) -> bool {
        matches!(self.standing, Standing::InSync(_)) && self.silence.is_none() && !self.restarted
    }

    /// Whether a silence counts against it: it is in a slot and not given up.
    pub(super) fn is_silent(&self) -> bool {
        self.is_active() && self.silence.is_some()
    }

    /// Takes in that a start with this boot number answers. Whether that is news: then the device was started anew.
    pub(super) fn hears(&mut self, boot: u32) -> bool {
        if self.boots.now().is_none() {
            self.boots.accept(boot);
        }
        if self.boots.judge(boot) != AnsweredBy::Later || self.boot_heard == Some(boot) {
            return false;
        }
        if let Some(older) = self.boot_heard.replace(boot) {
            self.boots.pass_over(older);
        }
        true
    }

    /// What its being started anew means is decided.
    pub(super) fn goes_on(&mut self) {
        self.restarted = false;
        if let Some(boot) = self.boot_heard.take() {
            self.boots.accept(boot);
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        match self.standing {
            Standing::Losing { loss, .. } | Standing::Lost { loss, .. } => Some(loss),
            _ => None,
        }
    }

    /// When its silence has lasted too long; `None` for never.
    pub(super) fn hold_ends(&self, member_hold: Duration) -> Option<Duration> {
        let silence = self.silence?;
        if silence.gone {
            return Some(silence.since);
        }
        (!member_hold.is_zero()).then(|| silence.since + member_hold)
    }
}
