//! Worker groups: which workers there are, in which groups, and where.
//!
//! There is a place for two workers per CPU from the start of an array to its end, each with a thread, channels to the members and a number of its own.
//! A change of the groups only decides which of them work, and where: nothing is opened, closed or started for it.

use super::topology::Cpu;
use crate::message::WorkerId;
use crate::tunables::{Settings, WorkerGroup};

/// Most workers whose number fits a tag beside those of the control thread and of openers.
pub const WORKERS_MAX: usize = 254;

/// Workers per CPU, at most.
pub const WORKERS_PER_CPU: usize = 2;

/// How many workers, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Workers per group; 0: one thread for everything.
    pub group_thread_cnt: usize,
    /// What a group is made for.
    pub worker_group: WorkerGroup,
    /// The CPUs that there are for them.
    pub cpus: Vec<Cpu>,
    /// The NUMA nodes, each with its CPUs, those among them that there are none of for us, too. CPUs that are in no node are in one of their own.
    pub nodes: Vec<Vec<Cpu>>,
}

/// A worker's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its group.
    pub group: usize,
    /// The CPUs it keeps to.
    pub cpus: Vec<Cpu>,
}

impl Groups {
    /// Groups on machines with one node.
    pub fn per_cpu(group_thread_cnt: usize, cpus: Vec<Cpu>) -> Groups {
        Groups { group_thread_cnt, worker_group: WorkerGroup::Cpu, cpus, nodes: Vec::new() }
    }

    /// The same CPUs, in groups as the settings say.
    pub fn with(&self, settings: &Settings) -> Groups {
        let Settings { group_thread_cnt, worker_group, .. } = *settings;
        Groups { group_thread_cnt, worker_group, ..self.clone() }
    }

    /// The groups' CPUs. Groups keep their numbers when others lose their CPUs.
    fn groups(&self) -> Vec<Vec<Cpu>> {
        match self.worker_group {
            WorkerGroup::Cpu => self.cpus.iter().map(|cpu| vec![*cpu]).collect(),
            WorkerGroup::Node => {
                let ours = |cpus: &Vec<Cpu>| cpus.iter().copied().filter(|cpu| self.cpus.contains(cpu)).collect();
                let mut groups: Vec<Vec<Cpu>> = self.nodes.iter().map(ours).collect();
                groups.retain(|cpus| !cpus.is_empty());
                let known: Vec<Cpu> = groups.iter().flatten().copied().collect();
                let rest: Vec<Cpu> = self.cpus.iter().copied().filter(|cpu| !known.contains(cpu)).collect();
                if !rest.is_empty() {
                    groups.push(rest);
                }
                groups
            }
        }
    }

    /// Places for workers on each CPU.
    fn per_cpu_most(&self) -> usize {
        (WORKERS_MAX / self.cpus.len().max(1)).clamp(1, WORKERS_PER_CPU)
    }

    /// How many places for workers there are.
    pub fn places(&self) -> usize {
        (self.per_cpu_most() * self.cpus.len()).clamp(1, WORKERS_MAX)
    }

    /// Whether there are as many workers as there may be, or fewer; if not, what is possible.
    pub fn check(&self) -> Result<(), String> {
        let groups = self.groups();
        let most = groups.iter().map(|cpus| self.per_cpu_most() * cpus.len()).min().unwrap_or(0);
        if self.group_thread_cnt <= most {
            return Ok(());
        }
        let count = self.group_thread_cnt;
        Err(format!(
            "group_thread_cnt={count}: group_thread_cnt takes 0 to {most} here ({} groups, two workers per CPU at most)",
            groups.len()
        ))
    }

    /// Where each worker sits, by number, while only the CPUs `present` are there; `None`: it does not work. Somebody always does.
    pub fn seats(&self, present: &[Cpu]) -> Vec<Option<Seat>> {
        let mut seats: Vec<Option<Seat>> = vec![None; self.places()];
        let here = |cpus: &[Cpu]| -> Vec<Cpu> { cpus.iter().copied().filter(|cpu| present.contains(cpu)).collect() };
        if self.group_thread_cnt > 0 {
            for (group, cpus) in self.groups().iter().enumerate() {
                let here = here(cpus);
                // The places of these CPUs: the first of each CPU, then the second.
                let of = |nth: usize| here.iter().map(move |cpu| (nth, *cpu));
                let places = (0..self.per_cpu_most()).flat_map(of).take(self.group_thread_cnt);
                for place in places.filter_map(|(nth, cpu)| self.place(nth, cpu)).collect::<Vec<_>>() {
                    seats[place] = Some(Seat { group, cpus: here.clone() });
                }
            }
        }
        if seats.iter().all(Option::is_none) {
            seats[0] = Some(Seat { group: 0, cpus: here(&self.cpus) });
        }
        seats
    }

