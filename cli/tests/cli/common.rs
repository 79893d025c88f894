//! Files as members, the binary, and a running array that is killed when dropped.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Size of a member.
pub(crate) const MEMBER_BYTES: u64 = 16 << 20;

/// Longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The binary with these arguments.
pub(crate) fn etherraid<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> assert_cmd::Command {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_etherraid"));
    command.args(args).timeout(LIMIT);
    command
}

/// Whether a program is installed; says so if not.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

/// Files in a directory of their own, and a name for an array that no other test uses.
pub(crate) struct Files {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) name: String,
}

impl Files {
    /// `count` files full of zeroes.
    pub(crate) fn new(count: usize) -> Files {
        let dir = tempfile::tempdir().expect("a directory");
        let name = format!("clitest{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let files = Files { dir, name };
        for index in 0..count {
            let file = std::fs::File::create(files.path(index)).expect("a file");
            file.set_len(MEMBER_BYTES).expect("room");
        }
        files
    }

    pub(crate) fn path(&self, index: usize) -> PathBuf {
        self.dir.path().join(format!("disk{index}"))
    }

    /// The names of the first `count`.
    pub(crate) fn members(&self, count: usize) -> Vec<String> {
        (0..count).map(|index| self.path(index).display().to_string()).collect()
    }

    /// All bytes of the first `count`.
    pub(crate) fn contents(&self, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|index| std::fs::read(self.path(index)).expect("readable")).collect()
    }

    /// Makes a RAID5 with chunks of 64 KiB of the first `count` files.
    pub(crate) fn create(&self, count: usize, more: &[&str]) {
        let n = count.to_string();
        let args = [&["create", &self.name, "-l", "5", "-n", &n, "-c", "64K"][..], more].concat();
        etherraid(args).args(self.members(count)).assert().success();
    }

    /// Its control socket.
    pub(crate) fn control(&self) -> String {
        self.dir.path().join("control").display().to_string()
    }

    /// The command line that runs the array of these members.
    pub(crate) fn run_args(&self, members: &[String], more: &[&str]) -> Vec<String> {
        let nbd = format!("unix:{}", self.dir.path().join("nbd").display());
        let fixed = ["run", &self.name, "--nbd", &nbd, "--control", &self.control()];
        fixed.iter().chain(more).map(ToString::to_string).chain(members.iter().cloned()).collect()
    }

    /// Runs the array and waits until it is ready.
    pub(crate) fn run(&self, members: &[String], more: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etherraid"));
        command.args(self.run_args(members, more)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        if !line.starts_with("ready: ") {
            panic!("not ready: {line:?}, {}", rest(&mut child));
        }
        let socket = self.dir.path().join("nbd");
        Running { child, line, name: self.name.clone(), control: self.control(), socket }
    }
}

/// What a process that has ended wrote to its standard error.
fn rest(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut pipe) = child.stderr.take() {
        let _ = pipe.read_to_string(&mut text);
    }
    text
}

/// An array that is being served.
pub(crate) struct Running {
    child: Child,
    /// What it said when it was ready.
    pub(crate) line: String,
    name: String,
    control: String,
    socket: PathBuf,
}

impl Drop for Running {
    /// Ends it in order, so that its lock goes; by force if that takes long. A test that fails shows what it said.
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
        }
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("`etherraid run {}` said:\n{}", self.name, rest(&mut self.child));
        }
    }
}

impl Running {
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    pub(crate) fn command(&self, args: &[&str]) -> assert_cmd::Command {
        let (command, more) = args.split_first().expect("a command");
        etherraid([&[command, self.name.as_str()], more, &["--control", &self.control]].concat())
    }

    pub(crate) fn detail(&self) -> Value {
        let output = self.command(&["detail", "--json"]).output().expect("runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Waits until `detail` is as wanted.
    pub(crate) fn wait_until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + LIMIT;
        loop {
            let detail = self.detail();
            if wanted(&detail) {
                return detail;
            }
            assert!(Instant::now() < end, "never so: {detail:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no sync runs.
    pub(crate) fn wait_idle(&self) -> Value {
        self.wait_until(|detail| detail["sync_action"] == "idle" && detail["degraded"] == 0)
    }

    /// Runs qemu-io with these options, then commands.
    pub(crate) fn qemu_io(&self, options: &[&str], commands: &[&str]) -> Output {
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw"]).args(options);
        for command in commands {
            qemu.args(["-c", command]);
        }
        qemu.arg(self.uri()).output().expect("runs")
    }

    /// Reads and writes, and all must be well.
    pub(crate) fn io(&self, commands: &[&str]) {
        all_well(&self.qemu_io(&[], commands));
    }

    /// Reads from an array that takes no writes.
    pub(crate) fn io_readonly(&self, commands: &[&str]) {
        all_well(&self.qemu_io(&["-r"], commands));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
    }

    /// Reads no more of its log.
    pub(crate) fn close_log(&mut self) {
        drop(self.child.stderr.take());
    }

    /// Waits for its end; answers with that and its log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let text = rest(&mut self.child);
        (self.child.wait().expect("ends"), text)
    }

    /// Asks by hand, as curl would.
    pub(crate) fn http(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(&self.control).expect("connects");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("writes");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("reads");
        text
    }
}

fn all_well(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("failed"), "{output:?}");
}
