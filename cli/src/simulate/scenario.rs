//! The file of a scenario: links, initiators, shelves. Read and checked whole before anything runs.
//!
//! Names of links, initiators and shelves are the file's own; tunables have the names that they have elsewhere. What is wrong is told with its line.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use aoe_proto::initiator::{DEVICES_MAX, TUNABLES, Tunables};
use aoe_proto::wire::SECTOR;
use raid_engine::member::spec::parse_size;
use serde::Deserialize;
use toml::Spanned;

use crate::toml_file::{Wrong, from_text, parsed};

/// Most hosts of a kind, so that their numbers fit into addresses.
const HOSTS_MAX: usize = 10_000;
/// Most devices of a shelf: slot 255 means all.
const SLOTS_MAX: usize = 255;
/// Most requests that are outstanding per device.
const DEPTH_MAX: usize = 1024;
/// Longest virtual time.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// A scenario that makes sense.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Where all chance comes from.
    pub(super) seed: u64,
    /// Time before anything is counted.
    pub(super) warmup: Duration,
    /// Time that is counted.
    pub(super) runtime: Duration,
    /// Of all initiators.
    pub(super) tunables: Tunables,
    /// One for each host.
    pub(super) initiators: Vec<Initiator>,
    /// One for each host.
    pub(super) shelves: Vec<Shelf>,
}

/// A host with an initiator.
#[derive(Clone, Debug)]
pub(super) struct Initiator {
    pub(super) name: String,
    pub(super) links: Vec<Link>,
    /// Devices as (shelf, slot), each an index from 0.
    pub(super) devices: Vec<(usize, usize)>,
    /// Share of the requests that are reads, in parts per million.
    pub(super) read_ppm: u32,
    /// Sectors of a request.
    pub(super) sectors: u32,
    /// Requests outstanding per device.
    pub(super) depth: usize,
}

/// A host with a shelf.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    pub(super) name: String,
    pub(super) links: Vec<Link>,
    pub(super) devices: usize,
    /// Messages that a device says it can queue.
    pub(super) buffers: u16,
    /// Mean time that each message takes, one after the other: from half of it to one and a half.
    pub(super) service: Duration,
}

/// A port's link to the switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Bits per second, each way.
    pub(super) rate: u64,
    /// Bytes that the switch queues towards the host.
    pub(super) queue: u64,
    /// Bytes that the host queues towards the switch.
    pub(super) host_queue: u64,
    pub(super) delay: Duration,
    pub(super) mtu: usize,
    /// Share of the frames that are lost, each way, in parts per million.
    pub(super) loss_ppm: u32,
    pub(super) flap: Option<Flap>,
}

/// A link that goes down from time to time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flap {
    /// From one time to the next.
    pub(super) every: Duration,
    /// How long it is down each time, less than that.
    pub(super) down: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default = "one")]
    seed: u64,
    #[serde(default)]
    warmup: Option<Spanned<String>>,
    runtime: Spanned<String>,
    #[serde(default)]
    set: BTreeMap<String, Spanned<u64>>,
    link: BTreeMap<String, WrittenLink>,
    initiator: Vec<WrittenInitiator>,
    shelf: Vec<WrittenShelf>,
}

