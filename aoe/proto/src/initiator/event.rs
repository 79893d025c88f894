//! Events: what changed, told once.
//!
//! What is to be told about a device is kept as flags beside its state, so that nothing is lost and nothing grows when
//! nobody polls. Within a device the order is fixed: first what takes trust away (gone, restarted, fenced), then the rest.

use super::Initiator;
use super::device::pending;
use super::path::PathState;
use super::types::{Event, Found, WorkerId};

impl Initiator {
    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(worker) = self.pop_wake() {
            return Some(Event::CreditsFreed { worker });
        }
        while let Some(at) = self.eventful.front().copied() {
            if self.devices[at as usize].open
                && let Some(event) = self.device_event(at)
            {
                return Some(event);
            }
            self.devices[at as usize].eventful = false;
            self.eventful.pop_front();
        }
        self.seen.pop_front().map(Event::Seen)
    }

    fn pop_wake(&mut self) -> Option<WorkerId> {
        let word = self.wakes.iter().position(|bits| *bits != 0)?;
        let bit = self.wakes[word].trailing_zeros();
        self.wakes[word] &= self.wakes[word] - 1;
        Some(WorkerId((word * 64) as u8 + bit as u8))
    }

    /// Notes that a device has `flags` of [`pending`] to tell.
    pub(super) fn tell(&mut self, at: u16, flags: u16) {
        self.devices[at as usize].pending |= flags;
        self.note_events(at);
    }

    /// Notes that a device may have something to tell.
    pub(super) fn note_events(&mut self, at: u16) {
        let device = &mut self.devices[at as usize];
        if device.open && !device.eventful {
            device.eventful = true;
            self.eventful.push_back(at);
        }
    }

    fn device_event(&mut self, at: u16) -> Option<Event> {
        let device = self.device_id(at);
        let state = &mut self.devices[at as usize];
        let flag = state.pending & state.pending.wrapping_neg();
        if flag != 0 {
            state.pending &= !flag;
            let identify = state.identity;
            let event = match flag {
                pending::GONE => Event::Gone { device },
                pending::RESTARTED => Event::Restarted { device, boot: state.boots.newest() },
                pending::FENCED => Event::Fenced { device },
                pending::UNUSABLE => Event::Unusable { device, logical_sector: state.logical_sector },
                pending::CONFLICT => Event::Conflict { device, port: state.conflict.0, mac: state.conflict.1 },
                pending::DURABILITY => Event::DurabilityChanged { device, durability: state.durability },
                pending::FOUND => Event::Found(Found {
                    device,
                    identify: identify.expect("a device that was found has told its identity"),
                    buffer_count: state.buffer_count,
                    sectors_max: state.paths.iter().map(|path| path.payload.ceiling()).max().unwrap_or(0),
                    durability: state.durability,
                }),
                _ => Event::SizeChanged { device, sectors: identify.map_or(0, |identify| identify.sectors) },
            };
            return Some(event);
        }
        if state.silent != state.told_silent {
            state.told_silent = state.silent;
            return Some(match state.silent {
                true => Event::Silent { device },
                false => Event::Answers { device },
            });
        }
        let told_wrong = |path: &&mut super::path::Path| (path.state == PathState::Up) != path.told_up;
        let path = state.paths.iter_mut().find(told_wrong)?;
        path.told_up = path.state == PathState::Up;
        let (port, mac) = (path.port, path.mac);
        Some(match path.told_up {
            true => Event::PathUp { device, port, mac },
            false => Event::PathDown { device, port, mac },
        })
    }
}
