//! The `-i` interfaces: links for initiators and shelves, with faults if asked for.
//!
//! Each initiator (a worker's, the control thread's, an opener's) gets a packet socket of its own on each interface, whose filter passes only
//! replies with that initiator's number in their tags.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use aoe_net::link::{FaultConfig, FaultLink, Link, LinkError, LinkWatch, PacketConfig, PacketLink, RING, Role};
use aoe_proto::initiator::{Tunables, WorkerId};
use clap::Args;
use raid_engine::member::aoe::Links;
use raid_engine::member::spec::MemberSpec;

use crate::errors::one_line;
use crate::usage::usage;

/// The number of openers: they run before there is an array, and find an interface that is down unusable.
const OPENER: WorkerId = WorkerId(255);

/// Frames in the receive ring of one socket at most: memory of the kernel's.
pub(crate) const RING_MAX: usize = 4096;

/// Options of every command that may use the network.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct InterfaceArgs {
    /// Network interface that leads to the shelves; more than one may be given
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    pub(crate) interfaces: Vec<String>,

    /// Faults of the links, for tests: loss=0.02,dup=0.01,dup_delay_ms=20,reorder=0.01,seed=1
    #[arg(long, hide = true, value_name = "FAULTS")]
    pub(crate) fault: Option<FaultConfig>,
}

impl InterfaceArgs {
    /// AoE members are found over interfaces.
    pub(crate) fn check(&self, members: &[MemberSpec]) -> anyhow::Result<()> {
        match members.iter().find(|member| matches!(member, MemberSpec::Aoe(_))) {
            Some(member) if self.interfaces.is_empty() => usage(format!(
                "{member}: an AoE member needs an interface: name those that lead to the shelves with -i"
            )),
            _ => Ok(()),
        }
    }

    /// The links for initiators of so many devices; none without an interface.
    pub(crate) fn links(&self, tunables: &Tunables, devices: usize) -> Option<Arc<dyn Links>> {
        self.tunable_links(tunables, devices).map(|links| links as Arc<dyn Links>)
    }

    /// The same, for an array whose settings and interfaces may change.
    pub(crate) fn tunable_links(&self, tunables: &Tunables, devices: usize) -> Option<Arc<Interfaces>> {
        let links = Interfaces { args: Mutex::new(self.clone()), tunables: Mutex::new(*tunables), devices };
        (!self.interfaces.is_empty()).then(|| Arc::new(links))
    }

    /// A link on each interface in turn, number `owner` of those that this process opens there, as `config` says for an interface.
    pub(crate) fn open(
        &self,
        owner: u8,
        config: impl Fn(&str) -> PacketConfig,
    ) -> Result<Vec<Box<dyn Link>>, LinkError> {
        let mut links: Vec<Box<dyn Link>> = Vec::new();
        for (index, interface) in self.interfaces.iter().enumerate() {
            let link = PacketLink::open(&config(interface))?;
            let Some(fault) = self.fault else {
                links.push(Box::new(link));
                continue;
            };
            // Links that fail alike would lose a request and its repetition alike.
            let seed = fault.seed.wrapping_mul(1 << 16).wrapping_add(u64::from(owner) << 8 | index as u64);
            let os = |source| LinkError::Os { interface: interface.clone(), operation: "making a timer", source };
            links.push(Box::new(FaultLink::new(link, FaultConfig { seed, ..fault }).map_err(os)?));
        }
        Ok(links)
    }
}

/// Makes an initiator's links.
#[derive(Debug)]
pub(crate) struct Interfaces {
    args: Mutex<InterfaceArgs>,
    tunables: Mutex<Tunables>,
    /// How many devices an initiator may have open.
    devices: usize,
}

impl Interfaces {
    /// Initiators that are made from now on have these settings.
    pub(crate) fn tune(&self, tunables: Tunables) {
        *self.tunables.lock().expect("no panic while held") = tunables;
    }

    /// The interfaces' names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.args().interfaces
    }

    /// Initiators that are told to look use these interfaces; answers with those before.
    pub(crate) fn set_names(&self, names: Vec<String>) -> Vec<String> {
        std::mem::replace(&mut self.args.lock().expect("no panic while held").interfaces, names)
    }

    fn args(&self) -> InterfaceArgs {
        self.args.lock().expect("no panic while held").clone()
    }
}

impl fmt::Display for Interfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(", "))
    }
}

impl Links for Interfaces {
    fn watch(&self) -> Option<LinkWatch> {
        // Without one they are looked at more often.
        LinkWatch::new().inspect_err(|error| tracing::warn!(%error, "changes of the interfaces are not told")).ok()
    }

    fn open(&self, worker: WorkerId, discovers: bool) -> io::Result<Vec<Box<dyn Link>>> {
        let role = Role::Initiator { worker: worker.0, discovers };
        // Room for what may be under way. Those that only look for devices have few frames, and need no memory of the kernel's.
        let frames = self.tunables().aoe_maxout as usize * self.devices;
        let receive_ring = (!discovers).then(|| frames.clamp(RING, RING_MAX));
        // An array that runs stands an interface that is down for a while; one that is to be started is told at once.
        let allow_down = worker != OPENER;
        let config = |name: &str| PacketConfig { receive_ring, allow_down, ..PacketConfig::new(name, role) };
        self.args().open(worker.0, config).map_err(|error| io::Error::other(one_line(&error)))
    }

    fn tunables(&self) -> Tunables {
        *self.tunables.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_tuned_counts_for_initiators_made_later() {
        let args = InterfaceArgs { interfaces: vec!["eth1".to_owned()], fault: None };
        let links = args.tunable_links(&Tunables::default(), 1).expect("an interface is named");
        let engine: Arc<dyn Links> = Arc::<Interfaces>::clone(&links);
        links.tune(Tunables { aoe_maxout: 7, ..Tunables::default() });
        assert_eq!(engine.tunables().aoe_maxout, 7);
        assert!(InterfaceArgs::default().links(&Tunables::default(), 1).is_none());
    }
}
