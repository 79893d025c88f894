//! `-d SHELF.SLOT=PATH[,ro][,offset=SIZE][,length=SIZE][,direct][,sync]`, or `-d SHELF.SLOT=null:SIZE`. Pure.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use aoe_net::store::FileOptions;
use aoe_proto::wire::Address;
use raid_core::units::{Bytes, SECTOR_SIZE};
use raid_engine::member::spec::parse_size;

/// A device to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceSpec {
    pub(super) address: Address,
    pub(super) medium: Medium,
}

/// What a device is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// A file or block device.
    File(PathBuf, FileOptions),
    /// Nothing: writes behind the first MiB are forgotten, reads are zeros.
    Null(Bytes),
}

impl Medium {
    /// How a file is to be opened; nothing needs no options.
    pub(super) fn options(&self) -> FileOptions {
        match self {
            Medium::File(_, options) => *options,
            Medium::Null(_) => FileOptions::default(),
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Medium::File(path, _) => write!(f, "{}", path.display()),
            Medium::Null(size) => write!(f, "null:{}", size.0),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = String;

    /// A path may have commas: options are taken from the end as long as they are known.
    fn from_str(text: &str) -> Result<DeviceSpec, String> {
        let form = || format!("{text:?}: a device is SHELF.SLOT=PATH, such as 9.0=/srv/disk0");
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let name = name.strip_prefix('e').unwrap_or(name);
        let address = format!("e{name}").parse().map_err(|error| format!("{name}: {error}"))?;
        if let Some(size) = rest.strip_prefix("null:") {
            let bytes = parse_size(size).map_err(|error| format!("{rest}: {error}"))?;
            if bytes.0 == 0 || !bytes.0.is_multiple_of(SECTOR_SIZE) {
                return Err(format!(
                    "{rest}: a size is a multiple of {SECTOR_SIZE} bytes; a file of that name is ./{rest}"
                ));
            }
            return Ok(DeviceSpec { address, medium: Medium::Null(bytes) });
        }
        let mut options = FileOptions::default();
        let mut path = rest;
        while let Some((before, option)) = path.rsplit_once(',') {
            if !set(&mut options, option)? {
                break;
            }
            path = before;
        }
        if path.is_empty() {
            return Err(form());
        }
        Ok(DeviceSpec { address, medium: Medium::File(path.into(), options) })
    }
}

/// Sets an option; false if it is none.
fn set(options: &mut FileOptions, option: &str) -> Result<bool, String> {
    let size = |value: &str| parse_size(value).map(|bytes| bytes.0).map_err(|error| format!("{option}: {error}"));
    match option.split_once('=') {
        None if option == "ro" => options.read_only = true,
        None if option == "direct" => options.direct = true,
        None if option == "sync" => options.sync = true,
        Some(("offset", value)) => options.offset = size(value)?,
        Some(("length", value)) => options.length = Some(size(value)?),
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices() {
        let parse = |text: &str| text.parse::<DeviceSpec>();
        let plain = parse("9.0=/srv/disk").expect("valid");
        assert_eq!(plain.address, Address::new(9, 0));
        assert_eq!(plain.medium, Medium::File("/srv/disk".into(), FileOptions::default()));
        let all = parse("e9.1=/a,b=c,ro,offset=1M,length=64K,direct,sync").expect("valid");
        let options =
            FileOptions { read_only: true, offset: 1 << 20, length: Some(64 << 10), direct: true, sync: true };
        assert_eq!((all.address, all.medium), (Address::new(9, 1), Medium::File("/a,b=c".into(), options)));
        let null = parse("9.2=null:1G").expect("valid");
        assert_eq!(null.medium, Medium::Null(Bytes(1 << 30)));
        assert_eq!(null.medium.to_string(), "null:1073741824");
        for text in [
            "",
            "9.0",
            "9.0=",
            "9.0=,ro",
            "9=/disk",
            "70000.0=/disk",
            "9.255=/disk",
            "9.0=/d,offset=x",
            "9.0=null:",
            "9.0=null:7",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
