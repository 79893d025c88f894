//! Random histories: every frame is accounted for, and a seed replays exactly.

use super::tests::{A, BROADCAST, frame, mac, network};
use super::{Counters, Direction, Faults, PortConfig, PortId, Rng};
use crate::faults::{Ppm, Span};
use core::time::Duration;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, to: u8, len: usize },
    Wait { micros: u64 },
    Link { port: usize, up: bool },
    Switch { up: bool },
    Faults { port: usize, faults: Faults },
    Block { from: usize, to: usize, blocked: bool },
}

fn faults() -> impl Strategy<Value = Faults> {
    let ppm = || prop_oneof![Just(Ppm::ZERO), (0u32..500_000).prop_map(Ppm)];
    let span = || (0u64..2000, 0u64..2000).prop_map(|(a, b)| Span::micros(a.min(b), a.max(b)));
    (ppm(), ppm(), ppm(), ppm(), ppm(), span(), span(), span()).prop_map(
        |(loss, corrupt, garble, duplicate, reorder, duplicate_delay, reorder_delay, jitter)| Faults {
            loss,
            corrupt,
            garble,
            duplicate,
            duplicate_delay,
            reorder,
            reorder_delay,
            jitter,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0usize..4, 0u8..7, 0usize..3000).prop_map(|(from, to, len)| Step::Send { from, to, len }),
        4 => (0u64..3000).prop_map(|micros| Step::Wait { micros }),
        1 => (0usize..4, any::<bool>()).prop_map(|(port, up)| Step::Link { port, up }),
        1 => any::<bool>().prop_map(|up| Step::Switch { up }),
        1 => (0usize..4, faults()).prop_map(|(port, faults)| Step::Faults { port, faults }),
        1 => (0usize..4, 0usize..4, any::<bool>()).prop_map(|(from, to, blocked)| Step::Block { from, to, blocked }),
    ]
}

/// Plays `steps`; everything that arrived with its instant, and the totals.
fn play(seed: u64, steps: &[Step]) -> (Vec<(Duration, PortId, Vec<u8>)>, Counters) {
    let config = PortConfig { mtu: 1500, queue_bytes: 20_000, rate_bps: 1_000_000_000, ..PortConfig::new(A) };
    let (mut network, ports) = network(seed, 4, config);
    let mut now = Duration::ZERO;
    let mut arrived = Vec::new();
    let mut last = Duration::ZERO;
    for (i, step) in steps.iter().enumerate() {
        match *step {
            Step::Send { from, to, len } => {
                let to = if to == 6 { BROADCAST } else { mac(to) };
                network.send(now, ports[from], &frame(to, mac(from as u8 + 1), len, i as u64));
            }
            Step::Wait { micros } => now += Duration::from_micros(micros),
            Step::Link { port, up } => network.set_link(now, ports[port], up),
            Step::Switch { up } => network.set_switch(now, up),
            Step::Faults { port, faults } => {
                *network.faults(ports[port], Direction::ToSwitch) = faults;
                *network.faults(ports[port], Direction::FromSwitch) = faults;
            }
            Step::Block { from, to, blocked } => network.set_blocked(ports[from], ports[to], blocked),
        }
        while let Some((port, frame)) = network.poll(now) {
            arrived.push((now, port, frame));
        }
        assert!(network.totals().accounted(network.under_way()), "{:?}", network.totals());
        assert!(network.next_event().is_none_or(|at| at > now && at >= last));
        last = now;
    }
    while let Some(at) = network.next_event() {
        while let Some((port, frame)) = network.poll(at) {
            arrived.push((at, port, frame));
        }
    }
    let per_port = ports.iter().map(|&p| network.counters(p)).fold(Counters::default(), |mut sum, c| {
        sum.sent += c.sent;
        sum.copied += c.copied;
        sum.delivered += c.delivered;
        sum.lost += c.dropped();
        sum
    });
    let totals = network.totals();
    assert!(totals.accounted(0), "{totals:?}");
    assert_eq!(
        (per_port.sent, per_port.copied, per_port.delivered, per_port.lost),
        (totals.sent, totals.copied, totals.delivered, totals.dropped())
    );
    (arrived, totals)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_frame_is_accounted_for_and_a_seed_replays(seed: u64, steps in prop::collection::vec(step(), 1..200)) {
        let first = play(seed, &steps);
        prop_assert_eq!(first, play(seed, &steps));
    }

    #[test]
    fn the_generator_stays_in_range(seed: u64, bound in 1u64.., a in 0u64..1000, b in 0u64..1000) {
        let mut rng = Rng::new(seed);
        prop_assert!(rng.below(bound) < bound);
        let span = Span::micros(a, b);
        let d = rng.within(span);
        prop_assert!(d >= span.min && (d <= span.max || span.max < span.min));
    }
}
