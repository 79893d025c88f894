//! Clean and dirty: when writes may be sent, and when superblocks may say that all is quiet.
//!
//! Part of [`Array`]; its state is [`Mark`]. Writes are allowed only in [`Mark::Dirty`] and [`Mark::Asking`], which
//! are entered only when superblocks on every member that is not missing say dirty. Superblocks say clean only after every worker
//! has answered that it sends no writes, and after a flush of every member. While a resync keeps them from saying clean, that flush is made all
//! the same: [`Mark::Quiet`] means that what was acknowledged is durable, and a stop counts on that.
//!
//! ```text
//!   Quiet --a write waits--> Wanted --dirty mark durable--> Dirty --delay over--> Asking --all idle--> Unmarking
//!     ^                                                       ^ ^---one is busy------'                    |
//!     '------------------- flushed, recorded -----------------+---------a write waits: Wanted ------------'
//! ```

use std::time::Duration;

use super::Array;
use super::api::Effect;
use crate::message::{ToWorker, WorkerId};

/// How often workers are asked while the array must stay quiet longer than this.
const ASK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// How soon busy workers are asked again when the array is to stop.
const ASK_INTERVAL_STOPPING: Duration = Duration::from_millis(10);

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// No worker sends writes, and those sent are durable.
    Quiet,
    /// None does, but one wants to.
    Wanted,
    /// Writes may be on their way.
    Dirty {
        /// When to ask whether there are any.
        ask_at: Duration,
    },
    /// As dirty, and the workers have been asked.
    Asking {
        token: u32,
        /// By worker: answered that it is idle.
        idle: Vec<bool>,
    },
    /// No worker sends writes, and superblocks are to say so.
    Unmarking {
        /// Every member has been flushed since, or will have been when what superblocks are to say is recorded.
        flushed: bool,
    },
}

impl Mark {
    /// Whether workers may send writes.
    pub(super) fn allows_writes(&self) -> bool {
        matches!(self, Mark::Dirty { .. } | Mark::Asking { .. })
    }

    /// Whether superblocks are to say dirty.
    pub(super) fn wants_dirty(&self) -> bool {
        !matches!(self, Mark::Quiet | Mark::Unmarking { .. })
    }

    /// Whether members are to be flushed even if superblocks stay as they are.
    pub(super) fn wants_flush(&self) -> bool {
        *self == Mark::Unmarking { flushed: false }
    }
}

impl Array {
    /// How long no write may have been in flight before superblocks may say clean.
    fn idle_for(&self) -> Duration {
        if self.stop.is_some() {
            return Duration::ZERO;
        }
        let volatile = self.members.iter().any(|m| m.is_active() && m.device.volatile);
        if volatile {
            self.tunables.safe_mode_delay.max(self.tunables.volatile_window)
        } else {
            self.tunables.safe_mode_delay
        }
    }

    fn ask_interval(&self) -> Duration {
        if self.stop.is_some() {
            return ASK_INTERVAL_STOPPING;
        }
        self.idle_for().min(self.tunables.safe_mode_delay.max(ASK_INTERVAL_MAX))
    }

    /// After how long the workers are asked first.
    fn dirty_for(&self) -> Duration {
        self.idle_for().max(self.ask_interval())
    }

    /// Whether the workers are to be asked at all.
    fn may_ask(&self) -> bool {
        let kept_dirty = self.tunables.safe_mode_delay.is_zero() || self.sync.needs_dirty();
        self.may_write_superblocks() && (self.stop.is_some() || !kept_dirty)
    }

    /// A worker holds a write because it may not send it.
    pub(super) fn write_wanted(&mut self, now: Duration) {
        match self.mark {
            Mark::Quiet | Mark::Unmarking { .. } => self.mark = Mark::Wanted,
            Mark::Asking { .. } => self.stay_dirty(now),
            // The worker has not seen the view that allows it yet, or superblocks are being written.
            Mark::Wanted | Mark::Dirty { .. } => {}
        }
    }

    /// Takes the question back: some workers may have stopped sending because of it, so all are told to go on.
    fn stay_dirty(&mut self, now: Duration) {
        self.mark = Mark::Dirty { ask_at: now + self.ask_interval() };
        self.view_due = true;
    }

    /// Before a view goes out or the workers change: an answer to the question would not hold any more.
    pub(super) fn drop_question(&mut self, now: Duration) {
        if matches!(self.mark, Mark::Asking { .. }) {
            self.stay_dirty(now);
        }
    }

    /// New settings are in force: a longer delay need not be waited out.
    pub(super) fn mark_tuned(&mut self, now: Duration) {
        let latest = now + self.idle_for();
        if let Mark::Dirty { ask_at } = &mut self.mark {
            *ask_at = latest.min(*ask_at);
        }
    }

    /// A member turned out volatile: what was written so far is stored only when its window is over.
    pub(super) fn mark_volatile(&mut self, now: Duration) {
        self.drop_question(now);
        let later = now + self.dirty_for();
        match &mut self.mark {
            Mark::Dirty { ask_at } => *ask_at = later,
            Mark::Unmarking { .. } => self.mark = Mark::Wanted,
            Mark::Quiet | Mark::Wanted | Mark::Asking { .. } => {}
        }
    }

    /// The array is to stop: nothing is waited for any more before the workers are asked.
    pub(super) fn hurry_mark(&mut self, now: Duration) {
        if let Mark::Dirty { ask_at } = &mut self.mark {
            *ask_at = now;
        }
        self.drop_question(now);
    }

    /// A worker's answer to the question.
    pub(super) fn worker_quiet(&mut self, now: Duration, worker: WorkerId, answer: (u32, bool)) {
        let Mark::Asking { token, idle } = &mut self.mark else {
            return;
        };
        if *token != answer.0 {
            return;
        }
        if !answer.1 {
            return self.stay_dirty(now);
        }
        if let Some(entry) = idle.get_mut(usize::from(worker.0)) {
            *entry = true;
        }
        if idle.iter().all(|entry| *entry) {
            self.mark = Mark::Unmarking { flushed: false };
        }
    }

    /// Every member has been flushed since workers came to rest, or will have been when the commit under way ends.
    pub(super) fn mark_flushed(&mut self) {
        if let Mark::Unmarking { flushed } = &mut self.mark {
            *flushed = true;
        }
    }

    /// Moves on where superblocks or time allow it. Whether anything changed.
    pub(super) fn step_mark(&mut self, now: Duration, effects: &mut Vec<Effect>) -> bool {
        match &self.mark {
            Mark::Wanted if self.is_recorded() => {
                self.mark = Mark::Dirty { ask_at: now + self.dirty_for() };
                true
            }
            Mark::Unmarking { flushed: true } if self.is_recorded() => {
                self.mark = Mark::Quiet;
                true
            }
            Mark::Dirty { ask_at } if *ask_at <= now && self.may_ask() => {
                self.ask(effects);
                true
            }
            _ => false,
        }
    }

    fn ask(&mut self, effects: &mut Vec<Effect>) {
        self.last_token = self.last_token.wrapping_add(1);
        let token = self.last_token;
        self.mark = Mark::Asking { token, idle: vec![false; self.workers.len()] };
        let idle_for = self.idle_for();
        effects.push(Effect::ToWorkers(ToWorker::Quiesce { token, idle_for }));
    }

    /// When the workers are to be asked next.
    pub(super) fn mark_wakes_at(&self) -> Option<Duration> {
        match self.mark {
            Mark::Dirty { ask_at } if self.may_ask() => Some(ask_at),
            _ => None,
        }
    }
}
