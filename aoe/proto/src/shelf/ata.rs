//! Command 0: checks an ATA request, looks for it among those answered before, executes it.
//!
//! The order matters. First whatever makes a request malformed for ever: it gets error 2, and it is not remembered. Then
//! the duplicate cache. Then what may change with time (reservation, MTU, size, read-only): a write refused for one of
//! these is remembered like an executed one, because its sender takes it as ended, and a late copy must not be executed
//! when the reason is gone.

use super::device::{Executed, failed};
use super::duplicates::{Answer, Key};
use super::store::BlockStore;
use super::{Call, Shelf, Verdict};
use crate::wire::{AFlags, AoeError, AtaError, AtaReply, AtaRequest, Direction, Opcode};

/// What kind of command an opcode is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Verify,
    Write,
    Trim,
    Flush,
    Standby,
    Features,
    Identify,
    Other,
    Unknown,
}

impl Kind {
    fn of(opcode: Opcode) -> Kind {
        match opcode {
            _ if opcode.is_read() => Kind::Read,
            _ if opcode.is_write() => Kind::Write,
            _ if opcode.is_flush() => Kind::Flush,
            Opcode::READ_VERIFY | Opcode::READ_VERIFY_EXT => Kind::Verify,
            Opcode::DATA_SET_MANAGEMENT => Kind::Trim,
            Opcode::STANDBY_IMMEDIATE | Opcode::STANDBY | Opcode::SLEEP => Kind::Standby,
            Opcode::SET_FEATURES => Kind::Features,
            Opcode::IDENTIFY => Kind::Identify,
            _ if opcode.direction().is_none() => Kind::Unknown,
            _ => Kind::Other,
        }
    }

    /// Names sectors by registers.
    fn is_addressed(self) -> bool {
        matches!(self, Kind::Read | Kind::Write | Kind::Verify)
    }

    /// A repeat must have the first one's answer: it changed something, or it told a flush's result.
    fn is_remembered(self) -> bool {
        matches!(self, Kind::Write | Kind::Trim | Kind::Flush | Kind::Standby | Kind::Features)
    }

    /// Its reply carries the boot number where the address would be: what was read, written or flushed is to be told from what
    /// another start of the target did.
    fn tells_boot(self) -> bool {
        matches!(self, Kind::Read | Kind::Verify | Kind::Write | Kind::Trim | Kind::Flush)
    }

    /// Changes what is read later.
    fn changes_data(self) -> bool {
        matches!(self, Kind::Write | Kind::Trim)
    }
}

/// The data of a request that can be executed, or `None` if it is malformed.
fn well_formed<'a>(request: &AtaRequest, kind: Kind, rest: &'a [u8]) -> Option<&'a [u8]> {
    let out = request.flags.contains(AFlags::WRITE);
    let direction_ok = request.opcode.direction().is_none_or(|direction| out == (direction == Direction::Out));
    let count_ok = match kind {
        Kind::Identify => request.sectors == 1,
        Kind::Read | Kind::Write | Kind::Verify | Kind::Trim => request.sectors > 0,
        _ => true,
    };
    let width_ok = !kind.is_addressed() || request.flags.contains(AFlags::EXTENDED) == request.opcode.is_extended();
    if !direction_ok || !count_ok || !width_ok {
        return None;
    }
    if matches!(kind, Kind::Write | Kind::Trim) { rest.get(..request.data_len()) } else { Some(&[]) }
}

impl<S: BlockStore> Shelf<S> {
    /// Answers an ATA request to device `index`.
    pub(super) fn answer_ata(&mut self, index: usize, call: &Call<'_>, reply: &mut [u8]) -> Verdict {
        let Ok((request, rest)) = AtaRequest::parse(call.arg) else {
            return Verdict::Refuse(AoeError::ARGUMENT);
        };
        let kind = Kind::of(request.opcode);
        let Some(data) = well_formed(&request, kind, rest) else {
            return Verdict::Refuse(AoeError::ARGUMENT);
        };
        if kind.is_remembered() {
            return self.answer_once(index, call, &request, kind, data, reply);
        }
        match self.refusal(index, call, &request, kind) {
            Some(error) => Verdict::Refuse(error),
            None => {
                let executed = self.execute(index, call, &request, kind, reply);
                self.emit_ata(index, call, kind, executed, reply)
            }
        }
    }

