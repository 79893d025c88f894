//! What `run` and `shelf` give up once they have what they need: capabilities, rights to files, system calls.
//!
//! Two steps, because the first counts for a thread and those that it will start. [`Sandbox::enter`]: each of the first threads, before it starts
//! others, drops capabilities, the way to new ones, and by Landlock the rights to run programs, to make or remove files but where our sockets are,
//! and to write to files outside of the named directories. [`Sandbox::seal`]: when all runs, a seccomp filter over all threads passes
//! only the system calls of [`syscalls`].
//!
//! What is left over, and why: reading of files anywhere, and writing in the directories that members were named in and in `/dev`, because
//! `add` opens members later; CAP_NET_RAW of an array that was given interfaces, because `add` then opens packet sockets; CAP_IPC_LOCK where
//! the limit on locked memory cannot be lifted. A kernel
//! without Landlock or seccomp is made do with; a capability that can't be dropped is an error.

pub(crate) mod memory;
mod syscalls;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::sys::landlock::{self, Ruleset, fs};

/// Rights to files that are given up.
const GIVEN_UP: u64 = fs::EXECUTE
    | fs::WRITE_FILE
    | fs::TRUNCATE
    | fs::REMOVE_DIR
    | fs::REMOVE_FILE
    | fs::MAKE_CHAR
    | fs::MAKE_DIR
    | fs::MAKE_REG
    | fs::MAKE_SOCK
    | fs::MAKE_FIFO
    | fs::MAKE_BLOCK
    | fs::MAKE_SYM
    | fs::REFER;
/// Kept where files of ours come and go: sockets, locks, states of a shelf.
const OWN: u64 = fs::WRITE_FILE | fs::TRUNCATE | fs::MAKE_REG | fs::MAKE_SOCK | fs::REMOVE_FILE;
/// Kept where members are.
const MEMBERS: u64 = fs::WRITE_FILE | fs::TRUNCATE;
/// Block devices are members, too.
const DEVICES: &str = "/dev";

/// What a process keeps.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// Capabilities; `None` is all, and nothing else is given up either.
    kept: Option<CapabilitySet>,
    /// Directories that members may be in; `None` is anywhere.
    members: Option<Vec<PathBuf>>,
    ruleset: Option<Ruleset>,
}

impl Sandbox {
    /// Keeps everything.
    pub(crate) fn none() -> Sandbox {
        Sandbox { kept: None, members: None, ruleset: None }
    }

    /// Keeps these capabilities, members in these directories, and our files in those of `own`. Directories that are not there are left out.
    pub(crate) fn new(kept: CapabilitySet, members: &[PathBuf], own: &[PathBuf]) -> anyhow::Result<Sandbox> {
        let there = |paths: &[PathBuf]| {
            let mut paths: Vec<_> = paths.iter().filter_map(|path| path.canonicalize().ok()).collect();
            paths.sort();
            paths.dedup();
            paths
        };
        let mut members = there(members);
        members.push(DEVICES.into());
        let ruleset = match landlock::version() {
            0 => {
                tracing::debug!("the kernel has no Landlock: rights to files are kept");
                None
            }
            version => Some(rules(version, &members, &there(own)).context("Landlock")?),
        };
        Ok(Sandbox { kept: Some(kept), members: ruleset.is_some().then_some(members), ruleset })
    }

