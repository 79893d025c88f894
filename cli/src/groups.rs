//! Worker groups: one per CPU that the process may use.
//!
//! Used by `run` and `bench`.

use raid_engine::runtime::groups::Groups;
use raid_engine::runtime::topology::{Cpu, allowed, confine, nodes};
use raid_engine::tunables::WorkerGroup;

use crate::usage::usage;

/// A list of CPUs such as `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<Cpu>);

impl std::str::FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuList, String> {
        let bad = || format!("{text:?}: CPUs are numbers and ranges with commas between them, such as 0,2-3");
        let number = |text: &str| text.parse::<usize>().map_err(|_| bad());
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last >= 4096 {
                return Err(bad());
            }
            cpus.extend((first..=last).map(Cpu));
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(CpuList(cpus))
    }
}

/// Confines this process to `cpus`, if given, and makes a group per CPU. At most two workers per CPU.
pub(crate) fn groups(
    cpus: Option<&CpuList>,
    group_thread_cnt: usize,
    worker_group: WorkerGroup,
) -> anyhow::Result<Groups> {
    if let Some(CpuList(cpus)) = cpus {
        confine(cpus).map_err(|error| anyhow::anyhow!("--cpus: {error}: see /sys/devices/system/cpu/online"))?;
    }
    let groups = Groups { group_thread_cnt, worker_group, cpus: allowed()?, nodes: nodes() };
    match groups.check() {
        Ok(()) => Ok(groups),
        Err(text) => usage(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        let parse = |text: &str| text.parse::<CpuList>().map(|list| list.0.iter().map(|cpu| cpu.0).collect::<Vec<_>>());
        assert_eq!(parse("0"), Ok(vec![0]));
        assert_eq!(parse("3,0-2,1"), Ok(vec![0, 1, 2, 3]));
        for text in ["", "a", "1-", "-1", "2-1", "0,,1", "0-5000"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn two_workers_per_cpu_at_most() {
        let groups = |count| groups(None, count, WorkerGroup::Cpu);
        assert!(groups(0).is_ok() && groups(2).is_ok());
        let error = groups(3).expect_err("too many");
        assert!(error.to_string().contains("takes 0 to 2"), "{error}");
        assert!(error.is::<crate::usage::Usage>());
    }
}
