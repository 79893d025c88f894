//! Which CPUs there are for worker groups.
//!
//! Read once at start: the CPUs that are online and that the process is allowed to use.

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

/// Pins the calling thread to one CPU. Without effect where that is not allowed any more.
pub(super) fn pin(cpu: Cpu) -> bool {
    core_affinity::set_for_current(core_affinity::CoreId { id: cpu.0 })
}
