//! The wire formats: AoE's common header, its four commands, and IDENTIFY DEVICE data.
//!
//! Called by the initiator, by the shelf, and by tools that print frames. All of it is parse and emit on byte slices:
//! no allocation, no state. Parsing is liberal where peers are known to be sloppy (short or padded frames, version 0
//! in replies, reserved bytes that are not 0) and strict where a count could reach past the frame: a count that says
//! more than the frame holds is an error, never a shorter list. No input panics. Emitting writes into a buffer of the
//! caller's and returns the length; it panics when the buffer is too small, which is a caller's bug.
//!
//! ```text
//!  0      6      12   14       15    16    18   19      20  24
//!  | dst  | src  |88A2|ver|flags|error|shelf|slot|command|tag|  per command ...
//!                                                            24          36
//!  ATA:      aflags feature|error sectors command|status lba[6] 0 0     | data, 512 bytes per sector
//!  config:   buffers(2) firmware(2) sectors version|ccmd length(2)      | string at 32
//!  mask:     0 mcmd merror count                                        | directives of 8 bytes at 28
//!  reserve:  rcmd count                                                 | addresses of 6 bytes at 26
//! ```
//!
//! Header fields are big-endian. LBA bytes are least significant first, and ATA data is little-endian as on a disk.

mod address;
mod ata;
mod config;
mod frame;
mod header;
mod identify;
mod mask;
mod opcode;
mod reserve;

pub use address::{Address, AddressParseError, Lba, MacAddr, Shelf, Slot, Tag};
pub use ata::{AFlags, AtaError, AtaReply, AtaRequest, LbaBytes, Status};
pub use config::{CCmd, ConfigInfo};
pub use frame::{Body, Frame};
pub use header::{AoeError, Command, Header, ParseError, pad};
pub use identify::{AtaString, Identify, IdentifyError, MODEL};
pub use mask::{DCmd, Directive, Directives, MCmd, MError, MaskList};
pub use opcode::{Direction, Opcode};
pub use reserve::{Macs, RCmd, Reserve};

/// EtherType of AoE.
pub const ETHERTYPE: u16 = 0x88A2;
/// Bytes of Ethernet header.
pub const ETH_HEADER: usize = 14;
/// Bytes up to the end of the common AoE header, Ethernet header included.
pub const AOE_HEADER: usize = 24;
/// Bytes up to the end of an ATA message's header: data starts here.
pub const ATA_HEADER: usize = 36;
/// Bytes up to the end of a config message's fixed part: the config string starts here.
pub const CONFIG_HEADER: usize = 32;
/// Bytes up to the end of a mask message's fixed part: directives start here.
pub const MASK_HEADER: usize = 28;
/// Bytes up to the end of a reserve message's fixed part: addresses start here.
pub const RESERVE_HEADER: usize = 26;
/// Smallest Ethernet frame without its check sequence. What we send is padded to it with zeros.
pub const MIN_FRAME: usize = 60;
/// Bytes in a sector. AoE knows no other size.
pub const SECTOR: usize = 512;
/// Longest config string in bytes.
pub const CONFIG_STRING_MAX: usize = 1024;
/// The version of the protocol that we speak.
pub const VERSION: u8 = 1;
/// Sectors per frame of a target whose config reply says 0.
pub const SECTORS_DEFAULT: u8 = 2;
/// First LBA that a 28-bit command cannot name.
pub const LBA28_END: u64 = 1 << 28;
/// First LBA that a 48-bit command cannot name.
pub const LBA48_END: u64 = 1 << 48;

/// Sectors of data that fit into one frame at this MTU (bytes, without the Ethernet header); 0 when none does.
///
/// Every implementation takes the whole 36 bytes of header off the MTU although 14 of them are the Ethernet header,
/// and both ends must agree. At most 255, which is what the count's byte holds.
pub fn sectors_per_frame(mtu: u32) -> u8 {
    let sectors = mtu.saturating_sub(ATA_HEADER as u32) / SECTOR as u32;
    sectors.min(u32::from(u8::MAX)) as u8
}

/// Big-endian 16 bits at `at`; the caller has checked the length.
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests;
