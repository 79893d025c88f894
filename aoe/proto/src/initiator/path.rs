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

use super::congestion::{Congestion, Controller, Loss};
use super::frame::{FLIGHT, Frame, SENT};
use super::payload::{PathPayload, SAFE};
use super::rtt::{RtoBounds, RttEstimator};
use super::slab::List;
use super::tunables::Tunables;
use crate::port::{PortId, PortInfo};
use crate::wire::MacAddr;

/// Most paths per device; a further one takes the place of one that is down, or is ignored.
pub const PATHS_MAX: usize = 32;

// Turns among paths are counted in a byte.
const _: () = assert!(PATHS_MAX.is_power_of_two() && PATHS_MAX < 256);

/// Timeouts in a row after which a path counts as away rather than lossy.
const AWAY: u32 = 3;

/// Classes of frame sizes.
const SIZES: usize = 4;

/// First pause of a path whose target says "device unavailable" when there is no other path; doubles up to
/// `aoe_rto_max`.
const HOLD_FIRST: Duration = Duration::from_millis(50);

/// The patience with frames that were overtaken is at least this part of the timeout's floor.
const PATIENCE_PART: u32 = 50;
/// Replies after which reordering is believed to be half as far.
const REORDERING_FORGOTTEN: u32 = 4096;
/// Most doublings of the patience; the timeout's floor binds before.
const REORDERING_MAX: u32 = 6;

/// Most frames beyond the window that are sent when nothing comes back.
pub(super) const MORE_MAX: u32 = 3;

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
    /// Sectors per message.
    pub(super) payload: PathPayload,
    pub(super) rtt: RttEstimator,
    pub(super) control: Controller,
    /// Frames under way, on both lists together, without those of internal requests.
    pub(super) in_flight: u32,
    /// In the order of their deadlines.
    pub(super) flying: List<FLIGHT>,
    /// The same for flushes, which may take long.
    pub(super) flying_slow: List<FLIGHT>,
    /// Those of `flying` that are not internal, in the order in which they were sent.
    pub(super) sent: List<SENT>,
    /// Number of the next frame sent.
    pub(super) send_number: u64,
    /// The highest number of a frame that was answered.
    pub(super) answered_number: u64,
    /// When the first frame that a later one has overtaken counts as lost.
    pub(super) suspect: Option<Duration>,
    /// So many frames more than the window may be under way: their replies show whether those before are lost.
    pub(super) more: u32,
    /// How far replies of this path are out of order.
    pub(super) reordering: Reordering,
    /// No frame leaves before this time, as the window is less than a frame per round trip.
    pub(super) paced: Option<Duration>,
    /// Frames with a lower number were under way when the window was last cut.
    pub(super) epoch: u64,
    /// Whether a reply came since the window was last cut.
    pub(super) answered: bool,
    /// Loss epochs and probes in a row without a reply: the path's taint.
    pub(super) timeouts: u32,
    /// Of frames answered, read and written, by their size: the largest send number, plus one.
    answered_until: [[u64; SIZES]; 2],
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
    /// Frames that were found lost by the replies to later ones, before their timeout.
    pub overtaken: u64,
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
            payload: PathPayload::new(),
            rtt: RttEstimator::default(),
            control: Controller::new(tunables.algorithm(), cap, tunables.fixed_window()),
            in_flight: 0,
            flying: List::EMPTY,
            flying_slow: List::EMPTY,
            sent: List::EMPTY,
            send_number: 0,
            answered_number: 0,
            suspect: None,
            more: 0,
            reordering: Reordering::default(),
            paced: None,
            epoch: 0,
            answered: true,
            timeouts: 0,
            answered_until: [[0; SIZES]; 2],
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
        matches!(self.state, PathState::Up | PathState::Down) && self.payload.sectors() > 0
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

    /// Whether a frame may leave, of a device that has `limit` frames under way at most.
    pub(super) fn has_room(&self, limit: u32) -> bool {
        let more = if self.in_flight < limit { self.more } else { 0 };
        self.in_flight < self.control.window() + more && self.paced.is_none()
    }

    /// Share of the window in use, in 1/256.
    pub(super) fn load(&self) -> u32 {
        self.in_flight.saturating_mul(256) / self.control.window()
    }

    /// How good it is for requests: only the best of a device's paths are used. One that answers nothing lately is not used
    /// while there is one that does.
    pub(super) fn rank(&self) -> u8 {
        match self.state {
            PathState::Up if self.timeouts == 0 => 2,
            PathState::Up => 1,
            _ => 0,
        }
    }

    /// What port and target allow may have changed.
    pub(super) fn set_ceiling(&mut self, now: Duration, port: Option<PortInfo>) {
        let fits = port.map_or(0, |port| port.sectors_per_frame());
        self.payload.set_ceiling(now, fits.min(self.target_sectors));
    }

    /// Whether a frame's loss may be the path's fault: none as large in the same direction that left later was answered. Copies of one
    /// frame hardly get lost by chance.
    pub(super) fn is_suspicious(&self, frame: &Frame) -> bool {
        let larger = &self.answered_until[usize::from(frame.is_write())][size_class(frame.sectors)..];
        frame.copies > 1 || larger.iter().all(|until| *until <= frame.send_number)
    }

    /// Pauses the path after "device unavailable".
    pub(super) fn hold_on(&mut self, now: Duration, max: Duration) {
        let pause = HOLD_FIRST.saturating_mul(1 << self.holds.min(16)).min(max);
        self.holds += 1;
        self.hold = Some(now + pause);
    }

    /// A frame of this path was answered.
    pub(super) fn on_reply(&mut self, now: Duration, frame: &Frame) {
        self.answered = true;
        self.more = 0;
        if core::mem::take(&mut self.timeouts) >= AWAY {
            // It may have come back wider, and what was lost meanwhile says nothing of queues.
            self.payload.search(now);
            self.control.forget();
        }
        if frame.copies == 1 {
            let until = &mut self.answered_until[usize::from(frame.is_write())][size_class(frame.sectors)];
            *until = (*until).max(frame.send_number + 1);
        }
        self.hold = None;
        self.holds = 0;
        self.counters.answered += 1;
        self.reordering.on_reply();
    }

    /// A frame sent as number `send_number` timed out: cuts the window and doubles the timeout once per loss epoch.
    pub(super) fn on_timeout(&mut self, send_number: u64) {
        self.counters.timeouts += 1;
        let consecutive = !self.answered;
        if self.on_loss(send_number, consecutive) {
            self.rtt.back_off();
            self.timeouts += 1;
        }
    }

    /// A frame sent as number `send_number` is lost, as replies to later ones show.
    pub(super) fn on_overtaken(&mut self, send_number: u64) {
        self.counters.overtaken += 1;
        self.reordering.on_overtaken();
        self.on_loss(send_number, false);
    }

    /// Tells the window of a loss; whether it is the first one of a loss epoch.
    fn on_loss(&mut self, send_number: u64, consecutive: bool) -> bool {
        let first = send_number >= self.epoch;
        self.control.on_loss(Loss { first, consecutive });
        if first {
            self.counters.loss_epochs += 1;
            self.epoch = self.send_number;
            self.answered = false;
        }
        first
    }

    /// How long after it was sent a frame that a later one has overtaken counts as lost: as long as replies may be out of order.
    pub(super) fn patience(&self, bounds: RtoBounds) -> Duration {
        let usual = self.rtt.usual().max(bounds.min / PATIENCE_PART);
        self.reordering.stretched(usual).min(self.rtt.rto(bounds))
    }
}

