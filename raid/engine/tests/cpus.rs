//! CPUs go and come back while an array runs: their groups' workers go and come back with them, and nothing else happens. A test binary of its own, as
//! it looks for threads by name.

mod common;

use std::time::{Duration, Instant};

use common::{Rig, check, fill};
use raid_engine::runtime::running::Running;
use raid_engine::runtime::topology::{self, Cpu};

/// Leaves the array's own thread only these CPUs, as a cpuset that shrinks does: it keeps to none by itself, so they are what there is.
fn leave(cpus: &[Cpu]) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu.0));
    let mut found = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("threads").flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim() == "raid5-array" {
            let id = task.file_name().to_str().and_then(|id| id.parse().ok()).and_then(rustix::thread::Pid::from_raw);
            rustix::thread::sched_setaffinity(id, &set).expect("allowed");
            found += 1;
        }
    }
    assert_eq!(found, 1, "the array's thread");
}

fn wait_for_workers(array: &Running, count: usize) {
    let start = Instant::now();
    while array.totals().workers != count {
        assert!(start.elapsed() < Duration::from_secs(60), "{} workers, not {count}", array.totals().workers);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_cpu_that_goes_takes_its_group_along_and_nothing_else() {
    let cpus = topology::allowed().expect("affinity");
    if cpus.len() < 2 {
        println!("SKIPPED: one CPU");
        return;
    }
    let names: Vec<String> = (0..4).map(|i| format!("mem:{}M", 40 + i)).collect();
    let mut rig = Rig::new(&names, true, None);
    let array = rig.run(1);
    let mut client = array.client().expect("fd").expect("room");
    wait_for_workers(&array, cpus.len());
    fill(&mut client, 0, 100_000, 1);
    for round in 0..3 {
        leave(&cpus[..1]);
        wait_for_workers(&array, 1);
        check(&mut client, 0, 100_000, 1 + round);
        fill(&mut client, 0, 100_000, 2 + round);
        leave(&cpus);
        wait_for_workers(&array, cpus.len());
        check(&mut client, 0, 100_000, 2 + round);
    }
    drop(client);
    assert_eq!(array.stop(false), 0);
}
