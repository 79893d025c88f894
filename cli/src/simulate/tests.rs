//! The scenarios of benches/scenarios, and what is claimed of them. Virtual time is exact: figures that pass once pass always.

use super::measure::Report;
use super::scenario::{Scenario, parse};
use super::world::run;

macro_rules! scenario {
    ($name:literal) => {
        parse(include_str!(concat!("../../../benches/scenarios/", $name, ".toml"))).expect($name)
    };
}

/// Runs a scenario with changes.
fn with(scenario: &Scenario, set: &[&str]) -> Report {
    let mut scenario = scenario.clone();
    for pair in set {
        scenario.set(pair).expect(pair);
    }
    let report = run(&scenario);
    assert_eq!(report.errors, 0, "{set:?}");
    report
}

/// Goodput of the best fixed window.
fn best_fixed(scenario: &Scenario) -> f64 {
    let windows = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
    let rate =
        |window| with(scenario, &["aoe_congestion=1", &format!("aoe_window={window}"), "runtime=300ms"]).mb_per_s;
    windows.into_iter().map(rate).fold(0.0, f64::max)
}

/// What is claimed where four share a slow and shallow port.
fn shares_a_slow_port(scenario: &Scenario) {
    let best = best_fixed(scenario);
    for seed in ["seed=1", "seed=2", "seed=3"] {
        let report = with(scenario, &[seed, "runtime=10s"]);
        assert!(report.mb_per_s >= 0.97 * best, "{} of {best} MB/s", report.mb_per_s);
        assert!(report.retransmits_percent < 0.5, "{} %", report.retransmits_percent);
        assert!(report.from_first_send.p999_us < 5000.0, "{:?}", report.from_first_send);
        assert!(report.from_submission.p999_us < 1.5 * report.fair_us, "{:?}", report.from_submission);
        assert!(
            report.jain_devices >= 0.98 && report.jain_initiators >= 0.98,
            "{} {}",
            report.jain_devices,
            report.jain_initiators
        );
    }
}

#[test]
fn four_shelves_behind_one_slow_port() {
    shares_a_slow_port(&scenario!("four_shelves"));
}

#[test]
fn four_initiators_before_one_slow_port() {
    shares_a_slow_port(&scenario!("four_initiators"));
}

#[test]
fn reno_loses_far_more_in_a_shallow_queue() {
    let scenario = scenario!("four_shelves");
    let (sticky, reno) = (with(&scenario, &[]), with(&scenario, &["aoe_congestion=2"]));
    assert!(reno.retransmits > 100 * sticky.retransmits.max(1), "{} and {}", reno.retransmits, sticky.retransmits);
}

#[test]
fn a_congested_network_where_all_frames_are_kept_in_flight_collapses() {
    let scenario = scenario!("congested");
    // Two ports of 850 Mbit/s; of 8252 bytes on the wire 8192 are data.
    let limit = 2.0 * 850e6 / 8.0 / 1e6 * 8192.0 / 8252.0;
    let without = ["aoe_congestion=1", "aoe_window=64", "aoe_overtaken=0", "aoe_rto_min=1000000"];
    let collapsed = with(&scenario, &without).mb_per_s;
    assert!(collapsed < 0.45 * limit, "{collapsed} of {limit} MB/s");
    let sticky = with(&scenario, &[]).mb_per_s;
    assert!(sticky >= 0.95 * limit, "{sticky} of {limit} MB/s");
}

#[test]
fn cables_that_lose_frames() {
    for read in ["read = 1.0", "read = 0.0"] {
        let at = |loss: &str| {
            let text = include_str!("../../../benches/scenarios/lossy_cable.toml");
            let text = text.replace("loss = 0.01", loss).replace("read = 1.0", read);
            with(&parse(&text).expect(loss), &[])
        };
        let clean = at("loss = 0.0");
        assert_eq!(clean.retransmits, 0);
        for (loss, share) in [("loss = 0.01", 0.85), ("loss = 0.05", 0.5)] {
            let report = at(loss);
            assert!(report.lost_fault > 1000, "{loss}: {} lost", report.lost_fault);
            assert!(report.mb_per_s >= share * clean.mb_per_s, "{loss}, {read}: {} MB/s", report.mb_per_s);
        }
    }
}

#[test]
fn a_clean_network_costs_nothing() {
    let text = include_str!("../../../benches/scenarios/lossy_cable.toml").replace("loss = 0.01", "loss = 0.0");
    let scenario = parse(&text).expect("valid");
    let (sticky, best) = (with(&scenario, &["runtime=300ms"]).mb_per_s, best_fixed(&scenario));
    assert!(sticky >= 0.99 * best, "{sticky} and {best} MB/s");
}

#[test]
fn more_and_fewer_target_ports_than_initiator_ports() {
    for scenario in [scenario!("more_target_ports"), scenario!("fewer_target_ports")] {
        let report = with(&scenario, &[]);
        assert!(report.mb_per_s > 0.97 * 1241.0, "{} MB/s", report.mb_per_s);
        assert!(report.retransmits_percent < 0.5, "{} %", report.retransmits_percent);
    }
}

#[test]
fn unequal_paths_add_up() {
    let report = with(&scenario!("unequal_paths"), &[]);
    // The fast path alone carries 1241 MB/s.
    assert!(report.mb_per_s > 0.95 * 1241.0, "{} MB/s", report.mb_per_s);
    assert!(report.retransmits_percent < 0.5, "{} %", report.retransmits_percent);
}

#[test]
fn incast_of_64_shelves_fills_the_port() {
    let report = with(&scenario!("incast"), &[]);
    assert!(report.mb_per_s > 0.97 * 1241.0, "{} MB/s", report.mb_per_s);
    assert!(report.retransmits_percent < 10.0, "{} %", report.retransmits_percent);
}

#[test]
fn a_flapping_link_holds_nothing_up_for_long() {
    let report = with(&scenario!("flapping_link"), &[]);
    // Two paths of 1 Gbit/s, one of them down for a tenth of the time.
    let limit = 1.9 * 1000.0 / 8.0 * 8192.0 / 8252.0;
    assert!(report.mb_per_s > 0.95 * limit, "{} of {limit} MB/s", report.mb_per_s);
    assert!(report.from_first_send.max_us < 1e6, "{:?}", report.from_first_send);
}

#[test]
fn a_thousand_devices_on_a_hundred_shelves() {
    let scenario = scenario!("thousand_devices");
    assert_eq!(scenario.initiators.iter().map(|initiator| initiator.devices.len()).sum::<usize>(), 1000);
    let report = with(&scenario, &[]);
    // Five ports of 1 Gbit/s; of 4156 bytes on the wire 4096 are data.
    let limit = 5.0 * 1000.0 / 8.0 * 4096.0 / 4156.0;
    assert!(report.mb_per_s > 0.95 * limit, "{} of {limit} MB/s", report.mb_per_s);
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let scenario = scenario!("lossy_cable");
    let json = |seed| serde_json::to_string(&with(&scenario, &[seed, "runtime=20ms"])).expect("plain data");
    assert_eq!(json("seed=5"), json("seed=5"));
    assert_ne!(json("seed=5"), json("seed=6"));
}

#[test]
fn windows_and_goodput_are_drawn() {
    let report = with(&scenario!("four_shelves"), &["runtime=50ms"]);
    let svg = super::plot::svg("four_shelves", &report).expect("drawn");
    assert!(svg.starts_with("<svg") && svg.contains("host e4.0 port 0"), "{svg}");
    assert_eq!(report.samples.windows.len(), 4);
}
