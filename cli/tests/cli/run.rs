//! `run` and the commands on a running array, with files as members and qemu-io as the client.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Files, Running, etherraid, has};

/// The devices that stand so.
fn devices<'a>(detail: &'a Value, state: &str) -> Vec<&'a str> {
    let rows = detail["devices"].as_array().expect("a list");
    rows.iter().filter(|row| row["state"] == state).map(|row| row["device"].as_str().unwrap_or("")).collect()
}

/// Refused with this exit status and a message that names all of `words`.
fn refused(args: &[String], status: i32, words: &[&str]) {
    let output = etherraid(args).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

/// It ended well, and says clean on each member.
fn ended_clean(running: Running, files: &Files, count: usize) {
    let (status, log) = running.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    for index in 0..count {
        let output = Command::new("mdadm").arg("-E").arg(files.path(index)).output();
        if let Ok(output) = output {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("State : clean"), "{text}");
        }
    }
}

#[test]
fn serves_what_was_written_and_sigterm_ends_it_clean() {
    let files = Files::new(4);
    files.create(4, &[]);
    let members = files.members(4);
    let running = files.run(&members, &[]);
    assert!(running.line.contains(&files.name) && running.line.contains("raid5"), "{}", running.line);
    assert!(running.line.trim_end().ends_with(&running.uri()), "{}", running.line);
    if !has("qemu-io") {
        return;
    }
    running.io(&[
        "write -P 0xA5 0 5M",
        "write -P 7 1000448 3584",
        "flush",
        "read -P 7 1000448 3584",
        "read -P 0xA5 2M 3M",
    ]);
    let detail = running.wait_idle();
    assert_eq!(devices(&detail, "active sync"), members);
    running.signal(Signal::TERM);
    ended_clean(running, &files, 4);
    assert!(!files.dir.path().join("nbd").exists(), "the NBD socket goes");

    // Each member may be away, and what was written is there.
    for away in 0..4 {
        let mut others = members.clone();
        others.remove(away);
        refused(&files.run_args(&others, &[]), 1, &["missing", "--run"]);
        let running = files.run(&others, &["--readonly", "--run"]);
        running.io_readonly(&["read -P 7 1000448 3584", "read -P 0xA5 0 1000448", "read -P 0xA5 2M 3M"]);
        running.signal(Signal::INT);
        let (status, log) = running.wait();
        assert_eq!(status.code(), Some(0), "{log}");
    }
}

#[test]
fn readonly_leaves_members_as_they_are() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let before = files.contents(3);
    let running = files.run(&files.members(3), &["--readonly"]);
    assert_eq!(running.detail()["array_state"], "readonly");
    if has("qemu-io") {
        let output = running.qemu_io(&[], &["write 0 4k"]);
        assert!(!output.status.success(), "{output:?}");
    }
    running.command(&["stop"]).assert().success();
    let (status, _) = running.wait();
    assert_eq!(status.code(), Some(0));
    assert!(files.contents(3) == before);
}

#[test]
fn a_member_fails_is_replaced_and_removed() {
    let files = Files::new(4);
    files.create(3, &[]);
    let members = files.members(4);
    let running = files.run(&members[..3], &[]);
    running.wait_idle();
    if has("qemu-io") {
        running.io(&["write -P 3 0 8M", "flush"]);
    }
    running.command(&["fail", &members[1]]).assert().success();
    let detail = running.wait_until(|detail| detail["degraded"] == 1 && !devices(detail, "faulty").is_empty());
    assert!(detail["state"].as_str().expect("text").contains("degraded"));
    assert_eq!(devices(&detail, "faulty"), [&members[1]]);
    if has("qemu-io") {
        running.io(&["read -P 3 0 8M", "write -P 4 1M 1M", "read -P 4 1M 1M"]);
    }
    running.command(&["add", &members[3]]).assert().success();
    running.wait_idle();
    running.command(&["remove", &members[1]]).assert().success();
    let detail = running.wait_until(|detail| detail["total_devices"] == 3);
    assert_eq!(devices(&detail, "active sync"), [&members[0], &members[3], &members[2]]);
    let text = running.command(&["detail"]).output().expect("runs").stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("             State : ") && text.contains("RaidDevice State"), "{text}");
    running.command(&["stop"]).assert().success();
    ended_clean(running, &files, 1);

    // The rebuilt member holds what it should: without another one it is read from.
    let running = files.run(&[members[0].clone(), members[3].clone()], &["--readonly", "--run"]);
    if has("qemu-io") {
        running.io_readonly(&["read -P 3 0 1M", "read -P 4 1M 1M", "read -P 3 2M 6M"]);
    }
    // Nothing that missed writes is let in.
    drop(running);
    let stale = [members[1].clone(), members[3].clone()];
    refused(&files.run_args(&stale, &["--run"]), 1, &["disk1"]);
}

