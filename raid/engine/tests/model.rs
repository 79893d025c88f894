//! The hand-over of work under a model checker: threads post parts, workers take regions, hand them over, change places, sleep and stop, in
//! thousands of orders that the checker chooses (shuttle; sequentially consistent); who posts may take a worker's turns in place of its thread. In each order every part is carried out once, no region is at two
//! workers at the same time, parts of one client for one region keep their order, and nobody sleeps while there is work.
//! Regions are of 64 rows here: rows 0 and 1 are in one, row 64 is in another.
//!
//! `cargo test -p raid-engine --features model --test model`; `ETHERRAID_MODEL_RUNS` orders of each test (default 2000). A failure prints
//! the order to replay.

use std::collections::{HashMap, VecDeque};

use raid_core::geometry::{Geometry, Layout};
use raid_core::units::{DataIndex, MemberCount, Sectors, StripeIndex};
use raid_engine::board::{Board, Desk, Holder, Traffic, WorkerSet, left_work};
use raid_engine::message::{ClientId, Part, PartOp, WorkerId};
use raid_engine::region::{RegionIndex, Regions};
use raid_engine::slab::Piece;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

/// What stands for poll(2) and the eventfd of a worker.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().expect("no panic") = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().expect("no panic");
        while !*rung {
            rung = self.changed.wait(rung).expect("no panic");
        }
        *rung = false;
    }
}

/// What all threads share.
struct World {
    board: std::sync::Arc<Board>,
    bells: Vec<Bell>,
    /// By worker: what it is told.
    orders: Vec<Mutex<VecDeque<Order>>>,
    /// By region: whether a worker has it.
    held: Vec<AtomicBool>,
    /// By region: how often it was taken.
    taken: Vec<AtomicUsize>,
    /// Parts carried out: client, row, number.
    done: Mutex<Vec<(u16, u64, u32)>>,
    changed: Condvar,
    stop: AtomicBool,
}

impl World {
    /// So many workers, and as many groups.
    fn new(workers: usize) -> Arc<World> {
        let geometry = Geometry::new(MemberCount(5), Sectors(128), Sectors(128 * 128), Layout::LeftSymmetric);
        let regions = std::sync::Arc::new(Regions::new(&geometry.expect("valid")));
        let count = regions.count();
        Arc::new(World {
            board: std::sync::Arc::new(Board::new(regions, 4, workers, workers)),
            bells: (0..workers).map(|_| Bell::default()).collect(),
            orders: (0..workers).map(|_| Mutex::default()).collect(),
            held: (0..count).map(|_| AtomicBool::new(false)).collect(),
            taken: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            done: Mutex::default(),
            changed: Condvar::default(),
            stop: AtomicBool::new(false),
        })
    }

    fn order(&self, worker: usize, order: Order) {
        self.orders[worker].lock().expect("no panic").push_back(order);
        self.kick_all();
    }

    /// As the control thread does: first for those who post, then for the workers.
    fn seat(&self, groups: &[Option<usize>]) {
        self.kick(self.board.seat(groups));
        for (worker, group) in groups.iter().enumerate() {
            self.order(worker, Order::Sit(*group));
        }
    }

    /// Waits for so many parts to be carried out.
    fn all_done(&self, parts: usize) {
        let mut done = self.done.lock().expect("no panic");
        while done.len() < parts {
            done = self.changed.wait(done).expect("no panic");
        }
    }

    fn kick(&self, workers: WorkerSet) {
        for worker in workers.iter() {
            self.bells[usize::from(worker.0)].ring();
        }
    }

    /// Kicks all that sleep: they have been told something.
    fn kick_all(&self) {
        left_work();
        for (worker, bell) in self.bells.iter().enumerate() {
            if self.board.sleeper(WorkerId(worker as u8)).must_kick() {
                bell.ring();
            }
        }
    }

