//! `bench`: rows and their fields, members that are refused, a bare device.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Files, MEMBER_BYTES, Running, etherraid, has};

/// A short bench.
fn bench(args: &str) -> assert_cmd::Command {
    etherraid(std::iter::once("bench").chain(args.split_whitespace()))
}

fn rows(args: &str) -> Vec<Value> {
    let output = bench(args).arg("--json").assert().success().get_output().stdout.clone();
    let value: Value = serde_json::from_slice(&output).expect("JSON");
    value.as_array().expect("a list").clone()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} is a number in {row}"))
}

/// What holds for every row.
fn check(row: &Value) {
    let (rate, iops) = (number(row, "mb_per_s"), number(row, "iops"));
    assert!(iops > 0.0 && (rate - iops * number(row, "bs") / 1e6).abs() < 0.2 + rate / 100.0, "{row}");
    assert_eq!(row["errors"], 0, "{row}");
    assert!(number(row, "cpu_percent") > 0.0 && number(row, "cpu_us_per_op") > 0.0, "{row}");
    let latency = ["p50_us", "p99_us", "p999_us"].map(|field| number(row, field));
    assert!(latency[0] > 0.0 && latency.is_sorted(), "{row}");
    assert!(number(row, "rss_bytes") > 0.0, "{row}");
}

#[test]
fn a_row_for_each_size_and_thread_count_in_order() {
    let rows = rows("randwrite --members mem:16M*3 --bs 64k,4k --group-thread-cnt 1,0 --qd 8 --runtime 0.1");
    let order: Vec<_> = rows.iter().map(|row| (number(row, "bs"), number(row, "group_thread_cnt"))).collect();
    assert_eq!(order, [(65536.0, 1.0), (65536.0, 0.0), (4096.0, 1.0), (4096.0, 0.0)]);
    for row in &rows {
        check(row);
        assert_eq!((&row["mode"], &row["qd"]), (&"randwrite".into(), &8.into()));
        assert!(number(row, "ratio") > 0.0);
        assert_eq!((&row["frame_bytes_mean"], &row["retransmits"]), (&Value::Null, &0.into()));
        let cache = 256 * 3 * 4096;
        assert!(number(row, "rss_bytes") <= f64::from(cache + (100 << 20)), "{row}");
        // A request here is a part or two, and a part is handed over once; a region is given back now and then.
        let handoffs = number(row, "handoffs_per_op");
        assert!(handoffs > 0.0 && handoffs < 3.0 && number(row, "contended_per_op") < 3.0, "{row}");
    }
    assert_eq!((number(&rows[1], "ratio"), number(&rows[3], "ratio")), (1.0, 1.0));
    let pages = number(&rows[3], "member_request_sectors");
    assert!((8.0..10.0).contains(&pages), "a 4k write is a page of data and one of parity, and few touch: {pages}");
    assert!(number(&rows[0], "member_request_sectors") > 100.0, "a chunk is written in one piece");
}

#[test]
fn every_mode_is_measured_and_tunables_are_set() {
    for mode in ["randwrite", "randread", "write", "read"] {
        let rows = rows(&format!("{mode} mem:8M mem:8M mem:9M --bs 16k --runtime 0.1 --set stripe_cache_size=1024"));
        assert_eq!((rows.len(), &rows[0]["mode"]), (1, &mode.into()));
        check(&rows[0]);
    }
}

#[test]
fn tables_for_people_and_for_spreadsheets() {
    let line = "read --members mem:8M*3 --bs 4k --runtime 0.1";
    let table = bench(line).assert().success().get_output().stdout.clone();
    let table = String::from_utf8(table).expect("text");
    assert!(table.contains("MB/s") && table.contains("| ") && table.contains(" 4k "), "{table}");
    let csv = bench(line).arg("--csv").assert().success().get_output().stdout.clone();
    let csv = String::from_utf8(csv).expect("text");
    let lines: Vec<Vec<_>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [19, 19], "{csv}");
    assert_eq!((lines[0][0], lines[1][0], lines[1][1]), ("mode", "read", "4096"));
}

#[test]
fn the_bare_loop_and_an_earlier_run_stand_beside_the_figures() {
    let files = Files::new(1);
    let earlier = files.dir.path().join("earlier.json");
    let line = "write --members mem:16M*3 --bs 4k,256k --runtime 0.1 --limit";
    let before = rows(line);
    for row in &before {
        check(row);
        let ratio = number(row, "mb_per_s") / number(row, "limit_mb_per_s");
        assert!(ratio > 0.0 && (ratio - number(row, "limit_ratio")).abs() < 0.01, "{row}");
        assert!(row.get("against_ratio").is_none());
        assert!(number(row, "rss_bytes") <= f64::from(100 << 20), "the loop's memory does not count: {row}");
    }
    std::fs::write(&earlier, serde_json::to_string(&before).expect("JSON")).expect("room");
    let line = format!("write --members mem:16M*3 --bs 256k,8k --runtime 0.1 --against {}", earlier.display());
    let after = rows(&line);
    assert_eq!(after[0]["against_mb_per_s"], before[1]["mb_per_s"]);
    let ratio = number(&after[0], "mb_per_s") / number(&before[1], "mb_per_s");
    assert!((ratio - number(&after[0], "against_ratio")).abs() < 0.01, "{}", after[0]);
    assert!(after[1].get("against_ratio").is_none() && after[1].get("limit_ratio").is_none(), "{}", after[1]);
    let table = bench(&line).assert().success().get_output().stdout.clone();
    assert!(String::from_utf8(table).expect("text").contains("before MB/s"));
    bench(&line.replace("earlier", "later")).assert().code(1);
}