#[test]
fn commands_that_cannot_be_carried_out_say_why() {
    let files = Files::new(5);
    files.create(3, &["--assume-clean"]);
    let members = files.members(5);
    let running = files.run(&members[..3], &[]);
    let failed = |args: &[&str], words: &[&str]| {
        let output = running.command(args).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
    };
    failed(&["fail", &members[4]], &[&members[4], "not a device of the array"]);
    failed(&["remove", &members[0]], &[&members[0]]);
    failed(&["add", &members[0]], &[&members[0], "already"]);
    failed(&["add", "/nonexistent/disk"], &["/nonexistent/disk", "No such file"]);
    failed(&["add", "e1.1"], &["e1.1", "-i"]);
    std::fs::File::options().write(true).open(&members[4]).expect("there").set_len(1 << 20).expect("shorter");
    failed(&["add", &members[4]], &[&members[4]]);
    assert_eq!(running.detail()["degraded"], 0);
    etherraid(["detail", "no-such-array"]).assert().failure().code(1);
}

#[test]
fn an_array_runs_once_and_its_members_are_not_overwritten() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let members = files.members(3);
    let running = files.run(&members, &[]);
    let again = files.run_args(&members, &[]);
    refused(&again, 1, &["a running array answers"]);
    let mut other_name = again.clone();
    other_name[1] = format!("{}-other", files.name);
    other_name[3] = format!("{}-other", other_name[3]);
    other_name[5] = format!("{}-other", files.control());
    refused(&other_name, 1, &["runs on this host already"]);
    let create = ["create", "x", "-l", "5", "-n", "3", "--run"].map(str::to_owned);
    refused(&[&create[..], &members].concat(), 1, &["belongs to the running array"]);

    let others = Files::new(3);
    others.create(3, &["--assume-clean"]);
    let dir = files.dir.path().display().to_string();
    let second = others.run(&others.members(3), &["--member-dir", &dir]);
    let output = second.command(&["add", &members[0]]).output().expect("runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("belongs to the running array"), "{output:?}");

    running.command(&["stop"]).assert().success();
    let (status, _) = running.wait();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn what_was_stopped_may_be_run_again_at_once() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let members = files.members(3);
    let mut running = files.run(&members, &["--nbd", "tcp:127.0.0.1:0"]);
    for _ in 0..10 {
        running.command(&["stop"]).assert().success();
        let again = files.run(&members, &[]);
        let (status, log) = std::mem::replace(&mut running, again).wait();
        assert_eq!(status.code(), Some(0), "{log}");
    }
}

#[test]
fn a_refused_run_changes_nothing() {
    let files = Files::new(4);
    files.create(3, &["--assume-clean"]);
    let before = files.contents(4);
    let members = files.members(4);
    let mut args = files.run_args(&members[..3], &[]);
    args[3] = "unix:/nonexistent/directory/socket".to_owned();
    refused(&args, 1, &["/nonexistent/directory/socket"]);
    std::fs::write(files.dir.path().join("nbd"), "mine").expect("written");
    refused(&files.run_args(&members[..3], &[]), 1, &["is not a socket"]);
    std::fs::remove_file(files.dir.path().join("nbd")).expect("there");
    refused(&files.run_args(&members[3..], &[]), 1, &["no md superblock"]);
    refused(&files.run_args(&members[..1], &["--run"]), 1, &["1 of 3 members"]);
    let uuid = "00000000:00000000:00000000:00000001";
    refused(&files.run_args(&members[..3], &["--uuid", uuid]), 1, &["belongs to array"]);
    refused(&files.run_args(&members[..3], &["--durable", "/other"]), 2, &["/other"]);
    assert!(files.contents(4) == before);
}

