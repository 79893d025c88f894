//! Landlock (Linux 5.13 and later): a thread gives up rights to files and ports for itself and the threads that it will start.
//!
//! Used by [`sandbox`](crate::sandbox). Names and numbers are those of `linux/landlock.h`; an older kernel knows fewer of them and is asked
//! for no more than it knows.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Rights to files.
pub(crate) mod fs {
    pub(crate) const EXECUTE: u64 = 1;
    pub(crate) const WRITE_FILE: u64 = 1 << 1;
    pub(crate) const REMOVE_DIR: u64 = 1 << 4;
    pub(crate) const REMOVE_FILE: u64 = 1 << 5;
    pub(crate) const MAKE_CHAR: u64 = 1 << 6;
    pub(crate) const MAKE_DIR: u64 = 1 << 7;
    pub(crate) const MAKE_REG: u64 = 1 << 8;
    pub(crate) const MAKE_SOCK: u64 = 1 << 9;
    pub(crate) const MAKE_FIFO: u64 = 1 << 10;
    pub(crate) const MAKE_BLOCK: u64 = 1 << 11;
    pub(crate) const MAKE_SYM: u64 = 1 << 12;
    /// To another directory; since version 2.
    pub(crate) const REFER: u64 = 1 << 13;
    /// Since version 3.
    pub(crate) const TRUNCATE: u64 = 1 << 14;
}

/// Rights to TCP ports; since version 4.
const NET_BIND: u64 = 1;
const NET_CONNECT: u64 = 1 << 1;

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    /// Since version 4.
    handled_access_net: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: RawFd,
}

/// The kernel's version of Landlock; 0 without one.
pub(crate) fn version() -> u32 {
    let none = std::ptr::null::<RulesetAttr>();
    // SAFETY: with this flag the call reads no memory of ours and only answers with a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, CREATE_RULESET_VERSION) };
    u32::try_from(version).unwrap_or(0)
}

/// Rights that are given up but where a rule allows them.
#[derive(Debug)]
pub(crate) struct Ruleset {
    fd: OwnedFd,
    handled: u64,
}

impl Ruleset {
    /// Gives up these rights to files, and binding and connecting of TCP sockets, as far as `version` knows them.
    pub(crate) fn new(version: u32, rights: u64) -> io::Result<Ruleset> {
        let unknown = if version < 2 { fs::REFER } else { 0 } | if version < 3 { fs::TRUNCATE } else { 0 };
        let handled = rights & !unknown;
        let has_net = version >= 4;
        let net = if has_net { NET_BIND | NET_CONNECT } else { 0 };
        let attr = RulesetAttr { handled_access_fs: handled, handled_access_net: net };
        let size = if has_net { size_of::<RulesetAttr>() } else { size_of::<u64>() };
        // SAFETY: the kernel reads `size` bytes of `attr`, which is at least so long and outlives the call.
        let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size, 0u32) };
        let fd = RawFd::try_from(check(fd)?).expect("a descriptor is an int");
        // SAFETY: the call has made this descriptor, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Ruleset { fd, handled })
    }

    /// Keeps these of the rights beneath a directory, or to a file.
    pub(crate) fn allow(&self, path: &Path, rights: u64) -> io::Result<()> {
        let parent = File::options().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)?;
        let attr = PathBeneathAttr { allowed_access: rights & self.handled, parent_fd: parent.as_raw_fd() };
        let ruleset = self.fd.as_raw_fd();
        // SAFETY: the kernel reads `attr`, which outlives the call, as does the descriptor that it names.
        let done =
            unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &raw const attr, 0u32) };
        check(done).map(drop)
    }

    /// The calling thread gives the rights up for good. It must not be able to gain privileges.
    pub(crate) fn restrict_self(&self) -> io::Result<()> {
        // SAFETY: the call takes a descriptor and a number, and no memory.
        let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.fd.as_raw_fd(), 0u32) };
        check(done).map(drop)
    }
}

fn check(done: libc::c_long) -> io::Result<libc::c_long> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