/// A running array of files, with work for no resync, and how its NBD server is reached.
fn served(nbd: Option<&str>) -> (Files, Running, String) {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let more: Vec<&str> = nbd.into_iter().flat_map(|address| ["--nbd", address]).collect();
    let running = files.run(&files.members(3), &more);
    let kind = if nbd.is_some() { "nbd://" } else { "nbd+unix://" };
    let uri = running.line.split_whitespace().find(|word| word.starts_with(kind)).expect("a URI").to_owned();
    (files, running, uri)
}

#[test]
fn a_running_array_is_measured_through_nbd() {
    let (files, running, uri) = served(None);
    for mode in ["randwrite", "randread", "write", "read"] {
        let rows = rows(&format!("{mode} --nbd {uri} --bs 4k,256k --qd 16 --runtime 0.2 --overwrite"));
        assert_eq!(rows.len(), 2);
        for row in &rows {
            check(row);
            assert_eq!(row["group_thread_cnt"], 1, "asked from the array: {row}");
            assert!(number(row, "member_request_sectors") >= 8.0, "{row}");
        }
    }
    // Written to, it holds something.
    let refused =
        bench(&format!("write --nbd {uri} --bs 4k --runtime 0.1")).assert().code(1).get_output().stderr.clone();
    let refused = String::from_utf8(refused).expect("text");
    assert!(refused.contains("is not empty") && refused.contains("--overwrite"), "{refused}");
    bench(&format!("read --nbd {uri} --bs 16m --runtime 0.1")).assert().success();
    drop(running);
    let gone = bench(&format!("read --nbd {uri} --bs 4k --runtime 0.1")).assert().code(1).get_output().stderr.clone();
    assert!(String::from_utf8(gone).expect("text").contains("does the array run"));
    drop(files);
}

#[test]
fn nbd_over_tcp_by_the_array_s_name() {
    let (files, running, uri) = served(Some("tcp:127.0.0.1:0"));
    let rows = rows(&format!("randread --nbd {uri}/{} --bs 4k --runtime 0.2", files.name));
    check(&rows[0]);
    assert!(number(&rows[0], "member_request_sectors") >= 8.0, "found by its name: {}", rows[0]);
    let unknown = bench(&format!("read --nbd {uri}/other --bs 4k")).assert().code(1).get_output().stderr.clone();
    assert!(String::from_utf8(unknown).expect("text").contains("refuses the export"));
    drop(running);
}

#[test]
fn a_plot_has_a_line_for_each_thread_count() {
    let dir = tempfile::tempdir().expect("room");
    let plot = dir.path().join("plot.svg");
    let line = format!(
        "randwrite --members mem:16M*3 --bs 4k,64k --group-thread-cnt 0,1 --runtime 0.05 --plot {}",
        plot.display()
    );
    bench(&line).assert().success();
    let svg = std::fs::read_to_string(&plot).expect("written");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for text in ["randwrite", "MB/s", "latency, us", "request size", "0 threads", "1 thread, p99", "4k", "64k"] {
        assert!(svg.contains(text), "no {text} in {svg}");
    }
    let wrong =
        bench("read mem:8M mem:8M mem:8M --plot /no/such/dir/x.svg").assert().code(1).get_output().stderr.clone();
    assert!(String::from_utf8(wrong).expect("text").contains("--plot /no/such/dir/x.svg"));
}

#[test]
fn files_are_left_without_a_superblock() {
    let files = Files::new(3);
    let members = files.members(3).join(" ");
    for _ in 0..2 {
        let rows = rows(&format!("randwrite {members} --bs 4k --runtime 1"));
        check(&rows[0]);
    }
    let contents = files.contents(3);
    assert!(
        contents.iter().all(|bytes| bytes.len() as u64 == MEMBER_BYTES && bytes[..1 << 20].iter().all(|b| *b == 0))
    );
}

