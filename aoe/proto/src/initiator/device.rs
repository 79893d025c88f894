//! What the initiator keeps per open device.
//!
//! Holds state only; the decisions are in the initiator's other files. Invariants: a request is on at most one of
//! `ready`, `held` and `pinned`; `unanswered` has the caller's requests whose clock runs, oldest first; `in_flight` is
//! the sum over the paths, internal frames left out; `active` has exactly the ranges of the writes that were let through and not completed.

use core::time::Duration;
use std::sync::Arc;

use super::credits::Credits;
use super::frame::{AGE, FLIGHT, QUEUE};
use super::path::{PATHS_MAX, Path, PathState};
use super::ranges::ActiveRanges;
use super::slab::List;
use super::types::{Durability, VolatileReason};
use crate::port::PortId;
use crate::wire::{Address, Identify, MacAddr};

/// Models that answer a flush without doing it.
const LIARS: [&str; 2] = ["Coraid EtherDrive vblade", "EtherDrive(R) kvblade"];

/// Events that are to be told, as bits.
pub(super) mod pending {
    // The lowest bit is told first.
    pub(in super::super) const GONE: u16 = 1;
    pub(in super::super) const RESTARTED: u16 = 1 << 1;
    pub(in super::super) const FENCED: u16 = 1 << 2;
    pub(in super::super) const CONFLICT: u16 = 1 << 3;
    pub(in super::super) const UNUSABLE: u16 = 1 << 4;
    pub(in super::super) const FOUND: u16 = 1 << 5;
    pub(in super::super) const DURABILITY: u16 = 1 << 6;
    pub(in super::super) const SIZE: u16 = 1 << 7;
}

/// Boot numbers that a device has had, newest first. They have no order of their own, so those of before are remembered: a late reply
/// must not look like another restart. So few are enough, as a frame is under way for a second at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Boots([Option<u32>; 4]);

impl Boots {
    /// The present one, as far as is known.
    pub(super) fn newest(&self) -> Option<u32> {
        self.0[0]
    }

    /// Takes in that a reply had this number. Whether it means that the target was restarted since the last one.
    pub(super) fn heard(&mut self, boot: u32) -> bool {
        if self.0.contains(&Some(boot)) {
            return false;
        }
        self.0.rotate_right(1);
        self.0[0] = Some(boot);
        self.0[1].is_some()
    }
}

pub(super) struct Device {
    pub(super) address: Address,
    pub(super) generation: u32,
    pub(super) open: bool,
    pub(super) credits: Arc<Credits>,
    /// Index of the closed ranges of this address.
    pub(super) closed: usize,
    /// Known from the first IDENTIFY on, until the device is given up.
    pub(super) identity: Option<Identify>,
    /// The starts of our shelf that were heard of; they outlive the identity.
    pub(super) boots: Boots,
    pub(super) durability: Durability,
    /// A flush was done once: from then on a failed one is a failure.
    pub(super) flush_worked: bool,
    /// As told in the last config reply.
    pub(super) buffer_count: u16,
    pub(super) paths: Vec<Path>,
    /// The path after the one that was used last.
    pub(super) turn: u8,
    /// Requests with sectors to be cut, in the order in which they were let through.
    pub(super) ready: List<QUEUE>,
    /// Writes that must not start yet, in the order of submission.
    pub(super) held: List<QUEUE>,
    /// Internal requests that were not sent yet.
    pub(super) pinned: List<QUEUE>,
    pub(super) unanswered: List<AGE>,
    /// Frames that timed out.
    pub(super) resend: List<FLIGHT>,
    /// The same for frames of internal requests, which must use their path.
    pub(super) resend_pinned: List<FLIGHT>,
    pub(super) active: ActiveRanges,
    /// When to look again at the held writes that wait for closed sectors.
    pub(super) held_until: Option<Duration>,
    /// Frames under way, without those of internal requests.
    pub(super) in_flight: u32,
    /// Registered for a credit.
    pub(super) waits_for_credit: bool,
    /// On the initiator's queue of devices that may have something to send.
    pub(super) runnable: bool,
    pub(super) silent: bool,
    pub(super) told_silent: bool,
    pub(super) next_query: Duration,
    /// Interval of queries while silent or not found.
    pub(super) query_interval: Duration,
    /// Beacons before this time are repetitions of one that was told.
    pub(super) beacon_quiet_until: Duration,
    /// Events to be told, see [`pending`].
    pub(super) pending: u16,
    /// On the initiator's queue of devices that may have events.
    pub(super) eventful: bool,
    /// The last other device at this address.
    pub(super) conflict: (PortId, MacAddr),
    /// The sector size that made the device unusable.
    pub(super) logical_sector: u32,
}

impl Device {
    pub(super) fn new(
        address: Address,
        generation: u32,
        credits: Arc<Credits>,
        closed: usize,
        requests_max: usize,
    ) -> Device {
        Device {
            address,
            generation,
            open: true,
            credits,
            closed,
            identity: None,
            boots: Boots::default(),
            durability: Durability::Durable,
            flush_worked: false,
            buffer_count: 0,
            paths: Vec::with_capacity(PATHS_MAX),
            turn: 0,
            ready: List::EMPTY,
            held: List::EMPTY,
            pinned: List::EMPTY,
            unanswered: List::EMPTY,
            resend: List::EMPTY,
            resend_pinned: List::EMPTY,
            active: ActiveRanges::new(requests_max),
            held_until: None,
            in_flight: 0,
            waits_for_credit: false,
            runnable: false,
            silent: false,
            told_silent: false,
            next_query: Duration::ZERO,
            query_interval: Duration::ZERO,
            beacon_quiet_until: Duration::ZERO,
            pending: 0,
            eventful: false,
            conflict: (PortId(0), MacAddr::default()),
            logical_sector: 0,
        }
    }