#[test]
fn a_kill_leaves_it_dirty_and_the_next_run_resyncs() {
    if !has("qemu-io") {
        return;
    }
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let members = files.members(3);
    let running = files.run(&members, &["--set", "safe_mode_delay=1000"]);
    running.io(&["write -P 9 0 4M", "flush"]);
    running.signal(Signal::KILL);
    let (status, _) = running.wait();
    assert_eq!(status.code(), None);

    let mut fewer = members.clone();
    fewer.remove(0);
    refused(&files.run_args(&fewer, &["--run"]), 1, &["dirty", "--force"]);
    let running = files.run(&members, &[]);
    running.io(&["read -P 9 0 4M"]);
    running.wait_idle();
    assert_eq!(running.detail()["last_sync_action"], "resync");
    running.signal(Signal::TERM);
    ended_clean(running, &files, 3);
}

#[test]
fn the_control_socket_speaks_http_to_its_owner_alone() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let control = files.dir.path().join("control");
    let running = files.run(&files.members(3), &[]);
    let mode = std::fs::metadata(&control).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ask = |request: &str| running.http(request);
    let counters = ask("GET /counters HTTP/1.0\r\n\r\n");
    assert!(counters.contains("200 OK") && counters.contains("\"member_requests\":"), "{counters}");
    assert!(ask("GET /nothing HTTP/1.0\r\n\r\n").contains("404"));
    let post = |path: &str, body: &str| {
        let head =
            format!("POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        ask(&(head + body))
    };
    assert!(post("/fail", "{}").contains(" 422 "));
    assert!(post("/fail", "not json").contains(" 400 "));
    assert!(post("/fail", "{\"member\":\"e1.1\"}").contains(" 404 "));
    let json = running.command(&["detail", "--json"]).output().expect("runs");
    assert!(json.status.success(), "{json:?}");
    let stopped = post("/stop", "{}");
    assert!(stopped.contains("200 OK") && stopped.ends_with("{\"exit\":0}"), "{stopped}");
    ended_clean(running, &files, 3);
    assert!(!control.exists());
}

#[test]
fn several_addresses_and_a_port_that_the_system_chooses() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let running = files.run(&files.members(3), &["--nbd", "tcp:127.0.0.1:0"]);
    let unix = running.uri();
    let uris: Vec<&str> = running.line.trim_end().rsplit(' ').take(2).collect();
    assert_eq!(uris[1], unix, "{}", running.line);
    let port = uris[0].strip_prefix("nbd://127.0.0.1:").expect("the port is told");
    let port: u16 = port.parse().expect("a port");
    let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("served");
    let mut greeting = [0; 18];
    std::io::Read::read_exact(&mut client, &mut greeting).expect("a greeting");
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");

    // The port is taken for others, and nothing of theirs is left.
    let other = Files::new(3);
    other.create(3, &["--assume-clean"]);
    let before = other.contents(3);
    let taken = format!("tcp:127.0.0.1:{port}");
    let args = other.run_args(&other.members(3), &["--nbd", &taken]);
    refused(&args, 1, &[&format!("127.0.0.1:{port} is in use")]);
    assert!(other.contents(3) == before);
    assert!(!other.dir.path().join("nbd").exists());

    running.signal(Signal::TERM);
    ended_clean(running, &files, 3);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn addresses_that_cannot_be() {
    let files = Files::new(3);
    for (address, code, words) in [
        ("tcp:10809", 2, "has no port"),
        ("tcp:localhost:99999", 2, "has no port"),
        ("tcp::10809", 2, "tcp:0.0.0.0:PORT"),
        ("tcp:::1:10809", 2, "brackets"),
        ("udp:localhost:1", 2, "unix:PATH or tcp:HOST:PORT"),
        ("tcp:no-such-host.invalid:1", 1, "no-such-host.invalid"),
        ("tcp:192.0.2.1:1", 1, "not an address of this host"),
    ] {
        let args = files.run_args(&files.members(3), &["--nbd", address]);
        refused(&args, code, &[words]);
    }
}

#[test]
fn the_ready_line_may_be_json_and_the_control_socket_is_found_by_name() {
    let files = Files::new(3);
    files.create(3, &["--assume-clean"]);
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_etherraid"))
        .args(["run", &files.name, "--nbd", &format!("unix:{}", files.dir.path().join("nbd").display())])
        .args(["--json", "--cpus", "0", "--set", "group_thread_cnt=0"])
        .args(files.members(3))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut child = child.expect("starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("readable");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&ready["event"], &ready["name"]), (&"ready".into(), &files.name.as_str().into()));
    let uri = format!("nbd+unix:///?socket={}", files.dir.path().join("nbd").display());
    assert_eq!(ready["nbd"], serde_json::json!([uri]));
    etherraid(["stop", &files.name]).assert().success();
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}
