//! Child processes that die with the test, with their output kept and every wait bounded.
//!
//! [`Cmd`] says what to run and in which network namespace; [`Cmd::spawn`] gives a [`Proc`], [`Cmd::finish`] runs to the end.
//! Invariants: a `Proc` that is dropped is killed and reaped; a test process that is killed takes its children along (parent
//! death signal, which the kernel ties to the *thread* that spawned: spawn from the test's own thread, or keep the thread); when the test panics, the
//! last `TAIL_LINES` lines of each process are printed. At most `MAX_LINES` lines are kept of each.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::netns::NetNs;

/// Lines printed of a process when the test fails.
const TAIL_LINES: usize = 40;
/// Lines kept of a process; older ones are dropped.
const MAX_LINES: usize = 200_000;
/// How long output may still come after the process ended (a grandchild may hold the pipe).
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

/// A command to run.
pub struct Cmd {
    command: Command,
    netns: Option<File>,
    /// Shown in messages.
    text: String,
}

impl Cmd {
    /// Runs `program`, looked for on the PATH and in the sbin directories, with no input.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let found = program.to_str().and_then(crate::skip::find_program);
        let mut command = Command::new(found.as_deref().map_or(program, |path| path.as_os_str()));
        command.stdin(Stdio::null());
        Self { command, netns: None, text: program.to_string_lossy().into_owned() }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.text.push(' ');
        self.text.push_str(&arg.as_ref().to_string_lossy());
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(self, args: impl IntoIterator<Item = S>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// Runs it in this network namespace.
    #[must_use]
    pub fn netns(mut self, netns: &NetNs) -> Self {
        self.netns = Some(netns.open());
        self
    }

    /// As [`Cmd::netns`] where there is one.
    #[must_use]
    pub fn maybe_netns(self, netns: Option<&NetNs>) -> Self {
        match netns {
            Some(netns) => self.netns(netns),
            None => self,
        }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.command.env(key, value.into());
        self
    }

    /// Starts it.
    pub fn spawn(mut self) -> Proc {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let netns = self.netns.take();
        let parent = rustix::process::getpid();
        let before_exec = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the line above: then nobody would kill us any more.
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            if let Some(file) = &netns {
                rustix::thread::move_into_link_name_space(
                    file.as_fd(),
                    Some(rustix::thread::LinkNameSpaceType::Network),
                )?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure only makes the system calls prctl, getppid and setns; it neither allocates
        // nor takes a lock, so it may run in the child of a process with threads.
        unsafe { self.command.pre_exec(before_exec) };
        let mut child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("cannot run `{}`: {error}", self.text),
        };
        let log = Arc::new(Log::new(2));
        if let Some(pipe) = child.stdout.take() {
            read_lines(pipe, Stream::Out, Arc::clone(&log));
        }
        if let Some(pipe) = child.stderr.take() {
            read_lines(pipe, Stream::Err, Arc::clone(&log));
        }
        Proc { child, log, text: self.text }
    }

    /// Runs it to its end. Panics with its output when it is not done within `limit`.
    pub fn finish(self, limit: Duration) -> Finished {
        self.spawn().finish(limit)
    }

    /// Runs it to its end and returns what it printed to stdout. Panics with its output when it fails.
    pub fn ok(self, limit: Duration) -> String {
        self.finish(limit).ok()
    }
}

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

#[derive(Default)]
struct LogState {
    lines: Vec<(Stream, String)>,
    /// Pipes not yet at their end.
    open: usize,
}

struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

impl Log {
    fn new(open: usize) -> Self {
        let state = Mutex::new(LogState { open, ..LogState::default() });
        Self { state, changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().expect("a thread that holds the log never panics")
    }

    fn push(&self, stream: Stream, line: String) {
        let mut state = self.lock();
        if state.lines.len() >= MAX_LINES {
            state.lines.drain(..MAX_LINES / 2);
        }
        state.lines.push((stream, line));
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().open -= 1;
        self.changed.notify_all();
    }

    /// Waits until `look` returns a value or `deadline` is past.
    fn wait<T>(&self, deadline: Instant, mut look: impl FnMut(&LogState) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(value) = look(&state) {
                return Some(value);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).expect("a thread that holds the log never panics").0;
        }
    }
}

fn read_lines(pipe: impl Read + Send + 'static, stream: Stream, log: Arc<Log>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            let text = String::from_utf8_lossy(&line);
            log.push(stream, text.trim_end_matches(['\n', '\r']).to_owned());
            line.clear();
        }
        log.close();
    });
}

