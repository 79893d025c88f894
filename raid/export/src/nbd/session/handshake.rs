//! The handshake half of a session: client flags and options, until EXPORT_NAME or GO starts transmission.
//!
//! Called by [`Session::poll`]. An option is looked at once its data have come whole; longer ones than [`MAX_OPTION_DATA`] are
//! swallowed and answered with ERR_TOO_BIG. Replies are appended to the session's output, and no option is looked at
//! while more than [`MAX_OUTPUT`] bytes of it have not left: so output is bounded by that and one option's replies, under 10 KiB.

use super::{BASE_ALLOCATION_ID, CloseReason, Event, MAX_OPTION_DATA, MAX_OPTION_SWALLOW, MAX_OPTIONS, Phase, Session};
use crate::nbd::proto::{
    BASE_ALLOCATION, BASE_NAMESPACE, EXPORT_NAME_PADDING, Headers, InfoRequest, MAX_PAYLOAD, MetaRequest, OptionHead,
    client_flag, info, option, option_reply, option_reply_type as reply_type,
};

/// Unsent output at which no further option is looked at.
pub(super) const MAX_OUTPUT: usize = 16 << 10;

impl Session {
    /// One step of the handshake; `None` when there may be another.
    pub(super) fn poll_handshake(&mut self) -> Option<Event> {
        if self.output.len() > MAX_OUTPUT {
            return Some(Event::Full);
        }
        match self.phase {
            Phase::ClientFlags => self.client_flags(),
            Phase::OptionHead => self.option_head(),
            Phase::OptionData(head) => {
                let len = head.len as usize;
                if self.end - self.start < len {
                    return Some(Event::Read);
                }
                // Taken out for the call; the replies that it appends never touch it.
                let input = std::mem::take(&mut self.input);
                self.phase = Phase::OptionHead;
                self.option(head.code, &input[self.start..self.start + len]);
                self.input = input;
                self.start += len;
                None
            }
            Phase::OptionSwallow { code, left } => {
                let left = self.swallow(left);
                if left > 0 {
                    self.phase = Phase::OptionSwallow { code, left };
                    return Some(Event::Read);
                }
                self.phase = Phase::OptionHead;
                self.answer(code, reply_type::ERR_TOO_BIG, &[]);
                None
            }
            phase => unreachable!("{phase:?} is not of the handshake"),
        }
    }

    fn client_flags(&mut self) -> Option<Event> {
        let Some(bytes) = self.peek::<4>() else {
            return Some(Event::Read);
        };
        self.start += 4;
        let flags = u32::from_be_bytes(bytes);
        if flags & !(client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES) != 0 {
            self.close(CloseReason::ClientFlags(flags));
            return None;
        }
        self.fixed = flags & client_flag::FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & client_flag::NO_ZEROES != 0;
        self.phase = Phase::OptionHead;
        None
    }

    fn option_head(&mut self) -> Option<Event> {
        let Some(bytes) = self.peek::<{ OptionHead::LEN }>() else {
            return Some(Event::Read);
        };
        self.start += OptionHead::LEN;
        let head = match OptionHead::parse(&bytes) {
            Ok(head) => head,
            Err(magic) => {
                self.close(CloseReason::BadMagic(magic));
                return None;
            }
        };
        self.options += 1;
        // Plain newstyle knows EXPORT_NAME alone, and has no way to refuse anything else.
        if self.options > MAX_OPTIONS || (!self.fixed && head.code != option::EXPORT_NAME) {
            self.close(CloseReason::OptionOutOfTurn);
        } else if head.len as usize <= MAX_OPTION_DATA {
            self.phase = Phase::OptionData(head);
        } else if head.len > MAX_OPTION_SWALLOW || head.code == option::EXPORT_NAME {
            self.close(CloseReason::OptionLength(head.len));
        } else {
            self.phase = Phase::OptionSwallow { code: head.code, left: head.len };
        }
        None
    }

