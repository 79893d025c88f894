//! How busy this host's CPUs are, whoever uses them: what a request costs a target on the same host, too.
//!
//! Read from /proc/stat, whose unit is a clock tick: good for runs of a second, on a host that has nothing else to do. Work of low priority (nice) does
//! not count. Pure but for the reading.

use std::time::Duration;

use rustix::param::clock_ticks_per_second;

/// Time that all CPUs together were busy since the host started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy(pub(super) Duration);

/// The time until now; zero where it can't be read.
pub(super) fn busy() -> Busy {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = parse(&text).unwrap_or(0);
    Busy(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
}

/// Ticks of all CPUs in user, system, interrupt and softirq.
fn parse(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    [0, 2, 5, 6].iter().map(|at| fields.get(*at).copied()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_nice_time_do_not_count() {
        let text = "cpu  10 200 3 4000 50000 60 7 8 9 0\ncpu0 1 1 1 1 1 1 1\nintr 5\n";
        assert_eq!(parse(text), Some(10 + 3 + 60 + 7));
        assert_eq!(parse("cpu  1 2 3\n"), None);
        assert!(busy().0 > Duration::ZERO);
    }
}
