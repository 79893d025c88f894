//! Tests of sizes, times and words. Whole listings are compared with mdadm's in the crate's `tests` folder.

use super::*;
use crate::md::create::tests_support::superblock;
use crate::units::Sector;

#[test]
fn sizes_in_both_units() {
    let table = [
        (0, ""),
        (5000 * 1024 - 1, ""),
        (5000 * 1024, " (4.88 MiB 5.12 MB)"),
        (5 << 20, " (5.00 MiB 5.24 MB)"),
        (15 << 20, " (15.00 MiB 15.73 MB)"),
        (2047 << 20, " (2047.00 MiB 2146.44 MB)"),
        (2048 << 20, " (2.00 GiB 2.15 GB)"),
        (2048 << 30, " (2.00 TiB 2.20 TB)"),
        (u64::MAX, " (16777216.00 TiB 18446744.07 TB)"),
    ];
    for (bytes, want) in table {
        assert_eq!(human_size(Bytes(bytes)), want, "{bytes}");
    }
}

#[test]
fn times_of_the_calendar() {
    let table = [
        (0, 0, "Thu Jan  1 00:00:00 1970"),
        (951_782_400, 0, "Tue Feb 29 00:00:00 2000"),
        (951_868_799, 0, "Tue Feb 29 23:59:59 2000"),
        (951_868_800, 0, "Wed Mar  1 00:00:00 2000"),
        (1_796_038_498, 0, "Mon Nov 30 11:34:58 2026"),
        (1_796_038_498, 3600, "Mon Nov 30 12:34:58 2026"),
        (1_796_038_498, -5 * 3600, "Mon Nov 30 06:34:58 2026"),
        (4_107_542_400, 0, "Mon Mar  1 00:00:00 2100"),
        (0, -3600, "Wed Dec 31 23:00:00 1969"),
    ];
    for (seconds, zone, want) in table {
        assert_eq!(time(seconds, zone), want);
    }
}

#[test]
fn every_day_follows_the_one_before() {
    let mut last = civil(-1);
    for days in 0..200_000 {
        let (year, month, day) = civil(days);
        let follows = (year, month, day) == (last.0, last.1, last.2 + 1)
            || (year, month, day) == (last.0, last.1 + 1, 1) && last.2 >= 28
            || (year, month, day) == (last.0 + 1, 0, 1) && (last.1, last.2) == (11, 31);
        assert!(follows, "day {days}");
        last = (year, month, day);
    }
    assert_eq!(last, (2517, 6, 31));
}

fn value(superblock: &Superblock, name: &str) -> Option<String> {
    let fields = examine(superblock, Sectors(12288), 0);
    fields.into_iter().find(|field| field.name == name).map(|field| field.value)
}

#[test]
fn roles_and_states() {
    let mut sb = superblock(4);
    assert_eq!(value(&sb, "State").as_deref(), Some("active"));
    assert_eq!(array_state(&sb), "AAAA");
    sb.resync_offset = None;
    sb.roles[2] = Role::Faulty;
    sb.roles[4] = Role::Active(1);
    sb.set_recovery(Some(Sector(64)));
    assert_eq!(value(&sb, "State").as_deref(), Some("clean"));
    assert_eq!(array_state(&sb), "AR.A");
    assert_eq!(value(&sb, "Recovery Offset").as_deref(), Some("64 sectors"));
    assert_eq!(value(&sb, "Feature Map").as_deref(), Some("0x2"));
    sb.features = Features::REPLACEMENT;
    assert_eq!(device_role(&sb), "Replacement device 0");
    for (role, words) in [(Role::Journal, "Journal"), (Role::Spare, "spare"), (Role::Faulty, "spare")] {
        sb.roles[0] = role;
        assert_eq!(device_role(&sb), words);
    }
    sb.roles[5] = Role::Active(1);
    assert_eq!(array_state(&sb), ".?.A");
}