    /// The calling thread gives up what the whole process is to give up. To be called by each of the first threads.
    pub(crate) fn enter(&self) -> anyhow::Result<()> {
        let Some(kept) = self.kept else { return Ok(()) };
        set_no_new_privs(true).context("no_new_privs")?;
        if let Some(ruleset) = &self.ruleset {
            ruleset.restrict_self().context("Landlock")?;
        }
        let held = rustix::thread::capabilities(None).context("capabilities")?;
        let kept = kept & held.permitted;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).context("dropping capabilities")?;
        tracing::debug!(capabilities = ?kept, landlock = self.ruleset.is_some(), "privileges dropped");
        Ok(())
    }

    /// All threads give up the system calls that they will not need.
    pub(crate) fn seal(&self) -> anyhow::Result<()> {
        if self.kept.is_none() {
            return Ok(());
        }
        let Some(filter) = syscalls::filter()? else {
            tracing::debug!("no seccomp filter for this architecture");
            return Ok(());
        };
        match seccompiler::apply_filter_all_threads(&filter) {
            Ok(()) => tracing::debug!("system calls filtered"),
            // The kernel has none, or whoever started us has forbidden it.
            Err(error) => tracing::warn!(%error, "system calls are not filtered"),
        }
        Ok(())
    }

    /// Whether a member there could be written to.
    pub(crate) fn allows(&self, member: &Path) -> bool {
        let Some(members) = &self.members else { return true };
        // What cannot be looked at is for whoever opens it to tell.
        let Ok(real) = member.canonicalize() else { return true };
        members.iter().any(|dir| real.starts_with(dir))
    }

    /// Where members may be, in words.
    pub(crate) fn members(&self) -> String {
        let dirs = self.members.iter().flatten().map(|dir| dir.display().to_string());
        dirs.collect::<Vec<_>>().join(", ")
    }
}

fn rules(version: u32, members: &[PathBuf], own: &[PathBuf]) -> io::Result<Ruleset> {
    let ruleset = Ruleset::new(version, GIVEN_UP)?;
    for dir in members {
        ruleset.allow(dir, MEMBERS)?;
    }
    for dir in own {
        ruleset.allow(dir, OWN)?;
    }
    Ok(ruleset)
}

/// The directory that a path is in.
pub(crate) fn directory(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_where_they_may_be() {
        let dir = tempfile::tempdir().expect("a directory");
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir(&inside).expect("room");
        std::fs::create_dir(&outside).expect("room");
        let sandbox = Sandbox::new(CapabilitySet::empty(), std::slice::from_ref(&inside), &[]).expect("rules");
        assert!(sandbox.allows(Path::new("/dev/null")));
        if landlock::version() > 0 {
            std::fs::write(inside.join("disk"), "").expect("room");
            std::fs::write(outside.join("disk"), "").expect("room");
            assert!(sandbox.allows(&inside.join("disk")) && !sandbox.allows(&outside.join("disk")));
            std::os::unix::fs::symlink(outside.join("disk"), inside.join("alias")).expect("a link");
            assert!(!sandbox.allows(&inside.join("alias")), "where it leads to counts");
            assert!(sandbox.members().contains("/dev"));
        }
        assert!(Sandbox::none().allows(&outside.join("disk")));
    }

    #[test]
    fn a_thread_that_has_entered_writes_where_it_may() {
        if landlock::version() == 0 {
            println!("SKIPPED: the kernel has no Landlock");
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let paths = ["members", "own", "other"].map(|name| dir.path().join(name));
        for path in &paths {
            std::fs::create_dir(path).expect("room");
            std::fs::write(path.join("disk"), "old").expect("room");
        }
        let [members, own, other] = &paths;
        let sandbox = Sandbox::new(CapabilitySet::empty(), std::slice::from_ref(members), std::slice::from_ref(own))
            .expect("rules");
        let write = |dir: &Path| std::fs::File::options().write(true).open(dir.join("disk")).map(drop);
        let make = |dir: &Path| std::fs::write(dir.join("new"), "");
        // Of this thread alone: the other tests keep what they have.
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                sandbox.enter().expect("enters");
                assert!(write(members).is_ok() && write(own).is_ok() && write(other).is_err());
                assert!(make(members).is_err() && make(own).is_ok() && make(other).is_err());
                assert!(std::fs::read(other.join("disk")).is_ok(), "reading is free");
                assert!(std::process::Command::new("/bin/true").status().is_err(), "no programs are run");
                assert_eq!(rustix::thread::capabilities(None).expect("readable").permitted, CapabilitySet::empty());
            });
            inside.join().expect("as it should be");
        });
        assert!(write(other).is_ok() && make(other).is_ok());
    }
}