    /// Whether late copies of answered writes do no harm.
    pub(super) fn dedupes(&self) -> bool {
        self.identity.as_ref().is_some_and(Identify::dedupes)
    }

    pub(super) fn find_path(&self, port: PortId, mac: MacAddr) -> Option<u8> {
        let at = self.paths.iter().position(|path| path.joins(port, mac))?;
        Some(at as u8)
    }

    /// A place for a new path: a new one, a vacant one, or that of a path that is of no use and has nothing under way.
    /// One whose end the caller was not told yet is taken last.
    pub(super) fn place_for_path(&self) -> Option<usize> {
        let vacant = |path: &&Path| path.state == PathState::Vacant;
        if let Some(at) = self.paths.iter().position(|path| vacant(&path) && !path.told_up) {
            return Some(at);
        }
        if self.paths.len() < PATHS_MAX {
            return Some(self.paths.len());
        }
        self.paths.iter().position(|path| vacant(&path))
    }

    /// Whether a path other than `except` is up and usable.
    pub(super) fn has_other_path(&self, now: Duration, except: u8) -> bool {
        let other = |(at, path): (usize, &Path)| {
            at != usize::from(except) && path.state == PathState::Up && path.is_usable(now)
        };
        self.paths.iter().enumerate().any(other)
    }

    /// The path for a request's next frame: one of the best rank that there is, with room in its window, not `avoid` if there is
    /// a choice, of those the one whose window is used least, and of equals the one whose turn it is.
    pub(super) fn choose_path(&self, now: Duration, avoid: Option<u8>) -> Option<u8> {
        let usable = || {
            let all = self.paths.iter().enumerate();
            all.filter(|(_, path)| path.is_usable(now))
        };
        let best = usable().map(|(_, path)| path.rank()).max()?;
        usable()
            .filter(|(_, path)| path.rank() == best && path.has_room(self.credits.limit()))
            .min_by_key(|&(at, path)| {
                let turn = (at as u8).wrapping_sub(self.turn) % PATHS_MAX as u8;
                (Some(at as u8) == avoid, path.load(), turn)
            })
            .map(|(at, _)| at as u8)
    }

    /// Whether no request can be sent however long one waits for windows.
    pub(super) fn has_no_path(&self) -> bool {
        !self.paths.iter().any(Path::is_open)
    }

    /// What IDENTIFY says about flushes.
    pub(super) fn judge_durability(identify: &Identify) -> Durability {
        if LIARS.contains(&identify.model.as_str()) {
            Durability::Volatile(VolatileReason::KnownLiar)
        } else if !identify.flush && !identify.flush_ext {
            Durability::Volatile(VolatileReason::NoFlush)
        } else {
            Durability::Durable
        }
    }

    /// Whether two IDENTIFY data are the same device's: capacity and firmware may change, these may not.
    pub(super) fn is_same(a: &Identify, b: &Identify) -> bool {
        a.serial == b.serial && a.model == b.model && a.wwn == b.wwn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::AtaString;

    #[test]
    fn durability_follows_model_and_flush_bits() {
        let disk = Identify::disk(2048);
        let none = Identify { flush: false, flush_ext: false, ..disk };
        let old = Identify { flush_ext: false, ..disk };
        let model = |model| Identify { model: AtaString::new(model), ..disk };
        let volatile = Durability::Volatile;
        for (identify, durability) in [
            (disk, Durability::Durable),
            (old, Durability::Durable),
            (none, volatile(VolatileReason::NoFlush)),
            (model("Coraid EtherDrive vblade"), volatile(VolatileReason::KnownLiar)),
            (model("EtherDrive(R) kvblade"), volatile(VolatileReason::KnownLiar)),
            (model(crate::wire::MODEL), Durability::Durable),
        ] {
            assert_eq!(Device::judge_durability(&identify), durability, "{identify:?}");
        }
    }

    #[test]
    fn a_late_reply_of_an_earlier_start_is_no_restart() {
        let mut boots = Boots::default();
        assert_eq!((boots.heard(7), boots.newest()), (false, Some(7)));
        assert!(!boots.heard(7));
        assert!(boots.heard(5) && boots.heard(9));
        assert!(!boots.heard(7) && !boots.heard(5));
        assert_eq!(boots.newest(), Some(9));
    }

    #[test]
    fn identity_is_serial_model_and_wwn() {
        let disk = Identify::disk(2048);
        let grown = Identify { sectors: 4096, boot: 7, firmware: AtaString::new("2"), ..disk };
        assert!(Device::is_same(&disk, &grown));
        let serial = Identify { serial: AtaString::new("other"), ..disk };
        let model = Identify { model: AtaString::new("other"), ..disk };
        let wwn = Identify { wwn: Some(5), ..disk };
        for other in [serial, model, wwn] {
            assert!(!Device::is_same(&disk, &other));
        }
    }
}