    fn place(&self, nth: usize, cpu: Cpu) -> Option<usize> {
        let at = self.cpus.iter().position(|c| *c == cpu)? * self.per_cpu_most() + nth;
        (at < self.places()).then_some(at)
    }

    /// The group for what is posted on each CPU, by number of the CPU up to `cpus`: its own, or for one that has none any that works.
    pub fn homes(&self, seats: &[Option<Seat>], cpus: usize) -> Vec<u16> {
        let mut working: Vec<usize> = seats.iter().flatten().map(|seat| seat.group).collect();
        working.dedup();
        let home = |cpu: usize| {
            let own = seats.iter().flatten().find(|seat| seat.cpus.contains(&Cpu(cpu)));
            own.map_or_else(|| working[cpu % working.len()], |seat| seat.group) as u16
        };
        (0..cpus).map(home).collect()
    }
}

/// Workers that work.
pub fn working(seats: &[Option<Seat>]) -> impl Iterator<Item = WorkerId> {
    seats.iter().enumerate().filter(|(_, seat)| seat.is_some()).map(|(i, _)| WorkerId(i as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: &[usize]) -> Vec<Cpu> {
        numbers.iter().copied().map(Cpu).collect()
    }

    fn who(groups: &Groups, present: &[usize]) -> Vec<(usize, usize, Vec<usize>)> {
        let seats = groups.seats(&cpus(present));
        let seat = |(i, seat): (usize, &Option<Seat>)| {
            seat.as_ref().map(|s| (i, s.group, s.cpus.iter().map(|c| c.0).collect()))
        };
        seats.iter().enumerate().filter_map(seat).collect()
    }

    #[test]
    fn a_group_per_cpu_loses_its_workers_with_the_cpu() {
        let groups = Groups::per_cpu(1, cpus(&[0, 2, 5]));
        assert_eq!(who(&groups, &[0, 2, 5]), [(0, 0, vec![0]), (2, 1, vec![2]), (4, 2, vec![5])]);
        assert_eq!(who(&groups, &[0, 5]), [(0, 0, vec![0]), (4, 2, vec![5])]);
        assert_eq!(who(&groups, &[7]), [(0, 0, vec![])], "somebody works, wherever that may be");
        let two = Groups { group_thread_cnt: 2, ..groups };
        assert_eq!(who(&two, &[2]), [(2, 1, vec![2]), (3, 1, vec![2])]);
    }

    #[test]
    fn no_groups_is_one_worker_for_all() {
        assert_eq!(who(&Groups::per_cpu(0, cpus(&[1, 3])), &[1, 3]), [(0, 0, vec![1, 3])]);
    }

    #[test]
    fn cpus_of_a_node_share_a_group() {
        let nodes = vec![cpus(&[0, 1, 2]), cpus(&[3, 4, 5])];
        let groups = Groups { worker_group: WorkerGroup::Node, nodes, ..Groups::per_cpu(3, cpus(&[0, 1, 3, 4, 9])) };
        let all = who(&groups, &[0, 1, 3, 4, 9]);
        assert_eq!(all[..3], [(0, 0, vec![0, 1]), (1, 0, vec![0, 1]), (2, 0, vec![0, 1])]);
        assert_eq!(all[6..], [(8, 2, vec![9]), (9, 2, vec![9])], "as many as it has places for");
        assert_eq!(groups.check(), Err(groups.clone().check().expect_err("same")));
        assert!(Groups { group_thread_cnt: 1, ..groups }.check().is_ok());
    }

    #[test]
    fn two_workers_per_cpu_at_most() {
        for (count, fits) in [(0, true), (2, true), (3, false)] {
            assert_eq!(Groups::per_cpu(count, cpus(&[0, 1])).check().is_ok(), fits);
        }
        let text = Groups::per_cpu(3, cpus(&[0])).check().expect_err("too many");
        assert!(text.contains("takes 0 to 2"), "{text}");
        let many = Groups::per_cpu(2, (0..200).map(Cpu).collect());
        assert!(many.check().is_err() && Groups { group_thread_cnt: 1, ..many }.check().is_ok());
    }

    #[test]
    fn a_cpu_without_workers_posts_to_those_that_work() {
        let groups = Groups::per_cpu(1, cpus(&[0, 1]));
        let seats = groups.seats(&cpus(&[1]));
        assert_eq!(groups.homes(&seats, 4), [1, 1, 1, 1]);
        assert_eq!(groups.homes(&groups.seats(&cpus(&[0, 1])), 4), [0, 1, 0, 1]);
    }
}
