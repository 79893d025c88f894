//! Clients: each asks for reads, writes, zeroes and flushes at places of the run's choice, and checks what it is answered.
//!
//! A client submits in bursts under one plug, with pauses between, and never has more than its depth outstanding. Each request must end once.

use std::collections::BTreeMap;
use std::time::Duration;

use raid_core::units::{Sector, Sectors};
use raid_engine::message::IoStatus;
use raid_engine::runtime::client::{Client, Op, Reply, Request};

use super::model::{SECTOR, WriteId};
use super::world::World;

/// Most requests under one plug.
const BURST_MAX: u64 = 12;

/// What a buffer holds before it is read into.
const SCRIBBLE: u8 = 0xEE;

/// What is outstanding.
#[derive(Clone, Copy, Debug)]
struct Asked {
    op: Op,
    at: u64,
    sectors: u64,
    /// Its number in the model, of writes.
    write: WriteId,
    /// Step and time of its submission.
    step: u64,
    time: Duration,
}

/// A client and what it has outstanding.
pub struct Load {
    /// The engine's handle.
    pub client: Client,
    asked: BTreeMap<u64, Asked>,
    next_id: u64,
    wake: Duration,
}

impl Load {
    /// A client with nothing outstanding.
    pub fn new(client: Client) -> Load {
        Load { client, asked: BTreeMap::new(), next_id: 1, wake: Duration::ZERO }
    }

    /// When its oldest outstanding request was submitted.
    pub fn oldest(&self) -> Option<Duration> {
        self.asked.values().map(|asked| asked.time).min()
    }

    /// Whether nothing is outstanding.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }
}

impl World {
    /// Whether no client has anything outstanding.
    pub fn is_idle(&self) -> bool {
        self.engine.as_ref().is_none_or(|engine| engine.loads.iter().all(Load::is_idle))
    }

    /// Collects replies and submits what is due. Whether anything was, and when something will be.
    pub(super) fn clients_turn(&mut self) -> (bool, Duration) {
        let mut moved = false;
        let mut wake = Duration::MAX;
        for index in 0..self.loads().len() {
            while let Some(reply) = self.loads()[index].client.poll() {
                self.replied(index, reply);
                moved = true;
            }
            let now = self.now;
            // Who never pauses is woken by replies.
            let full = self.think.is_zero() && self.loads()[index].asked.len() >= self.shape.depth;
            if self.left > 0 && !full && self.loads()[index].wake <= now {
                moved |= self.submit_burst(index);
                let pause = self.rng.below(self.think.as_micros() as u64 + 1);
                self.loads()[index].wake = now + Duration::from_micros(pause + 1);
            }
            if self.left > 0 && !full {
                wake = wake.min(self.loads()[index].wake);
            }
        }
        (moved, wake)
    }

    fn loads(&mut self) -> &mut Vec<Load> {
        &mut self.engine.as_mut().expect("clients belong to an engine").loads
    }

    fn submit_burst(&mut self, index: usize) -> bool {
        let count = 1 + self.rng.below(BURST_MAX);
        let mut any = false;
        for _ in 0..count {
            let load = &self.loads()[index];
            let outstanding = load.asked.len();
            if outstanding >= self.shape.depth || self.left == 0 {
                break;
            }
            self.left -= 1;
            let (op, at, sectors) = self.draw();
            if !self.loads()[index].client.has_room(Sectors(sectors)) {
                break;
            }
            self.submit(index, op, at, sectors);
            any = true;
        }
        self.loads()[index].client.unplug();
        any
    }

    /// What is asked for next.
    fn draw(&mut self) -> (Op, u64, u64) {
        let size = self.geometry.array_sectors().0;
        let rng = &mut self.rng;
        let fua = rng.below(5) == 0;
        let op = match rng.below(20) {
            0..10 => Op::Write { fua },
            10..17 => Op::Read,
            17 => Op::WriteZeroes { fua },
            _ => return (Op::Flush, 0, 0),
        };
        let hot = self.shape.hot.min(size);
        // Where the array has several regions, their beginnings.
        let regions = size.div_ceil(32768);
        let base = (rng.below(regions) * 32768).min(size - hot);
        let longest = self.shape.longest.min(size - base);
        let row = self.geometry.stripe_sectors().0;
        let at = base + rng.below(hot);
        let (at, sectors) = match rng.below(8) {
            // Whole rows.
            0 if row <= longest.max(64) => (at - at % row, row * (1 + rng.below(2))),
            // Whole pages.
            1 | 2 => (at - at % 8, 8 * (1 + rng.below(longest.div_ceil(8)))),
            3 => (at, 1 + rng.below(longest)),
            _ => (at, 1 + rng.below(longest.min(16))),
        };
        let at = at.min(size - 1);
        (op, at, sectors.clamp(1, size - at))
    }

