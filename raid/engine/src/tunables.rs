//! The one table of tunables: name, unit, default, range, when a value takes effect, and a line of doc.
//!
//! `--set` and everything else that reads or writes a tunable by name goes through [`Settings::set`] and [`Settings::get`]. md's and the aoe
//! driver's names are kept. The initiator's rows come from its own table. A value that is refused changes nothing.

use std::time::Duration;

use aoe_proto::initiator::{TUNABLES as AOE, Tunables as AoeTunables};
use raid_core::plan::RmwLevel;

use crate::array::Tunables as ArrayTunables;

/// Most workers per group, whatever the CPUs.
const GROUP_THREAD_CNT_MAX: u64 = 64;

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of the array's life cycle.
    pub array: ArrayTunables,
    /// Of the initiators.
    pub aoe: AoeTunables,
    /// Stripes of 4 KiB per member in the cache, over all workers.
    pub stripe_cache_size: usize,
    /// Workers per group; 0: one thread for all stripes.
    pub group_thread_cnt: usize,
    /// What has a group.
    pub worker_group: WorkerGroup,
    /// How long a thread with nothing to do looks for work before it sleeps, at most.
    pub poll_spin: Duration,
}

/// What has a worker group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerGroup {
    /// Each CPU has one.
    #[default]
    Cpu,
    /// The CPUs of a NUMA node share one.
    Node,
}

/// Words for [`WorkerGroup`], in its order.
const WORKER_GROUPS: &[&str] = &["cpu", "node"];

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            array: ArrayTunables::default(),
            aoe: AoeTunables::default(),
            stripe_cache_size: 256,
            group_thread_cnt: 1,
            worker_group: WorkerGroup::Cpu,
            poll_spin: Duration::from_micros(50),
        }
    }
}

/// What kind of value a tunable has, and its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// A whole number.
    Number {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// Seconds with up to three decimals.
    Seconds {
        /// Largest, in milliseconds; the smallest is 0.
        max_ms: u64,
    },
    /// One of a few words.
    Word(&'static [&'static str]),
}

/// When a new value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once.
    AtOnce,
    /// Once work under way has ended. Refused while members are silent, or the array is suspended.
    Drained,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// Its name.
    pub name: &'static str,
    /// Unit of the value.
    pub unit: &'static str,
    /// Its values.
    pub range: Range,
    /// When a new value takes effect.
    pub when: When,
    /// One line of meaning.
    pub doc: &'static str,
    field: Field,
}

