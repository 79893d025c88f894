//! Command 3: reserve and release a target for a set of MAC addresses.

use super::{AOE_HEADER, Header, MacAddr, ParseError, RESERVE_HEADER};

/// What a reserve message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RCmd(pub u8);

impl RCmd {
    /// Read the list.
    pub const READ: RCmd = RCmd(0);
    /// Set the list, if it is empty or the sender is on it. An empty list releases.
    pub const SET: RCmd = RCmd(1);
    /// Set the list whoever holds it.
    pub const FORCE_SET: RCmd = RCmd(2);
}

/// Bytes of a MAC address.
const MAC: usize = 6;

/// The addresses of a received message, decoded as they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macs<'a>(&'a [[u8; MAC]]);

impl<'a> Macs<'a> {
    /// The addresses in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = MacAddr> + use<'a> {
        self.0.iter().map(|&mac| MacAddr(mac))
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

/// A reserve message as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve<'a> {
    /// What is asked for.
    pub rcmd: RCmd,
    /// Who may use the target.
    pub macs: Macs<'a>,
}

impl<'a> Reserve<'a> {
    /// The message; surplus bytes are padding.
    pub fn parse(arg: &'a [u8]) -> Result<Reserve<'a>, ParseError> {
        const FIXED: usize = RESERVE_HEADER - AOE_HEADER;
        let Some((raw, rest)) = arg.split_first_chunk::<FIXED>() else {
            return Err(ParseError::Short);
        };
        let (macs, _) = rest.as_chunks::<MAC>();
        let macs = macs.get(..usize::from(raw[1])).ok_or(ParseError::Count)?;
        Ok(Reserve { rcmd: RCmd(raw[0]), macs: Macs(macs) })
    }

    /// Writes a whole message and returns its length, unpadded. At most 255 addresses.
    pub fn emit(header: &Header, rcmd: RCmd, macs: impl ExactSizeIterator<Item = MacAddr>, buf: &mut [u8]) -> usize {
        header.emit(buf);
        buf[24] = rcmd.0;
        buf[25] = u8::try_from(macs.len()).expect("a reserve message has at most 255 addresses");
        let mut end = RESERVE_HEADER;
        for mac in macs {
            buf[end..end + MAC].copy_from_slice(&mac.0);
            end += MAC;
        }
        end
    }
}
