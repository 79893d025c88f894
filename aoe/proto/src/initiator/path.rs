//! One path to a device: a local port and a remote MAC address, with its round-trip time, its window and its frames.
//!
//! Paths belong to a device, so that a device that hangs does not take the window of its neighbours in the same shelf,
//! and each remote address has a round-trip time of its own. A path carries requests only after IDENTIFY over it has
//! shown that the same device is at its end.
//!
//! ```text
//!             config reply                 IDENTIFY: the same device
//!  (Vacant) ---------------> Unproven --------------------------------> Up <--- an ATA reply --- Down
//!      ^                      |    |                                     |                         ^
//!      +---- no answer -------+    +---- another device ---> Refused     +-- timeouts, error 3 ----+
//! ```

use core::time::Duration;

use super::congestion::{Congestion, Controller};
use super::frame::FLIGHT;
use super::rtt::RttEstimator;
use super::slab::List;
use super::tunables::Tunables;
use crate::port::{PortId, PortInfo};
use crate::wire::MacAddr;

/// Most paths per device; a further one takes the place of one that is down, or is ignored.
pub const PATHS_MAX: usize = 32;

// Turns among paths are counted in a byte.
const _: () = assert!(PATHS_MAX.is_power_of_two() && PATHS_MAX < 256);

/// First pause of a path whose target says "device unavailable" when there is no other path; doubles up to
/// `aoe_rto_max`.
const HOLD_FIRST: Duration = Duration::from_millis(50);

/// What a path is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Not a path any more; the place is free.
    Vacant,
    /// IDENTIFY is under way.
    Unproven,
    /// In use.
    Up,
    /// Used only if the device has no path that is up; probed.
    Down,
    /// Another device is at its end. Not looked at again before this time.
    Refused {
        /// When a config reply may lead to a new IDENTIFY.
        until: Duration,
    },
}

pub(super) struct Path {
    /// Tells it from others that had the same place before or after.
    pub(super) serial: u64,
    pub(super) port: PortId,
    pub(super) mac: MacAddr,
    pub(super) state: PathState,
    /// Sectors per message that the target takes.
    pub(super) target_sectors: u8,
    /// Sectors per message that fit target and port; 0 while the port can't carry any.
    pub(super) payload: u8,
    pub(super) rtt: RttEstimator,
    pub(super) control: Controller,
    /// Frames under way, on both lists together.
    pub(super) in_flight: u32,
    /// In the order of their deadlines.
    pub(super) flying: List<FLIGHT>,
    /// The same for flushes, which may take long.
    pub(super) flying_slow: List<FLIGHT>,
    /// Number of the next frame sent.
    pub(super) send_number: u64,
    /// Frames with a lower number were under way when the window was last cut.
    pub(super) epoch: u64,
    /// Whether a reply came since the window was last cut.
    pub(super) answered: bool,
    /// Loss epochs in a row without a reply.
    pub(super) timeouts: u32,
    /// The target said "device unavailable": nothing is sent before this time.
    pub(super) hold: Option<Duration>,
    /// How often in a row it said so.
    pub(super) holds: u32,
    /// The internal request that proves or probes this path.
    pub(super) pinned: Option<u32>,
    /// A beacon of an unknown address brought this path: a restart, if it is the same device.
    pub(super) after_beacon: bool,
    /// Whether the caller was told last that the path is up.
    pub(super) told_up: bool,
    pub(super) counters: PathCounters,
}

/// Counters of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PathCounters {
    /// Frames sent.
    pub sent: u64,
    /// Of those, copies after the first.
    pub retransmits: u64,
    /// Frames answered.
    pub answered: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Cuts of the window.
    pub loss_epochs: u64,
}

impl Path {
    pub(super) fn new(serial: u64, port: PortId, mac: MacAddr, cap: u32, tunables: &Tunables) -> Path {
        Path {
            serial,
            port,
            mac,
            state: PathState::Unproven,
            target_sectors: 0,
            payload: 0,
            rtt: RttEstimator::default(),
            control: Controller::new(tunables.algorithm(), cap, tunables.fixed_window()),
            in_flight: 0,
            flying: List::EMPTY,
            flying_slow: List::EMPTY,
            send_number: 0,
            epoch: 0,
            answered: true,
            timeouts: 0,
            hold: None,
            holds: 0,
            pinned: None,
            after_beacon: false,
            told_up: false,
            counters: PathCounters::default(),
        }
    }

