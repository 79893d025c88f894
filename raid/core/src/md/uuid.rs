//! UUIDs of arrays and members: 16 bytes that md spells in two ways.

use core::fmt;
use core::str::FromStr;

/// The UUID of an array or of a member. Printed as mdadm does: `5ae26f9f:4b514173:38f751d9:725e3338`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The spelling of md's sysfs file `uuid`: `5ae26f9f-4b51-4173-38f7-51d9725e3338`.
    pub fn hyphenated(self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if index > 0 && index % 4 == 0 {
                f.write_str(":")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A text that is no UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no UUID: 32 hexadecimal digits, as 5ae26f9f:4b514173:38f751d9:725e3338")]
pub struct InvalidUuid(String);

impl FromStr for Uuid {
    type Err = InvalidUuid;

    /// Takes 32 hexadecimal digits, with colons, hyphens, dots or blanks anywhere between them, as mdadm does.
    fn from_str(text: &str) -> Result<Self, InvalidUuid> {
        let invalid = || InvalidUuid(text.to_owned());
        let mut bytes = [0; 16];
        let mut digits = 0;
        for char in text.chars().filter(|char| !matches!(char, ':' | '-' | '.' | ' ')) {
            let digit = char.to_digit(16).ok_or_else(invalid)?;
            let byte: &mut u8 = bytes.get_mut(digits / 2).ok_or_else(invalid)?;
            *byte = *byte << 4 | digit as u8;
            digits += 1;
        }
        if digits == 32 { Ok(Self(bytes)) } else { Err(invalid()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings() {
        let text = "5ae26f9f:4b514173:38f751d9:725e3338";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!(uuid.0[..4], [0x5a, 0xe2, 0x6f, 0x9f]);
        assert_eq!(uuid.hyphenated(), "5ae26f9f-4b51-4173-38f7-51d9725e3338");
        assert_eq!(uuid.hyphenated().parse(), Ok(uuid));
        assert_eq!("5AE26F9F4b51417338f751d9725e3338".parse(), Ok(uuid));
    }

    #[test]
    fn refusals() {
        for text in ["", "5ae26f9f", "5ae26f9f:4b514173:38f751d9:725e333g", "5ae26f9f:4b514173:38f751d9:725e33381"] {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }
}