/// Where a row's value is kept.
#[derive(Clone, Copy, Debug)]
enum Field {
    Number(fn(&mut Settings) -> NumberField<'_>),
    Aoe,
}

/// A value in its own type.
enum NumberField<'a> {
    Plain(&'a mut u64),
    Size(&'a mut usize),
    Time(&'a mut Duration),
    Micros(&'a mut Duration),
    Group(&'a mut WorkerGroup),
    Rmw(&'a mut RmwLevel),
}

const fn row(
    name: &'static str,
    unit: &'static str,
    range: Range,
    when: When,
    field: fn(&mut Settings) -> NumberField<'_>,
    doc: &'static str,
) -> Tunable {
    Tunable { name, unit, range, when, doc, field: Field::Number(field) }
}

const fn number(min: u64, max: u64) -> Range {
    Range::Number { min, max }
}

/// The engine's rows; the initiator's are in its own table.
static ENGINE: &[Tunable] = &[
    row(
        "stripe_cache_size",
        "stripes",
        number(17, 32768),
        When::Drained,
        |s| NumberField::Size(&mut s.stripe_cache_size),
        "Size of the stripe cache: so many pages of 4 KiB per member, over all workers.",
    ),
    row(
        "group_thread_cnt",
        "threads",
        number(0, GROUP_THREAD_CNT_MAX),
        When::Drained,
        |s| NumberField::Size(&mut s.group_thread_cnt),
        "Workers per group, two per CPU in all at most; 0: one thread for all stripes.",
    ),
    row(
        "worker_group",
        "group",
        Range::Word(WORKER_GROUPS),
        When::Drained,
        |s| NumberField::Group(&mut s.worker_group),
        "What has a group of workers: each CPU, or each NUMA node.",
    ),
    row(
        "poll_spin",
        "us",
        number(0, 1000),
        When::AtOnce,
        |s| NumberField::Micros(&mut s.poll_spin),
        "How long a thread with nothing to do looks for work before it sleeps, where waits were that short of late; 0: not at all.",
    ),
    row(
        "rmw_level",
        "level",
        number(0, 2),
        When::AtOnce,
        |s| NumberField::Rmw(&mut s.array.rmw_level),
        "Read-modify-write: 0 never, 1 when it reads less than reconstruct-write, 2 also when it reads as much.",
    ),
    row(
        "member_hold",
        "s",
        Range::Seconds { max_ms: 86_400_000 },
        When::AtOnce,
        |s| NumberField::Time(&mut s.array.member_hold),
        "How long a silent member is waited for before it counts as missing; 0: for ever.",
    ),
    row(
        "safe_mode_delay",
        "s",
        Range::Seconds { max_ms: 86_400_000 },
        When::AtOnce,
        |s| NumberField::Time(&mut s.array.safe_mode_delay),
        "How long without writes until the array is marked clean; 0: never while it runs.",
    ),
    row(
        "volatile_window",
        "s",
        Range::Seconds { max_ms: 86_400_000 },
        When::AtOnce,
        |s| NumberField::Time(&mut s.array.volatile_window),
        "How long a volatile member may take to store what it acknowledged; takes the place of a shorter safe_mode_delay.",
    ),
    row(
        "sync_speed_min",
        "KiB/s",
        number(0, u64::MAX >> 10),
        When::AtOnce,
        |s| NumberField::Plain(&mut s.array.sync_speed_min),
        "What resync and recovery may use of each member although clients are busy.",
    ),
    row(
        "sync_speed_max",
        "KiB/s",
        number(0, u64::MAX >> 10),
        When::AtOnce,
        |s| NumberField::Plain(&mut s.array.sync_speed_max),
        "What resync and recovery use of each member at most; 0: no limit.",
    ),
];

/// Why a setting was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// No such tunable.
    #[error("there is no tunable {name:?}; did you mean {nearest}?")]
    Unknown {
        /// What was given.
        name: String,
        /// The one most like it.
        nearest: &'static str,
    },
    /// Not `KEY=VALUE`.
    #[error("{0:?}: a setting is KEY=VALUE, such as stripe_cache_size=2048")]
    Form(String),
    /// Not a value of the tunable.
    #[error("{name}={value}: {name} takes {range}")]
    Value {
        /// The tunable.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        range: String,
    },
}

/// The whole table, in the order in which it is shown.
pub fn table() -> impl Iterator<Item = Tunable> {
    let aoe = AOE.iter().map(|row| Tunable {
        name: row.name,
        unit: row.unit,
        range: number(row.min, row.max),
        when: When::AtOnce,
        doc: row.doc,
        field: Field::Aoe,
    });
    ENGINE.iter().copied().chain(aoe)
}

impl Tunable {
    /// Its range in words.
    pub fn range_text(&self) -> String {
        match self.range {
            Range::Number { min, max } => format!("a whole number from {min} to {max} ({})", self.unit),
            Range::Seconds { max_ms } => format!("seconds from 0 to {}, with up to three decimals", max_ms / 1000),
            Range::Word(words) => words.join(" or "),
        }
    }

    /// Its value unless set, as [`Settings::get`] shows it.
    pub fn default_text(&self) -> String {
        Settings::default().get(self.name).expect("a row of the table")
    }

    fn parse(&self, value: &str) -> Option<u64> {
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        match self.range {
            Range::Number { min, max } => {
                let number = value.parse().ok().filter(|_| digits(value))?;
                (min..=max).contains(&number).then_some(number)
            }
            Range::Seconds { max_ms } => {
                let (whole, part) = value.split_once('.').unwrap_or((value, "0"));
                if !digits(whole) || !digits(part) || part.len() > 3 {
                    return None;
                }
                let part: u64 = format!("{part:0<3}").parse().ok()?;
                let ms = whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part)?;
                (ms <= max_ms).then_some(ms)
            }
            Range::Word(words) => words.iter().position(|word| *word == value).map(|at| at as u64),
        }
    }
}

impl Settings {
    /// Sets `KEY=VALUE`.
    pub fn set_pair(&mut self, pair: &str) -> Result<(), SetError> {
        let (name, value) = pair.split_once('=').ok_or_else(|| SetError::Form(pair.to_owned()))?;
        self.set(name.trim(), value.trim())
    }

    /// Sets a tunable by name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        let row = find(name)?;
        let refused = || SetError::Value { name: row.name, value: value.to_owned(), range: row.range_text() };
        let number = row.parse(value).ok_or_else(refused)?;
        match row.field {
            Field::Aoe => self.aoe.set(row.name, number).map_err(|_| refused())?,
            Field::Number(field) => match field(self) {
                NumberField::Plain(to) => *to = number,
                NumberField::Size(to) => *to = number as usize,
                NumberField::Time(to) => *to = Duration::from_millis(number),
                NumberField::Micros(to) => *to = Duration::from_micros(number),
                NumberField::Group(to) => {
                    *to = if number == WorkerGroup::Node as u64 { WorkerGroup::Node } else { WorkerGroup::Cpu };
                }
                NumberField::Rmw(to) => *to = RmwLevel::from_number(number).ok_or_else(refused)?,
            },
        }
        Ok(())
    }

    /// The value of a tunable as it is shown.
    pub fn get(&self, name: &str) -> Result<String, SetError> {
        let row = find(name)?;
        let Field::Number(field) = row.field else {
            return Ok(self.aoe.value(row.name).expect("a row of the initiator's own table").to_string());
        };
        Ok(match field(&mut self.clone()) {
            NumberField::Plain(value) => value.to_string(),
            NumberField::Size(value) => value.to_string(),
            NumberField::Time(value) => format!("{}.{:03}", value.as_secs(), value.subsec_millis()),
            NumberField::Micros(value) => value.as_micros().to_string(),
            NumberField::Group(value) => WORKER_GROUPS[*value as usize].to_owned(),
            NumberField::Rmw(value) => value.number().to_string(),
        })
    }
}

fn find(name: &str) -> Result<Tunable, SetError> {
    let nearest = || table().max_by_key(|row| likeness(row.name, name)).map_or("", |row| row.name);
    table().find(|row| row.name == name).ok_or_else(|| SetError::Unknown { name: name.to_owned(), nearest: nearest() })
}

/// How many letter pairs two names share.
fn likeness(a: &str, b: &str) -> usize {
    let pairs = |s: &str| s.as_bytes().windows(2).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let b = pairs(b);
    pairs(a).iter().filter(|pair| b.contains(pair)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_takes_its_bounds_and_nothing_beyond() {
        for row in table() {
            let mut settings = Settings::default();
            let (low, high, beyond) = match row.range {
                Range::Number { min, max } => (min.to_string(), max.to_string(), format!("{}0", max.max(1))),
                Range::Seconds { max_ms } => ("0".into(), (max_ms / 1000).to_string(), (max_ms / 1000 + 1).to_string()),
                Range::Word(words) => (words[0].into(), words[words.len() - 1].into(), "0".into()),
            };
            for value in [low, high] {
                settings.set(row.name, &value).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(settings.get(row.name).expect("known").trim_end_matches(".000"), value);
            }
            let before = settings.clone();
            for bad in [beyond.as_str(), "", "-1", "x", "1e3", "0x10", "+1"] {
                let error = settings.set(row.name, bad).expect_err(bad);
                assert!(error.to_string().contains(row.name), "{error}");
                assert_eq!(settings, before, "a refused value changes nothing");
            }
        }
    }

    #[test]
    fn seconds_have_up_to_three_decimals() {
        let mut settings = Settings::default();
        settings.set_pair("safe_mode_delay=0.25").expect("valid");
        assert_eq!(settings.array.safe_mode_delay, Duration::from_millis(250));
        assert_eq!(settings.get("safe_mode_delay"), Ok("0.250".into()));
        assert!(settings.set_pair("safe_mode_delay=0.2500").is_err());
        settings.set_pair("member_hold=3").expect("valid");
        assert_eq!(settings.array.member_hold, Duration::from_secs(3));
    }

    #[test]
    fn an_unknown_name_is_told_the_nearest() {
        let error = Settings::default().set_pair("stripe_cash_size=1").expect_err("unknown");
        assert!(error.to_string().contains("stripe_cache_size"), "{error}");
        assert!(matches!(Settings::default().set_pair("stripe_cache_size"), Err(SetError::Form(_))));
    }
}