    /// Whether the path joins `port` and `mac`.
    pub(super) fn joins(&self, port: PortId, mac: MacAddr) -> bool {
        self.state != PathState::Vacant && self.port == port && self.mac == mac
    }

    /// Whether requests may use the path at all.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, PathState::Up | PathState::Down) && self.payload > 0
    }

    /// Whether requests may use it now, as far as its window lets them.
    pub(super) fn is_usable(&self, now: Duration) -> bool {
        self.is_open() && !self.is_held(now)
    }

    /// Whether another device was at the end lately.
    pub(super) fn is_refused(&self, now: Duration) -> bool {
        matches!(self.state, PathState::Refused { until } if now < until)
    }

    pub(super) fn is_held(&self, now: Duration) -> bool {
        self.hold.is_some_and(|until| until > now)
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.control.window()
    }

    /// Share of the window in use, in 1/256.
    pub(super) fn load(&self) -> u32 {
        self.in_flight.saturating_mul(256) / self.control.window()
    }

    pub(super) fn set_payload(&mut self, port: Option<PortInfo>) {
        let fits = port.map_or(0, |port| port.sectors_per_frame());
        self.payload = fits.min(self.target_sectors);
    }

    /// Pauses the path after "device unavailable".
    pub(super) fn hold_on(&mut self, now: Duration, max: Duration) {
        let pause = HOLD_FIRST.saturating_mul(1 << self.holds.min(16)).min(max);
        self.holds += 1;
        self.hold = Some(now + pause);
    }

    /// A frame of this path was answered.
    pub(super) fn on_reply(&mut self) {
        self.answered = true;
        self.timeouts = 0;
        self.hold = None;
        self.holds = 0;
        self.counters.answered += 1;
    }

    /// A frame sent as number `send_number` timed out: cuts the window and doubles the timeout once per loss epoch.
    pub(super) fn on_timeout(&mut self, send_number: u64) {
        self.counters.timeouts += 1;
        if send_number < self.epoch {
            return;
        }
        self.counters.loss_epochs += 1;
        self.control.on_loss(!self.answered);
        self.rtt.back_off();
        self.epoch = self.send_number;
        self.answered = false;
        self.timeouts += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Path {
        let mut path = Path::new(0, PortId(0), MacAddr([2; 6]), 64, &Tunables::default());
        path.state = PathState::Up;
        path.target_sectors = 17;
        path
    }

    #[test]
    fn one_cut_per_loss_epoch() {
        let mut path = path();
        let bounds = Tunables::default().rto_bounds();
        path.rtt.sample(Duration::from_millis(20));
        path.send_number = 4;
        for number in 0..4 {
            path.on_timeout(number);
        }
        assert_eq!(path.counters.loss_epochs, 1);
        assert_eq!(path.timeouts, 1);
        assert_eq!(path.rtt.rto(bounds), Duration::from_millis(120));
        let after_first = path.control.window();
        path.on_reply();
        path.send_number = 6;
        path.on_timeout(3);
        assert_eq!(path.counters.loss_epochs, 1, "a straggler of the old epoch");
        path.on_timeout(5);
        assert_eq!(path.counters.loss_epochs, 2);
        assert!(path.control.window() <= after_first);
        path.send_number = 7;
        path.on_timeout(6);
        assert_eq!(path.control.window(), 1, "no reply between two epochs");
        assert_eq!(path.timeouts, 2);
    }

    #[test]
    fn payload_is_the_smaller_of_port_and_target() {
        let mut path = path();
        for (mtu, target, payload) in [(1500, 17, 2), (9000, 17, 17), (9000, 2, 2), (500, 17, 0)] {
            path.target_sectors = target;
            path.set_payload(Some(PortInfo { mac: MacAddr([2; 6]), mtu }));
            assert_eq!(path.payload, payload);
            assert_eq!(path.is_open(), payload > 0);
        }
        path.set_payload(None);
        assert_eq!(path.payload, 0);
    }

    #[test]
    fn holds_double_up_to_the_maximum_and_end_with_a_reply() {
        let mut path = path();
        path.payload = 2;
        let ms = Duration::from_millis;
        let mut pauses = Vec::new();
        for _ in 0..4 {
            path.hold_on(ms(1000), ms(300));
            pauses.push(path.hold);
        }
        let expected = [1050, 1100, 1200, 1300].map(|until| Some(ms(until)));
        assert_eq!(pauses, expected);
        assert!(!path.is_usable(ms(1299)));
        assert!(path.is_usable(ms(1300)));
        path.on_reply();
        assert!(path.is_usable(ms(1000)));
    }
}
