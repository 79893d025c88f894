//! What is in the files: md's names, md's words, md's units, a line end after each; and what may be written.
//!
//! Values that can be set by name come from the one table of tunables. Those below only show what the array says of itself, or pass a word on to it.

use raid_core::md::text::level_name;
use raid_engine::array::{ArrayState, CommandError, CommandErrorKind, Detail, DeviceRow, SyncAction};
use raid_engine::runtime::Totals;
use raid_engine::runtime::watch::Changes;
use raid_engine::slab::PAGE;
use raid_engine::tunables::{Tunable, table};

use crate::control::messages;
use crate::run::served::Served;
use crate::tools::mdstat_of;

/// Takes a word that was written.
type Store = fn(&Served, &str) -> Result<(), CommandError>;

/// Takes a member's name and a word that was written.
type DeviceStore = fn(&Served, &str, &str) -> Result<(), CommandError>;

/// Where what a file shows comes from.
#[derive(Clone, Copy)]
enum Show {
    Detail(fn(&Detail) -> String),
    /// What the workers count, besides.
    Totals(fn(&Detail, &Totals) -> String),
}

/// A file of `md/` that is no tunable.
pub(super) struct Attribute {
    pub(super) name: &'static str,
    show: Show,
    /// A file without it cannot be written.
    pub(super) store: Option<Store>,
    /// Counts its changes, for poll(2); others never change as far as poll knows.
    pub(super) count: Option<fn(&Changes) -> u64>,
}

/// A file of a member.
pub(super) struct DeviceAttribute {
    pub(super) name: &'static str,
    show: fn(&DeviceRow) -> String,
    /// A file without it cannot be written.
    pub(super) store: Option<DeviceStore>,
}

const fn shown(name: &'static str, show: fn(&Detail) -> String) -> Attribute {
    Attribute { name, show: Show::Detail(show), store: None, count: None }
}

const fn stored(name: &'static str, show: fn(&Detail) -> String, store: Store) -> Attribute {
    Attribute { name, show: Show::Detail(show), store: Some(store), count: None }
}

const fn polled(name: &'static str, show: fn(&Detail) -> String, count: fn(&Changes) -> u64) -> Attribute {
    Attribute { name, show: Show::Detail(show), store: None, count: Some(count) }
}

const fn of_device(name: &'static str, show: fn(&DeviceRow) -> String) -> DeviceAttribute {
    DeviceAttribute { name, show, store: None }
}

/// Files of `md/`, in the order in which they are listed.
pub(super) static ARRAY: [Attribute; 23] = [
    Attribute {
        store: Some(store_array_state),
        ..polled("array_state", |detail| detail.array_state.to_string(), |changes| changes.array_state)
    },
    shown("array_size", |_| "default".to_owned()),
    shown("chunk_size", |detail| detail.chunk.bytes().0.to_string()),
    shown("component_size", |detail| kib(detail.used_dev_size.0)),
    shown("consistency_policy", |detail| detail.consistency_policy.to_owned()),
    polled("degraded", |detail| detail.degraded.to_string(), |changes| changes.degraded),
    shown("last_sync_action", |detail| detail.last_sync_action.unwrap_or("none").to_owned()),
    shown("layout", |detail| detail.layout.number().to_string()),
    shown("level", |detail| level_name(detail.level)),
    shown("metadata_version", |detail| detail.version.to_string()),
    shown("mismatch_cnt", |detail| detail.mismatch_cnt.to_string()),
    stored("preread_bypass_threshold", |_| PREREAD_BYPASS.to_owned(), store_preread_bypass),
    shown("raid_disks", |detail| detail.raid_devices.to_string()),
    shown("reshape_position", |_| "none".to_owned()),
    shown("resync_start", |detail| detail.resync_start.map_or("none".to_owned(), |at| at.0.to_string())),
    stored("skip_copy", |_| SKIP_COPY.to_owned(), store_skip_copy),
    Attribute { name: "stripe_cache_active", show: Show::Totals(stripes_active), store: None, count: None },
    shown("stripe_size", |_| "4096".to_owned()),
    Attribute {
        name: "sync_action",
        show: Show::Detail(|detail| detail.sync_action.to_owned()),
        store: Some(|served, word| served.action(sync_action(word)?)),
        count: Some(|changes| changes.sync_action),
    },
    shown("sync_completed", sync_completed),
    shown("sync_speed", |detail| detail.sync.map_or("none".to_owned(), |sync| sync.speed.to_string())),
    shown("uuid", |detail| detail.uuid.hyphenated()),
    shown("fenced", |detail| u8::from(detail.fenced).to_string()),
];