    /// Answers a request whose copies must not be executed again.
    fn answer_once(
        &mut self,
        index: usize,
        call: &Call<'_>,
        request: &AtaRequest,
        kind: Kind,
        data: &[u8],
        reply: &mut [u8],
    ) -> Verdict {
        if kind.changes_data() && call.now < self.config.changes_from {
            self.counters.too_early += 1;
            return Verdict::Silent;
        }
        let device = self.devices[index].config.address;
        let key = Key { tag: call.header.tag, device, request: *request, checksum: crc32c::crc32c(data) };
        let answer = match self.duplicates.find(call.now, &key) {
            Some(answer) => {
                self.devices[index].counters.duplicates += 1;
                answer
            }
            None if !self.duplicates.has_room(call.now) => {
                self.counters.cache_full += 1;
                return Verdict::Silent;
            }
            None => {
                let answer = match self.refusal(index, call, request, kind) {
                    Some(error) => Answer::Refused(error),
                    None => Answer::Done(self.execute_change(index, request, kind, data)),
                };
                self.duplicates.insert(call.now, key, answer);
                answer
            }
        };
        match answer {
            Answer::Refused(error) => Verdict::Refuse(error),
            Answer::Done(registers) => self.emit_ata(index, call, kind, (registers, 0), reply),
        }
    }

    /// Why a well-formed request is refused at this moment.
    fn refusal(&self, index: usize, call: &Call<'_>, request: &AtaRequest, kind: Kind) -> Option<AoeError> {
        if kind != Kind::Identify && self.devices[index].state.reserved_against(call.header.src) {
            return Some(AoeError::RESERVED);
        }
        let carries_data = matches!(kind, Kind::Read | Kind::Write | Kind::Trim);
        (carries_data && request.sectors > call.info.sectors_per_frame()).then_some(AoeError::ARGUMENT)
    }

    /// Executes a command that may be executed again.
    fn execute(
        &mut self,
        index: usize,
        call: &Call<'_>,
        request: &AtaRequest,
        kind: Kind,
        reply: &mut [u8],
    ) -> Executed {
        let identity = self.identity;
        let device = &mut self.devices[index];
        match kind {
            Kind::Read => device.read(request, reply),
            Kind::Verify => device.verify(request, reply),
            Kind::Identify => device.identify(request, identity, call.info.sectors_per_frame(), reply),
            _ => (device.other(request), 0),
        }
    }

    /// Executes a command that must not be executed again.
    fn execute_change(&mut self, index: usize, request: &AtaRequest, kind: Kind, data: &[u8]) -> AtaReply {
        let device = &mut self.devices[index];
        match kind {
            Kind::Write => device.write(request, data),
            Kind::Trim => device.trim(request, data),
            Kind::Flush => device.flush(request),
            Kind::Standby => device.standby(request),
            Kind::Features => device.set_features(request),
            Kind::Read | Kind::Verify | Kind::Identify | Kind::Other | Kind::Unknown => failed(request, AtaError::ABRT),
        }
    }

    /// Puts header and registers in front of the data that are in the reply already.
    fn emit_ata(&mut self, index: usize, call: &Call<'_>, kind: Kind, executed: Executed, reply: &mut [u8]) -> Verdict {
        let (mut registers, len) = executed;
        if kind.tells_boot() {
            registers.lba = AtaReply::boot_number_lba(self.identity.boot);
        }
        let device = &mut self.devices[index];
        if registers.status.is_error() {
            device.counters.ata_errors += 1;
        }
        let header = call.reply_header(device.config.address, None);
        Verdict::Reply(registers.emit(&header, reply) + len)
    }
}
