//! Commands that look at members and at running arrays, and those that write pages: without a network.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Files, etherraid, has};

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Standard output of a command that succeeds.
fn ok<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = etherraid(args).output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// The exit status, and a message that names all of `words`.
fn refused(args: &[&str], status: i32, words: &[&str]) {
    let output = etherraid(args).output().expect("runs");
    let text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: {word:?} is not in {text}");
    }
}

#[test]
fn bad_command_lines() {
    refused(&["examine"], 2, &["MEMBER"]);
    refused(&["examine", "mem:1M"], 2, &["memory members"]);
    refused(&["examine", "e9.255"], 2, &["254"]);
    refused(&["tune", "x", "rmv_level"], 2, &["rmw_level"]);
    refused(&["tune", "x", "rmw_level=3"], 2, &["rmw_level", "0 to 2"]);
    refused(&["tune", "x", "aoe_maxout=0"], 2, &["aoe_maxout", "1 to 1024"]);
    for command in ["discover", "identify", "cfg", "mask", "reserve"] {
        refused(&[command], 2, &["-i", "lo"]);
        refused(&[command, "-i", "lo", "-t", "0"], 2, &["0.001 to 3600"]);
    }
    refused(&["ping", "-i", "lo"], 2, &["SHELF.SLOT"]);
    refused(&["ping", "9.0"], 2, &["-i"]);
    refused(&["ping", "-i", "lo", "9"], 2, &["SHELF.SLOT", "9.0"]);
    refused(&["ping", "-i", "lo", "-c", "0", "9.0"], 2, &["1"]);
    refused(&["stat", "9.0"], 2, &["-i"]);
    refused(&["identify", "-i", "lo", "--hex", "--json"], 2, &["--json"]);
    refused(&["cfg", "-i", "lo", "-c", "set", "9.0"], 2, &["-s"]);
    refused(&["cfg", "-i", "lo", "-s", "x", "9.0"], 2, &["-c"]);
    refused(&["cfg", "-i", "lo", "-c", "fset", "-s", "x"], 2, &["SHELF.SLOT", "--all"]);
    refused(&["cfg", "-i", "lo", "-c", "fset", "-s", &"x".repeat(1025), "9.0"], 2, &["1024", "1025"]);
    refused(&["cfg", "-i", "lo", "-c", "take", "9.0"], 2, &["fset"]);
    refused(&["mask", "-i", "lo", "--clear"], 2, &["SHELF.SLOT"]);
    refused(&["mask", "-i", "lo", "9.0", "--clear", "--add", "self"], 2, &["--add"]);
    refused(&["mask", "-i", "lo", "9.0", "--add", "me"], 2, &["self"]);
    refused(&["mask", "-i", "lo", "9.0", "--add", "ff:ff:ff:ff:ff:ff"], 2, &["group"]);
    refused(&["reserve", "-i", "lo", "--release"], 2, &["SHELF.SLOT"]);
    refused(&["reserve", "-i", "lo", "9.0", "--force"], 2, &["--set"]);
    refused(&["completions", "csh"], 2, &["bash"]);
    refused(&["man"], 2, &["DIR"]);
}

#[test]
fn help_has_examples() {
    let listed = ok(["--help"]);
    assert!(!listed.contains("\n  tunables"), "for making the page of documentation only");
    for command in [
        "examine",
        "status",
        "tune",
        "discover",
        "stat",
        "ping",
        "identify",
        "cfg",
        "mask",
        "reserve",
        "completions",
        "man",
    ] {
        assert!(listed.contains(&format!("\n  {command} ")), "{listed}");
        let help = ok([command, "--help"]);
        assert!(help.contains(&format!("  etherraid {command}")), "{help}");
    }
}