fn one<T: From<u8>>() -> T {
    T::from(1)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLink {
    rate: Spanned<String>,
    queue: Spanned<String>,
    host_queue: Option<Spanned<String>>,
    delay: Spanned<String>,
    mtu: Option<Spanned<u32>>,
    loss: Option<Spanned<f64>>,
    flap: Option<WrittenFlap>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFlap {
    every: Spanned<String>,
    down: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenInitiator {
    name: Spanned<String>,
    count: Option<Spanned<usize>>,
    links: Spanned<Vec<Spanned<String>>>,
    shelves: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    split: bool,
    read: Option<Spanned<f64>>,
    size: Spanned<String>,
    depth: Spanned<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenShelf {
    name: Spanned<String>,
    count: Option<Spanned<usize>>,
    links: Spanned<Vec<Spanned<String>>>,
    devices: Option<Spanned<usize>>,
    buffers: Option<Spanned<u16>>,
    service: Option<Spanned<String>>,
}

/// A time with its unit.
struct Time(Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let fail = || format!("{text:?}: a time has a unit of us, ms or s, as in 200ms, and is no longer than an hour");
        let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(fail)?;
        let per_second = match &text[at..] {
            "us" => 1e6,
            "ms" => 1e3,
            "s" => 1.0,
            _ => return Err(fail()),
        };
        let seconds = text[..at].parse::<f64>().map_err(|_| fail())? / per_second;
        let time = Duration::try_from_secs_f64(seconds).map_err(|_| fail())?;
        if time > TIME_MAX { Err(fail()) } else { Ok(Time(time)) }
    }
}

/// Bits per second.
struct Rate(u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let fail = || format!("{text:?}: a rate is bits per second with K, M or G of powers of 1000, as in 800M");
        let (digits, factor) = match text.char_indices().next_back().ok_or_else(fail)? {
            (at, 'K') => (&text[..at], 1_000),
            (at, 'M') => (&text[..at], 1_000_000),
            (at, 'G') => (&text[..at], 1_000_000_000),
            _ => (text, 1),
        };
        let number: u64 = digits.parse().map_err(|_| fail())?;
        number.checked_mul(factor).filter(|rate| (1_000..=1_000_000_000_000).contains(rate)).map(Rate).ok_or_else(fail)
    }
}

/// Bytes.
struct Size(u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        parse_size(text).map(|bytes| Size(bytes.0)).map_err(|error| error.to_string())
    }
}

/// A number that must be in a range.
fn within<T: PartialOrd + Display + Copy>(value: &Spanned<T>, name: &str, min: T, max: T) -> Result<T, Wrong> {
    let number = *value.get_ref();
    if number >= min && number <= max {
        return Ok(number);
    }
    Err(Wrong::at(value.span(), format!("{name} must be {min} to {max}, not {number}")))
}

/// A share as parts per million.
fn ppm(share: Option<&Spanned<f64>>, name: &str, default: f64) -> Result<u32, Wrong> {
    let share = share.map_or(Ok(default), |share| within(share, name, 0.0, 1.0))?;
    Ok((share * 1e6).round() as u32)
}

/// Reads a scenario; `set` are KEY=VALUE that go before what the file says.
pub(super) fn read(path: &Path, set: &[String]) -> anyhow::Result<Scenario> {
    let text = std::fs::read_to_string(path).with_context(|| format!("scenario {}", path.display()))?;
    let mut scenario = parse(&text).map_err(|wrong| wrong.usage(path, &text))?;
    for pair in set {
        scenario.set(pair).or_else(|what| crate::usage::usage(format!("--set {pair}: {what}")))?;
    }
    Ok(scenario)
}

pub(super) fn parse(text: &str) -> Result<Scenario, Wrong> {
    let written: Written = from_text(text)?;
    let links: BTreeMap<String, Link> =
        written.link.into_iter().map(|(name, link)| Ok((name, link.check()?))).collect::<Result<_, Wrong>>()?;
    let mut shelves = Vec::new();
    let mut of_name: BTreeMap<String, std::ops::Range<usize>> = BTreeMap::new();
    for shelf in written.shelf {
        let (name, from) = (shelf.name.clone(), shelves.len());
        shelves.extend(shelf.check(&links)?);
        if of_name.insert(name.get_ref().clone(), from..shelves.len()).is_some() {
            return Err(Wrong::at(name.span(), "there is a shelf of this name already"));
        }
    }
    let mut initiators = Vec::new();
    for initiator in written.initiator {
        initiators.extend(initiator.check(&links, &shelves, &of_name)?);
    }
    if initiators.is_empty() || initiators.len() > HOSTS_MAX || shelves.len() > HOSTS_MAX {
        let what = format!(
            "there are {} initiators and {} shelves: 1 to {HOSTS_MAX} of each work",
            initiators.len(),
            shelves.len()
        );
        return Err(Wrong { span: None, what });
    }
    let mut tunables = Tunables::default();
    for (name, value) in &written.set {
        set_tunable(&mut tunables, name, *value.get_ref()).map_err(|what| Wrong::at(value.span(), what))?;
    }
    let span = written.runtime.span();
    let Time(runtime) = parsed(written.runtime)?;
    if runtime.is_zero() {
        return Err(Wrong::at(span, "runtime: more than no time"));
    }
    let warmup = written.warmup.map(parsed).transpose()?.map_or(Duration::ZERO, |Time(time)| time);
    Ok(Scenario { seed: written.seed, warmup, runtime, tunables, initiators, shelves })
}

fn set_tunable(tunables: &mut Tunables, name: &str, value: u64) -> Result<(), String> {
    tunables.set(name, value).map_err(|error| match tunables.value(name) {
        Some(_) => error.to_string(),
        None => {
            let names: Vec<&str> = TUNABLES.iter().map(|row| row.name).collect();
            format!("there is no tunable {name}; there are {}", names.join(", "))
        }
    })
}

impl Scenario {
    /// Changes one value, as `--set KEY=VALUE` does.
    pub(super) fn set(&mut self, pair: &str) -> Result<(), String> {
        let (key, value) = pair.split_once('=').ok_or("KEY=VALUE is needed, as in aoe_congestion=1")?;
        match key {
            "seed" => self.seed = value.parse().map_err(|_| "a seed is a whole number")?,
            "warmup" => self.warmup = value.parse::<Time>()?.0,
            "runtime" => {
                self.runtime = value.parse::<Time>()?.0;
                if self.runtime.is_zero() {
                    return Err("more than no time is needed".into());
                }
            }
            name => {
                let value = value.parse().map_err(|_| "a whole number is needed")?;
                set_tunable(&mut self.tunables, name, value)?;
            }
        }
        Ok(())
    }
}

impl WrittenLink {
    fn check(self) -> Result<Link, Wrong> {
        let Rate(rate) = parsed(self.rate)?;
        let Size(queue) = parsed(self.queue)?;
        let host_queue = self.host_queue.map(parsed).transpose()?.map_or(64 << 20, |Size(bytes)| bytes);
        let Time(delay) = parsed(self.delay)?;
        let mtu = self.mtu.map_or(Ok(9000), |mtu| within(&mtu, "mtu", 576, 65536))?;
        let flap = self.flap.map(WrittenFlap::check).transpose()?;
        let loss_ppm = ppm(self.loss.as_ref(), "loss", 0.0)?;
        Ok(Link { rate, queue, host_queue, delay, mtu: mtu as usize, loss_ppm, flap })
    }
}

impl WrittenFlap {
    fn check(self) -> Result<Flap, Wrong> {
        let span = self.down.span();
        let (Time(every), Time(down)) = (parsed(self.every)?, parsed(self.down)?);
        if down.is_zero() || down >= every {
            return Err(Wrong::at(span, "down: more than no time and less than `every`"));
        }
        Ok(Flap { every, down })
    }
}

/// What a list of names stands for.
fn named<T: Clone>(
    list: &Spanned<Vec<Spanned<String>>>,
    what: &str,
    of: &BTreeMap<String, T>,
) -> Result<Vec<T>, Wrong> {
    if list.get_ref().is_empty() {
        return Err(Wrong::at(list.span(), format!("at least one {what} is needed")));
    }
    let one = |name: &Spanned<String>| {
        of.get(name.get_ref()).cloned().ok_or_else(|| {
            let there: Vec<&str> = of.keys().map(String::as_str).collect();
            Wrong::at(name.span(), format!("there is no {what} {:?}; there are {}", name.get_ref(), there.join(", ")))
        })
    };
    list.get_ref().iter().map(one).collect()
}

/// The names of so many hosts.
fn names(name: &Spanned<String>, count: Option<&Spanned<usize>>) -> Result<Vec<String>, Wrong> {
    let count = count.map_or(Ok(1), |count| within(count, "count", 1, HOSTS_MAX))?;
    let name = name.get_ref();
    Ok(if count == 1 { vec![name.clone()] } else { (1..=count).map(|n| format!("{name}{n}")).collect() })
}

impl WrittenShelf {
    fn check(self, links: &BTreeMap<String, Link>) -> Result<Vec<Shelf>, Wrong> {
        let ports = named(&self.links, "link", links)?;
        let devices = self.devices.map_or(Ok(1), |devices| within(&devices, "devices", 1, SLOTS_MAX))?;
        let buffers = self.buffers.map_or(Ok(64), |buffers| within(&buffers, "buffers", 1, u16::MAX))?;
        let service = self.service.map(parsed).transpose()?.map_or(Duration::ZERO, |Time(time)| time);
        let shelf = |name| Shelf { name, links: ports.clone(), devices, buffers, service };
        Ok(names(&self.name, self.count.as_ref())?.into_iter().map(shelf).collect())
    }
}

impl WrittenInitiator {
    fn check(
        self,
        links: &BTreeMap<String, Link>,
        shelves: &[Shelf],
        of_name: &BTreeMap<String, std::ops::Range<usize>>,
    ) -> Result<Vec<Initiator>, Wrong> {
        let ports = named(&self.links, "link", links)?;
        let mine = match &self.shelves {
            Some(list) => named(list, "shelf", of_name)?.into_iter().flatten().collect(),
            None => (0..shelves.len()).collect::<Vec<_>>(),
        };
        let all: Vec<(usize, usize)> =
            mine.iter().flat_map(|&shelf| (0..shelves[shelf].devices).map(move |slot| (shelf, slot))).collect();
        let read_ppm = ppm(self.read.as_ref(), "read", 1.0)?;
        let span = self.size.span();
        let Size(bytes) = parsed(self.size)?;
        if bytes == 0 || bytes % SECTOR as u64 != 0 || bytes > 16 << 20 {
            return Err(Wrong::at(span, "size: a multiple of 512 bytes up to 16M"));
        }
        let depth = within(&self.depth, "depth", 1, DEPTH_MAX)?;
        let names = names(&self.name, self.count.as_ref())?;
        let count = names.len();
        let part = |index: usize| match self.split {
            true => all.iter().copied().skip(index).step_by(count).collect::<Vec<_>>(),
            false => all.clone(),
        };
        let most = part(0).len();
        if most > DEVICES_MAX {
            let what = format!(
                "an initiator has at most {DEVICES_MAX} devices, not {most}: more initiators and `split = true` divide them"
            );
            return Err(Wrong::at(self.name.span(), what));
        }
        let sectors = (bytes / SECTOR as u64) as u32;
        let initiator =
            |(index, name)| Initiator { name, links: ports.clone(), devices: part(index), read_ppm, sectors, depth };
        Ok(names.into_iter().enumerate().map(initiator).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_file::line_of;

    const GOOD: &str = r#"runtime = "1s"
[link.l]
rate = "10G"
queue = "1M"
delay = "5us"
[[initiator]]
name = "a"
count = 2
links = ["l"]
size = "8K"
depth = 4
split = true
[[shelf]]
name = "s"
count = 2
links = ["l"]
devices = 3
"#;

    #[test]
    fn hosts_are_counted_out_and_devices_divided() {
        let scenario = parse(GOOD).expect("valid");
        assert_eq!(scenario.initiators[1].name, "a2");
        assert_eq!(scenario.initiators[1].devices, [(0, 1), (1, 0), (1, 2)]);
        assert_eq!((scenario.shelves.len(), scenario.initiators[0].sectors), (2, 16));
        assert_eq!(scenario.initiators[0].read_ppm, 1_000_000);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (from, to, line, words) in [
            ("10G", "10X", 3, "bits per second"),
            ("\"1M\"", "\"1Q\"", 4, "a size is"),
            ("5us", "5", 5, "us, ms or s"),
            ("[\"l\"]\nsize", "[\"x\"]\nsize", 9, "there is no link \"x\"; there are l"),
            ("[\"l\"]\ndevices", "[]\ndevices", 16, "at least one link"),
            ("8K", "100", 10, "multiple of 512"),
            ("depth = 4", "depth = 0", 11, "depth must be 1 to 1024, not 0"),
            ("devices = 3", "devices = 256", 17, "devices must be 1 to 255"),
            ("devices = 3", "device = 3", 17, "unknown field `device`"),
            ("runtime = \"1s\"", "runtime = \"0s\"", 1, "no time"),
            ("runtime = \"1s\"", "runtime = \"1s\"\nset = { aoe_maxout = 0 }", 2, "aoe_maxout must be 1 to 1024"),
            (
                "runtime = \"1s\"",
                "runtime = \"1s\"\nset = { aoe_max = 1 }",
                2,
                "there is no tunable aoe_max; there are aoe_deadsecs",
            ),
            ("delay = \"5us\"", "delay = \"5us\"\nloss = 1.5", 6, "loss must be 0 to 1"),
            ("delay = \"5us\"", "delay = \"5us\"\nflap = { every = \"1s\", down = \"1s\" }", 6, "less than `every`"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            let Wrong { span, what } = parse(&text).expect_err(to);
            let found = line_of(&text, span.expect(to).start);
            assert!(found == line && what.contains(words), "{to}: line {found}: {what}");
        }
    }

    #[test]
    fn settings_go_before_the_file() {
        let mut scenario = parse(GOOD).expect("valid");
        for pair in ["seed=7", "runtime=20ms", "warmup=1.5ms", "aoe_congestion=1"] {
            scenario.set(pair).expect(pair);
        }
        assert_eq!((scenario.seed, scenario.runtime), (7, Duration::from_millis(20)));
        assert_eq!((scenario.warmup, scenario.tunables.aoe_congestion), (Duration::from_micros(1500), 1));
        for pair in ["seed", "seed=x", "runtime=0s", "aoe_congestion=9", "aoe_x=1", "warmup=2h"] {
            assert!(scenario.set(pair).is_err(), "{pair}");
        }
    }
}
