//! `/etc/etherraid/NAME.toml`: what `run` takes, in a file. Read once, before anything else is done.
//!
//! Names are those of the options. What decides about data that may be lost is no matter for a file: there is no `force`, and no
//! `takeover`. An unknown name, a value of another kind or one that its option would refuse is an error with the file's name and
//! the line; the exit status is 2 then, so that a service manager need not try again.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use raid_core::md::Uuid;
use raid_engine::member::spec::MemberSpec;
use raid_export::nbd::address::Address;
use serde::Deserialize;
use toml::{Spanned, Value};

use super::args::parse_setting;
use crate::groups::CpuList;
use crate::members::parse_member;
use crate::toml_file::{Wrong, from_text, parsed};

/// Where the files are.
const DIRECTORY: &str = "/etc/etherraid";

/// What a file says. See [`Args`](super::args::Args) for each.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) interfaces: Vec<String>,
    pub(super) members: Vec<MemberSpec>,
    pub(super) scan: bool,
    pub(super) uuid: Option<Uuid>,
    pub(super) nbd: Vec<Address>,
    pub(super) readonly: bool,
    pub(super) run: bool,
    pub(super) durable: Vec<MemberSpec>,
    pub(super) member_dir: Vec<PathBuf>,
    pub(super) control: Option<PathBuf>,
    pub(super) sysfs: Option<PathBuf>,
    pub(super) cpus: Option<CpuList>,
    pub(super) sandbox: bool,
    /// KEY=VALUE each.
    pub(super) set: Vec<String>,
}

/// As it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    interfaces: Vec<String>,
    #[serde(default)]
    members: Vec<Spanned<String>>,
    #[serde(default)]
    scan: bool,
    uuid: Option<Spanned<String>>,
    #[serde(default)]
    nbd: Vec<Spanned<String>>,
    #[serde(default)]
    readonly: bool,
    #[serde(default)]
    run: bool,
    #[serde(default)]
    durable: Vec<Spanned<String>>,
    #[serde(default)]
    member_dir: Vec<PathBuf>,
    control: Option<PathBuf>,
    sysfs: Option<PathBuf>,
    cpus: Option<Spanned<String>>,
    #[serde(default = "yes")]
    sandbox: bool,
    #[serde(default)]
    set: BTreeMap<String, Spanned<Value>>,
}

fn yes() -> bool {
    true
}

/// A list of texts that mean something.
fn all<T: FromStr<Err: Display>>(list: Vec<Spanned<String>>) -> Result<Vec<T>, Wrong> {
    list.into_iter().map(parsed).collect()
}

/// A list of members.
fn members(list: Vec<Spanned<String>>) -> Result<Vec<MemberSpec>, Wrong> {
    Ok(all(list)?.into_iter().map(|Member(member)| member).collect())
}

#[derive(Debug)]
struct Member(MemberSpec);

impl FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Member, String> {
        parse_member(text).map(Member)
    }
}

/// The file of an array with this name, whether or not there is one.
pub(super) fn usual(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.toml"))
}

/// Reads a file.
pub(super) fn read(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path).with_context(|| format!("configuration {}", path.display()))?;
    Ok(parse(&text).map_err(|wrong| wrong.usage(path, &text))?)
}

fn parse(text: &str) -> Result<Config, Wrong> {
    let written: Written = from_text(text)?;
    Ok(Config {
        interfaces: written.interfaces,
        members: members(written.members)?,
        scan: written.scan,
        uuid: written.uuid.map(parsed).transpose()?,
        nbd: all(written.nbd)?,
        readonly: written.readonly,
        run: written.run,
        durable: members(written.durable)?,
        member_dir: written.member_dir,
        control: written.control,
        sysfs: written.sysfs,
        cpus: written.cpus.map(parsed).transpose()?,
        sandbox: written.sandbox,
        set: settings(written.set)?,
    })
}

/// The table of tunables as pairs.
fn settings(table: BTreeMap<String, Spanned<Value>>) -> Result<Vec<String>, Wrong> {
    let pair = |(key, value): (String, Spanned<Value>)| {
        let span = Some(value.span());
        let text = match value.into_inner() {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            _ => return Err(Wrong { span, what: format!("{key}: a number or text is needed") }),
        };
        parse_setting(&format!("{key}={text}")).map_err(|what| Wrong { span, what })
    };
    table.into_iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_file::line_of;

    /// The example that is installed.
    const EXAMPLE: &str = include_str!("../../../dist/example.toml");

    #[test]
    fn the_example_is_valid_with_and_without_its_comments() {
        let config = parse(EXAMPLE).expect("valid");
        assert_eq!(config.members.len(), 5);
        assert_eq!(config.interfaces, ["san0"]);
        assert!(config.sandbox && !config.scan && !config.run);
        // Each option that is shown but not used, used. Tables come last in it, so all is where it belongs.
        let shown: String =
            EXAMPLE.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n").collect();
        let config = parse(&shown).expect("valid");
        assert!(config.run && config.readonly && config.uuid.is_some() && config.cpus.is_some() && !config.sandbox);
        assert!(!config.set.is_empty() && !config.member_dir.is_empty());
        assert!(config.control.is_some() && config.sysfs.is_some());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let wrong = |text: &str| {
            let Wrong { span, what } = parse(text).expect_err(text);
            (line_of(text, span.expect(text).start), what)
        };
        for (text, line, words) in [
            ("scan = true\nmemberz = []\n", 2, "unknown field `memberz`"),
            ("scan = true\nforce = true\n", 2, "unknown field `force`"),
            ("nbd = [\n  \"unix:/a\",\n  \"udp:x\",\n]\n", 3, "unix:PATH or tcp:HOST:PORT"),
            ("\nmembers = [\"e1.1\", \"mem:1M\"]\n", 2, "bench and demo"),
            ("\n\nmembers = [\"e1.999\"]\n", 3, "e1.999"),
            ("uuid = \"x\"\n", 1, "is no UUID"),
            ("cpus = \"3-1\"\n", 1, "0,2-3"),
            ("readonly = 1\n", 1, "expected a boolean"),
            ("[set]\nrmw_level = 1\nmember_hold = -1\n", 3, "member_hold takes"),
            ("[set]\nrmv_level = 1\n", 2, "did you mean rmw_level"),
            ("[set]\nrmw_level = true\n", 2, "a number or text"),
            ("scan = true\nscan = true\n", 2, "duplicate key"),
            ("scan = true\ninterfaces = [\"a\"\n", 2, "unclosed array"),
        ] {
            let (found, what) = wrong(text);
            assert!(found == line && what.contains(words), "{text:?}: line {found}: {what}");
        }
    }

    #[test]
    fn settings_are_numbers_or_text() {
        let config = parse("[set]\nmember_hold = 2.5\nrmw_level = 1\nstripe_cache_size = \"512\"\n").expect("valid");
        assert_eq!(config.set, ["member_hold=2.5", "rmw_level=1", "stripe_cache_size=512"]);
    }
}