    /// The answer is whom to kick.
    fn post(&self, client: u16, from: u32, rows: &[u64], home: usize) -> WorkerSet {
        let part = |(i, row): (usize, &u64)| Part {
            client: ClientId(client),
            op: PartOp::Read,
            request: from + i as u32,
            stripe: StripeIndex(*row),
            data: DataIndex(0),
            from: 0,
            sectors: 8,
            piece: Piece::NONE,
        };
        let parts: Vec<Part> = rows.iter().enumerate().map(part).collect();
        self.board.post(&parts, home, |part| part.request, &mut Traffic::default())
    }

    /// Each part was carried out once, and those of a client for a region in the order in which they were posted.
    fn check(&self, parts: usize) {
        let done = self.done.lock().expect("no panic");
        assert_eq!(done.len(), parts, "{done:?}");
        let mut last: HashMap<(u16, u64), u32> = HashMap::new();
        for (client, row, number) in done.iter() {
            let before = last.insert((*client, row / 64), *number);
            assert!(before.is_none_or(|before| before < *number), "{done:?}");
        }
        assert!(self.board.is_quiet() && self.board.regions().all_idle());
    }
}

/// What a worker is told.
#[derive(Clone, Copy)]
enum Order {
    /// To sit in this group.
    Sit(Option<usize>),
    /// To take nothing on until it has carried out what it has, as for a change of its memory.
    Drain,
}

/// What a worker owns.
struct Hands {
    world: Arc<World>,
    id: WorkerId,
    /// By region: its parts here.
    owned: HashMap<u32, Vec<Part>>,
    /// By region that it has parked: how often that had been taken.
    parked: HashMap<u32, usize>,
}

impl Holder for Hands {
    fn may_give_up(&self, region: RegionIndex) -> bool {
        self.owned.get(&region.0).is_some_and(Vec::is_empty)
    }

    fn must_keep(&self, _: RegionIndex) -> bool {
        false
    }

    fn taken(&mut self, region: RegionIndex, was_last: bool) {
        let before = self.world.taken[region.0 as usize].fetch_add(1, Ordering::SeqCst);
        let parked = self.parked.remove(&region.0);
        assert!(!was_last || parked == Some(before), "another had it meanwhile");
    }

    fn give_up(&mut self, region: RegionIndex) {
        self.owned.remove(&region.0);
        self.world.held[region.0 as usize].store(false, Ordering::SeqCst);
    }
}

impl Hands {
    fn accept(&mut self, part: Part) {
        let region = self.world.board.regions().of_part(&part);
        let held = &self.world.held[region.0 as usize];
        let entry = self.owned.entry(region.0).or_insert_with(|| {
            assert!(!held.swap(true, Ordering::SeqCst), "a region is at two workers");
            Vec::new()
        });
        entry.push(part);
    }

    fn carry_out(&mut self, region: u32) {
        for part in self.owned.get_mut(&region).expect("owned").drain(..) {
            self.world.done.lock().expect("no panic").push((part.client.0, part.stripe.0, part.request));
            self.world.changed.notify_all();
        }
        let held = &self.world.held[region as usize];
        // Before the release: after it another may have the region.
        held.store(false, Ordering::SeqCst);
        // Known before it is parked, as it may be taken at once.
        let taken = self.world.taken[region as usize].load(Ordering::SeqCst);
        let (regions, at) = (self.world.board.regions(), RegionIndex(region));
        let parks = region == 0;
        let left = if parks { regions.park(at, self.id) } else { regions.release(at, self.id) };
        if left {
            self.owned.remove(&region);
            self.parked.extend(parks.then_some((region, taken)));
        } else {
            held.store(true, Ordering::SeqCst);
        }
    }

    fn is_drained(&self) -> bool {
        self.owned.values().all(Vec::is_empty)
    }
}

/// A worker that carries a part out one turn after it got it.
struct Worker {
    desk: Desk,
    hands: Hands,
    drains: bool,
}

