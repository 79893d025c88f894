//! Commands 1 to 3: config string, mask list, reservation.
//!
//! Each handler checks everything first, so a refused message has changed nothing. A message that changes the device's
//! state says so, and the shell saves the state before the reply leaves.

use super::device::Device;
use super::state::{MASK_MAX, RESERVE_MAX};
use super::{Call, Verdict};
use crate::wire::{
    AoeError, CCmd, CONFIG_HEADER, ConfigInfo, DCmd, Directive, MASK_HEADER, MCmd, MError, MacAddr, MaskList, RCmd,
    RESERVE_HEADER, Reserve,
};

/// The reply is built: did the state change on the way?
fn replied(len: usize, changed: bool) -> Verdict {
    if changed { Verdict::Changed(len) } else { Verdict::Reply(len) }
}

impl<S> Device<S> {
    /// Answers a config message; `firmware` goes into the reply.
    pub(super) fn answer_config(&mut self, call: &Call<'_>, firmware: u16, reply: &mut [u8]) -> Verdict {
        let Ok(request) = ConfigInfo::parse(call.arg) else {
            return Verdict::Refuse(AoeError::ARGUMENT);
        };
        let current = &self.state.config;
        let set = match request.ccmd {
            CCmd::READ => false,
            CCmd::TEST if current == request.string => false,
            CCmd::TEST_PREFIX if current.starts_with(request.string) => false,
            CCmd::TEST | CCmd::TEST_PREFIX => return Verdict::Silent,
            CCmd::SET if current.is_empty() || current == request.string => true,
            CCmd::SET => return Verdict::Refuse(AoeError::CONFIG_PRESENT),
            CCmd::FORCE_SET => true,
            _ => return Verdict::Refuse(AoeError::ARGUMENT),
        };
        let len = if set { request.string.len() } else { current.len() };
        if !call.fits(CONFIG_HEADER + len) {
            return Verdict::Refuse(AoeError::ARGUMENT);
        }
        let changed = set && current != request.string;
        if changed {
            self.before.clone_from(&self.state);
            self.state.config.clear();
            self.state.config.extend_from_slice(request.string);
        }
        replied(self.emit_config(call, firmware, request.ccmd, reply), changed)
    }

    /// Writes a config reply or a beacon.
    pub(super) fn emit_config(&self, call: &Call<'_>, firmware: u16, ccmd: CCmd, reply: &mut [u8]) -> usize {
        let header = call.reply_header(self.config.address, None);
        let sectors = call.info.sectors_per_frame();
        ConfigInfo::reply(self.config.buffer_count, firmware, sectors, ccmd, &self.state.config).emit(&header, reply)
    }

    /// Answers a mask message.
    pub(super) fn answer_mask(&mut self, call: &Call<'_>, reply: &mut [u8]) -> Verdict {
        let Ok(request) = MaskList::parse(call.arg, false) else {
            return Verdict::Refuse(AoeError::ARGUMENT);
        };
        let header = call.reply_header(self.config.address, None);
        let mut changed = false;
        match request.mcmd {
            MCmd::READ => {}
            MCmd::EDIT => {
                // The longest list that this edit could leave must fit into a reply.
                let longest = (self.state.mask.len() + request.directives.len()).min(MASK_MAX);
                if !call.fits(MASK_HEADER + 8 * longest) {
                    return Verdict::Refuse(AoeError::ARGUMENT);
                }
                self.before.clone_from(&self.state);
                let stopped = self.edit_mask(request.directives.iter());
                changed = self.state.mask != self.before.mask;
                if let Err((merror, done)) = stopped {
                    return replied(MaskList::emit_stopped(&header, merror, done, reply), changed);
                }
            }
            _ => return Verdict::Refuse(AoeError::ARGUMENT),
        }
        if !call.fits(MASK_HEADER + 8 * self.state.mask.len()) {
            return Verdict::Refuse(AoeError::ARGUMENT);
        }
        let list = self.state.mask.iter().map(|&mac| Directive { dcmd: DCmd::NONE, mac });
        replied(MaskList::emit(&header, request.mcmd, list, reply), changed)
    }

    /// Applies directives in order; the first that fails ends it, and says how many were done.
    fn edit_mask(&mut self, directives: impl Iterator<Item = Directive>) -> Result<(), (MError, u8)> {
        let mask = &mut self.state.mask;
        // A message has at most 255 directives, so their number fits into the reply's byte.
        for (done, Directive { dcmd, mac }) in (0..=u8::MAX).zip(directives) {
            match dcmd {
                DCmd::NONE => {}
                DCmd::ADD if mask.contains(&mac) => {}
                DCmd::ADD if mask.len() >= MASK_MAX => return Err((MError::LIST_FULL, done)),
                DCmd::ADD => mask.push(mac),
                DCmd::DELETE => mask.retain(|other| *other != mac),
                _ => return Err((MError::BAD_DIRECTIVE, done)),
            }
        }
        Ok(())
    }

    /// Answers a reserve message.
    pub(super) fn answer_reserve(&mut self, call: &Call<'_>, reply: &mut [u8]) -> Verdict {
        let Ok(request) = Reserve::parse(call.arg) else {
            return Verdict::Refuse(AoeError::ARGUMENT);
        };
        let set = match request.rcmd {
            RCmd::READ => false,
            RCmd::SET if self.state.reserved_against(call.header.src) => {
                return Verdict::Refuse(AoeError::RESERVED);
            }
            RCmd::SET | RCmd::FORCE_SET => true,
            _ => return Verdict::Refuse(AoeError::ARGUMENT),
        };
        let len = if set { request.macs.len() } else { self.state.reserve.len() };
        if len > RESERVE_MAX || !call.fits(RESERVE_HEADER + 6 * len) {
            return Verdict::Refuse(AoeError::ARGUMENT);
        }
        let changed = set && !request.macs.iter().eq(self.state.reserve.iter().copied());
        if changed {
            self.before.clone_from(&self.state);
            self.state.reserve.clear();
            self.state.reserve.extend(request.macs.iter());
        }
        let header = call.reply_header(self.config.address, None);
        let macs = self.state.reserve.iter().copied();
        replied(Reserve::emit(&header, request.rcmd, macs, reply), changed)
    }

    /// Who gets a beacon: everyone by broadcast, or each address on the mask list by itself.
    pub(super) fn beacon_to(&self, index: usize) -> Option<MacAddr> {
        match (self.state.mask.is_empty(), index) {
            (true, 0) => Some(MacAddr::BROADCAST),
            (true, _) => None,
            (false, _) => self.state.mask.get(index).copied(),
        }
    }
}
