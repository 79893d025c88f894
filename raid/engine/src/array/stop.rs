//! The end of an array.
//!
//! Part of [`Array`]; its state is [`Stop`]. Stopped well, sync has ended, the workers send nothing, members are flushed and
//! superblocks say clean. A suspended, broken or fenced array cannot be stopped well: what clients wait for ends with an error and
//! superblocks stay as they are, so the next start finds the array dirty. The same is done on demand while a member is silent.

use std::time::Duration;

use super::Array;
use super::api::{CommandError, CommandErrorKind, CommandId, Effect, Input, LogLevel};
use super::mark::Mark;
use super::member::{Standing, Waiting};

/// A stop under way.
#[derive(Debug)]
pub(super) struct Stop {
    commands: Vec<CommandId>,
    /// Superblocks are left dirty.
    abandon: bool,
}

impl Array {
    /// An operator wants the array to end.
    pub(super) fn begin_stop(&mut self, now: Duration, id: CommandId, abandon: bool) {
        let stop = self.stop.get_or_insert(Stop { commands: Vec::new(), abandon: false });
        stop.commands.push(id);
        stop.abandon |= abandon;
        self.sync.interrupt();
        self.hurry_mark(now);
    }

    /// Whether what is held is being given up.
    pub(super) fn is_abandoned(&self) -> bool {
        self.broken || self.stop.as_ref().is_some_and(|stop| stop.abandon)
    }

    /// Moves a stop on. Whether anything changed.
    pub(super) fn step_stop(&mut self, effects: &mut Vec<Effect>) -> bool {
        let cut_off = self.suspended || self.broken || self.fenced;
        let workers_know = self.view.abandon && self.workers_done() >= self.view.generation;
        let Some(stop) = &mut self.stop else {
            return false;
        };
        if cut_off && !stop.abandon {
            stop.abandon = true;
            return true;
        }
        if stop.abandon {
            if workers_know {
                effects.push(Effect::Log(LogLevel::Error, "stopped without marking the array clean".into()));
                self.end(1, effects);
            }
            return false;
        }
        if self.read_only {
            self.end(0, effects);
            return false;
        }
        if !self.sync.is_idle() {
            return false;
        }
        if self.record_progress() {
            return true;
        }
        if self.mark == Mark::Quiet && self.is_recorded() {
            self.end(0, effects);
        }
        false
    }

    /// The checkpoints to be said are those reached. Whether that changed.
    fn record_progress(&mut self) -> bool {
        let mut moved = false;
        let recoveries = self.members.iter_mut().filter_map(|m| match &mut m.standing {
            Standing::Recovering { progress, .. } => Some(progress),
            _ => None,
        });
        for progress in recoveries.chain(self.resync.as_mut()) {
            moved |= progress.recorded != progress.done;
            progress.recorded = progress.done;
        }
        moved
    }

    fn end(&mut self, exit: i32, effects: &mut Vec<Effect>) {
        self.ended = true;
        let stop = self.stop.take().expect("only a stop ends the array");
        for member in 0..self.members.len() {
            if let Some(id) = self.members[member].waiting.take().and_then(Waiting::command) {
                self.answer(id, Err(stopping()), effects);
            }
        }
        for id in stop.commands {
            self.answer(id, Ok(()), effects);
        }
        effects.push(Effect::Stopped { exit });
    }

    /// After the end, commands are still answered.
    pub(super) fn after_end(&mut self, input: Input, effects: &mut Vec<Effect>) {
        if let Input::Command(id, _) = input {
            effects.push(Effect::Answer(id, Err(stopping())));
        }
    }
}

/// The answer to commands that come too late.
pub(super) fn stopping() -> CommandError {
    CommandError::new(CommandErrorKind::Stopping, "the array is being stopped")
}