/// Files of `md/dev-*/`.
pub(super) static DEVICE: [DeviceAttribute; 5] = [
    DeviceAttribute { name: "state", show: |row| state_words(&row.state), store: Some(change_device) },
    of_device("slot", |row| row.raid_device.map_or("none".to_owned(), |slot| slot.0.to_string())),
    of_device("errors", |row| row.corrected.to_string()),
    of_device("size", |row| kib(row.data_size.0)),
    of_device("offset", |row| row.data_offset.0.to_string()),
];

impl Attribute {
    pub(super) fn text(&self, detail: &Detail, totals: &Totals) -> String {
        let text = match self.show {
            Show::Detail(show) => show(detail),
            Show::Totals(show) => show(detail, totals),
        };
        text + "\n"
    }
}

impl DeviceAttribute {
    pub(super) fn text(&self, row: &DeviceRow) -> String {
        (self.show)(row) + "\n"
    }
}

/// A row of the table of tunables.
pub(super) fn tunable(row: usize) -> Option<Tunable> {
    table().nth(row)
}

/// Whether md's file says besides if the value is the system's.
fn is_speed(name: &str) -> bool {
    matches!(name, "sync_speed_min" | "sync_speed_max")
}

/// What the file of a tunable shows.
pub(super) fn tunable_text(name: &str, value: &str, default: &str) -> String {
    let of_whom = if value == default { "system" } else { "local" };
    if is_speed(name) { format!("{value} ({of_whom})\n") } else { format!("{value}\n") }
}

/// Sets a tunable.
pub(super) fn store_tunable(served: &Served, row: &Tunable, word: &str) -> Result<(), CommandError> {
    let default = row.default_text();
    let value = if is_speed(row.name) && word == "system" { &default } else { word };
    served.tune(&[format!("{}={value}", row.name)]).map(drop)
}

/// What was written, without the line end that echo adds: one word, as md wants it.
pub(super) fn word(data: &[u8]) -> Option<&str> {
    let data = data.strip_suffix(b"\n").unwrap_or(data);
    let text = std::str::from_utf8(data).ok()?;
    (!text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())).then_some(text)
}

/// `/proc/mdstat`, of this array alone.
pub(super) fn mdstat(array: &str, detail: Option<Detail>) -> String {
    mdstat_of(array, detail.map(messages::Detail::from))
}

/// The directory of a member: its name as the kernel would have it, without `/dev/`, and slashes made marks as in `cciss!c0d0`.
pub(super) fn device_dir(member: &str) -> String {
    format!("dev-{}", member.strip_prefix("/dev/").unwrap_or(member).replace('/', "!"))
}

fn kib(sectors: u64) -> String {
    (sectors / 2).to_string()
}

fn sync_completed(detail: &Detail) -> String {
    detail.sync.map_or("none".to_owned(), |sync| format!("{} / {}", sync.done.0, sync.total.0))
}

/// What md's file holds by default. Here no stripe that waits for reads is passed over by full ones, so there is nothing to count.
const PREREAD_BYPASS: &str = "1";

/// The memory of requests is always used as it is.
const SKIP_COPY: &str = "1";

fn store_preread_bypass(_: &Served, word: &str) -> Result<(), CommandError> {
    only(
        word,
        PREREAD_BYPASS,
        "preread_bypass_threshold is always 1: a stripe that waits for reads is not passed over by full ones",
    )
}

fn store_skip_copy(_: &Served, word: &str) -> Result<(), CommandError> {
    only(word, SKIP_COPY, "skip_copy is always 1: parity is computed and data sent from the memory of requests")
}

fn only(word: &str, value: &str, why: &str) -> Result<(), CommandError> {
    if word == value { Ok(()) } else { Err(invalid(format!("{why}, not {word:?}"))) }
}

/// Stripes of 4 KiB a member that the cache's pages in use would make.
fn stripes_active(detail: &Detail, totals: &Totals) -> String {
    totals.cache_bytes.div_ceil(PAGE as u64 * u64::from(detail.raid_devices.max(1))).to_string()
}

fn store_array_state(served: &Served, word: &str) -> Result<(), CommandError> {
    array_state(served.running().detail()?.array_state, word)
}

/// What becomes of a word for `array_state`: the array marks itself active and clean, and serves until it is stopped.
fn array_state(now: ArrayState, word: &str) -> Result<(), CommandError> {
    let busy = |text: &str| Err(CommandError { kind: CommandErrorKind::Busy, text: format!("array_state: {text}") });
    match word {
        "readonly" if now == ArrayState::Readonly => Ok(()),
        "readonly" => busy("clients may write to the array: stop it and run it with --readonly"),
        "active" | "clean" | "read-auto" if now == ArrayState::Readonly => {
            busy("the array was run with --readonly: stop it and run it without")
        }
        "active" | "clean" if matches!(now, ArrayState::Suspended | ArrayState::Broken) => {
            busy("members are silent or lost: it is active again when they are back")
        }
        "active" | "clean" => Ok(()),
        "read-auto" => busy("an array that takes writes does not wait for the first one"),
        "clear" | "inactive" => busy("the array is being served: end it with `etherraid stop NAME`"),
        _ => Err(invalid(format!("array_state takes active, clean or readonly, not {word:?}"))),
    }
}

