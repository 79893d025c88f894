//! What statistics and tools see of a device.

use core::time::Duration;

use super::Initiator;
use super::congestion::Congestion;
use super::device::Device;
use super::path::{Path, PathCounters, PathState};
use super::rtt::RtoBounds;
use super::types::{DeviceId, Durability};
use crate::port::PortId;
use crate::wire::{Address, Identify, MacAddr};

/// A look at a device of one initiator.
pub struct DeviceView<'a> {
    device: &'a Device,
    bounds: RtoBounds,
}

/// A look at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// The local end.
    pub port: PortId,
    /// The remote end.
    pub mac: MacAddr,
    /// What it is good for.
    pub state: PathState,
    /// Smoothed round trip, zero before the first sample.
    pub srtt: Duration,
    /// Its smoothed deviation.
    pub rttvar: Duration,
    /// Retransmission timeout of a frame sent now, back-off included.
    pub rto: Duration,
    /// Congestion window in frames.
    pub cwnd: u32,
    /// Window above which growth is slow, in frames; `u32::MAX` before the first loss.
    pub ssthresh: u32,
    /// Frames under way.
    pub outstanding: u32,
    /// Sectors per frame, as far as proven.
    pub payload: u8,
    /// Timeouts and probes in a row without an answer; while it is above 0 the path is used only if no other answers.
    pub taint: u32,
    /// Counters since the path is known.
    pub counters: PathCounters,
}

impl Initiator {
    /// A look at an open device.
    pub fn device(&self, device: DeviceId) -> Option<DeviceView<'_>> {
        let at = self.index(device)?;
        Some(DeviceView { device: &self.devices[at as usize], bounds: self.tunables.rto_bounds() })
    }
}

impl<'a> DeviceView<'a> {
    /// Shelf and slot.
    pub fn address(&self) -> Address {
        self.device.address
    }

    /// What it told about itself, once it is found.
    pub fn identify(&self) -> Option<&'a Identify> {
        self.device.identity.as_ref()
    }

    /// Whether its flushes can be relied on.
    pub fn durability(&self) -> Durability {
        self.device.durability
    }

    /// Whether a request has gone unanswered for `aoe_silence`.
    pub fn is_silent(&self) -> bool {
        self.device.silent
    }

    /// Messages that the target can queue, as told.
    pub fn buffer_count(&self) -> u16 {
        self.device.buffer_count
    }

    /// Frames under way, over all paths of this initiator.
    pub fn outstanding(&self) -> u32 {
        self.device.paths.iter().map(|path| path.in_flight).sum()
    }

    /// Frames that may be under way, over all initiators.
    pub fn limit(&self) -> u32 {
        self.device.credits.limit()
    }

    /// Frames that wait to be sent again.
    pub fn resending(&self) -> u32 {
        self.device.resend.len()
    }

    /// Requests with sectors that were not sent yet.
    pub fn queued(&self) -> u32 {
        self.device.ready.len()
    }

    /// Writes that wait for an overlapping one, or for closed sectors.
    pub fn held(&self) -> u32 {
        self.device.held.len()
    }

    /// Its paths.
    pub fn paths(&self) -> impl Iterator<Item = PathView> + use<'a> {
        let bounds = self.bounds;
        let known = |path: &&Path| path.state != PathState::Vacant;
        let paths = self.device.paths.iter().filter(known);
        paths.map(move |path| view(path, bounds))
    }
}

fn view(path: &Path, bounds: RtoBounds) -> PathView {
    PathView {
        port: path.port,
        mac: path.mac,
        state: path.state,
        srtt: path.rtt.srtt(),
        rttvar: path.rtt.rttvar(),
        rto: path.rtt.rto(bounds),
        cwnd: path.control.window(),
        ssthresh: path.control.ssthresh(),
        outstanding: path.in_flight,
        payload: path.payload.sectors(),
        taint: path.timeouts,
        counters: path.counters,
    }
}