    fn option(&mut self, code: u32, data: &[u8]) {
        match code {
            option::EXPORT_NAME => self.export_name(data),
            option::ABORT => {
                self.answer(code, reply_type::ACK, &[]);
                self.close(CloseReason::Abort);
            }
            option::LIST if data.is_empty() => {
                let name = self.export.name.as_bytes();
                // ExportInfo::check bounds the name.
                let len = (name.len() as u32).to_be_bytes();
                option_reply(&mut self.output, code, reply_type::SERVER, &[&len, name]);
                self.answer(code, reply_type::ACK, &[]);
            }
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS if data.is_empty() => self.headers(code),
            option::INFO | option::GO => self.info(code, data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(code, data),
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                self.answer(code, reply_type::ERR_INVALID, &[]);
            }
            _ => self.answer(code, reply_type::ERR_UNSUP, &[]),
        }
    }

    fn answer(&mut self, code: u32, reply_type: u32, parts: &[&[u8]]) {
        option_reply(&mut self.output, code, reply_type, parts);
    }

    fn headers(&mut self, code: u32) {
        self.headers = match (code, self.headers) {
            (option::EXTENDED_HEADERS, _) => Headers::Extended,
            (_, Headers::Extended) => return self.answer(code, reply_type::ERR_EXT_HEADER_REQD, &[]),
            _ => Headers::Structured,
        };
        self.answer(code, reply_type::ACK, &[]);
    }

    fn meta_context(&mut self, code: u32, data: &[u8]) {
        let sets = code == option::SET_META_CONTEXT;
        if sets {
            // What was chosen before counts no more, even when this choice fails.
            self.allocation = false;
        }
        let Some(request) = MetaRequest::parse(data).filter(|_| self.headers != Headers::Simple) else {
            self.answer(code, reply_type::ERR_INVALID, &[]);
            return;
        };
        if !self.is_export(request.name) {
            self.answer(code, reply_type::ERR_UNKNOWN, &[]);
            return;
        }
        let named = request.queries().any(|query| query == BASE_ALLOCATION);
        // A list without a query, or of the namespace, is of everything; a choice names what it chooses.
        let all = request.queries().next().is_none() || request.queries().any(|query| query == BASE_NAMESPACE);
        if named || (all && !sets) {
            let id = if sets { BASE_ALLOCATION_ID } else { 0 };
            self.answer(code, reply_type::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION]);
        }
        if sets {
            self.allocation = named;
        }
        self.answer(code, reply_type::ACK, &[]);
    }

    fn is_export(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.name.as_bytes()
    }

    fn start_transmission(&mut self) {
        self.phase = Phase::Started;
        self.lookahead = self.heads_ahead();
    }

    fn export_name(&mut self, name: &[u8]) {
        if !self.is_export(name) {
            self.close(CloseReason::UnknownExport);
            return;
        }
        if self.headers == Headers::Extended {
            // The protocol forbids it, and has no error reply.
            self.close(CloseReason::OptionOutOfTurn);
            return;
        }
        self.output.extend_from_slice(&self.export.size_bytes.to_be_bytes());
        self.output.extend_from_slice(&self.transmission_flags().to_be_bytes());
        if !self.no_zeroes {
            self.output.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        self.start_transmission();
    }

    fn info(&mut self, code: u32, data: &[u8]) {
        let Some(request) = InfoRequest::parse(data) else {
            self.answer(code, reply_type::ERR_INVALID, &[]);
            return;
        };
        if !self.is_export(request.name) {
            self.answer(code, reply_type::ERR_UNKNOWN, &[]);
            return;
        }
        let size = self.export.size_bytes.to_be_bytes();
        let flags = self.transmission_flags().to_be_bytes();
        let export = &self.export;
        let out = &mut self.output;
        let mut tell = |info: u16, parts: [&[u8]; 3]| {
            option_reply(out, code, reply_type::INFO, &[&info.to_be_bytes(), parts[0], parts[1], parts[2]]);
        };
        tell(info::EXPORT, [&size, &flags, &[]]);
        // Told unasked too: a client that knows of block sizes should keep to them.
        let (min, preferred) = (export.min_block.to_be_bytes(), export.preferred_block.to_be_bytes());
        tell(info::BLOCK_SIZE, [&min, &preferred, &MAX_PAYLOAD.to_be_bytes()]);
        if request.wants(info::NAME) {
            tell(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if request.wants(info::DESCRIPTION) {
            tell(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        self.answer(code, reply_type::ACK, &[]);
        if code == option::GO {
            self.start_transmission();
        }
    }
}
