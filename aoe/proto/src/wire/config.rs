//! Command 1: query config information, which is also how targets are discovered and announce themselves.

use super::{AOE_HEADER, CONFIG_HEADER, CONFIG_STRING_MAX, Header, ParseError, SECTORS_DEFAULT, VERSION, be16};

/// What a config message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CCmd(pub u8);

impl CCmd {
    /// Read the config string.
    pub const READ: CCmd = CCmd(0);
    /// Answer only if the string is exactly this one.
    pub const TEST: CCmd = CCmd(1);
    /// Answer only if the string starts with this one.
    pub const TEST_PREFIX: CCmd = CCmd(2);
    /// Set the string if there is none.
    pub const SET: CCmd = CCmd(3);
    /// Set the string whatever there is.
    pub const FORCE_SET: CCmd = CCmd(4);
}

/// A config message; the first four fields are 0 in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigInfo<'a> {
    /// Messages that the target can queue; beyond that it may drop.
    pub buffer_count: u16,
    /// The target's firmware version.
    pub firmware: u16,
    /// Most sectors in one ATA message; 0 means [`SECTORS_DEFAULT`].
    pub sectors: u8,
    /// Version of the protocol, 4 bits; 0 in requests of most initiators.
    pub version: u8,
    /// What is asked for.
    pub ccmd: CCmd,
    /// The config string: opaque bytes, at most [`CONFIG_STRING_MAX`].
    pub string: &'a [u8],
}

impl<'a> ConfigInfo<'a> {
    /// A request.
    pub fn request(ccmd: CCmd, string: &'a [u8]) -> ConfigInfo<'a> {
        ConfigInfo { buffer_count: 0, firmware: 0, sectors: 0, version: 0, ccmd, string }
    }

    /// A reply by a target that speaks our version.
    pub fn reply(buffer_count: u16, firmware: u16, sectors: u8, ccmd: CCmd, string: &'a [u8]) -> ConfigInfo<'a> {
        ConfigInfo { buffer_count, firmware, sectors, version: VERSION, ccmd, string }
    }

    /// Most sectors in one ATA message, with the meaning of 0 applied.
    pub fn sectors_max(&self) -> u8 {
        if self.sectors == 0 { SECTORS_DEFAULT } else { self.sectors }
    }

    /// The message; surplus bytes are padding.
    pub fn parse(arg: &'a [u8]) -> Result<ConfigInfo<'a>, ParseError> {
        const FIXED: usize = CONFIG_HEADER - AOE_HEADER;
        let Some((raw, rest)) = arg.split_first_chunk::<FIXED>() else {
            return Err(ParseError::Short);
        };
        let len = usize::from(be16(raw, 6));
        if len > CONFIG_STRING_MAX {
            return Err(ParseError::Count);
        }
        Ok(ConfigInfo {
            buffer_count: be16(raw, 0),
            firmware: be16(raw, 2),
            sectors: raw[4],
            version: raw[5] >> 4,
            ccmd: CCmd(raw[5] & 0x0F),
            string: rest.get(..len).ok_or(ParseError::Count)?,
        })
    }

    /// Writes the whole message and returns its length, unpadded.
    pub fn emit(&self, header: &Header, buf: &mut [u8]) -> usize {
        assert!(self.string.len() <= CONFIG_STRING_MAX, "a config string has at most 1024 bytes");
        header.emit(buf);
        buf[24..26].copy_from_slice(&self.buffer_count.to_be_bytes());
        buf[26..28].copy_from_slice(&self.firmware.to_be_bytes());
        buf[28] = self.sectors;
        buf[29] = self.version << 4 | self.ccmd.0 & 0x0F;
        buf[30..32].copy_from_slice(&(self.string.len() as u16).to_be_bytes());
        let end = CONFIG_HEADER + self.string.len();
        buf[CONFIG_HEADER..end].copy_from_slice(self.string);
        end
    }
}