    /// Submits one request under the client's plug.
    pub(super) fn submit(&mut self, index: usize, op: Op, at: u64, sectors: u64) {
        self.step += 1;
        let step = self.step;
        let first = |load: &Load| load.asked.values().next().map_or(step, |asked| asked.step);
        self.model.floor = self.loads().iter().map(first).min().unwrap_or(step);
        let mut write = 0;
        if let Op::Write { .. } | Op::WriteZeroes { .. } = op {
            write = self.model.submit(step, matches!(op, Op::WriteZeroes { .. }), at, sectors);
        }
        let asked = Asked { op, at, sectors, write, step, time: self.now };
        let model = &self.model;
        let load = &mut self.engine.as_mut().expect("clients belong to an engine").loads[index];
        let buf = matches!(op, Op::Read | Op::Write { .. }).then(|| {
            let mut buf = load.client.alloc(sectors as usize * SECTOR).expect("clients ask for little");
            buf.fill(SCRIBBLE);
            if op != Op::Read {
                for (sector, data) in (at..).zip(buf.chunks_mut(SECTOR).take(sectors as usize)) {
                    data.copy_from_slice(&model.data_of(write, sector));
                }
            }
            buf
        });
        let id = load.next_id;
        load.next_id += 1;
        load.asked.insert(id, asked);
        load.client.submit(Request { id, op, at: Sector(at), sectors: Sectors(sectors), buf });
    }

    fn replied(&mut self, index: usize, reply: Reply) {
        self.step += 1;
        self.report.requests += 1;
        let Some(asked) = self.loads()[index].asked.remove(&reply.id) else {
            self.fail(format!("request {} of client {index} ended twice", reply.id));
        };
        let ok = reply.status.is_ok();
        let excused = self.abandoning && reply.status == IoStatus::Stopped
            || self.flush_faults && asked.op == Op::Flush && reply.status == IoStatus::Failed;
        if !ok && !excused {
            self.fail(format!("{asked:?} ended with {:?}", reply.status));
        }
        match asked.op {
            Op::Read if ok => {
                let data = reply.buf.as_ref().expect("a read has a buffer");
                self.check_read(asked, data);
            }
            Op::Read => {}
            Op::Write { fua } | Op::WriteZeroes { fua } => {
                self.model.ended(self.step, asked.write, ok, fua);
                if ok {
                    self.check_acknowledged(asked.write, asked.at, asked.sectors, asked.time);
                }
            }
            Op::Flush if ok => self.flushed(asked.step),
            Op::Flush => {}
        }
        if let Some(buf) = reply.buf {
            self.loads()[index].client.free(buf);
        }
    }

    /// A flush that was submitted at this step was acknowledged.
    pub(super) fn flushed(&mut self, from: u64) {
        self.model.flushed(from);
        if from > self.risk_cached.0 {
            self.risk_cached.1.clear();
        }
    }

    fn check_read(&mut self, asked: Asked, data: &[u8]) {
        for (sector, found) in (asked.at..asked.at + asked.sectors).zip(data.chunks(SECTOR)) {
            if let Err(what) = self.model.check(sector, found, asked.step, self.step) {
                self.fail(format!("a read of {} sectors at {}: {what}", asked.sectors, asked.at));
            }
        }
    }

    /// Reads all of the array.
    pub fn read_all(&mut self) {
        let size = self.geometry.array_sectors().0;
        let mut at = 0;
        while at < size {
            let sectors = (size - at).min(256);
            self.submit(0, Op::Read, at, sectors);
            self.loads()[0].client.unplug();
            self.expect("read", 2 * super::world::PATIENCE, World::is_idle);
            at += sectors;
        }
    }
}
