//! Steps for directed tests: everything that can happen happens, in order and at once.

use std::time::Duration;

use super::World;
use crate::message::PartOp;
use crate::worker::tests::fake_array::Task;

impl World {
    /// Each worker that has a reason to turns once, with all that has arrived.
    pub(in super::super) fn turn_all(&mut self) {
        self.whole_turns = true;
        for worker in self.runnable() {
            self.turn(worker);
        }
    }

    /// Devices carry out and answer all that is outstanding, in order.
    pub(in super::super) fn serve(&mut self) {
        for disk in 0..self.disks.len() {
            self.serve_disk(disk);
        }
    }

    /// One device does.
    pub(in super::super) fn serve_disk(&mut self, disk: usize) {
        while self.disks[disk].can_apply() {
            self.apply(disk);
        }
        while self.disks[disk].can_answer() {
            self.answer(disk);
        }
    }

    /// Everything goes on until nothing can.
    pub(in super::super) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.settle_soon();
            match self.next_wake() {
                Some(at) => self.now = self.now.max(at),
                None => return,
            }
        }
        panic!("the world does not come to rest");
    }

    /// Everything goes on that can without time going by.
    pub(in super::super) fn settle_soon(&mut self) {
        for _ in 0..10_000 {
            self.turn_all();
            self.serve();
            if self.array.has_progress() {
                let now = self.now;
                self.array.plan(now, Task::Progress);
            }
            while self.sync_step() {}
            self.array_step();
            let busy = self.disks.iter().any(|d| d.can_apply() || d.can_answer());
            if !busy && self.runnable().is_empty() && !self.array.has_progress() {
                return;
            }
        }
        panic!("the world is always busy");
    }

    /// Carries a task of the array out at once, and lets the workers see it.
    pub(in super::super) fn task(&mut self, task: Task) {
        assert!(self.array.carry_out(task), "{task:?} must wait");
        self.turn_all();
    }

    /// Time goes by.
    pub(in super::super) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub(in super::super) fn write(&mut self, at: u64, sectors: u32) {
        self.submit(&[(PartOp::Write { fua: false }, at, sectors)]);
    }

    pub(in super::super) fn read(&mut self, at: u64, sectors: u32) {
        self.submit(&[(PartOp::Read, at, sectors)]);
    }

    /// The dirty mark is durable and nothing else has happened.
    pub(in super::super) fn marked(mut self) -> World {
        self.task(Task::Mark);
        self.log.clear();
        self.reports.clear();
        self
    }

    /// Nothing is left, and the bytes on the devices are right.
    pub(in super::super) fn finish(mut self) {
        self.settle();
        self.assert_idle();
        self.check_rows();
    }
}
