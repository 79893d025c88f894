//! Command 2: the list of MAC addresses that a target listens to.

use super::{AOE_HEADER, Header, MASK_HEADER, MacAddr, ParseError};

/// What a mask message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MCmd(pub u8);

impl MCmd {
    /// Read the list.
    pub const READ: MCmd = MCmd(0);
    /// Apply the directives to the list.
    pub const EDIT: MCmd = MCmd(1);
}

/// Why an edit stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MError(pub u8);

impl MError {
    /// It did not.
    pub const NONE: MError = MError(0);
    /// No reason given.
    pub const UNSPECIFIED: MError = MError(1);
    /// A directive with an unknown DCmd.
    pub const BAD_DIRECTIVE: MError = MError(2);
    /// The list is full.
    pub const LIST_FULL: MError = MError(3);
}

/// What a directive does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DCmd(pub u8);

impl DCmd {
    /// Nothing; also the value in replies.
    pub const NONE: DCmd = DCmd(0);
    /// Add the address.
    pub const ADD: DCmd = DCmd(1);
    /// Delete the address.
    pub const DELETE: DCmd = DCmd(2);
}

/// One entry of a mask message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directive {
    /// What to do.
    pub dcmd: DCmd,
    /// The address to do it with.
    pub mac: MacAddr,
}

/// Bytes of a directive on the wire: one reserved, the DCmd, the address.
const DIRECTIVE: usize = 8;

/// The directives of a received message, decoded as they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directives<'a>(&'a [[u8; DIRECTIVE]]);

impl<'a> Directives<'a> {
    /// The directives in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Directive> + use<'a> {
        self.0
            .iter()
            .map(|&[_, dcmd, a, b, c, d, e, f]| Directive { dcmd: DCmd(dcmd), mac: MacAddr([a, b, c, d, e, f]) })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A mask message as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskList<'a> {
    /// What is asked for.
    pub mcmd: MCmd,
    /// In a reply: why the edit stopped.
    pub merror: MError,
    /// Directives in the message; in a reply whose `merror` is set, directives that were done.
    pub count: u8,
    /// The directives; none in a reply whose `merror` is set.
    pub directives: Directives<'a>,
}

impl<'a> MaskList<'a> {
    /// The message; surplus bytes are padding.
    pub fn parse(arg: &'a [u8], response: bool) -> Result<MaskList<'a>, ParseError> {
        const FIXED: usize = MASK_HEADER - AOE_HEADER;
        let Some((raw, rest)) = arg.split_first_chunk::<FIXED>() else {
            return Err(ParseError::Short);
        };
        let merror = MError(raw[2]);
        let carried = if response && merror != MError::NONE { 0 } else { usize::from(raw[3]) };
        let (directives, _) = rest.as_chunks::<DIRECTIVE>();
        Ok(MaskList {
            mcmd: MCmd(raw[1]),
            merror,
            count: raw[3],
            directives: Directives(directives.get(..carried).ok_or(ParseError::Count)?),
        })
    }

    /// Writes a message that carries `directives` and returns its length, unpadded. At most 255 of them.
    pub fn emit(
        header: &Header,
        mcmd: MCmd,
        directives: impl ExactSizeIterator<Item = Directive>,
        buf: &mut [u8],
    ) -> usize {
        let count = u8::try_from(directives.len()).expect("a mask message has at most 255 directives");
        emit_fixed(header, mcmd, MError::NONE, count, buf);
        let mut end = MASK_HEADER;
        for directive in directives {
            buf[end] = 0;
            buf[end + 1] = directive.dcmd.0;
            buf[end + 2..end + DIRECTIVE].copy_from_slice(&directive.mac.0);
            end += DIRECTIVE;
        }
        end
    }

    /// Writes the reply to an edit that stopped after `done` directives and returns its length, unpadded.
    pub fn emit_stopped(header: &Header, merror: MError, done: u8, buf: &mut [u8]) -> usize {
        emit_fixed(header, MCmd::EDIT, merror, done, buf);
        MASK_HEADER
    }
}

fn emit_fixed(header: &Header, mcmd: MCmd, merror: MError, count: u8, buf: &mut [u8]) {
    header.emit(buf);
    buf[24] = 0;
    buf[25] = mcmd.0;
    buf[26] = merror.0;
    buf[27] = count;
}