/// A running child process.
pub struct Proc {
    child: Child,
    log: Arc<Log>,
    text: String,
}

impl Proc {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn rustix_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for a line, of either stream, that holds `needle`. Panics with the output after `limit`, or when the process ended
    /// without it.
    pub fn wait_for_line(&self, needle: &str, limit: Duration) -> String {
        let found = self.log.wait(Instant::now() + limit, |state| {
            let line = state.lines.iter().find(|(_, line)| line.contains(needle));
            match line {
                Some((_, line)) => Some(Some(line.clone())),
                None if state.open == 0 => Some(None),
                None => None,
            }
        });
        match found {
            Some(Some(line)) => line,
            Some(None) => panic!("`{}` ended without a line with {needle:?}\n{}", self.text, self.tail()),
            None => panic!("`{}`: no line with {needle:?} within {limit:?}\n{}", self.text, self.tail()),
        }
    }

    /// Sends a signal. A process that is gone already is no error.
    pub fn signal(&self, signal: Signal) {
        // The child is not reaped before drop or `finish`, so its pid can't name another process.
        let _gone = rustix::process::kill_process(self.rustix_pid(), signal);
    }

    /// The exit status, when it comes within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        if let Some(status) = self.try_wait() {
            return Some(status);
        }
        let fd =
            rustix::process::pidfd_open(self.rustix_pid(), PidfdFlags::empty()).expect("an unreaped child has a pidfd");
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("test time limits fit a timespec");
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            // A signal that interrupts poll only makes the loop look again.
            let _ready = rustix::event::poll(&mut fds, Some(&timeout));
            if let Some(status) = self.try_wait() {
                return Some(status);
            }
            if left.is_zero() {
                return None;
            }
        }
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours can be waited for")
    }

    /// Whether it still runs (stopped counts as running).
    pub fn is_running(&mut self) -> bool {
        self.try_wait().is_none()
    }

    /// Waits for its end and returns all of its output. Panics with the output after `limit`.
    pub fn finish(mut self, limit: Duration) -> Finished {
        let Some(status) = self.wait(limit) else {
            panic!("`{}` still runs after {limit:?}\n{}", self.text, self.tail());
        };
        let grace = Instant::now() + OUTPUT_GRACE;
        let _all_read = self.log.wait(grace, |state| (state.open == 0).then_some(()));
        Finished {
            status,
            stdout: self.collect(Stream::Out),
            stderr: self.collect(Stream::Err),
            text: self.text.clone(),
        }
    }

    fn collect(&self, stream: Stream) -> String {
        let state = self.log.lock();
        let lines = state.lines.iter().filter(|(from, _)| *from == stream);
        lines.fold(String::new(), |mut text, (_, line)| {
            text.push_str(line);
            text.push('\n');
            text
        })
    }

    /// The last lines that it printed, for a message.
    pub fn tail(&self) -> String {
        let state = self.log.lock();
        let from = state.lines.len().saturating_sub(TAIL_LINES);
        let lines = state.lines[from..].iter().map(|(stream, line)| match stream {
            Stream::Out => format!("  | {line}\n"),
            Stream::Err => format!("  ! {line}\n"),
        });
        format!("output of `{}`:\n{}", self.text, lines.collect::<String>())
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.log.lock().lines.is_empty() {
            eprintln!("{}", self.tail());
        }
        // Both fail only for a child that was reaped already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A process that ran to its end.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed to stdout.
    pub stdout: String,
    /// What it printed to stderr.
    pub stderr: String,
    text: String,
}

impl Finished {
    /// What it printed to stdout. Panics with its output unless it ended with status 0.
    pub fn ok(self) -> String {
        assert!(self.status.success(), "`{}` failed: {}\n{}{}", self.text, self.status, self.stdout, self.stderr);
        self.stdout
    }

    /// What it printed to stderr. Panics unless it ended with this exit code.
    pub fn fails_with(self, code: i32) -> String {
        assert_eq!(self.status.code(), Some(code), "`{}`: {}\n{}{}", self.text, self.status, self.stdout, self.stderr);
        self.stderr
    }
}

#[cfg(test)]
mod tests;
