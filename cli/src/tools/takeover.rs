//! `run --takeover`: reserves the AoE members for this host, whoever holds them, before anything is read from them.
//!
//! A host that runs the array meanwhile gets AoE error 6 at its next request, and is fenced: it writes nothing more. The reservation stays
//! when the array ends, however it ends, so that the other host does not come back by itself; `etherraid reserve --release` ends it. When the array
//! cannot be assembled after all, the devices get back the reservations that they had.

use std::time::Duration;

use anyhow::{Context, bail};
use aoe_proto::wire::{Address, MacAddr};
use raid_engine::member::spec::MemberSpec;

use super::probe::{self, Seen};
use super::raw::Raw;
use super::reserve::{read, set};
use crate::interfaces::InterfaceArgs;

/// How long members may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Members that were taken over.
pub(crate) struct Takeover {
    raw: Raw,
    /// Each device with those that had reserved it.
    taken: Vec<(Seen, Vec<MacAddr>)>,
}

impl Takeover {
    /// Takes them; all or none. Members that do not answer are left to assembly, which knows whether they are needed.
    pub(crate) fn take(interfaces: &InterfaceArgs, members: &[MemberSpec]) -> anyhow::Result<Takeover> {
        let raw = Raw::open(interfaces)?;
        let mut takeover = Takeover { raw, taken: Vec::new() };
        let own = takeover.own()?;
        let wanted = |address: Address| members.contains(&MemberSpec::Aoe(address));
        let mut seen = probe::discover(&mut takeover.raw, Address::ALL, PATIENCE);
        seen.retain(|seen| wanted(seen.address));
        seen.dedup_by_key(|seen| seen.address);
        for seen in seen {
            if let Err(error) = takeover.take_one(seen, &own) {
                takeover.give_back();
                return Err(error);
            }
        }
        Ok(takeover)
    }

    /// The addresses of our interfaces. All of them must be known: a device that is reserved refuses what comes from another.
    fn own(&self) -> anyhow::Result<Vec<MacAddr>> {
        let address = |port| {
            let name = self.raw.interface(port);
            self.raw.mac(port).with_context(|| {
                format!(
                    "{name} has no carrier, so members cannot be reserved for it: plug it in, or leave out -i {name}"
                )
            })
        };
        let mut own = self.raw.ports().map(address).collect::<anyhow::Result<Vec<_>>>()?;
        own.sort();
        own.dedup();
        Ok(own)
    }

    fn take_one(&mut self, seen: Seen, own: &[MacAddr]) -> anyhow::Result<()> {
        let device = seen.address;
        let failed = |what: &dyn std::fmt::Display| {
            format!("{device}: it cannot be reserved ({what}), so nobody can be kept from it: run without --takeover")
        };
        let before = match read(&mut self.raw, &seen, PATIENCE) {
            Ok(before) => before,
            Err(fault) => bail!("{}", failed(&fault)),
        };
        let result = set(&mut self.raw, &seen, true, own, PATIENCE)?.what;
        self.taken.push((seen, before.clone()));
        match result {
            Ok(now) if now == own => {}
            Ok(_) => bail!("{}", failed(&"it keeps another list")),
            Err(fault) => bail!("{}", failed(&fault)),
        }
        if !before.is_empty() && before != own {
            let list: Vec<String> = before.iter().map(ToString::to_string).collect();
            tracing::warn!("{device}: taken over from {}", list.join(", "));
        }
        Ok(())
    }

    /// Puts reservations back as they were found.
    pub(crate) fn give_back(mut self) {
        for (seen, before) in std::mem::take(&mut self.taken) {
            let now = set(&mut self.raw, &seen, true, &before, PATIENCE).map(|told| told.what);
            if !matches!(now, Ok(Ok(list)) if list == before) {
                tracing::warn!("{}: it stays reserved for this host: see `etherraid reserve`", seen.address);
            }
        }
    }
}
