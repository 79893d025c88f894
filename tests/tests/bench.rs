//! `etherraid bench`: its JSON. Figures are no matter of tests.

use etherraid_tests::binary::etherraid;
use etherraid_tests::require;
use etherraid_tests::rig::ShelfRig;
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Fields that rows of an array have more, after the others.
const OF_ARRAYS: [&str; 2] = ["handoffs_per_op", "contended_per_op"];
/// Fields of each row, all numbers but `mode`.
const FIELDS: [&str; 17] = [
    "mode",
    "bs",
    "group_thread_cnt",
    "qd",
    "mb_per_s",
    "iops",
    "ratio",
    "member_request_sectors",
    "frame_bytes_mean",
    "cpu_percent",
    "cpu_us_per_op",
    "p50_us",
    "p99_us",
    "p999_us",
    "rss_bytes",
    "retransmits",
    "errors",
];

fn rows(text: &str) -> Vec<Value> {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    value.as_array().expect("a list of rows").clone()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {row}"))
}

fn array_fields() -> Vec<&'static str> {
    FIELDS.into_iter().chain(OF_ARRAYS).collect()
}

/// What must hold of any row, whatever the machine.
fn is_sound(row: &Value, fields: &[&str]) {
    let object = row.as_object().expect("a row is an object");
    for field in fields {
        assert!(object.contains_key(*field), "no {field} in {row}");
    }
    assert_eq!(object.len(), fields.len(), "{row}");
    assert_eq!(number(row, "errors"), 0.0);
    assert!(number(row, "iops") > 0.0, "{row}");
    let mb_per_s = number(row, "iops") * number(row, "bs") / 1e6;
    assert!((mb_per_s / number(row, "mb_per_s") - 1.0).abs() < 0.02, "MB/s is IOPS times size: {row}");
    assert!(number(row, "p50_us") <= number(row, "p99_us"), "{row}");
    assert!(number(row, "p99_us") <= number(row, "p999_us"), "{row}");
}

#[test]
fn a_row_for_each_size_and_thread_count() {
    for mode in ["randwrite", "randread", "write", "read"] {
        let text = etherraid("bench")
            .args([mode, "--members", "mem:32M*5", "-l", "5", "-c", "64K", "--bs", "4k,64k", "--qd", "16"])
            .args(["--group-thread-cnt", "0,1", "--runtime", "1", "--json"])
            .ok(LIMIT);
        let rows = rows(&text);
        let order: Vec<(f64, f64)> = rows.iter().map(|r| (number(r, "bs"), number(r, "group_thread_cnt"))).collect();
        assert_eq!(order, [(4096.0, 0.0), (4096.0, 1.0), (65536.0, 0.0), (65536.0, 1.0)]);
        for row in &rows {
            is_sound(row, &array_fields());
            assert!(number(row, "handoffs_per_op") <= 2.0, "a request crosses threads at most twice: {row}");
            assert_eq!(row["mode"], mode);
            assert_eq!(number(row, "qd"), 16.0);
            let zero = rows.iter().find(|r| r["bs"] == row["bs"] && r["group_thread_cnt"] == 0).unwrap();
            let ratio = number(row, "iops") / number(zero, "iops");
            assert!((number(row, "ratio") - ratio).abs() < 0.02, "ratio is to 0 threads: {row}");
        }
    }
}

#[test]
fn resident_memory_is_the_stripe_cache_and_little_more() {
    let (members, stripes) = (5, 512);
    let text = etherraid("bench")
        .args(["randwrite", "--members", "mem:128M*5", "--bs", "64k", "--runtime", "1", "--json"])
        .args(["--set", &format!("stripe_cache_size={stripes}")])
        .ok(LIMIT);
    let cache = f64::from(stripes * members * 4096);
    let rss = number(&rows(&text)[0], "rss_bytes");
    assert!(rss <= cache + 100.0 * 1048576.0, "{rss} bytes resident");
}

#[test]
fn csv_has_the_same_columns() {
    let text = etherraid("bench")
        .args(["randread", "--members", "mem:32M*3", "--bs", "4k", "--runtime", "1", "--csv"])
        .ok(LIMIT);
    let header: Vec<&str> = text.lines().next().unwrap_or_default().split(',').collect();
    assert_eq!(header, array_fields());
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn a_single_device_without_raid() {
    require!(netns);
    let rig = ShelfRig::new(1, 64 << 20, None);
    for mode in ["write", "read", "randwrite", "randread"] {
        let text = etherraid("bench")
            .args([mode, "--device", &rig.shelf.members()[0], "-i", etherraid_tests::rig::HOST])
            .args(["--bs", "4k,1m", "--qd", "32", "--runtime", "1", "--json", "--overwrite"])
            .netns(&rig.netns)
            .ok(LIMIT);
        let rows = rows(&text);
        assert_eq!(rows.len(), 2);
        rows.iter().for_each(|row| is_sound(row, &FIELDS));
        assert!(number(&rows[1], "frame_bytes_mean") > 4096.0, "jumbo frames are used: {}", rows[1]);
    }
}

#[test]
fn wrong_usage_is_told_apart_from_failure() {
    for arguments in [
        &["sideways", "--members", "mem:1M*5"][..],
        &["read"],
        &["read", "--members", "mem:32M*5", "--bs", "1000"],
        &["read", "--members", "mem:32M*5", "--bs", "0"],
        &["read", "--members", "mem:32M*5", "--set", "no_such_tunable=1"],
    ] {
        let text = etherraid("bench").args(arguments).finish(LIMIT).fails_with(2);
        assert!(!text.trim().is_empty(), "{arguments:?} is refused without a word");
    }
}
