//! What a test needs from the machine, and how it says that it was skipped.
//!
//! `require!(root, netns, "vblade", "fio")` at the top of a test prints `SKIPPED: why` and returns when something is missing.
//! `tests/run` counts these lines, takes them off the passed tests and shows them in its totals.

use crate::proc::Cmd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One thing that a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// Root that may make network namespaces (a container's root often may not).
    Netns,
    /// Another kernel, run as a process; see [`crate::kernel`]. The first test that asks lays its root file system.
    Kernel,
    /// File systems served by a process: root, `/dev/fuse`, and the right to mount.
    Fuse,
    /// A program on the PATH or in an sbin directory.
    Program(&'static str),
}

/// Returns from the test with a `SKIPPED` line unless everything named is there: `root`, `netns`, `fuse`, `kernel` or a program's name.
#[macro_export]
macro_rules! require {
    (@need root) => { $crate::skip::Need::Root };
    (@need netns) => { $crate::skip::Need::Netns };
    (@need fuse) => { $crate::skip::Need::Fuse };
    (@need kernel) => { $crate::skip::Need::Kernel };
    (@need $program:literal) => { $crate::skip::Need::Program($program) };
    ($($need:tt),+ $(,)?) => {
        if let Some(why) = $crate::skip::missing(&[$($crate::require!(@need $need)),+]) {
            $crate::skip::report(&why);
            return;
        }
    };
}

/// The first need that is not met, in words; `None` when all are.
pub fn missing(needs: &[Need]) -> Option<String> {
    needs.iter().find_map(|need| match need {
        Need::Root => (!is_root()).then(|| "needs root".to_owned()),
        Need::Netns => missing_netns(),
        Need::Fuse => missing_fuse(),
        Need::Kernel => crate::kernel::ensure().err().map(|e| format!("no kernel to run as a process: {e:#}")),
        Need::Program(name) => (find_program(name).is_none()).then(|| format!("{name} is not installed")),
    })
}

/// Prints the line that `tests/run` counts.
pub fn report(why: &str) {
    println!("SKIPPED: {why}");
}

/// Whether the effective user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn missing_netns() -> Option<String> {
    if !is_root() {
        return Some("needs root, for network namespaces".to_owned());
    }
    if find_program("ip").is_none() {
        return Some("iproute2 is not installed".to_owned());
    }
    let tried = Cmd::new("unshare").args(["-n", "true"]).finish(Duration::from_secs(10));
    (!tried.status.success()).then(|| "this root may not make network namespaces".to_owned())
}

fn missing_fuse() -> Option<String> {
    if !is_root() {
        return Some("needs root, to mount".to_owned());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse".to_owned());
    }
    let tried = Cmd::new("unshare").args(["-m", "true"]).finish(Duration::from_secs(10));
    (!tried.status.success()).then(|| "this root may not mount".to_owned())
}

/// The full path of `name` on the PATH or in the sbin directories, which a plain user's PATH lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_or_named() {
        assert!(find_program("sh").is_some());
        assert_eq!(missing(&[Need::Program("sh")]), None);
        let why = missing(&[Need::Program("sh"), Need::Program("no-such-program-anywhere")]);
        assert_eq!(why.as_deref(), Some("no-such-program-anywhere is not installed"));
    }

    #[test]
    fn root_is_asked_of_the_kernel() {
        let uid = Cmd::new("id").arg("-u").ok(Duration::from_secs(10));
        assert_eq!(missing(&[Need::Root]).is_none(), uid.trim() == "0");
    }
}
