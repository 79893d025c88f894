//! What scripts under the kernel share: shell functions, names of disks, and lines by which a script reports to its test.
//!
//! A script reports with `say KEY VALUE`; [`Reports`] finds the value by its key. Scripts stop at the first command that fails.

use super::Outcome;
use std::path::{Path, PathBuf};

/// Marks the lines of `say` on the console.
const MARK: &str = "@ ";
/// What the kernel's disk driver takes, less one that it keeps for its own.
const MAX_DISKS: usize = 15;

/// Functions that come before each script.
const FUNCTIONS: &str = r#"
set -eu

# say KEY VALUE: reports to the test. A line of its own, whatever was on the console before.
say() { key=$1; shift; printf '\n@ %s %s\n' "$key" "$*"; }

# sum KEY DEVICE: reports its SHA-256, read past the page cache.
sum() { say "$1" "$(dd if="$2" bs=1M iflag=direct status=none | sha256sum | cut -d' ' -f1)"; }

# put SOURCE DEVICE OFFSET LENGTH: copies that range of bytes, past the page cache, and flushes.
put() {
    dd if="$1" of="$2" skip="$3" seek="$3" count="$4" bs=64K \
        iflag=skip_bytes,count_bytes oflag=seek_bytes,direct conv=notrunc,fsync status=none
}

# md: makes md ready; resync as fast as it can.
md() {
    modprobe raid456
    echo 10000000 > /proc/sys/dev/raid/speed_limit_min
    echo 10000000 > /proc/sys/dev/raid/speed_limit_max
}

# assemble MD DEVICE..: and makes it writable, which md else does at the first write: no resync or recovery starts before.
assemble() {
    md=/dev/$1; shift
    mdadm -A "$md" "$@"
    mdadm --readwrite "$md"
}

# idle MD: waits for the end of resync, recovery or check.
idle() { while [ "$(cat "/sys/block/$1/md/sync_action")" != idle ]; do sleep 0.1; done; }

# whole MD: waits until all members are in sync. A recovery is idle a moment before its member counts.
whole() { while [ "$(cat "/sys/block/$1/md/degraded")" != 0 ]; do sleep 0.1; done; idle "$1"; }

# syncing MD: waits until a resync or recovery has done something.
syncing() { while ! grep -q '^[1-9]' "/sys/block/$1/md/sync_completed"; do sleep 0.05; done; }

# slow MD: lets resync and recovery of this array only creep, as from the kernel's smallest limit.
slow() { echo 1 > "/sys/block/$1/md/sync_speed_min"; echo 1000 > "/sys/block/$1/md/sync_speed_max"; }

# slots MD NUMBER: reports the state of the member in each slot, `-` where there is none.
slots() {
    states=
    for slot in $(seq 0 $(($2 - 1))); do
        states="$states $(cat "/sys/block/$1/md/rd$slot/state" 2>/dev/null || echo -)"
    done
    say "$1.slots" $states
}

# facts MD: reports what md thinks of the array.
facts() {
    for fact in level layout raid_disks chunk_size metadata_version array_state degraded last_sync_action; do
        say "$1.$fact" "$(cat "/sys/block/$1/md/$fact")"
    done
    say "$1.sectors" "$(cat "/sys/block/$1/size")"
}

# check MD: reports how many sectors of parity are wrong.
check() {
    echo check > "/sys/block/$1/md/sync_action"
    idle "$1"
    say "$1.mismatch_cnt" "$(cat "/sys/block/$1/md/mismatch_cnt")"
}

# load DEVICE NAME OPTION..: writes all of it in random order, and fails unless all of it reads back.
load() {
    device=$1; shift
    fio --name=load --filename="$device" --ioengine=libaio --direct=1 --iodepth=16 --rw=randwrite --verify=crc32c \
        --verify_fatal=1 --verify_state_save=0 --randrepeat=1 --output=/run/fio "$@" || { cat /run/fio; exit 1; }
}

# tree DEVICE: makes a file system, copies a tree of many files to it, and holds every file against the original after
# fsck and a fresh mount.
tree() {
    mkfs.ext4 -q -F "$1"
    mkdir -p /run/disk
    mount -t ext4 "$1" /run/disk
    cp -a /usr/share /run/disk/
    (cd /usr/share && find . -type f -print0 | sort -z | xargs -0 sha256sum) > /run/sums
    sync
    umount /run/disk
    fsck.ext4 -fn "$1"
    echo 3 > /proc/sys/vm/drop_caches
    mount -t ext4 -o ro "$1" /run/disk
    (cd /run/disk/share && sha256sum --quiet -c /run/sums)
    diff -r --no-dereference /usr/share /run/disk/share
    umount /run/disk
    say files "$(wc -l < /run/sums)"
}

# aoe DEVICE..: loads the driver, waits for these devices, and bounds what it does at once: of large frames the socket that is its
# network holds 16, and it receives what it sends, too. A frame lost early would wait for its first timeout, which is 16 seconds. Its
# window is MAXOUT.
aoe() {
    modprobe aoe aoe_maxout="${MAXOUT:-8}"
    for device; do
        while [ ! -b "/dev/etherd/$device" ]; do aoe-discover; sleep 0.1; done
        while [ "$(cat "/sys/block/etherd!$device/state")" != up ]; do sleep 0.1; done
    done
    for device; do in_hand "$device"; done
}

