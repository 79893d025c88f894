//! What the worker itself costs, with members that answer at once and move no data. Not a check: figures for whoever works on it.
//!
//! `cargo test --release -p raid-engine speed -- --ignored --nocapture`

use std::sync::Arc;
use std::time::Duration;

use raid_core::geometry::{Geometry, Layout};
use raid_core::parity::Kernels;
use raid_core::plan::RmwLevel;
use raid_core::units::{MemberCount, Sector, Sectors};

use super::model::Rng;
use crate::board::{Board, Desk, Traffic};
use crate::member::Done;
use crate::message::{Boots, ClientId, IoStatus, MemberHandle, MemberState, MemberView, Part, PartOp, View, WorkerId};
use crate::plug::{self, Memory, Whole};
use crate::region::Regions;
use crate::slab::{Arena, PAGE, Piece, Slab};
use crate::worker::{Config, Effects, Inputs, Worker};

const MEMBERS: u8 = 5;

/// A worker under a load of equal requests.
struct Load {
    worker: Worker,
    geometry: Geometry,
    board: Arc<Board>,
    desk: Desk,
    memory: Arena,
    inputs: Inputs,
    effects: Effects,
    rng: Rng,
    sectors: u32,
    /// Requests go to so many sectors from the array's start.
    span: u64,
    free: Vec<u32>,
    parts_left: Vec<u32>,
    batch: Vec<Part>,
}

impl Load {
    fn new(depth: u32, sectors: u32, span: u64) -> Load {
        let count = MemberCount(MEMBERS);
        let geometry =
            Geometry::new(count, Sectors(128), Sectors(2 << 20), Layout::LeftSymmetric).expect("a valid shape");
        let regions = Arc::new(Regions::new(&geometry));
        let slab = Slab::with_bytes(Kernels::detect(), 1 << 30).expect("address space");
        let pages = 256 * usize::from(MEMBERS);
        let member = |i| MemberView {
            state: MemberState::InSync,
            handle: MemberHandle(u16::from(i)),
            data_offset: Sector(2048),
            boots: Boots::default(),
        };
        let view = View {
            generation: 1,
            members: (0..MEMBERS).map(member).collect(),
            parity_trusted_below: Sector(u64::MAX),
            write_ok: true,
            suspended: false,
            read_only: false,
            fenced: false,
            rmw_level: RmwLevel::Fewer,
            abandon: false,
        };
        let memory = slab.arena(depth as usize * sectors as usize * 512).expect("room");
        let worker = Worker::new(Config {
            id: WorkerId(0),
            geometry,
            regions: Arc::clone(&regions),
            arena: slab.arena(pages * PAGE).expect("room"),
            pages,
            view: Arc::new(view),
        });
        let board = Arc::new(Board::new(regions, 2, 1, 1));
        let _ = board.seat(&[Some(0)]);
        let mut desk = Desk::new(&board, WorkerId(0));
        desk.sit(Some(0));
        Load {
            worker,
            geometry,
            board,
            desk,
            memory,
            inputs: Inputs::default(),
            effects: Effects::default(),
            rng: Rng::new(1),
            sectors,
            span: span.min(geometry.array_sectors().0),
            free: (0..depth).collect(),
            parts_left: vec![0; depth as usize],
            batch: Vec::new(),
        }
    }

    fn piece(&self, slot: u32) -> Piece {
        self.memory.piece().sub(slot * self.sectors, self.sectors)
    }

    /// Submits all that the depth allows, in plugs of at most 64.
    fn submit(&mut self) {
        let places = self.span / u64::from(self.sectors);
        while !self.free.is_empty() {
            let batch = self.free.len().min(64);
            for slot in self.free.split_off(self.free.len() - batch) {
                let whole = Whole {
                    client: ClientId(1),
                    request: slot,
                    op: PartOp::Write { fua: false },
                    at: Sector(self.rng.below(places) * u64::from(self.sectors)),
                    sectors: Sectors(u64::from(self.sectors)),
                    memory: Memory::Piece(self.piece(slot)),
                };
                self.parts_left[slot as usize] = plug::split(&self.geometry, &whole, &mut self.batch);
            }
            plug::sort(&mut self.batch);
            // Each request's letters are its own: no request here has more parts.
            let mut nth = 0;
            let slot_of = |part: &Part| {
                nth += 1;
                part.request * 64 + nth % 64
            };
            let _ = self.board.post(&self.batch, 0, slot_of, &mut Traffic::default());
            self.batch.clear();
        }
    }

    fn round(&mut self) {
        self.submit();
        let _ = self.desk.collect(&mut self.worker, &mut self.inputs.parts);
        self.worker.turn(Duration::ZERO, &mut self.inputs, &mut self.effects);
        let effects = &mut self.effects;
        for request in effects.requests.drain(..) {
            let (id, status) = (request.id, IoStatus::Ok);
            self.inputs.done.push(Done { id, status, boot: None, closed_until: None });
        }
        effects.segs.clear();
        effects.reports.clear();
        for reply in effects.replies.drain(..) {
            let left = &mut self.parts_left[reply.request as usize];
            *left -= 1;
            if *left == 0 {
                self.free.push(reply.request);
            }
        }
    }

    /// Nanoseconds of CPU for each of `count` requests.
    fn measure(&mut self, count: u64) -> f64 {
        let start = cpu_time();
        let mut done = 0;
        while done < count {
            self.round();
            done += self.free.len() as u64;
        }
        (cpu_time() - start).as_nanos() as f64 / done as f64
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn print_speed(depth: u32, sectors: u32, span: u64) {
    let mut load = Load::new(depth, sectors, span);
    let count = (2 << 20) / u64::from(sectors);
    load.measure(count / 4);
    let mut figures: Vec<f64> = (0..5).map(|_| load.measure(count)).collect();
    figures.sort_by(f64::total_cmp);
    println!("{sectors:5} sectors, {depth:3} at a time: {:8.0} ns per write", figures[0]);
}

#[test]
#[ignore = "prints figures"]
fn speed_of_4k_writes() {
    for depth in [1, 64, 256] {
        print_speed(depth, 8, u64::MAX);
    }
}

#[test]
#[ignore = "prints figures"]
fn speed_of_larger_writes() {
    for (depth, sectors) in [(64, 32), (64, 128), (16, 2048)] {
        print_speed(depth, sectors, u64::MAX);
    }
}

/// All requests in one row of 64 blocks, or in 64 rows.
#[test]
#[ignore = "prints figures"]
fn speed_of_4k_writes_to_few_rows() {
    for (depth, span) in [(64, 512), (1024, 512), (1024, 64 * 512)] {
        print!("{span:6} sectors wide: ");
        print_speed(depth, 8, span);
    }
}
