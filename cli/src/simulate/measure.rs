//! What is counted while a scenario runs, and the figures that are made of it.

use std::time::Duration;

use aoe_proto::initiator::Counters as AoeCounters;
use aoe_sim::Counters as NetworkCounters;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::scenario::Scenario;
use super::station::{Done, Station};

/// How often windows and goodput are noted, over the whole time.
const SAMPLES: u32 = 400;

/// Most paths whose windows are noted: more lines tell nothing.
const PATHS_SHOWN: usize = 8;

/// The longest latency that is told apart.
const HOUR_NS: u64 = 3_600_000_000_000;

/// The figures of a scenario. Names and units are an interface: scripts read them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// Virtual time that was counted, in seconds.
    pub(super) seconds: f64,
    pub(super) seed: u64,
    /// Data of requests that ended well, in 10^6 bytes per second.
    pub(super) mb_per_s: f64,
    /// Requests per second.
    pub(super) iops: f64,
    /// Frames that initiators sent, every copy.
    pub(super) frames_sent: u64,
    /// Of those, copies after the first.
    pub(super) retransmits: u64,
    /// The same as a share, in percent.
    pub(super) retransmits_percent: f64,
    /// Frames that the network lost, of all that it carried.
    pub(super) lost_queue_full: u64,
    /// Those that a lossy link took.
    pub(super) lost_fault: u64,
    /// Those that were on a link that was down.
    pub(super) lost_link_down: u64,
    /// Time from a request's first frame to its end.
    pub(super) from_first_send: Latency,
    /// Time from submission to the end.
    pub(super) from_submission: Latency,
    /// Age of the oldest request that was outstanding at the end, in microseconds.
    pub(super) oldest_us: f64,
    /// Bytes of all requests that are outstanding over goodput: what a request takes from submission on if all are served in turn; in microseconds.
    pub(super) fair_us: f64,
    /// Jain's index of what each pair of initiator and device got: 1 is all the same.
    pub(super) jain_devices: f64,
    /// The same of initiators.
    pub(super) jain_initiators: f64,
    /// Requests that failed, and data that were wrong.
    pub(super) errors: u64,
    pub(super) initiators: Vec<Share>,
    pub(super) shelves: Vec<Share>,
    #[serde(skip)]
    pub(super) samples: Samples,
}

/// What one host had of the goodput.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Share {
    pub(super) name: String,
    pub(super) mb_per_s: f64,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) max_us: f64,
}

/// Windows and goodput over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    /// Names of the paths.
    pub(super) paths: Vec<String>,
    /// For each path, (seconds, frames).
    pub(super) windows: Vec<Vec<(f64, f64)>>,
    /// (seconds, 10^6 bytes per second).
    pub(super) goodput: Vec<(f64, f64)>,
}

/// Counts while a scenario runs.
pub(super) struct Measure<'a> {
    scenario: &'a Scenario,
    /// Bytes that each pair of initiator and device got.
    bytes: Vec<Vec<u64>>,
    /// Bytes since the last look.
    recent: u64,
    from_first_send: Histogram<u64>,
    from_submission: Histogram<u64>,
    /// Counters when the warm-up was over.
    before: Option<(Vec<AoeCounters>, NetworkCounters)>,
    next_look: Duration,
    samples: Samples,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, HOUR_NS, 3).expect("the bounds are in order and three digits are allowed")
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    Latency { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: histogram.max() as f64 / 1000.0 }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Jain's index: the square of the sum over `n` times the sum of squares.
pub(super) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

