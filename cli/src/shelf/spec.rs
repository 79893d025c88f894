//! `-d SHELF.SLOT=PATH[,ro][,offset=SIZE][,length=SIZE][,direct][,sync]`. Pure.

use std::path::PathBuf;
use std::str::FromStr;

use aoe_net::store::FileOptions;
use aoe_proto::wire::Address;
use raid_engine::member::spec::parse_size;

/// A device to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceSpec {
    pub(super) address: Address,
    pub(super) path: PathBuf,
    pub(super) options: FileOptions,
}

impl FromStr for DeviceSpec {
    type Err = String;

    /// A path may have commas: options are taken from the end as long as they are known.
    fn from_str(text: &str) -> Result<DeviceSpec, String> {
        let form = || format!("{text:?}: a device is SHELF.SLOT=PATH, such as 9.0=/srv/disk0");
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let name = name.strip_prefix('e').unwrap_or(name);
        let address = format!("e{name}").parse().map_err(|error| format!("{name}: {error}"))?;
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
        Ok(DeviceSpec { address, path: path.into(), options })
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
        assert_eq!((plain.address, plain.path), (Address::new(9, 0), "/srv/disk".into()));
        assert_eq!(plain.options, FileOptions::default());
        let all = parse("e9.1=/a,b=c,ro,offset=1M,length=64K,direct,sync").expect("valid");
        assert_eq!((all.address, all.path), (Address::new(9, 1), "/a,b=c".into()));
        let options =
            FileOptions { read_only: true, offset: 1 << 20, length: Some(64 << 10), direct: true, sync: true };
        assert_eq!(all.options, options);
        for text in ["", "9.0", "9.0=", "9.0=,ro", "9=/disk", "70000.0=/disk", "9.255=/disk", "9.0=/d,offset=x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
