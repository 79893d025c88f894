//! What a run looks like, drawn from its seed: members, geometry, settings, network, clients, and how much happens.
//!
//! Ranges are small on purpose: small chunks, few rows and few clients make requests meet. Times are within what is promised: no frame is under way for longer
//! than [`LIFETIME`], and where a target cannot recognise repeated requests the network makes no late copies of its frames.

use std::time::Duration;

use aoe_proto::initiator::Tunables as AoeTunables;
use aoe_sim::{Faults, Ppm, Rng, Span};
use raid_core::geometry::Layout;
use raid_core::plan::RmwLevel;
use raid_core::units::Sectors;
use raid_engine::array::Tunables;

use super::target::Kind;

/// No frame is under way for longer.
pub const LIFETIME: Duration = Duration::from_millis(1000);

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The run's seed.
    pub seed: u64,
    /// What serves each member.
    pub targets: Vec<Kind>,
    /// Chunk.
    pub chunk: Sectors,
    /// Rows.
    pub rows: u64,
    /// Layout.
    pub layout: Layout,
    /// Members hold garbage at first, so that parity is wrong until the resync has ended.
    pub garbage: bool,
    /// Parity is taken to be right at the start.
    pub assume_clean: bool,
    /// Workers.
    pub workers: usize,
    /// Stripes of cache.
    pub stripe_cache_size: usize,
    /// Settings of the array.
    pub tunables: Tunables,
    /// Settings of the initiators.
    pub aoe: AoeTunables,
    /// MTU of all ports.
    pub mtu: usize,
    /// Buffers of each target.
    pub buffers: u16,
    /// Faults of the network while nothing special happens.
    pub faults: Faults,
    /// Ports see that the switch is off.
    pub carrier: bool,
    /// Clients.
    pub clients: usize,
    /// Requests that a client has outstanding at most.
    pub depth: usize,
    /// Longest request, in sectors.
    pub longest: u64,
    /// Clients stay within this part of each region, in sectors.
    pub hot: u64,
    /// Longest pause of a client between two submissions.
    pub think: Duration,
    /// Requests of the whole run.
    pub requests: u64,
    /// Faults of the run.
    pub episodes: usize,
    /// Longest pause between two faults.
    pub calm: Duration,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

fn millis(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + rng.below(to - from + 1))
}

impl Shape {
    /// The run of this seed.
    pub fn new(seed: u64) -> Shape {
        let rng = &mut Rng::new(seed ^ 0x5_4A9E);
        let targets = targets(rng);
        let chunk = pick(rng, &[8, 8, 16, 16, 32, 64, 128]);
        // Several regions need tens of megabytes: only now and then.
        let wide = rng.below(40) == 0;
        let (workers, rows, chunk) = if wide {
            let data = targets.len() as u64 - 1;
            (2 + rng.below(2) as usize, (40 << 11) / (128 * data), 128)
        } else {
            (1 + rng.below(2) as usize, 4 + rng.below(28), chunk)
        };
        let garbage = !wide && rng.below(3) == 0;
        Shape {
            seed,
            chunk: Sectors(chunk),
            rows,
            layout: pick(rng, &Layout::ALL),
            garbage,
            assume_clean: wide || !garbage && rng.below(2) == 0,
            workers,
            stripe_cache_size: pick(rng, &[1, 2, 4, 16, 64, 256]),
            tunables: tunables(rng),
            aoe: aoe(rng),
            mtu: pick(rng, &[1500, 4200, 9000, 9000]),
            buffers: pick(rng, &[1, 4, 16, 64]),
            faults: faults(rng),
            carrier: rng.below(2) == 0,
            clients: 1 + rng.below(3) as usize,
            depth: pick(rng, &[1, 4, 16, 32]),
            longest: pick(rng, &[8, 40, 200, chunk * 6]),
            hot: pick(rng, &[64, 256, 4096]),
            think: millis(rng, 0, 40),
            requests: 150 + rng.below(500),
            episodes: 1 + rng.below(6) as usize,
            calm: millis(rng, 5, 3000),
            targets,
        }
    }

    /// Whether all targets recognise repeated requests.
    pub fn all_ours(&self) -> bool {
        self.targets.iter().all(|kind| *kind == Kind::Ours)
    }
}

fn targets(rng: &mut Rng) -> Vec<Kind> {
    let members = 3 + rng.below(5) as usize;
    let mixed = rng.below(3);
    let kind = |rng: &mut Rng| match mixed {
        0 => Kind::Ours,
        1 => pick(rng, &[Kind::Ours, Kind::Ours, Kind::Plain]),
        _ => pick(rng, &[Kind::Ours, Kind::Plain, Kind::Vblade]),
    };
    (0..members).map(|_| kind(rng)).collect()
}

fn tunables(rng: &mut Rng) -> Tunables {
    Tunables {
        // Longer than any storm, so that nobody is given up who is there.
        member_hold: millis(rng, 5000, 12_000),
        safe_mode_delay: if rng.below(6) == 0 { Duration::ZERO } else { millis(rng, 10, 600) },
        volatile_window: millis(rng, 100, 3000),
        sync_speed_min: pick(rng, &[0, 100, 100_000]),
        sync_speed_max: pick(rng, &[0, 0, 5_000]),
        sync_share: pick(rng, &[5, 33, 100]),
        sync_window: Sectors(pick(rng, &[64, 1024, 32 * 1024])),
        rmw_level: pick(rng, &[RmwLevel::Never, RmwLevel::Fewer, RmwLevel::Fewer, RmwLevel::Tie]),
    }
}

fn aoe(rng: &mut Rng) -> AoeTunables {
    AoeTunables {
        aoe_deadsecs: pick(rng, &[0, 180]),
        aoe_silence: pick(rng, &[400, 1000, 2000]),
        aoe_rto_min: pick(rng, &[1_000, 10_000]),
        aoe_congestion: rng.below(3),
        aoe_frame_lifetime: LIFETIME.as_millis() as u64,
        ..AoeTunables::default()
    }
}

/// Copies and held-back frames stay under way for less than [`LIFETIME`], over both links together.
fn faults(rng: &mut Rng) -> Faults {
    let level = rng.below(4) as u32;
    let some = |rng: &mut Rng, most: u64| Ppm(level * rng.below(most + 1) as u32);
    Faults {
        loss: some(rng, 12_000),
        corrupt: some(rng, 1000),
        duplicate: some(rng, 8000),
        duplicate_delay: Span::micros(0, 300_000),
        reorder: some(rng, 8000),
        reorder_delay: Span::micros(10, 100_000),
        jitter: Span::micros(0, rng.below(200)),
        ..Faults::NONE
    }
}
