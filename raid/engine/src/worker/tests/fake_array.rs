//! A small stand-in for the array's life cycle: answers reports with views after a while, asks for quiet, runs sync.

use std::sync::Arc;
use std::time::Duration;

use raid_core::plan::RmwLevel;
use raid_core::units::{MemberIndex, Sector, StripeIndex};

use super::model::Rng;
use crate::message::{IoStatus, MemberHandle, MemberState, MemberView, Report, SyncKind, ToWorker, View};

/// Something that the array will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// The dirty mark has become durable.
    Mark,
    /// The device has been silent.
    Silent(MemberHandle),
    /// It answers again.
    Answers(MemberHandle),
    /// Its failure has become durable.
    Drop(MemberHandle),
    /// Another device (or the same) takes the role of one that was dropped.
    Replace(MemberIndex, MemberHandle),
    /// May the array be marked clean?
    Quiesce,
    /// More rows are right.
    Progress,
    /// Writes are refused from now on.
    ReadOnly,
}

/// A sync over the window of rows.
#[derive(Debug)]
pub(super) struct Sync {
    pub(super) kind: SyncKind,
    /// First sector of the data area, and that of the next piece.
    start: u64,
    cursor: u64,
    end: u64,
    /// Pieces handed out, in order: end, and whether it is done.
    pieces: Vec<(u64, bool)>,
    first_request: u32,
    mismatches: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct FakeArray {
    pub(super) view: View,
    pub(super) tasks: Vec<(Duration, Task)>,
    /// By worker: to be delivered.
    pub(super) control: Vec<Vec<ToWorker>>,
    /// By worker: the generation it said is in force.
    pub(super) in_force: Vec<u32>,
    /// Generation in which each role was last made absent.
    absent_since: Vec<u32>,
    question: Option<(u32, Vec<bool>)>,
    token: u32,
    pub(super) sync: Option<Sync>,
    next_request: u32,
    /// First and last sector of the window in the data area.
    window: (u64, u64),
    chunk: u64,
    pub(super) corrected: u64,
    /// Mismatches of the last sync that ended.
    pub(super) mismatches: u32,
    /// A sync may fail, and how it did.
    pub(super) may_fail: bool,
    pub(super) failed: Option<IoStatus>,
}

/// A piece of sync to hand to a worker.
#[derive(Debug)]
pub(super) struct SyncPiece {
    pub(super) request: u32,
    pub(super) kind: SyncKind,
    pub(super) stripe: StripeIndex,
    pub(super) from: u32,
    pub(super) sectors: u32,
}

impl FakeArray {
    pub(super) fn new(
        members: Vec<MemberView>,
        workers: usize,
        window: (u64, u64),
        chunk: u64,
        rmw_level: RmwLevel,
    ) -> FakeArray {
        FakeArray {
            absent_since: vec![0; members.len()],
            view: View {
                generation: 1,
                members,
                parity_trusted_below: Sector(u64::MAX),
                write_ok: false,
                suspended: false,
                read_only: false,
                fenced: false,
                rmw_level,
                abandon: false,
            },
            tasks: Vec::new(),
            control: vec![Vec::new(); workers],
            in_force: vec![0; workers],
            question: None,
            token: 0,
            sync: None,
            next_request: 0,
            window,
            chunk,
            corrected: 0,
            mismatches: 0,
            may_fail: false,
            failed: None,
        }
    }

    pub(super) fn plan(&mut self, at: Duration, task: Task) {
        if !self.tasks.iter().any(|(_, t)| *t == task) {
            self.tasks.push((at, task));
        }
    }

    /// Tells every worker the new state.
    pub(super) fn publish(&mut self) {
        let gone = |m: &&MemberView| matches!(m.state, MemberState::Silent | MemberState::Absent);
        self.view.generation += 1;
        self.view.suspended = self.view.members.iter().filter(gone).count() > 1;
        // An answer given before this view would not hold after it.
        self.question = None;
        let view = Arc::new(self.view.clone());
        for control in &mut self.control {
            control.push(ToWorker::View(Arc::clone(&view)));
        }
    }

    pub(super) fn role_of(&mut self, handle: MemberHandle) -> Option<&mut MemberView> {
        self.view.members.iter_mut().find(|m| m.handle == handle && m.state != MemberState::Absent)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.view.members.iter().all(|m| m.state == MemberState::InSync)
    }

    /// Carries a task out; false when it must wait.
    pub(super) fn carry_out(&mut self, task: Task) -> bool {
        match task {
            Task::Mark => self.view.write_ok = !self.view.read_only,
            Task::Silent(handle) => match self.role_of(handle) {
                Some(m) if m.state == MemberState::InSync => m.state = MemberState::Silent,
                _ => return true,
            },
            Task::Answers(handle) => match self.role_of(handle) {
                Some(m) if m.state == MemberState::Silent => m.state = MemberState::InSync,
                _ => return true,
            },
            Task::Drop(handle) => {
                let Some(index) =
                    self.view.members.iter().position(|m| m.handle == handle && m.state != MemberState::Absent)
                else {
                    return true;
                };
                self.view.members[index].state = MemberState::Absent;
                self.absent_since[index] = self.view.generation + 1;
            }
            Task::Replace(role, handle) => return self.replace(role, handle),
            Task::Quiesce => return self.ask(),
            Task::Progress => {
                if let Some(sync) = &self.sync {
                    let below = sync.contiguous();
                    self.progress(below);
                }
                return true;
            }
            Task::ReadOnly => {
                self.view.read_only = true;
                self.view.write_ok = false;
            }
        }
        self.publish();
        true
    }

