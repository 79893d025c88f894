//! What operators see of AoE members: each device, and each path to it, as the initiators of an array see them.
//!
//! Each owner's initiator makes a list; [`merge`] joins the lists of all owners of an array. Not on the data path: it allocates.

use std::time::Duration;

use aoe_proto::initiator::{PathState, PathView};
use aoe_proto::wire::{Address, MacAddr};
use raid_core::units::Sectors;

use super::{Aoe, Driver};

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePaths {
    /// Its shelf and slot.
    pub address: Address,
    /// Its size, once it is found.
    pub sectors: Option<Sectors>,
    /// A request has gone unanswered for `aoe_silence`.
    pub silent: bool,
    /// Messages that it can queue, as it says.
    pub buffer_count: u16,
    /// Frames under way.
    pub outstanding: u32,
    /// Ways to it.
    pub paths: Vec<PathLook>,
}

/// What a path is good for; where several initiators differ, the first of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Another device is at its end, which claims the same shelf and slot. Not used.
    Conflict,
    /// In use.
    Up,
    /// It is being found out whether the device is at its end.
    Unproven,
    /// Nothing is answered there; probed.
    Down,
}

impl Way {
    /// As operators read it.
    pub fn word(self) -> &'static str {
        match self {
            Way::Conflict => "conflict",
            Way::Up => "up",
            Way::Unproven => "unproven",
            Way::Down => "down",
        }
    }

    fn of(state: PathState) -> Way {
        match state {
            PathState::Refused { .. } => Way::Conflict,
            PathState::Up => Way::Up,
            PathState::Unproven => Way::Unproven,
            PathState::Down | PathState::Vacant => Way::Down,
        }
    }
}

/// A path: a local interface and a remote address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLook {
    /// The local interface.
    pub interface: String,
    /// Its address, while it is up. Interfaces in other network namespaces may have the same name.
    pub local: Option<MacAddr>,
    /// The remote address.
    pub mac: MacAddr,
    /// What it is good for.
    pub state: Way,
    /// Smoothed round trip; zero before the first sample.
    pub srtt: Duration,
    /// Its smoothed deviation.
    pub rttvar: Duration,
    /// Congestion window in frames.
    pub cwnd: u32,
    /// Window above which it grows slowly, in frames; `u32::MAX` before the first loss.
    pub ssthresh: u32,
    /// Timeouts and probes in a row without an answer.
    pub taint: u32,
    /// Frames under way.
    pub outstanding: u32,
    /// Sectors per frame, as far as proven.
    pub payload: u8,
    /// Frames sent, copies included.
    pub sent: u64,
    /// Copies after the first.
    pub retransmits: u64,
    /// Frames answered.
    pub answered: u64,
}

impl Aoe {
    /// The devices that are open, and the paths to them.
    pub(in crate::member) fn look(&mut self) -> Vec<DevicePaths> {
        let links = self.driver.links().map(|(name, info, _)| (name.to_owned(), info.map(|info| info.mac)));
        let links: Vec<(String, Option<MacAddr>)> = links.collect();
        let Aoe { open, driver, .. } = self;
        open.iter().filter_map(|open| look_at(driver, open.device, &links)).collect()
    }
}

fn look_at(driver: &mut Driver, device: super::DeviceId, links: &[(String, Option<MacAddr>)]) -> Option<DevicePaths> {
    let view = driver.initiator().device(device)?;
    let link = |path: &PathView| links.get(usize::from(path.port.0)).cloned().unwrap_or_default();
    let look = |path: PathView, (interface, local)| PathLook {
        interface,
        local,
        mac: path.mac,
        state: Way::of(path.state),
        srtt: path.srtt,
        rttvar: path.rttvar,
        cwnd: path.cwnd,
        ssthresh: path.ssthresh,
        taint: path.taint,
        outstanding: path.outstanding,
        payload: path.payload,
        sent: path.counters.sent,
        retransmits: path.counters.retransmits,
        answered: path.counters.answered,
    };
    Some(DevicePaths {
        address: view.address(),
        sectors: view.identify().map(|identify| Sectors(identify.sectors)),
        silent: view.is_silent(),
        buffer_count: view.buffer_count(),
        outstanding: view.outstanding(),
        paths: view.paths().map(|path| look(path, link(&path))).collect(),
    })
}

/// One list of devices, in the order of their addresses, from those of several owners: counters and windows are summed, round trips are the mean over
/// the frames answered, of the rest the worst counts.
pub fn merge(lists: impl IntoIterator<Item = Vec<DevicePaths>>) -> Vec<DevicePaths> {
    let mut all: Vec<DevicePaths> = Vec::new();
    for device in lists.into_iter().flatten() {
        match all.iter_mut().find(|known| known.address == device.address) {
            None => all.push(device),
            Some(known) => add(known, device),
        }
    }
    all.sort_by_key(|device| device.address);
    for device in &mut all {
        device.paths.sort_by(|a, b| (&a.interface, a.mac).cmp(&(&b.interface, b.mac)));
    }
    all
}

