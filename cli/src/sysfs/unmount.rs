//! Takes the tree away when the array's process ends, however it ends.
//!
//! Unmounting needs CAP_SYS_ADMIN, which an array must not keep, and Landlock forbids it to whoever it binds. So a process of its own keeps that capability and
//! nothing else: it holds the root of the tree open, reads nothing but the end of a socket whose other end the array holds, unmounts then, and ends. It
//! unmounts what it holds, by its descriptor, whatever is mounted in the same place later.
//!
//! It is this program again, as the hidden command `unmount-after`: a fork without exec would share the array's memory, locks and sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::signals::Signals;

/// The program that runs, even if its file has been replaced.
const ITSELF: &str = "/proc/self/exe";

/// The other process, as long as the tree is to stay.
#[derive(Debug)]
pub(super) struct Unmounter(UnixStream);

impl Unmounter {
    /// Starts it, for what is mounted at `dir` now.
    pub(super) fn start(dir: &Path) -> anyhow::Result<Unmounter> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(ITSELF);
        command.arg0("etherraid").arg("unmount-after").arg(dir);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        // What a terminal sends to all of the array's processes is not for this one.
        command.process_group(0);
        command.spawn().context("starting the process that unmounts")?;
        // The command holds the other end, too.
        drop(command);
        let mut ready = [0];
        match (&ours).read_exact(&mut ready) {
            Ok(()) => Ok(Unmounter(ours)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => bail!("the process that unmounts has died"),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Unmounter {
    /// The tree is gone afterwards.
    fn drop(&mut self) {
        let ended = self.0.shutdown(Shutdown::Write).and_then(|()| self.0.read(&mut [0]));
        if let Err(error) = ended {
            tracing::warn!(%error, "the files may not be unmounted");
        }
    }
}

/// Unmount what is mounted at DIR when standard input, a socket, ends
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted
    dir: PathBuf,
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    // A service manager may send SIGTERM to all processes at once: this one ends last.
    let _caught = Signals::new()?;
    let root = rustix::fs::open(&args.dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| args.dir.display().to_string())?;
    confine()?;
    let mut array = UnixStream::from(rustix::io::dup(std::io::stdin())?);
    array.write_all(&[0])?;
    // It sends nothing, so this is its end. An error can only mean that, too.
    let _ = array.read(&mut [0]);
    match unmount(format!("/proc/self/fd/{}", root.as_raw_fd()), UnmountFlags::DETACH) {
        // Somebody has done it.
        Ok(()) | Err(Errno::INVAL) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error).with_context(|| format!("unmounting {}", args.dir.display())),
    }
}

/// Gives up all that is not needed to unmount.
fn confine() -> anyhow::Result<()> {
    set_no_new_privs(true).context("no_new_privs")?;
    let held = rustix::thread::capabilities(None).context("capabilities")?;
    let kept = held.permitted & CapabilitySet::SYS_ADMIN;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("dropping capabilities")
}
