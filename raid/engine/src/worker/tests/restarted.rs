//! Flushes that find a member restarted: nobody is told that data are durable before the array has decided what the restart means.

use std::sync::Arc;
use std::time::Duration;

use raid_core::geometry::{Geometry, Layout};
use raid_core::parity::Kernels;
use raid_core::plan::RmwLevel;
use raid_core::units::{MemberCount, Sector, Sectors};

use crate::member::{Done, MemberOp, MemberRequestId};
use crate::message::{ClientId, IoStatus, MemberHandle, MemberState, MemberView, Report, ToWorker, View, WorkerId};
use crate::plug;
use crate::region::Regions;
use crate::slab::{PAGE, Slab};
use crate::worker::{Config, Effects, Inputs, Worker};

const MEMBERS: u16 = 3;

/// A worker, and a flush that is out.
struct Scene {
    worker: Worker,
    view: View,
    inputs: Inputs,
    effects: Effects,
}

impl Scene {
    fn new() -> Scene {
        let geometry = Geometry::new(MemberCount(3), Sectors(128), Sectors(1 << 16), Layout::LeftSymmetric).unwrap();
        let member = |i| MemberView {
            state: MemberState::InSync,
            handle: MemberHandle(i),
            data_offset: Sector(2048),
            restarts: 0,
        };
        let view = View {
            generation: 1,
            members: (0..MEMBERS).map(member).collect(),
            parity_trusted_below: Sector(u64::MAX),
            write_ok: true,
            suspended: false,
            read_only: false,
            rmw_level: RmwLevel::Fewer,
            abandon: false,
        };
        let slab = Slab::with_bytes(Kernels::portable(), 16 << 20).unwrap();
        let worker = Worker::new(Config {
            id: WorkerId(0),
            geometry,
            regions: Arc::new(Regions::new(&geometry)),
            arena: slab.arena(12 * PAGE).unwrap(),
            pages: 12,
            view: Arc::new(view.clone()),
        });
        let mut scene = Scene { worker, view, inputs: Inputs::default(), effects: Effects::default() };
        scene.inputs.parts.push(plug::flush(ClientId(1), 7));
        scene.turn();
        scene
    }

    fn turn(&mut self) {
        self.worker.turn(Duration::from_secs(1), &mut self.inputs, &mut self.effects);
    }

    /// The flushes that have left, by member.
    fn flushes(&mut self) -> Vec<(u16, MemberRequestId)> {
        let requests = std::mem::take(&mut self.effects.requests);
        assert!(requests.iter().all(|r| r.op == MemberOp::Flush));
        requests.iter().map(|r| (r.handle.0, r.id)).collect()
    }

    /// Member `restarted` answers that it was restarted, all others that it is done.
    fn answer(&mut self, restarted: Option<u16>) {
        for (handle, id) in self.flushes() {
            let status = if Some(handle) == restarted { IoStatus::Restarted } else { IoStatus::Ok };
            self.inputs.done.push(Done { id, status, closed_until: None });
        }
        self.turn();
    }

    fn view(&mut self, change: impl FnOnce(&mut View)) {
        self.view.generation += 1;
        change(&mut self.view);
        self.inputs.control.push(ToWorker::View(Arc::new(self.view.clone())));
        self.turn();
    }

    fn replies(&mut self) -> Vec<IoStatus> {
        std::mem::take(&mut self.effects.replies).iter().map(|r| r.status).collect()
    }
}

#[test]
fn a_restart_that_changes_nothing_has_the_flush_repeated() {
    let mut scene = Scene::new();
    scene.answer(Some(1));
    let report = Report::MemberError { handle: MemberHandle(1), status: IoStatus::Restarted };
    assert!(scene.effects.reports.contains(&report));
    assert_eq!(scene.replies(), []);
    scene.view(|view| view.parity_trusted_below = Sector(100));
    assert_eq!((scene.replies(), scene.flushes().len()), (vec![], 0), "a view about something else decides nothing");
    scene.view(|view| view.members[1].restarts = 1);
    assert_eq!(scene.replies(), []);
    scene.answer(None);
    assert_eq!(scene.replies(), [IoStatus::Ok]);
}

#[test]
fn a_restarted_member_that_is_given_up_is_not_waited_for() {
    let mut scene = Scene::new();
    scene.answer(Some(2));
    assert_eq!(scene.replies(), []);
    scene.view(|view| view.members[2].state = MemberState::Absent);
    assert_eq!(scene.replies(), [IoStatus::Ok], "the others hold all data");
}

#[test]
fn a_member_that_was_gone_and_is_back_is_flushed_again() {
    let mut scene = Scene::new();
    for (handle, id) in scene.flushes() {
        let status = if handle == 1 { IoStatus::Gone } else { IoStatus::Ok };
        scene.inputs.done.push(Done { id, status, closed_until: None });
    }
    scene.turn();
    scene.view(|view| view.members[1].state = MemberState::Silent);
    assert_eq!((scene.replies(), scene.flushes().len()), (vec![], 0));
    scene.view(|view| view.members[1].state = MemberState::InSync);
    assert_eq!(scene.replies(), []);
    scene.answer(None);
    assert_eq!(scene.replies(), [IoStatus::Ok]);
}
