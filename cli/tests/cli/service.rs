//! `run` as a service manager has it: from a file, notified, logged to the journal.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Files, etherraid, has};

/// Longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);

/// `run` with the options in a file.
struct Service {
    files: Files,
    config: PathBuf,
}

impl Service {
    /// A clean array of three, and a file that names its members, with `more` before and `tables` after.
    fn new(more: &str, tables: &str) -> Service {
        let files = Files::new(3);
        files.create(3, &["--assume-clean"]);
        let dir = files.dir.path();
        let config = dir.join("array.toml");
        let text = format!(
            "{more}\nmembers = {:?}\nnbd = [\"unix:{}\"]\ncontrol = {:?}\n{tables}",
            files.members(3),
            dir.join("nbd").display(),
            files.control()
        );
        std::fs::write(&config, text).expect("room");
        Service { files, config }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etherraid"));
        command.args(["run", &self.files.name, "--config"]).arg(&self.config).stdout(Stdio::piped());
        command
    }

    /// Starts it, and answers with the first line that it prints.
    fn start(mut command: Command) -> (Started, String) {
        let mut started = Started(command.spawn().expect("starts"));
        let mut line = String::new();
        BufReader::new(started.0.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        assert!(line.starts_with("ready: "), "{line}");
        (started, line)
    }

    fn refused(&self, more: &[&str], code: i32, words: &[&str]) {
        let before = self.files.contents(3);
        let config = self.config.display().to_string();
        let output = etherraid(["run", &self.files.name, "--config", &config]).args(more).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
        assert!(self.files.contents(3) == before);
    }
}

/// A process that is killed when dropped.
struct Started(Child);

impl Started {
    fn terminate(&self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("it runs");
    }

    /// Sends SIGTERM; it ends well.
    fn end(mut self) {
        self.terminate();
        assert_eq!(self.0.wait().expect("ends").code(), Some(0));
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_says_what_the_command_line_does_not() {
    let service = Service::new("readonly = true", "[set]\nmember_hold = 7\nrmw_level = 2\n");
    let mut command = service.command();
    let other = service.files.dir.path().join("other");
    command.arg("--nbd").arg(format!("unix:{}", other.display())).args(["--set", "rmw_level=0"]);
    let (started, line) = Service::start(command);
    assert!(line.contains("/other") && other.exists(), "the command line's address counts: {line}");
    let control = service.files.control();
    let value = |key: &str| {
        let output = etherraid(["tune", &service.files.name, key, "--control", &control]).output().expect("runs");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!((value("member_hold").trim(), value("rmw_level").trim()), ("7.000", "0"));
    let detail = etherraid(["detail", &service.files.name, "--json", "--control", &control]).output().expect("runs");
    assert!(String::from_utf8_lossy(&detail.stdout).contains("\"readonly\""), "{detail:?}");
    started.end();
}

#[test]
fn a_file_that_is_wrong_is_told_with_its_line() {
    let wrong = |more: &str, tables: &str, words: &[&str]| Service::new(more, tables).refused(&[], 2, words);
    wrong("\nmemberz = []", "", &["array.toml:2: ", "unknown field `memberz`"]);
    wrong("force = true", "", &["array.toml:1: ", "unknown field `force`"]);
    wrong("scan = true", "", &["members and scan"]);
    wrong("", "[set]\nrmw_level = 9\n", &["array.toml:6: ", "0 to 2"]);
    wrong("cpus = 1", "", &["array.toml:1: ", "expected a string"]);
    wrong("durable = [\"/other\"]", "", &["--durable /other"]);
    let service = Service::new("", "");
    service.refused(&["--scan"], 2, &["--scan needs interfaces"]);
    std::fs::remove_file(&service.config).expect("there");
    service.refused(&[], 1, &["array.toml", "No such file"]);
    // Nothing is said anywhere: the message names the place to say it.
    let output = etherraid(["run", "no-such-array"]).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("/etc/etherraid/no-such-array.toml") && text.contains("--scan"), "{text}");
}

#[test]
fn the_service_manager_is_notified() {
    let service = Service::new("", "");
    let path = service.files.dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(LIMIT)).expect("a limit");
    let next = || {
        let mut buf = [0; 4096];
        let len = manager.recv(&mut buf).expect("a message in time");
        String::from_utf8(buf[..len].to_vec()).expect("text")
    };
    let mut command = service.command();
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000").stderr(Stdio::null());
    let (started, _) = Service::start(command);
    let ready = next();
    assert!(ready.starts_with("READY=1\nSTATUS=raid5 "), "{ready}");
    for _ in 0..3 {
        assert_eq!(next(), "WATCHDOG=1");
    }
    started.terminate();
    while next() != "STOPPING=1" {}
    // A second signal so soon is the same wish.
    started.end();
}

#[test]
fn the_journal_gets_priorities_and_no_times() {
    let service = Service::new("", "");
    let path = service.files.dir.path().join("journal");
    let lines = |stream: &dyn Fn(&File) -> String| {
        let file = File::create(&path).expect("room");
        let mut command = service.command();
        command.env("JOURNAL_STREAM", stream(&file)).stderr(file);
        let (started, _) = Service::start(command);
        started.end();
        let mut text = String::new();
        File::open(&path).expect("there").read_to_string(&mut text).expect("text");
        text
    };
    let journal = lines(&|file| {
        let metadata = file.metadata().expect("open");
        format!("{}:{}", metadata.dev(), metadata.ino())
    });
    assert!(journal.contains("<6>SIGTERM: stopping\n"), "{journal}");
    for line in journal.lines() {
        let rest = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let (priority, text) = rest.unwrap_or_else(|| panic!("no priority: {line}"));
        assert!(["3", "4", "6"].contains(&priority) && !text.contains("202"), "{line}");
    }
    // The variable may be left over from a parent whose standard error was the journal.
    let other = lines(&|_| "1:1".to_owned());
    assert!(other.contains("INFO SIGTERM: stopping") && !other.contains("<6>"), "{other}");
}

#[test]
fn the_unit_is_valid() {
    if !has("systemd-analyze") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/etherraid@.service");
    let text = std::fs::read_to_string(dist).expect("the unit");
    assert!(text.contains("ExecStart=/usr/bin/etherraid run %i\n"));
    // The program and the page are not installed where the test runs.
    let text = text.replace("/usr/bin/etherraid", env!("CARGO_BIN_EXE_etherraid"));
    let text: String =
        text.lines().filter(|line| !line.starts_with("Documentation=")).map(|l| l.to_owned() + "\n").collect();
    let unit = dir.path().join("etherraid@.service");
    std::fs::write(&unit, text).expect("room");
    let output = Command::new("systemd-analyze").arg("verify").arg(&unit).output().expect("runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !told.contains("etherraid@"), "{told}");
}
