//! Requests that find a member restarted: nothing counts as carried out before the array has decided what the restart means. And writes that are
//! called back.

use std::sync::Arc;
use std::time::Duration;

use raid_core::geometry::{Geometry, Layout};
use raid_core::parity::Kernels;
use raid_core::plan::RmwLevel;
use raid_core::units::{DataIndex, MemberCount, Sector, Sectors, StripeIndex};

use crate::member::{Done, MemberOp, MemberRequestId};
use crate::message::{
    Boots, ClientId, IoStatus, MemberHandle, MemberState, MemberView, Part, PartOp, Report, ToWorker, View, WorkerId,
};
use crate::plug;
use crate::region::Regions;
use crate::slab::{PAGE, Slab};
use crate::worker::{Config, Effects, Inputs, Worker};

const MEMBERS: u16 = 3;

/// Boot numbers of all members before, and of one that was restarted.
const OLD: u32 = 70;
const NEW: u32 = 30;

/// A worker, and a request that is out.
struct Scene {
    worker: Worker,
    slab: Arc<Slab>,
    view: View,
    inputs: Inputs,
    effects: Effects,
}

impl Scene {
    /// With a flush.
    fn new() -> Scene {
        let mut scene = Scene::idle();
        scene.inputs.parts.push(plug::flush(ClientId(1), 7));
        scene.turn();
        scene
    }

    /// With a read or write of 4 KiB.
    fn asked(op: PartOp) -> Scene {
        let mut scene = Scene::idle();
        scene.ask(op);
        scene
    }

    fn ask(&mut self, op: PartOp) {
        let piece = self.slab.arena(PAGE).unwrap().piece();
        let (stripe, data) = (StripeIndex(0), DataIndex(0));
        let part = Part { client: ClientId(1), op, request: 7, stripe, data, from: 0, sectors: 8, piece };
        self.inputs.parts.push(part);
        self.turn();
    }