fn sync_action(word: &str) -> Result<SyncAction, CommandError> {
    match word {
        "check" => Ok(SyncAction::Check),
        "repair" => Ok(SyncAction::Repair),
        "idle" => Ok(SyncAction::Idle),
        "frozen" => Ok(SyncAction::Frozen),
        _ => Err(invalid(format!("sync_action takes check, repair, idle or frozen, not {word:?}"))),
    }
}

fn change_device(served: &Served, member: &str, word: &str) -> Result<(), CommandError> {
    match word {
        "faulty" => served.fail(member),
        "remove" => served.remove(member),
        _ => Err(invalid(format!("state takes faulty or remove, not {word:?}"))),
    }
}

fn invalid(text: String) -> CommandError {
    CommandError { kind: CommandErrorKind::Invalid, text }
}

/// md's words for mdadm's; `silent` and `missing` are ours, after md's.
fn state_words(state: &str) -> String {
    let (plain, silent) = match state.strip_suffix(" silent") {
        Some(plain) => (plain, ",silent"),
        None => (state, ""),
    };
    let word = match plain {
        "active sync" => "in_sync",
        "missing" => "faulty,missing",
        "faulty" => "faulty",
        _ => "spare",
    };
    format!("{word}{silent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_there_twice() {
        let mut names: Vec<&str> = ARRAY.iter().map(|row| row.name).chain(table().map(|row| row.name)).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn words_are_mds() {
        for (state, words) in [
            ("active sync", "in_sync"),
            ("active sync silent", "in_sync,silent"),
            ("spare rebuilding", "spare"),
            ("spare rebuilding silent", "spare,silent"),
            ("spare", "spare"),
            ("faulty", "faulty"),
            ("missing", "faulty,missing"),
        ] {
            assert_eq!(state_words(state), words);
        }
        assert_eq!(sync_action("frozen"), Ok(SyncAction::Frozen));
        for other in ["resync", "recover", "reshape", "Check", ""] {
            assert_eq!(sync_action(other).expect_err(other).kind, CommandErrorKind::Invalid);
        }
    }

    #[test]
    fn the_state_is_written_where_it_can_be() {
        use CommandErrorKind::{Busy, Invalid};
        for (now, word, kind) in [
            (ArrayState::Active, "clean", None),
            (ArrayState::Clean, "active", None),
            (ArrayState::Clean, "readonly", Some(Busy)),
            (ArrayState::Clean, "read-auto", Some(Busy)),
            (ArrayState::Readonly, "readonly", None),
            (ArrayState::Readonly, "active", Some(Busy)),
            (ArrayState::Suspended, "active", Some(Busy)),
            (ArrayState::Active, "inactive", Some(Busy)),
            (ArrayState::Active, "clear", Some(Busy)),
            (ArrayState::Active, "suspended", Some(Invalid)),
            (ArrayState::Active, "x", Some(Invalid)),
        ] {
            assert_eq!(array_state(now, word).err().map(|error| error.kind), kind, "{now} {word}");
        }
    }

    #[test]
    fn what_is_always_so_takes_its_value_alone() {
        assert_eq!(only("1", SKIP_COPY, "always 1"), Ok(()));
        assert_eq!(only("0", SKIP_COPY, "always 1"), Err(invalid("always 1, not \"0\"".into())));
    }

    #[test]
    fn what_is_written_is_one_word() {
        assert_eq!(word(b"8\n"), Some("8"));
        assert_eq!(word(b"check"), Some("check"));
        for bad in [&b""[..], b"\n", b" 8\n", b"8 \n", b"8\n\n", b"8\0", b"\xff\n", b"a b"] {
            assert_eq!(word(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn speeds_say_whose_they_are() {
        assert_eq!(tunable_text("sync_speed_min", "1000", "1000"), "1000 (system)\n");
        assert_eq!(tunable_text("sync_speed_max", "5000", "200000"), "5000 (local)\n");
        assert_eq!(tunable_text("rmw_level", "1", "1"), "1\n");
    }

    #[test]
    fn directories_are_named_as_the_kernel_does() {
        assert_eq!(device_dir("/dev/sda"), "dev-sda");
        assert_eq!(device_dir("/dev/mapper/x"), "dev-mapper!x");
        assert_eq!(device_dir("/srv/disks/a"), "dev-!srv!disks!a");
        assert_eq!(device_dir("e9.0"), "dev-e9.0");
    }
}