#[test]
fn members_that_hold_something_are_refused_and_left_alone() {
    let files = Files::new(3);
    let line = format!("randwrite {} --bs 4k --runtime 0.1", files.members(3).join(" "));
    std::fs::write(files.path(1), [vec![0; 5000], vec![1], vec![0; MEMBER_BYTES as usize - 5001]].concat())
        .expect("room");
    let before = files.contents(3);
    let refused = bench(&line).assert().code(1).get_output().stderr.clone();
    let refused = String::from_utf8(refused).expect("text");
    assert!(refused.contains("disk1 is not empty") && refused.contains("--overwrite"), "{refused}");
    assert_eq!(files.contents(3), before);

    let files = Files::new(3);
    files.create(3, &[]);
    let before = files.contents(3);
    let line = format!("write {} --bs 4k --runtime 0.1", files.members(3).join(" "));
    let refused = bench(&line).assert().code(1).get_output().stderr.clone();
    let refused = String::from_utf8(refused).expect("text");
    assert!(refused.contains("is a member of the array") && refused.contains(&files.name), "{refused}");
    assert_eq!(files.contents(3), before);
    bench(&line).arg("--overwrite").assert().success();
}

#[test]
fn usage_errors() {
    let members = "--members mem:8M*3 --runtime 0.1";
    for (line, says) in [
        ("read".to_owned(), "required"),
        ("scribble mem:1M".to_owned(), "scribble"),
        (format!("read {members} --bs 3k,4000"), "4000"),
        (format!("read {members} --bs 16m,32m"), "has only"),
        (format!("read {members} --group-thread-cnt 99"), "takes 0 to"),
        (format!("read {members} --set no_such=1"), "no_such"),
        (format!("read {members} --set stripe_cache_size=1"), "stripe_cache_size takes"),
        ("read --members mem:8M*0".to_owned(), "how many"),
        ("read --members /dev/null,mem:8M,mem:8M --limit".to_owned(), "memory members"),
        ("read --members mem:x".to_owned(), "a size is"),
        ("read --device e1.1".to_owned(), "-i"),
        ("read --device /dev/null -i lo".to_owned(), "e<shelf>.<slot>"),
        ("read --device e1.1 -i lo --group-thread-cnt 1".to_owned(), "bare device"),
        ("read --nbd http://x".to_owned(), "nbd://HOST"),
        ("read --nbd nbd://localhost --set rmw_level=1".to_owned(), "etherraid tune"),
        ("read --nbd nbd://localhost --group-thread-cnt 1".to_owned(), "etherraid tune"),
    ] {
        let stderr = bench(&line).assert().code(2).get_output().stderr.clone();
        let stderr = String::from_utf8(stderr).expect("text");
        assert!(stderr.contains(says), "{line}: {stderr}");
    }
    bench("read mem:8M mem:8M --runtime 0.1 --cpus 4000").assert().code(1);
    bench("read /no/such/file mem:8M mem:8M").assert().code(1);
}

#[test]
fn a_bare_device_is_measured() {
    if !rustix::process::geteuid().is_root() || !has("unshare") {
        println!("SKIPPED: a network namespace needs root and unshare");
        return;
    }
    let files = Files::new(1);
    let script = "set -e
        ip link add dev er0 mtu 9000 type veth peer name er1 mtu 9000
        ip link set er0 up
        ip link set er1 up
        $BIN shelf -i er0 -d 1.1=$DISK > $OUT & SHELF=$!
        trap 'kill $SHELF; wait' EXIT
        for i in $(seq 100); do grep -q ready $OUT && break; sleep 0.05; done
        $BIN bench randwrite --device e1.1 -i er1 --bs 4k,1m --runtime 0.2 --json
        $BIN bench read --device e1.1 -i er1 --bs 256k --runtime 0.2 --json
        ! $BIN bench write --device e1.1 -i er1 --bs 4k --runtime 0.2";
    let mut unshare = Command::new("unshare");
    unshare.args(["-n", "sh", "-c", script]).env("BIN", env!("CARGO_BIN_EXE_etherraid"));
    unshare.env("DISK", files.path(0)).env("OUT", files.dir.path().join("out"));
    let output = unshare.output().expect("runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stderr.contains("e1.1 is not empty"), "the last is refused: {stderr}");
    let lists: Vec<Value> =
        serde_json::Deserializer::from_str(&stdout).into_iter().collect::<Result<_, _>>().expect("two lists");
    let rows: Vec<&Value> = lists.iter().flat_map(|list| list.as_array().expect("a list")).collect();
    assert_eq!(rows.len(), 3);
    for row in &rows {
        check(row);
        assert_eq!((&row["group_thread_cnt"], &row["member_request_sectors"]), (&Value::Null, &Value::Null));
    }
    // Eight KiB, and now and then less at the end of a request; other commands are few. So are the frames of 8 KiB that prove what the path carries, which
    // make the mean of small ones a little larger.
    let frames = rows.iter().map(|row| number(row, "frame_bytes_mean")).collect::<Vec<_>>();
    assert!((3800.0..=4352.0).contains(&frames[0]) && (7800.0..=8704.0).contains(&frames[2]), "{frames:?}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    for format in ["--json", "--csv", "--qd=64"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etherraid"));
        command.args(["bench", "read", "--members", "mem:8M*3", "--bs", "4k", "--runtime", "0.05", format]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{format}: {} {stderr}", output.status);
    }
}