    fn idle() -> Scene {
        let geometry = Geometry::new(MemberCount(3), Sectors(128), Sectors(1 << 16), Layout::LeftSymmetric).unwrap();
        let member = |i| MemberView {
            state: MemberState::InSync,
            handle: MemberHandle(i),
            data_offset: Sector(2048),
            boots: Boots::new(Some(OLD)),
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
        let slab = Slab::with_bytes(Kernels::portable(), 16 << 20).unwrap();
        let regions = Arc::new(Regions::new(&geometry));
        let worker = Worker::new(Config {
            id: WorkerId(0),
            geometry,
            regions,
            arena: slab.arena(12 * PAGE).unwrap(),
            pages: 12,
            view: Arc::new(view.clone()),
        });
        Scene { worker, slab, view, inputs: Inputs::default(), effects: Effects::default() }
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

    /// All members answer that it is done, this one after a restart.
    fn answer(&mut self, restarted: Option<u16>) {
        for (handle, id) in self.flushes() {
            let boot = if Some(handle) == restarted { NEW } else { OLD };
            self.inputs.done.push(Done { id, status: IoStatus::Ok, boot: Some(boot), closed_until: None });
        }
        self.turn();
    }

    /// All that is out is done, by these starts of the members; what it was, by member.
    fn done_by(&mut self, boots: [u32; 3]) -> Vec<(u16, MemberOp)> {
        let mut requests = std::mem::take(&mut self.effects.requests);
        requests.sort_by_key(|r| r.handle);
        for request in &requests {
            let boot = Some(boots[usize::from(request.handle.0)]);
            self.inputs.done.push(Done { id: request.id, status: IoStatus::Ok, boot, closed_until: None });
        }
        self.turn();
        requests.iter().map(|r| (r.handle.0, r.op)).collect()
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
    let report = Report::MemberBoot { handle: MemberHandle(1), boot: NEW };
    assert!(scene.effects.reports.contains(&report));
    assert_eq!(scene.replies(), []);
    scene.view(|view| view.parity_trusted_below = Sector(100));
    assert_eq!((scene.replies(), scene.flushes().len()), (vec![], 0), "a view about something else decides nothing");
    scene.view(|view| view.members[1].boots.accept(NEW));
    assert_eq!(scene.replies(), []);
    scene.answer(Some(1));
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
        scene.inputs.done.push(Done { id, status, boot: Some(OLD), closed_until: None });
    }
    scene.turn();
    scene.view(|view| view.members[1].state = MemberState::Silent);
    assert_eq!((scene.replies(), scene.flushes().len()), (vec![], 0));
    scene.view(|view| view.members[1].state = MemberState::InSync);
    assert_eq!(scene.replies(), []);
    scene.answer(None);
    assert_eq!(scene.replies(), [IoStatus::Ok]);
}

/// The members of row 0 in this layout: data 0, data 1, parity.
const WRITES: [(u16, MemberOp); 2] = [(0, MemberOp::Write), (2, MemberOp::Write)];
const FLUSHES: [(u16, MemberOp); 3] = [(0, MemberOp::Flush), (1, MemberOp::Flush), (2, MemberOp::Flush)];

#[test]
fn what_a_restarted_member_reads_is_read_from_the_others() {
    let mut scene = Scene::asked(PartOp::Read);
    assert_eq!(scene.done_by([NEW, OLD, OLD]), [(0, MemberOp::Read)]);
    assert!(scene.effects.reports.contains(&Report::MemberBoot { handle: MemberHandle(0), boot: NEW }));
    // Asked once more, to be mended if the medium was bad; then left out.
    assert_eq!(scene.done_by([NEW, OLD, OLD]), [(0, MemberOp::Read)]);
    assert_eq!(scene.done_by([NEW, OLD, OLD]), [(1, MemberOp::Read), (2, MemberOp::Read)]);
    assert_eq!(scene.replies(), [IoStatus::Ok]);
}

#[test]
fn what_two_restarted_members_read_waits_for_the_array() {
    let mut scene = Scene::asked(PartOp::Read);
    for _ in 0..3 {
        scene.done_by([NEW, NEW, OLD]);
    }
    assert_eq!((scene.replies(), scene.effects.requests.len()), (vec![], 0));
    scene.view(|view| (0..2).for_each(|m| view.members[m].boots.accept(NEW)));
    assert_eq!(scene.done_by([NEW, NEW, OLD]), [(0, MemberOp::Read)]);
    assert_eq!(scene.replies(), [IoStatus::Ok]);
}

#[test]
fn a_silent_member_is_waited_for_where_parity_is_not_known_to_be_right() {
    let mut scene = Scene::idle();
    scene.view(|view| {
        view.members[0].state = MemberState::Silent;
        view.parity_trusted_below = Sector(4);
    });
    scene.ask(PartOp::Read);
    assert_eq!((scene.replies(), scene.effects.requests.len()), (vec![], 0));
    scene.view(|view| view.parity_trusted_below = Sector(8));
    assert_eq!(scene.done_by([OLD; 3]), [(1, MemberOp::Read), (2, MemberOp::Read)]);
    assert_eq!(scene.replies(), [IoStatus::Ok]);
}

#[test]
fn a_write_to_a_restarted_member_is_sent_again_or_recorded_as_missed() {
    for stays in [true, false] {
        let mut scene = Scene::asked(PartOp::Write { fua: false });
        assert_eq!(scene.done_by([OLD; 3]), [(1, MemberOp::Read)]);
        assert_eq!(scene.done_by([OLD, OLD, NEW]), WRITES);
        assert_eq!((scene.replies(), scene.effects.requests.len()), (vec![], 0));
        scene.view(|view| view.parity_trusted_below = Sector(0));
        assert_eq!((scene.replies(), scene.effects.requests.len()), (vec![], 0), "nothing is decided");
        if stays {
            scene.view(|view| view.members[2].boots.accept(NEW));
            assert_eq!(scene.done_by([OLD, OLD, NEW]), [(2, MemberOp::Write)]);
        } else {
            scene.view(|view| view.members[2].state = MemberState::Absent);
        }
        assert_eq!(scene.replies(), [IoStatus::Ok]);
    }
}

#[test]
fn a_late_answer_of_an_earlier_start_does_not_count() {
    let mut scene = Scene::asked(PartOp::Write { fua: false });
    scene.done_by([OLD; 3]);
    scene.view(|view| view.members[2].boots.accept(NEW));
    scene.effects.reports.clear();
    assert_eq!(scene.done_by([OLD; 3]), WRITES);
    assert!(scene.effects.reports.iter().all(|report| !matches!(report, Report::MemberBoot { .. })), "that is no news");
    assert_eq!(scene.done_by([OLD, OLD, NEW]), [(2, MemberOp::Write)]);
    assert_eq!(scene.replies(), [IoStatus::Ok]);
}

#[test]
fn a_fua_write_that_a_member_may_have_lost_is_done_again_before_its_flush() {
    let mut scene = Scene::asked(PartOp::Write { fua: true });
    scene.done_by([OLD; 3]);
    assert_eq!(scene.done_by([OLD; 3]), WRITES);
    // The flush shows that parity, and another member, are not what they were; both stay, without what they had not flushed.
    assert_eq!(scene.done_by([OLD, NEW, NEW]), FLUSHES);
    scene.view(|view| (1..3).for_each(|m| view.members[m].boots.accept(NEW)));
    let mut seen = Vec::new();
    while !scene.effects.requests.is_empty() {
        seen.push(scene.done_by([OLD, NEW, NEW]));
    }
    let writes = seen.iter().position(|ops| *ops == WRITES).expect("written again");
    assert!(seen[writes + 1..].iter().any(|ops| *ops == FLUSHES), "and flushed after that: {seen:?}");
    assert_eq!(scene.replies(), [IoStatus::Ok]);
}

#[test]
fn writes_are_called_back_when_none_may_leave() {
    for fenced in [true, false] {
        let mut scene = Scene::asked(PartOp::Write { fua: false });
        scene.done_by([OLD; 3]);
        let sent: Vec<_> = scene.effects.requests.drain(..).map(|r| (r.handle, r.id)).collect();
        scene.view(|view| {
            (view.suspended, view.fenced, view.read_only, view.write_ok) = (!fenced, fenced, fenced, !fenced);
        });
        let mut cancelled: Vec<_> = scene.effects.cancels.drain(..).map(|c| (c.handle, c.id)).collect();
        cancelled.sort();
        assert_eq!(cancelled, sent);
        for (_, id) in sent {
            scene.inputs.done.push(Done { id, status: IoStatus::Cancelled, boot: None, closed_until: None });
        }
        scene.turn();
        assert_eq!(scene.effects.requests.len(), 0);
        if fenced {
            assert_eq!(scene.replies(), [IoStatus::ReadOnly]);
            continue;
        }
        assert_eq!(scene.replies(), []);
        scene.view(|view| view.suspended = false);
        assert_eq!(scene.done_by([OLD; 3]), WRITES);
        assert_eq!(scene.replies(), [IoStatus::Ok]);
    }
}