impl Worker {
    fn new(world: &Arc<World>, id: u8, group: Option<usize>) -> Worker {
        let id = WorkerId(id);
        let mut desk = Desk::new(&world.board, id);
        desk.sit(group);
        Worker {
            desk,
            hands: Hands { world: Arc::clone(world), id, owned: HashMap::new(), parked: HashMap::new() },
            drains: false,
        }
    }

    fn obey(&mut self) {
        let order = self.hands.world.orders[usize::from(self.hands.id.0)].lock().expect("no panic").pop_front();
        match order {
            Some(Order::Sit(group)) => self.desk.sit(group),
            Some(Order::Drain) => self.drains = true,
            None => {}
        }
    }

    fn turn(&mut self) {
        let mut parts = Vec::new();
        let kicks = self.desk.collect(&mut self.hands, &mut parts);
        self.hands.world.kick(kicks);
        let had: Vec<u32> = self.hands.owned.iter().filter(|(_, had)| !had.is_empty()).map(|(r, _)| *r).collect();
        parts.into_iter().for_each(|part| self.hands.accept(part));
        had.into_iter().for_each(|region| self.hands.carry_out(region));
        self.drains &= !self.hands.is_drained();
        self.desk.pause(self.drains);
    }

    fn is_told(&self) -> bool {
        !self.hands.world.orders[usize::from(self.hands.id.0)].lock().expect("no panic").is_empty()
    }

    fn is_busy(&self) -> bool {
        !self.hands.is_drained() || self.desk.has_work(&self.hands) || self.is_told()
    }

    /// Turns in place of the thread, which `slept`; answers whether that must be woken.
    fn lent(&mut self, slept: bool) -> bool {
        let world = Arc::clone(&self.hands.world);
        let sleeper = world.board.sleeper(self.hands.id);
        self.desk.stay(true);
        for _ in 0..LENT_TURNS {
            if self.is_busy() {
                self.obey();
                self.turn();
                continue;
            }
            if !slept {
                return false;
            }
            self.desk.stay(false);
            sleeper.announce();
            if !self.is_busy() || !sleeper.must_kick() {
                return false;
            }
        }
        true
    }
}

/// Turns of a worker that a client takes at most: so few that some are left.
const LENT_TURNS: usize = 4;

/// The world and its workers, each taken by whoever is at it.
struct Scene {
    world: Arc<World>,
    places: Vec<Mutex<Worker>>,
}

impl Scene {
    fn new(groups: &[Option<usize>]) -> Arc<Scene> {
        let world = World::new(groups.len());
        world.kick(world.board.seat(groups));
        let seats = groups.iter().enumerate();
        let places = seats.map(|(id, group)| Mutex::new(Worker::new(&world, id as u8, *group))).collect();
        Arc::new(Scene { world, places })
    }

    fn worker(&self, at: usize) -> shuttle::sync::MutexGuard<'_, Worker> {
        self.places[at].lock().expect("no panic")
    }

    /// The life of a worker's thread: turns until told to stop.
    fn run(&self, at: usize) {
        let sleeper = self.world.board.sleeper(WorkerId(at as u8));
        loop {
            let mut worker = self.worker(at);
            worker.desk.stay(false);
            worker.obey();
            worker.turn();
            if worker.is_busy() {
                continue;
            }
            worker.desk.idle();
            drop(worker);
            let mut worker = self.worker(at);
            worker.desk.stay(false);
            sleeper.announce();
            if self.world.stop.load(Ordering::SeqCst) {
                assert!(worker.hands.owned.is_empty(), "a region was kept");
                return;
            }
            let sleeps = !worker.is_busy();
            drop(worker);
            if sleeps {
                self.world.bells[at].sleep();
            }
            sleeper.awake();
        }
    }

    fn post(&self, client: u16, from: u32, rows: &[u64], home: usize) {
        self.world.kick(self.world.post(client, from, rows, home));
    }

    /// Posts, and takes the turns of the worker `home` if nobody is at it.
    fn post_and_take(&self, client: u16, from: u32, rows: &[u64], home: usize) {
        let kicks = self.world.post(client, from, rows, home);
        let works = self.world.board.members(home).iter().any(|id| usize::from(id.0) == home);
        let mut place = if works { self.places[home].try_lock().ok() } else { None };
        let mut slept = false;
        for id in kicks.iter().map(|id| usize::from(id.0)) {
            if id == home && place.is_some() {
                slept = true;
            } else {
                self.world.bells[id].ring();
            }
        }
        let wake = place.as_mut().is_some_and(|worker| worker.lent(slept));
        drop(place);
        if wake {
            self.world.bells[home].ring();
        }
    }
}