fn add(known: &mut DevicePaths, other: DevicePaths) {
    known.sectors = known.sectors.or(other.sectors);
    known.silent |= other.silent;
    known.buffer_count = known.buffer_count.max(other.buffer_count);
    known.outstanding += other.outstanding;
    for path in other.paths {
        match known.paths.iter_mut().find(|known| known.mac == path.mac && known.interface == path.interface) {
            None => known.paths.push(path),
            Some(known) => add_path(known, &path),
        }
    }
}

fn add_path(known: &mut PathLook, other: &PathLook) {
    // An owner whose round trip is zero has no sample yet.
    let weight = |path: &PathLook| if path.srtt.is_zero() { 0 } else { u128::from(path.answered.max(1)) };
    let (mine, theirs) = (weight(known), weight(other));
    let sum = known.srtt.as_nanos() * mine + other.srtt.as_nanos() * theirs;
    if let Some(mean) = sum.checked_div(mine + theirs) {
        known.srtt = Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX));
    }
    known.rttvar = known.rttvar.max(other.rttvar);
    known.local = known.local.or(other.local);
    known.state = known.state.min(other.state);
    known.cwnd = known.cwnd.saturating_add(other.cwnd);
    known.ssthresh = known.ssthresh.min(other.ssthresh);
    known.taint = known.taint.max(other.taint);
    known.outstanding += other.outstanding;
    known.payload = known.payload.min(other.payload);
    known.sent += other.sent;
    known.retransmits += other.retransmits;
    known.answered += other.answered;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(interface: &str, mac: u8, srtt_us: u64, answered: u64) -> PathLook {
        PathLook {
            interface: interface.into(),
            local: (answered > 0).then_some(MacAddr([2, 0, 0, 0, 1, mac])),
            mac: MacAddr([2, 0, 0, 0, 0, mac]),
            state: if answered > 0 { Way::Up } else { Way::Down },
            srtt: Duration::from_micros(srtt_us),
            rttvar: Duration::from_micros(srtt_us / 2),
            cwnd: 10,
            ssthresh: if answered > 3 { 20 } else { u32::MAX },
            taint: u32::from(answered == 0),
            outstanding: 1,
            payload: 16,
            sent: answered + 1,
            retransmits: 1,
            answered,
        }
    }

    fn device(slot: u8, sectors: Option<u64>, paths: Vec<PathLook>) -> DevicePaths {
        let address = Address::new(9, slot);
        let sectors = sectors.map(Sectors);
        DevicePaths { address, sectors, silent: slot == 1, buffer_count: 64, outstanding: 1, paths }
    }

    #[test]
    fn lists_are_joined_by_device_and_path() {
        let one = vec![device(1, None, vec![path("eth1", 1, 0, 0)]), device(0, Some(8), vec![path("eth0", 1, 100, 3)])];
        let two = vec![device(0, Some(8), vec![path("eth0", 2, 400, 5), path("eth0", 1, 200, 1)])];
        let all = merge([one, two, Vec::new()]);
        assert_eq!(all.iter().map(|device| device.address.slot.0).collect::<Vec<_>>(), [0, 1]);
        let [first, second] = &all[0].paths[..] else { panic!("two paths: {all:?}") };
        assert_eq!((first.mac.0[5], first.srtt), (1, Duration::from_micros(125)), "the mean over the frames answered");
        assert_eq!((first.cwnd, first.outstanding, first.sent, first.answered), (20, 2, 6, 4));
        assert_eq!((first.retransmits, first.payload, first.state), (2, 16, Way::Up));
        assert_eq!((first.rttvar, second.ssthresh, first.taint), (Duration::from_micros(100), 20, 0));
        assert_eq!(first.local, Some(MacAddr([2, 0, 0, 0, 1, 1])));
        assert_eq!((second.mac.0[5], second.answered), (2, 5));
        assert_eq!((all[0].outstanding, all[0].sectors, all[0].silent), (2, Some(Sectors(8)), false));
        assert_eq!((all[1].sectors, all[1].silent), (None, true));
    }

    #[test]
    fn an_owner_without_a_sample_does_not_pull_the_round_trip_down() {
        let all = merge([
            vec![device(0, None, vec![path("eth0", 1, 0, 0)])],
            vec![device(0, Some(8), vec![path("eth0", 1, 300, 7)])],
        ]);
        assert_eq!(all[0].paths[0].srtt, Duration::from_micros(300));
        assert_eq!(all[0].sectors, Some(Sectors(8)));
        let none = merge([vec![device(0, None, vec![path("eth0", 1, 0, 0), path("eth0", 1, 0, 0)])]]);
        assert_eq!(none[0].paths[0].srtt, Duration::ZERO);
    }
}
