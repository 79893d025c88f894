//! `run --takeover` and `run --reserve`: reserve the AoE members for this host before anything is read from them.
//!
//! With `--reserve` nobody else may hold them, and a clean stop releases them. With `--takeover` it does not matter who holds them. A host that runs the array meanwhile gets AoE error 6 at its next request, and is fenced: it writes nothing more. The reservation stays
//! when the array ends, however it ends, so that the other host does not come back by itself; `etherraid reserve --release` ends it. When the array
//! cannot be assembled after all, the devices get back the reservations that they had.

use std::fmt;
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

/// What to do about members that others have reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Take them over.
    Fence,
    /// Take none.
    Respect,
}

/// Members that were reserved.
pub(crate) struct Takeover {
    raw: Raw,
    others: Others,
    /// Each device with those that had reserved it.
    taken: Vec<(Seen, Vec<MacAddr>)>,
}

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Takeover").field("others", &self.others).field("taken", &self.taken).finish_non_exhaustive()
    }
}

impl Takeover {
    /// Takes them; all or none. Members that do not answer are left to assembly, which knows whether they are needed.
    pub(crate) fn take(interfaces: &InterfaceArgs, members: &[MemberSpec], others: Others) -> anyhow::Result<Takeover> {
        let raw = Raw::open(interfaces)?;
        let mut takeover = Takeover { raw, others, taken: Vec::new() };
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
        let option = if self.others == Others::Fence { "--takeover" } else { "--reserve" };
        let failed = |what: &dyn fmt::Display| {
            format!("{device}: it cannot be reserved ({what}), so nobody can be kept from it: run without {option}")
        };
        let before = match read(&mut self.raw, &seen, PATIENCE) {
            Ok(before) => before,
            Err(fault) => bail!("{}", failed(&fault)),
        };
        let list: Vec<String> = before.iter().map(ToString::to_string).collect();
        let by_others = !before.is_empty() && before != own;
        if by_others && self.others == Others::Respect {
            bail!(
                "{device}: reserved by {}: `run --takeover` takes it from them, and ends what they do there",
                list.join(", ")
            );
        }
        let force = self.others == Others::Fence;
        let result = set(&mut self.raw, &seen, force, own, PATIENCE)?.what;
        self.taken.push((seen, before));
        match result {
            Ok(now) if now == own => {}
            Ok(_) => bail!("{}", failed(&"it keeps another list")),
            Err(fault) => bail!("{}", failed(&fault)),
        }
        if by_others {
            tracing::warn!("{device}: taken over from {}", list.join(", "));
        }
        Ok(())
    }

    /// Lets everyone in again. A member that somebody has taken meanwhile stays theirs.
    pub(crate) fn release(mut self) {
        for (seen, _) in std::mem::take(&mut self.taken) {
            let now = set(&mut self.raw, &seen, false, &[], PATIENCE).map(|told| told.what);
            if !matches!(&now, Ok(Ok(list)) if list.is_empty()) {
                tracing::warn!("{}: it could not be released: see `etherraid reserve`", seen.address);
            }
        }
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
