//! How users name members: `e<shelf>.<slot>`, a path, `mem:SIZE`; and sizes.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use aoe_proto::wire::Address;
use raid_core::units::{Bytes, Sectors};

/// A member as the user names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberSpec {
    /// An AoE device.
    Aoe(Address),
    /// Memory of this process.
    Memory(Sectors),
    /// A file or block device.
    Path(PathBuf),
}

/// A member name or size that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {why}")]
pub struct SpecError {
    text: String,
    why: &'static str,
}

/// A size with an optional suffix K, M, G or T (powers of 1024).
pub fn parse_size(text: &str) -> Result<Bytes, SpecError> {
    let fail = |why| SpecError { text: text.to_owned(), why };
    let shift = match text.bytes().last().map(|b| b.to_ascii_uppercase()) {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(fail("a size is a whole number with K, M, G, T or nothing after it, such as 64K"));
    }
    let number: u64 = digits.parse().map_err(|_| fail("a size is less than 2^64 bytes"))?;
    number.checked_mul(1 << shift).map(Bytes).ok_or_else(|| fail("a size is less than 2^64 bytes"))
}

impl FromStr for MemberSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<MemberSpec, SpecError> {
        let fail = |why| SpecError { text: text.to_owned(), why };
        if let Some(size) = text.strip_prefix("mem:") {
            let sectors = parse_size(size)?.sectors_within();
            return match sectors.0 {
                0 => Err(fail("a memory member has at least one sector")),
                _ => Ok(MemberSpec::Memory(sectors)),
            };
        }
        let aoe = text.strip_prefix('e').is_some_and(|rest| {
            rest.split_once('.').is_some_and(|(a, b)| {
                let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
                digits(a) && digits(b)
            })
        });
        if aoe {
            let address = text.parse().map_err(|_| fail("a shelf is 0 to 65534 and a slot 0 to 254, as in e9.0"))?;
            return Ok(MemberSpec::Aoe(address));
        }
        if text.is_empty() {
            return Err(fail("a member is e<shelf>.<slot>, a path, or mem:SIZE"));
        }
        Ok(MemberSpec::Path(PathBuf::from(text)))
    }
}

impl fmt::Display for MemberSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberSpec::Aoe(address) => address.fmt(f),
            MemberSpec::Memory(sectors) => write!(f, "mem:{}", sectors.bytes()),
            MemberSpec::Path(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [("0", 0), ("512", 512), ("64K", 65536), ("64k", 65536), ("1M", 1 << 20), ("2T", 2 << 40)]
        {
            assert_eq!(parse_size(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "1KB", "99999999T", "18446744073709551616", " 1"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn members() {
        let parse = |text: &str| text.parse::<MemberSpec>();
        assert_eq!(parse("mem:1M"), Ok(MemberSpec::Memory(Sectors(2048))));
        assert!(matches!(parse("e9.0"), Ok(MemberSpec::Aoe(_))));
        assert_eq!(parse("e9.0").expect("valid").to_string(), "e9.0");
        assert_eq!(parse("./e9.0"), Ok(MemberSpec::Path("./e9.0".into())));
        assert_eq!(parse("ex.img"), Ok(MemberSpec::Path("ex.img".into())));
        for text in ["", "mem:", "mem:0", "mem:1X", "e65535.0", "e1.255", "e70000.1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