# in_hand DEVICE: at most 272 frames in hand. The driver has 512: a reply frees its frame only when a thread gets to it, and when
# the last reply comes while all are taken, nothing makes the driver go on, towards any target, until one more request comes. A
# request that was merged has a frame for each of its parts.
in_hand() {
    queue="/sys/block/etherd!$1/queue"
    echo 2 > "$queue/nomerges"
    echo 16 > "$queue/nr_requests"
    echo $((16 * $(cat "/sys/block/etherd!$1/payload") / 1024)) > "$queue/max_sectors_kb"
}
"#;

/// `body` with the functions before it.
pub fn script(body: &str) -> String {
    format!("{FUNCTIONS}\n{body}\n")
}

/// Script lines that copy ranges of bytes, each an offset and a length, from one device to another.
pub fn puts(source: &str, to: &str, ranges: &[(u64, u64)]) -> String {
    ranges.iter().map(|(offset, len)| format!("put {source} {to} {offset} {len}\n")).collect()
}

/// The disks of a job, and how the script calls them.
#[derive(Debug, Default)]
pub struct Disks<'a> {
    paths: Vec<&'a Path>,
}

impl<'a> Disks<'a> {
    /// Adds a disk, and returns its device.
    pub fn one(&mut self, file: &'a Path) -> String {
        assert!(self.paths.len() < MAX_DISKS, "the kernel takes {MAX_DISKS} disks");
        self.paths.push(file);
        // The first letter is the kernel's own.
        let letter = char::from(b'a' + u8::try_from(self.paths.len()).expect("fewer than 26"));
        format!("/dev/ubd{letter}")
    }

    /// Adds disks, and returns their devices with spaces between.
    pub fn all(&mut self, files: &'a [PathBuf]) -> String {
        let devices: Vec<String> = files.iter().map(|file| self.one(file)).collect();
        devices.join(" ")
    }

    /// In order, as a job takes them.
    pub fn paths(&self) -> &[&'a Path] {
        &self.paths
    }
}

/// What a script said.
#[derive(Debug)]
pub struct Reports {
    output: String,
}

impl Outcome {
    /// What the script said. Panics with the output unless it ended with status 0.
    pub fn reports(self) -> Reports {
        Reports { output: self.ok() }
    }

    /// What the script had said when the kernel died. Panics with the output when the script came to its end.
    pub fn reports_before_death(self) -> Reports {
        assert_eq!(self.status, None, "the script came to its end:\n{}", self.output);
        Reports { output: self.output }
    }
}

impl Reports {
    /// All values of `key`, in the order they were said.
    pub fn all<'s>(&'s self, key: &str) -> Vec<&'s str> {
        let lines = self.output.lines().filter_map(|line| line.strip_prefix(MARK));
        let pairs = lines.map(|line| line.split_once(' ').unwrap_or((line, "")));
        pairs.filter(|(name, _)| *name == key).map(|(_, value)| value.trim()).collect()
    }

    /// The only value of `key`. Panics with the output when there is none, or more.
    pub fn get(&self, key: &str) -> &str {
        match self.all(key)[..] {
            [value] => value,
            ref values => panic!("{} reports of {key} in\n{}", values.len(), self.output),
        }
    }

    /// Fails with the output unless `key` was said with this value.
    pub fn expect(&self, key: &str, value: impl ToString) {
        let value = value.to_string();
        assert!(self.get(key) == value, "{key} is {}, not {value}:\n{}", self.get(key), self.output);
    }

    /// Everything on the console.
    pub fn output(&self) -> &str {
        &self.output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(output: &str) -> Reports {
        Outcome { status: Some(0), output: output.to_owned() }.reports()
    }

    #[test]
    fn reports_are_found_among_other_lines() {
        let reports = said("noise\n@ a 1\nx@ a 2\n@ b two words\n@ a 3\n@ c\n");
        assert_eq!(reports.all("a"), ["1", "3"]);
        reports.expect("b", "two words");
        assert_eq!(reports.get("c"), "");
        assert!(reports.all("d").is_empty());
    }

    #[test]
    #[should_panic(expected = "2 reports of a")]
    fn two_values_are_not_one() {
        said("@ a 1\n@ a 2\n").get("a");
    }

    #[test]
    #[should_panic(expected = "b is 1, not 2")]
    fn a_wrong_value_is_named() {
        said("@ b 1\n").expect("b", 2);
    }

    #[test]
    fn disks_are_named_from_b() {
        let files = ["/x", "/y"].map(PathBuf::from);
        let mut disks = Disks::default();
        assert_eq!(disks.all(&files), "/dev/ubdb /dev/ubdc");
        assert_eq!(disks.one(Path::new("/z")), "/dev/ubdd");
        assert_eq!(disks.paths().len(), 3);
    }

    #[test]
    fn functions_do_what_they_say() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        crate::pattern::image(&from, 1, 200 << 10).unwrap();
        crate::pattern::blank(&to, 200 << 10).unwrap();
        let [from_text, to_text] = [&from, &to].map(|path| path.display().to_string());
        let body = format!("{} say done yes", puts(&from_text, &to_text, &[(512, 4096), (4608, 126_976)]));
        let output = crate::proc::Cmd::new("sh").args(["-c", &script(&body)]).ok(std::time::Duration::from_secs(20));
        said(&output).expect("done", "yes");
        let (from, to) = (std::fs::read(from).unwrap(), std::fs::read(to).unwrap());
        assert!(to[512..131584] == from[512..131584]);
        assert!(to[..512].iter().chain(&to[131584..]).all(|&byte| byte == 0));
    }
}