/// How far replies of a path are out of order, beyond what round-trip times tell. A target that works on several messages at a time answers
/// out of order; then frames are taken for lost that are not, and are answered twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reordering {
    /// Doublings of the patience.
    doublings: u32,
    /// Frames that were overtaken, and might be answered twice.
    unsure: u32,
    /// Replies since either changed.
    replies: u32,
}

impl Reordering {
    fn on_reply(&mut self) {
        self.replies += 1;
        if self.replies >= REORDERING_FORGOTTEN {
            *self = Reordering { doublings: self.doublings.saturating_sub(1), unsure: 0, replies: 0 };
        }
    }

    fn on_overtaken(&mut self) {
        self.unsure = self.unsure.saturating_add(1);
    }

    /// A reply came that nobody waits for: perhaps the second one to a frame that was taken for lost.
    pub(super) fn on_stray(&mut self) {
        if self.unsure > 0 {
            *self =
                Reordering { doublings: (self.doublings + 1).min(REORDERING_MAX), unsure: self.unsure - 1, replies: 0 };
        }
    }

    fn stretched(&self, patience: Duration) -> Duration {
        patience.saturating_mul(1 << self.doublings)
    }
}

/// The class of a frame of so many sectors.
fn size_class(sectors: u8) -> usize {
    match sectors {
        0..=SAFE => 0,
        3..=8 => 1,
        9..=16 => 2,
        17.. => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{AtaRequest, Lba};

    fn path() -> Path {
        let mut path = Path::new(0, PortId(0), MacAddr([2; 6]), 64, &Tunables::default());
        path.state = PathState::Up;
        path.target_sectors = 17;
        path
    }

    /// A frame that left as number `number`, once.
    fn frame(number: u64, sectors: u8, write: bool) -> Frame {
        let make = if write { AtaRequest::write } else { AtaRequest::read };
        let mut frame = Frame::new(0, 0, make(Lba(0), sectors, true), sectors, 0);
        (frame.copies, frame.send_number) = (1, number);
        frame
    }

    fn answered(path: &mut Path) {
        path.on_reply(Duration::ZERO, &frame(0, 1, false));
    }

    #[test]
    fn a_loss_is_suspicious_until_a_later_frame_of_the_kind_is_answered() {
        let mut path = path();
        assert!(path.is_suspicious(&frame(5, 16, true)));
        for (number, sectors, write) in [(6, 16, false), (6, 8, true), (5, 16, true), (4, 17, true)] {
            path.on_reply(Duration::ZERO, &frame(number, sectors, write));
        }
        assert!(!path.is_suspicious(&frame(4, 16, true)));
        assert!(path.is_suspicious(&frame(6, 16, true)), "only smaller ones, or reads, left later");
        path.on_reply(Duration::ZERO, &frame(7, 17, true));
        assert!(!path.is_suspicious(&frame(6, 16, true)));
        let mut again = frame(6, 16, true);
        again.copies = 2;
        assert!(path.is_suspicious(&again));
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
        answered(&mut path);
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
    fn the_ceiling_is_the_smaller_of_port_and_target() {
        let mut path = path();
        for (mtu, target, payload) in [(1500, 17, 2), (9000, 17, 17), (9000, 2, 2), (500, 17, 0)] {
            path.target_sectors = target;
            path.set_ceiling(Duration::ZERO, Some(PortInfo { mac: MacAddr([2; 6]), mtu }));
            assert_eq!(path.payload.ceiling(), payload);
            assert_eq!(path.is_open(), payload > 0);
        }
        path.set_ceiling(Duration::ZERO, None);
        assert_eq!(path.payload.sectors(), 0);
    }

    #[test]
    fn holds_double_up_to_the_maximum_and_end_with_a_reply() {
        let mut path = path();
        path.payload.set_ceiling(Duration::ZERO, 2);
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
        answered(&mut path);
        assert!(path.is_usable(ms(1000)));
    }
}
