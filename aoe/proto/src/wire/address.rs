//! Names on the wire: MAC addresses, shelf and slot, tags, sector addresses.
//!
//! Plain values, used by everything else. `Display` and `FromStr` are inverse to each other, which is what command
//! lines and logs rely on.

use core::fmt;
use core::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations.
    pub const BROADCAST: MacAddr = MacAddr([0xFF; 6]);

    /// Whether this names a group of stations, the broadcast address included.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not a MAC address or a shelf.slot address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressParseError {
    /// Not six pairs of hexadecimal digits.
    #[error("a MAC address is six pairs of hexadecimal digits, as in 02:00:00:00:00:01")]
    Mac,
    /// Not `e<shelf>.<slot>` with a shelf up to 65534 and a slot up to 254.
    #[error("an AoE address is e<shelf>.<slot> with a shelf of 0 to 65534 and a slot of 0 to 254, as in e7.0")]
    Address,
}

impl FromStr for MacAddr {
    type Err = AddressParseError;

    /// Accepts `02:00:00:00:00:01`, with `-` for `:`, or twelve digits without separator (vblade's `-m` takes those).
    fn from_str(text: &str) -> Result<MacAddr, AddressParseError> {
        let mut mac = [0u8; 6];
        let bytes = text.as_bytes();
        let step = match bytes.len() {
            12 => 2,
            17 => 3,
            _ => return Err(AddressParseError::Mac),
        };
        for (index, octet) in mac.iter_mut().enumerate() {
            let at = index * step;
            if step == 3 && index > 0 && !matches!(bytes[at - 1], b':' | b'-') {
                return Err(AddressParseError::Mac);
            }
            *octet = hex_digit(bytes[at])? << 4 | hex_digit(bytes[at + 1])?;
        }
        Ok(MacAddr(mac))
    }
}

/// Value of one hexadecimal digit.
fn hex_digit(digit: u8) -> Result<u8, AddressParseError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(AddressParseError::Mac),
    }
}

/// A shelf's number ("major").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shelf(pub u16);

impl Shelf {
    /// Every shelf.
    pub const ALL: Shelf = Shelf(0xFFFF);
}

/// A slot's number in its shelf ("minor").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Slot(pub u8);

impl Slot {
    /// Every slot.
    pub const ALL: Slot = Slot(0xFF);
}

/// The name of a device: shelf and slot, printed `e7.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address {
    /// The shelf.
    pub shelf: Shelf,
    /// The slot in it.
    pub slot: Slot,
}

impl Address {
    /// Every device: what discovery asks for.
    pub const ALL: Address = Address { shelf: Shelf::ALL, slot: Slot::ALL };

    /// The device `e<shelf>.<slot>`.
    pub const fn new(shelf: u16, slot: u8) -> Address {
        Address { shelf: Shelf(shelf), slot: Slot(slot) }
    }

    /// Whether the shelf or the slot is a wildcard. No device may have such an address.
    pub fn is_wildcard(self) -> bool {
        self.shelf == Shelf::ALL || self.slot == Slot::ALL
    }

    /// Whether a message sent to `self`, wildcards allowed, is meant for the device `other`.
    pub fn covers(self, other: Address) -> bool {
        (self.shelf == Shelf::ALL || self.shelf == other.shelf) && (self.slot == Slot::ALL || self.slot == other.slot)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}.{}", self.shelf.0, self.slot.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Address {
    type Err = AddressParseError;

    fn from_str(text: &str) -> Result<Address, AddressParseError> {
        let rest = text.strip_prefix('e').ok_or(AddressParseError::Address)?;
        let (shelf, slot) = rest.split_once('.').ok_or(AddressParseError::Address)?;
        if !is_decimal(shelf) || !is_decimal(slot) {
            return Err(AddressParseError::Address);
        }
        let shelf = shelf.parse().map_err(|_| AddressParseError::Address)?;
        let slot = slot.parse().map_err(|_| AddressParseError::Address)?;
        let address = Address::new(shelf, slot);
        if address.is_wildcard() {
            return Err(AddressParseError::Address);
        }
        Ok(address)
    }
}

/// Digits only: `u16::from_str` would let a sign through.
fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// What ties a reply to its request. Targets copy it and look no further; 0 marks an unsolicited reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag(pub u32);

impl Tag {
    /// The tag of unsolicited replies ("beacons").
    pub const UNSOLICITED: Tag = Tag(0);
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({:#010x})", self.0)
    }
}

/// A sector's address on a device, in sectors of 512 bytes. The wire carries 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lba(pub u64);
