//! Which CPUs there are for worker groups.
//!
//! The CPUs that are online and that a thread is allowed to use, and the NUMA nodes they belong to.

use std::io;

/// Number of a CPU, as in `/sys/devices/system/cpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu(pub usize);

/// The CPUs that this process may run on.
pub fn allowed() -> io::Result<Vec<Cpu>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(Cpu).collect())
}

/// Confines the calling thread, and the threads that it starts from now on, to these CPUs.
pub fn confine(cpus: &[Cpu]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus {
        if cpu.0 >= rustix::thread::CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {}", cpu.0)));
        }
        set.set(cpu.0);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Keeps the calling thread to some CPUs; false where that is not allowed any more.
pub(super) fn pin(cpus: &[Cpu]) -> bool {
    match cpus {
        [cpu] => core_affinity::set_for_current(core_affinity::CoreId { id: cpu.0 }),
        cpus => confine(cpus).is_ok(),
    }
}

/// The CPU that the calling thread is on: a hint, as it may be on another at once.
pub(super) fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// The NUMA nodes with their CPUs; none where the system does not tell.
pub fn nodes() -> Vec<Vec<Cpu>> {
    let Ok(dir) = std::fs::read_dir("/sys/devices/system/node") else { return Vec::new() };
    let mut nodes: Vec<(usize, Vec<Cpu>)> = dir
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((number, cpu_list(&std::fs::read_to_string(entry.path().join("cpulist")).ok()?)?))
        })
        .collect();
    nodes.sort_unstable_by_key(|(number, _)| *number);
    nodes.into_iter().map(|(_, cpus)| cpus).collect()
}

/// A list of CPUs as the kernel writes it, such as `0-3,8`.
fn cpu_list(text: &str) -> Option<Vec<Cpu>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend((first.parse::<usize>().ok()?..=last.parse().ok()?).map(Cpu));
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0-2,8\n"), Some([0, 1, 2, 8].map(Cpu).to_vec()));
        assert_eq!(cpu_list("\n"), Some(vec![]), "a node without CPUs");
        assert_eq!(cpu_list("a"), None);
    }

    #[test]
    fn every_cpu_of_ours_is_in_at_most_one_node() {
        let nodes = nodes();
        for cpu in allowed().expect("affinity") {
            assert!(nodes.iter().filter(|cpus| cpus.contains(&cpu)).count() <= 1);
        }
    }
}