impl<'a> Measure<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Measure<'a> {
        Measure {
            scenario,
            bytes: scenario.initiators.iter().map(|initiator| vec![0; initiator.devices.len()]).collect(),
            recent: 0,
            from_first_send: histogram(),
            from_submission: histogram(),
            before: None,
            next_look: Duration::ZERO,
            samples: Samples::default(),
        }
    }

    /// A request of a station ended.
    pub(super) fn done(&mut self, now: Duration, station: usize, done: &Done) {
        let bytes = u64::from(self.scenario.initiators[station].sectors) * 512;
        self.recent += bytes;
        if now < self.scenario.warmup {
            return;
        }
        self.bytes[station][done.device] += bytes;
        self.from_first_send.saturating_record(nanos(now - done.first_sent));
        self.from_submission.saturating_record(nanos(now - done.submitted));
    }

    /// Notes what is to be noted now; answers when it wants to be called again.
    pub(super) fn look<'s, S: Iterator<Item = &'s Station>>(
        &mut self,
        now: Duration,
        stations: impl Fn() -> S,
        network: NetworkCounters,
    ) -> Duration {
        if self.before.is_none() && now >= self.scenario.warmup {
            self.before = Some((stations().map(|station| *station.counters()).collect(), network));
        }
        let warm = if self.before.is_none() { self.scenario.warmup } else { Duration::MAX };
        let interval = (self.scenario.warmup + self.scenario.runtime) / SAMPLES;
        if now < self.next_look {
            return self.next_look.min(warm);
        }
        let seconds = now.as_secs_f64();
        if !now.is_zero() {
            self.samples.goodput.push((seconds, self.recent as f64 / interval.as_secs_f64() / 1e6));
        }
        self.recent = 0;
        for (station, initiator) in stations().zip(&self.scenario.initiators) {
            for (address, path) in station.paths() {
                let name = format!("{} {address} port {}", initiator.name, path.port.0);
                let samples = &mut self.samples;
                let at = samples.paths.iter().position(|other| *other == name).or_else(|| {
                    (samples.paths.len() < PATHS_SHOWN).then(|| {
                        samples.paths.push(name);
                        samples.windows.push(Vec::new());
                        samples.paths.len() - 1
                    })
                });
                if let Some(at) = at {
                    samples.windows[at].push((seconds, f64::from(path.cwnd)));
                }
            }
        }
        self.next_look = now + interval;
        self.next_look.min(warm)
    }

    /// The figures at the end.
    pub(super) fn report(self, stations: &[&Station], network: NetworkCounters, wrong: u64) -> Report {
        let scenario = self.scenario;
        let end = scenario.warmup + scenario.runtime;
        let seconds = scenario.runtime.as_secs_f64();
        let (before, net_before) = self.before.unwrap_or_default();
        let grown = |of: fn(&AoeCounters) -> u64| -> u64 {
            let now: u64 = stations.iter().map(|station| of(station.counters())).sum();
            now - before.iter().map(of).sum::<u64>()
        };
        let (frames_sent, retransmits) = (grown(|c| c.frames_sent), grown(|c| c.retransmits));
        let rate = |bytes: u64| bytes as f64 / seconds / 1e6;
        let total: u64 = self.bytes.iter().flatten().sum();
        let outstanding: f64 =
            scenario.initiators.iter().map(|i| (i.devices.len() * i.depth) as f64 * f64::from(i.sectors) * 512.0).sum();
        let pairs: Vec<f64> = self.bytes.iter().flatten().map(|&bytes| rate(bytes)).collect();
        let of_initiators: Vec<f64> = self.bytes.iter().map(|list| rate(list.iter().sum())).collect();
        let mut of_shelves = vec![0; scenario.shelves.len()];
        for (initiator, list) in scenario.initiators.iter().zip(&self.bytes) {
            for ((shelf, _), bytes) in initiator.devices.iter().zip(list) {
                of_shelves[*shelf] += bytes;
            }
        }
        let oldest = stations.iter().filter_map(|station| station.oldest()).min();
        let errors: u64 = stations.iter().map(|station| station.errors()).sum();
        let share = |name: &String, mb_per_s: f64| Share { name: name.clone(), mb_per_s };
        Report {
            seconds,
            seed: scenario.seed,
            mb_per_s: rate(total),
            iops: self.from_submission.len() as f64 / seconds,
            frames_sent,
            retransmits,
            retransmits_percent: 100.0 * retransmits as f64 / frames_sent.max(1) as f64,
            lost_queue_full: network.queue_full - net_before.queue_full,
            lost_fault: network.lost - net_before.lost,
            lost_link_down: network.link_down - net_before.link_down,
            from_first_send: latency(&self.from_first_send),
            from_submission: latency(&self.from_submission),
            oldest_us: oldest.map_or(0.0, |at| nanos(end - at) as f64 / 1000.0),
            fair_us: if total == 0 { 0.0 } else { outstanding / rate(total) },
            jain_devices: jain(&pairs),
            jain_initiators: jain(&of_initiators),
            errors: errors + wrong,
            initiators: scenario.initiators.iter().zip(&of_initiators).map(|(i, rate)| share(&i.name, *rate)).collect(),
            shelves: scenario.shelves.iter().zip(of_shelves).map(|(s, bytes)| share(&s.name, rate(bytes))).collect(),
            samples: self.samples,
        }
    }
}