    fn ask(&mut self) -> bool {
        if self.view.write_ok && self.question.is_none() {
            self.token += 1;
            self.question = Some((self.token, vec![false; self.control.len()]));
            for control in &mut self.control {
                control.push(ToWorker::Quiesce { token: self.token, idle_for: Duration::from_micros(20) });
            }
        }
        true
    }

    fn replace(&mut self, role: MemberIndex, handle: MemberHandle) -> bool {
        let index = role.index();
        let same = self.view.members[index].handle == handle;
        let due = self.absent_since[index];
        if same && self.in_force.iter().any(|g| *g < due) {
            return false;
        }
        let below = Sector(self.window.0);
        self.view.members[index].handle = handle;
        self.view.members[index].state = MemberState::Recovering { below };
        self.publish();
        self.start_sync(SyncKind::Recovery(role), self.window.0);
        true
    }

    pub(super) fn start_sync(&mut self, kind: SyncKind, from: u64) {
        assert!(self.sync.is_none(), "one sync at a time");
        self.sync = Some(Sync {
            kind,
            start: from,
            cursor: from,
            end: self.window.1,
            pieces: Vec::new(),
            first_request: self.next_request,
            mismatches: 0,
        });
    }

    /// The next piece of the sync that runs, within one chunk.
    pub(super) fn next_piece(&mut self, rng: &mut Rng) -> Option<SyncPiece> {
        let sync = self.sync.as_mut()?;
        if sync.cursor == sync.end || sync.pieces.iter().filter(|p| !p.1).count() >= 3 {
            return None;
        }
        let from = sync.cursor % self.chunk;
        let left = self.chunk - from;
        let sectors = if rng.percent(60) { left } else { 1 + rng.below(left) };
        let request = self.next_request;
        self.next_request += 1;
        let stripe = StripeIndex(sync.cursor / self.chunk);
        sync.cursor += sectors;
        sync.pieces.push((sync.cursor, false));
        Some(SyncPiece { request, kind: sync.kind, stripe, from: from as u32, sectors: sectors as u32 })
    }

    pub(super) fn piece_done(&mut self, request: u32, status: IoStatus, mismatches: u32) {
        let sync = self.sync.as_mut().expect("a sync runs");
        if !status.is_ok() {
            assert!(self.may_fail, "sync {:?} ended with {status:?}", sync.kind);
            self.failed = Some(status);
            self.sync = None;
            return;
        }
        let piece = &mut sync.pieces[(request - sync.first_request) as usize];
        assert!(!piece.1, "two replies to one piece of sync");
        piece.1 = true;
        sync.mismatches += mismatches;
    }

    /// Whether the sync has rows to tell of.
    pub(super) fn has_progress(&self) -> bool {
        self.sync.as_ref().is_some_and(|s| s.contiguous() == s.end)
    }

    fn progress(&mut self, below: u64) {
        let sync = self.sync.as_ref().expect("a sync runs");
        let finished = below == sync.end;
        match sync.kind {
            SyncKind::Recovery(role) => {
                let state = &mut self.view.members[role.index()].state;
                if let MemberState::Recovering { .. } = state {
                    let below = Sector(below);
                    *state = if finished { MemberState::InSync } else { MemberState::Recovering { below } };
                }
            }
            SyncKind::Resync => {
                self.view.parity_trusted_below = Sector(if finished { u64::MAX } else { below });
            }
            SyncKind::Check | SyncKind::Repair => {}
        }
        if finished {
            self.mismatches = sync.mismatches;
            self.sync = None;
        }
        self.publish();
    }

    /// A worker says something.
    pub(super) fn report(&mut self, worker: usize, report: Report, at: Duration) {
        match report {
            Report::WantWrite => {
                if !self.view.write_ok {
                    self.plan(at, Task::Mark);
                } else if self.question.take().is_some() {
                    self.publish();
                }
            }
            Report::Quiet { token, idle } => self.quiet(worker, token, idle),
            Report::ViewDone { generation } => self.in_force[worker] = generation,
            Report::MemberError { handle, .. } => {
                if self.role_of(handle).is_some() {
                    self.plan(at, Task::Drop(handle));
                }
            }
            Report::MemberBoot { .. } => panic!("these devices tell no boot numbers"),
            Report::Corrected { sectors, .. } => self.corrected += u64::from(sectors),
        }
    }

    fn quiet(&mut self, worker: usize, token: u32, idle: bool) {
        let Some((asked, answers)) = &mut self.question else {
            return;
        };
        if *asked != token {
            return;
        }
        if !idle {
            // Some may have stopped sending: all are told to go on.
            return self.publish();
        }
        answers[worker] = true;
        if answers.iter().all(|a| *a) {
            self.question = None;
            self.view.write_ok = false;
            // Marked clean. A worker that wants to write has said so, or will under this view.
            self.publish();
        }
    }
}

impl Sync {
    /// End of the rows that are done without a gap.
    fn contiguous(&self) -> u64 {
        let done = self.pieces.iter().take_while(|p| p.1).last();
        done.map_or(self.start, |p| p.0)
    }
}