/// Runs workers, each in a group of its own if it `works`, beside clients; stops when all parts have been carried out.
fn scene(works: &[bool], clients: &[fn(&Scene, u16)], parts: usize, meanwhile: impl Fn(&World)) {
    let groups: Vec<Option<usize>> = works.iter().enumerate().map(|(i, works)| works.then_some(i)).collect();
    let scene = Scene::new(&groups);
    let work = |at| {
        let scene = Arc::clone(&scene);
        thread::spawn(move || scene.run(at))
    };
    let workers: Vec<_> = (0..works.len()).map(work).collect();
    let post = |(i, client): (usize, &fn(&Scene, u16))| {
        let (scene, client) = (Arc::clone(&scene), *client);
        thread::spawn(move || client(&scene, i as u16 + 1))
    };
    let clients: Vec<_> = clients.iter().enumerate().map(post).collect();
    let world = &scene.world;
    meanwhile(world);
    clients.into_iter().for_each(|client| client.join().expect("no panic"));
    // Nobody sleeps for good while there is work: else this waits for ever, which the checker sees.
    world.all_done(parts);
    world.stop.store(true, Ordering::SeqCst);
    world.kick_all();
    workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    world.check(parts);
}

fn check(scene: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("ETHERRAID_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(2000);
    let scene = std::sync::Arc::new(scene);
    let again = std::sync::Arc::clone(&scene);
    shuttle::check_random(move || scene(), runs);
    // Few changes of thread, at the worst places.
    shuttle::check_pct(move || again(), runs, 3);
}

fn three_plugs(scene: &Scene, client: u16) {
    scene.post(client, 0, &[0, 1, 64], 0);
    scene.post(client, 3, &[0], 1);
    scene.post(client, 4, &[1, 64], 0);
}

fn three_plugs_taken(scene: &Scene, client: u16) {
    scene.post_and_take(client, 0, &[0, 1, 64], 0);
    scene.post_and_take(client, 3, &[0], 1);
    scene.post_and_take(client, 4, &[1, 64], 0);
}

#[test]
fn posting_and_taking() {
    check(|| scene(&[true, true], &[three_plugs, three_plugs], 12, |_| ()));
}

#[test]
fn three_workers_for_two_regions() {
    check(|| scene(&[true, true, true], &[three_plugs, three_plugs], 12, |_| ()));
}

#[test]
fn clients_take_turns() {
    check(|| scene(&[true, true], &[three_plugs_taken, three_plugs_taken], 12, |_| ()));
    check(|| scene(&[true, true], &[three_plugs_taken, three_plugs], 12, |_| ()));
}

#[test]
fn workers_come_and_go() {
    for plugs in [three_plugs, three_plugs_taken] {
        check(move || {
            scene(&[true, false], &[plugs, plugs], 12, |world| {
                for groups in [[None, Some(1)], [Some(0), Some(1)], [Some(0), None]] {
                    world.seat(&groups);
                }
            });
        });
    }
}

#[test]
fn workers_are_drained() {
    for plugs in [three_plugs, three_plugs_taken] {
        check(move || {
            scene(&[true, true], &[plugs, plugs], 12, |world| {
                world.order(0, Order::Drain);
                world.order(1, Order::Drain);
                world.seat(&[None, Some(1)]);
            });
        });
    }
}
