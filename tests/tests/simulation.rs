//! Whole arrays over simulated networks, many histories, each from a seed.
//!
//! `ETHERRAID_SEED` runs one of them, `ETHERRAID_SIM_RUNS` says how many fresh ones to run; fresh seeds follow from the time unless
//! `ETHERRAID_SIM_FROM` names the first.

use std::time::{SystemTime, UNIX_EPOCH};

use etherraid_tests::sim::run;

/// Seeds that once failed, and some that showed much.
const FIXED: [u64; 33] = [
    1, 2, 3, 5, 7, 8, 10, 11, 12, 17, 24, 26, 37, 53, 106, 141, 205, 276, 334, 340, 347, 424, 466, 742, 1271, 1838,
    2535, 4164, 5122, 6129, 6950, 8405, 8891,
];

/// Fresh seeds unless told otherwise: none, so that a failure of this file alone can be seen again; `tests/run` asks for some.
const FRESH: u64 = 0;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn fixed_histories() {
    if let Some(seed) = number("ETHERRAID_SEED") {
        println!("{:?}", run(seed));
        return;
    }
    for seed in FIXED {
        println!("seed {seed}: {:?}", run(seed));
    }
}

#[test]
fn fresh_histories() {
    if number("ETHERRAID_SEED").is_some() {
        return;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let first = number("ETHERRAID_SIM_FROM").unwrap_or(since.as_secs() << 8);
    let runs = number("ETHERRAID_SIM_RUNS").unwrap_or(FRESH);
    println!("seeds from {first}");
    for seed in first..first + runs {
        println!("seed {seed}: {:?}", run(seed));
    }
}