#[test]
fn states_of_a_running_array() {
    use DeviceState::{Faulty, InSync, Rebuilding, Removed, Spare};
    let words = |states: &[DeviceState], activity| {
        let row = |state: &DeviceState| DeviceRow { number: None, slot: None, state: *state, device: String::new() };
        let devices: Vec<DeviceRow> = states.iter().map(row).collect();
        let superblock = superblock(4);
        let detail = Detail { superblock: &superblock, state: "clean", activity, devices: &devices };
        let fields = detail.fields(0);
        let value = |name: &str| fields.iter().find(|field| field.name == name).map_or("-", |field| &field.value);
        let counts = ["Total Devices", "Active Devices", "Working Devices", "Failed Devices", "Spare Devices"];
        let status = ["Rebuild Status", "Resync Status", "Check Status"].map(value).join("");
        (detail.state_words(), counts.map(value).join(" "), status.replace('-', ""))
    };
    let want = |state: &str, counts: &str, status: &str| (state.to_owned(), counts.to_owned(), status.to_owned());
    assert_eq!(words(&[InSync; 4], None), want("clean", "4 4 4 0 0", ""));
    let check = Some((Activity::Check, 7));
    assert_eq!(words(&[InSync; 4], check), want("clean, checking", "4 4 4 0 0", "7% complete"));
    let resync = Some((Activity::Resync, 50));
    assert_eq!(words(&[InSync; 4], resync), want("clean, resyncing", "4 4 4 0 0", "50% complete"));
    let degraded = [InSync, Removed, InSync, InSync, Faulty, Spare];
    assert_eq!(words(&degraded, None), want("clean, degraded", "5 3 4 1 1", ""));
    let recovering = [InSync, Rebuilding, InSync, InSync];
    let recovery = Some((Activity::Recovery, 0));
    assert_eq!(words(&recovering, recovery), want("clean, degraded, recovering", "4 3 4 0 1", "0% complete"));
    assert_eq!(words(&[InSync, Removed, Removed, InSync], None), want("clean, FAILED", "2 2 2 0 0", ""));
    assert_eq!(InSync.words(), "active sync");
    let policy = |features| consistency_policy(&Superblock { features: Features(features), ..superblock(4) });
    assert_eq!([0, 1, 1024, 2048, 512].map(policy), ["resync", "bitmap", "ppl", "ppl", "journal"]);
}

#[test]
fn a_device_too_small_is_told() {
    let sb = superblock(4);
    let fields = examine(&sb, Sectors(12288 - 8), 0);
    let space = fields.iter().find(|field| field.name == "Unused Space").unwrap();
    assert!(space.value.ends_with("after=-8 sectors DEVICE TOO SMALL"), "{}", space.value);
    let state = fields.iter().find(|field| field.name == "State").unwrap();
    assert_eq!(state.value, "active TRUNCATED DEVICE");
}

#[test]
fn hostile_numbers_do_not_overflow() {
    let mut sb = superblock(4);
    sb.raid_disks = u32::MAX;
    sb.size = Sectors(u64::MAX);
    sb.data_size = Sectors(u64::MAX);
    sb.data_offset = Sector(u64::MAX);
    sb.chunk = Sectors(u32::MAX.into());
    sb.bblog_offset = i32::MIN;
    sb.bblog_size = u16::MAX;
    for level in [-1, 0, 1, 4, 5, 6, 10, 77] {
        sb.level = level;
        for features in [0, u32::MAX, 1, 1024] {
            sb.features = Features(features);
            for offset in [0, 8, u64::MAX] {
                sb.super_offset = Sector(offset);
                assert!(examine(&sb, Sectors(u64::MAX), i32::MAX).len() > 15);
            }
        }
    }
    sb.data_offset = Sector(0);
    assert!(examine(&sb, Sectors(0), i32::MIN).len() > 15);
    assert_eq!(level_name(77), "-unknown-");
    assert_eq!(level_name(-1), "linear");
}