#[test]
fn examine_is_mdadms() {
    let files = Files::new(4);
    files.create(3, &["--assume-clean"]);
    let members = files.members(4);
    let ours = ok(["examine", &members[0], &members[2]]);
    assert!(ours.contains(&format!("{}:\n          Magic : a92b4efc\n", members[0])), "{ours}");
    if has("mdadm") {
        let theirs = Command::new("mdadm").args(["-E", &members[0], &members[2]]).output().expect("runs");
        assert_eq!(ours, text(&theirs.stdout));
    }
    let json: Value = serde_json::from_str(&ok(["examine", "--json", &members[1]])).expect("JSON");
    assert_eq!(json[0]["member"], members[1]);
    assert_eq!(
        (&json[0]["level"], &json[0]["raid_devices"], &json[0]["chunk_bytes"]),
        (&5.into(), &3.into(), &65536.into())
    );
    assert_eq!((&json[0]["device_role"], &json[0]["array_state"]), (&"Active device 1".into(), &"AAA".into()));
}

#[test]
fn examine_shows_what_can_be_shown() {
    let files = Files::new(4);
    files.create(3, &["--assume-clean"]);
    let members = files.members(4);
    let output = etherraid(["examine", &members[3], "/nonexistent/disk", &members[0]]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(out.starts_with(&format!("{}:\n", members[0])), "{out}");
    assert!(error.contains(&members[3]) && error.contains("no md superblock detected"), "{error}");
    assert!(error.contains("/nonexistent/disk: No such file"), "{error}");
    refused(&["examine", "e1.1"], 1, &["e1.1", "-i"]);
    // One byte of the superblock at 4 KiB is another: its checksum does not fit any more.
    let mut bytes = std::fs::read(files.path(1)).expect("readable");
    bytes[4096 + 40] ^= 1;
    std::fs::write(files.path(1), bytes).expect("writable");
    refused(&["examine", &members[1]], 1, &[&members[1], "checksum"]);
}

/// An array whose control socket lies where it does by default.
struct Plain {
    child: Child,
    runtime: tempfile::TempDir,
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Plain {
    fn run(files: &Files, members: &[String]) -> Plain {
        let runtime = tempfile::tempdir().expect("a directory");
        let mut args = files.run_args(members, &[]);
        let control = args.iter().position(|arg| arg == "--control").expect("given");
        args.drain(control..control + 2);
        let mut command = Command::new(env!("CARGO_BIN_EXE_etherraid"));
        command.args(args).env("XDG_RUNTIME_DIR", runtime.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        assert!(line.starts_with("ready: "), "{line:?}");
        Plain { child, runtime }
    }

    /// Standard output of a command, which is repeated until it succeeds and prints what is wanted.
    fn shown(&self, args: &[&str], wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let output = etherraid(args).env("XDG_RUNTIME_DIR", self.runtime.path()).output().expect("runs");
            let found = text(&output.stdout);
            if output.status.success() && wanted(&found) {
                return found;
            }
            assert!(Instant::now() < end, "{args:?} never succeeds so: {output:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn status_shows_the_arrays_that_run() {
    let files = Files::new(4);
    files.create(3, &["--assume-clean"]);
    let members = files.members(3);
    let mut running = Plain::run(&files, &members);
    let stat = running.shown(&["status"], |_| true);
    assert!(stat.starts_with("Personalities : [raid5] [raid4]\n") && stat.ends_with("unused devices: <none>\n"));
    let devices = format!("{}[2] {}[1] {}[0]", members[2], members[1], members[0]);
    let line = format!("{} : active raid5 {devices}\n", files.name);
    let at = stat.find(&line).unwrap_or_else(|| panic!("{line} is not in {stat}"));
    let second = stat[at + line.len()..].lines().next().expect("a second line");
    assert!(second.ends_with("blocks super 1.2 level 5, 64k chunk, algorithm 2 [3/3] [UUU]"), "{second}");
    let json: Value = serde_json::from_str(&running.shown(&["status", "--json"], |_| true)).expect("JSON");
    let mine = json.as_array().expect("a list").iter().find(|array| array["array"] == files.name.as_str());
    assert_eq!(mine.expect("listed")["degraded"], 0);

    running.shown(&["fail", &files.name, &members[1]], |_| true);
    let failed = format!("{}[1](F)", members[1]);
    running.shown(&["status"], |stat| stat.contains(&failed) && stat.contains("[3/2] [U_U]"));
    // No AoE member: nothing of it in `stat`.
    assert!(!running.shown(&["stat"], |_| true).contains(&files.name));
    running.shown(&["stop", &files.name], |_| true);
    running.child.wait().expect("ends");
    running.shown(&["status"], |stat| !stat.contains(&files.name));
}

#[test]
fn tune_reads_and_sets_while_it_runs() {
    let files = Files::new(3);
    files.create(3, &[]);
    let members = files.members(3);
    let running = files.run(&members, &["--set", "sync_speed_min=0", "--set", "sync_speed_max=1"]);
    let tune = |args: &[&str]| {
        let output = running.command(&[&["tune"], args].concat()).output().expect("runs");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, table, _) = tune(&[]);
    assert_eq!(status, Some(0));
    let row = table.lines().find(|line| line.starts_with("sync_speed_max ")).expect("a row");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>()[1..4], ["1", "200000", "KiB/s"]);
    assert_eq!(tune(&["sync_speed_max"]), (Some(0), "1\n".into(), String::new()));

    // Refused ones change nothing, valid ones beside them included.
    let (status, _, error) = tune(&["rmw_level=0", "stripe_cache_size=512", "group_thread_cnt=60"]);
    assert_eq!(status, Some(1));
    assert!(error.contains("group_thread_cnt=60: group_thread_cnt takes 0 to 2"), "{error}");
    let (status, set, _) = tune(&["stripe_cache_size=512", "group_thread_cnt=2", "worker_group=node"]);
    assert_eq!((status, set.as_str()), (Some(0), "stripe_cache_size=512\ngroup_thread_cnt=2\nworker_group=node\n"));
    assert_eq!(tune(&["rmw_level=0", "rmw_level=9"]).0, Some(2));
    assert_eq!(tune(&["rmw_level"]).1, "1\n");

    // The resync that crawls ends once it may be fast.
    assert_eq!(running.detail()["sync_action"], "resync");
    let (status, set, _) = tune(&["sync_speed_max=0", "rmw_level=2", "aoe_maxout=7"]);
    assert_eq!((status, set.as_str()), (Some(0), "sync_speed_max=0\nrmw_level=2\naoe_maxout=7\n"));
    running.wait_idle();
    let (_, json, _) = tune(&["--json", "rmw_level"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json[0]["name"], &json[0]["value"]), (&"rmw_level".into(), &"2".into()));
    assert_eq!((json.as_array().map(Vec::len), &json[0]["at_once"]), (Some(1), &true.into()));
    refused(&["tune", "no-such-array"], 1, &["no-such-array", "does not run here"]);
}

#[test]
fn tunables_over_the_socket() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let running = files.run(&files.members(3), &[]);
    let post = |body: &str| {
        let head = "POST /tune HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: ";
        running.http(&format!("{head}{}\r\n\r\n{body}", body.len()))
    };
    assert!(post(r#"{"set":["rmw_level=2"]}"#).contains("200 OK"));
    assert!(running.http("GET /tunables HTTP/1.0\r\n\r\n").contains(r#""name":"rmw_level","value":"2""#));
    for (body, status) in [
        (r#"{"set":["rmw_level=3"]}"#, " 422 "),
        (r#"{"set":["rmw_level"]}"#, " 422 "),
        (r#"{"set":["no_such=1"]}"#, " 422 "),
        (r#"{"set":["group_thread_cnt=60"]}"#, " 422 "),
        (r#"{"set":"rmw_level=1"}"#, " 422 "),
        (r#"{"sat":[]}"#, " 422 "),
        ("", " 400 "),
    ] {
        let answer = post(body);
        assert!(answer.contains(status), "{body}: {answer}");
    }
    assert!(running.http("GET /paths HTTP/1.0\r\n\r\n").ends_with("[]"));
}

#[test]
fn pages_for_shells_and_man() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ok(["completions", shell]);
        assert!(script.contains("discover") && script.contains("timeout"), "{shell}");
    }
    if has("bash") {
        let dir = tempfile::tempdir().expect("a directory");
        let script = dir.path().join("script");
        std::fs::write(&script, ok(["completions", "bash"])).expect("written");
        let checked = Command::new("bash").arg("-n").arg(&script).status().expect("runs");
        assert!(checked.success());
    }
    let dir = tempfile::tempdir().expect("a directory");
    let to = dir.path().join("share/man/man1");
    ok(["man".as_ref(), to.as_os_str()]);
    let page = std::fs::read_to_string(to.join("etherraid-discover.1")).expect("a page");
    assert!(page.contains(".SH EXAMPLES") && page.contains("discover \\-i eth1"), "{page}");
    assert!(to.join("etherraid.1").exists() && to.join("etherraid-tune.1").exists());
    refused(&["man", "/proc/no-such-directory"], 1, &["/proc/no-such-directory"]);
}

#[test]
fn the_page_of_tunables_is_printed() {
    let page = ok(["tunables"]);
    assert!(page.starts_with("# Tunables\n") && page.contains("| `aoe_deadsecs` | 180 | s |"), "{page}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_etherraid"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Standard output and standard error are both closed before anything is printed.
#[test]
fn nobody_listens() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let members = files.members(3);
    let running = files.run(&members, &[]);
    let control = files.control();
    let name = files.name.as_str();
    for (args, code) in [
        (&["detail", name, "--control", &control][..], 0),
        (&["detail", name, "--json", "--control", &control], 0),
        (&["tune", name, "--control", &control], 0),
        (&["status"], 0),
        (&["examine", &members[0]], 0),
        (&["examine", "/nonexistent/disk"], 1),
        (&["create", name, "-l", "5", "-n", "3", &members[0], &members[1], &members[2]], 1),
        (&["fail", name, &members[1], "--control", &control], 0),
        (&["remove", name, "/nonexistent/disk", "--control", &control], 1),
        (&["tunables"], 0),
        (&["bench", "randwrite", "--members", "mem:4M*3", "--bs", "4k", "--runtime", "0.05", "--cpus", "0"], 0),
        (&["demo", "--in-process"], 1),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_etherraid"));
        let mut child = child.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        drop((child.stdout.take(), child.stderr.take()));
        // A panic would end it with 101.
        assert_eq!(child.wait().expect("ends").code(), Some(code), "{args:?}");
    }
    drop(running);
}

/// An array goes on when who read its log has gone.
#[test]
fn an_array_whose_log_nobody_reads() {
    let files = Files::new(4);
    files.create(3, &["--assume-clean"]);
    let members = files.members(4);
    let mut running = files.run(&members[..3], &[]);
    running.close_log();
    // Each is logged, by threads that the array cannot do without.
    running.command(&["fail", &members[1]]).assert().success();
    running.command(&["add", &members[3]]).assert().success();
    running.wait_idle();
    running.command(&["tune", "rmw_level=0"]).assert().success();
    running.command(&["stop"]).assert().success();
    let (status, _) = running.wait();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn an_array_is_found_wherever_its_control_socket_is() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let members = files.members(3);
    let running = files.run(&members, &["--readonly"]);
    assert!(ok(["status"]).contains(&format!("{} : active (read-only) raid5", files.name)));
    // By name alone.
    assert!(ok(["detail", &files.name]).contains("clean"));
    let (_, log) = {
        running.signal(rustix::process::Signal::KILL);
        running.wait()
    };
    assert!(!log.contains("panicked"), "{log}");
    assert!(!ok(["status"]).contains(&files.name), "what a kill has left behind is passed over");
    refused(&["detail", &files.name], 1, &["does not run here", "--control"]);
    // And it may run again, under another name.
    let mut args = files.run_args(&members, &["--readonly"]);
    args[1] = format!("{}-again", files.name);
    let mut child = Command::new(env!("CARGO_BIN_EXE_etherraid"));
    let mut child = child.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
    let status = ok(["status"]);
    assert!(status.contains(&format!("{}-again : active", files.name)), "{status}");
    assert_eq!(ok(["stop", &format!("{}-again", files.name)]), format!("{}-again: stopped\n", files.name));
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}
