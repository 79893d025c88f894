//! A directory for the tree: free, or freed of what a killed process left; then the mount itself, by mount(2), which needs root.
//!
//! Free means an empty directory: nothing is hidden by the tree, and two arrays with the same directory do not cover each other. Whoever looks and mounts holds a
//! lock on the directory's parent meanwhile.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::mount::{MountFlags, UnmountFlags};

use super::unmount::Unmounter;
use crate::sandbox::directory;

/// Where the kernel and who serves files meet.
const DEVICE: &str = "/dev/fuse";

/// Type of the file system, as in `/proc/mounts`.
const TYPE: &str = "fuse.etherraid";

/// Dead trees on top of each other that are taken away.
const STALE_MAX: usize = 16;

/// Mounts a tree at `dir`, which is made if it is not there. Answers with the descriptor to serve it by, and what takes it away.
pub(super) fn mount(dir: &Path) -> anyhow::Result<(OwnedFd, Unmounter)> {
    match DirBuilder::new().mode(0o755).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let Some(name) = dir.file_name() else { bail!("name a directory that the files may have to themselves") };
    // Its last part is not looked at: that fails where a dead tree is.
    let parent = directory(dir).canonicalize()?;
    let lock = File::open(&parent)?;
    lock.lock()?;
    let dir = parent.join(name);
    take_stale_away(&dir)?;
    check_free(&dir)?;
    let device = File::options().read(true).write(true).open(DEVICE);
    let device = device.with_context(|| format!("{DEVICE} (is the fuse module loaded?)"))?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // As in /sys everybody may look, and the kernel checks the files' modes.
    let data = format!(
        "fd={},rootmode=40555,user_id={user},group_id={group},default_permissions,allow_other",
        device.as_raw_fd()
    );
    let data = std::ffi::CString::new(data)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("etherraid", &dir, TYPE, flags, data.as_c_str())
        .context("mounting (it takes root, or CAP_SYS_ADMIN)")?;
    let unmounter = match Unmounter::start(&dir) {
        Ok(unmounter) => unmounter,
        Err(error) => {
            // Nothing is lost if it stays: the next start takes it away.
            let _ = rustix::mount::unmount(&dir, UnmountFlags::DETACH);
            return Err(error);
        }
    };
    Ok((device.into(), unmounter))
}

/// Takes away trees whose processes have died without it.
fn take_stale_away(dir: &Path) -> anyhow::Result<()> {
    for _ in 0..STALE_MAX {
        let dead = std::fs::metadata(dir).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
        if !dead {
            return Ok(());
        }
        if mounted_type(dir)?.as_deref() != Some(TYPE) {
            bail!("something else is mounted there whose server has died: unmount it");
        }
        tracing::info!("{}: unmounting what an earlier run has left", dir.display());
        rustix::mount::unmount(dir, UnmountFlags::DETACH)
            .context("unmounting what an earlier run has left (it takes root, or CAP_SYS_ADMIN)")?;
    }
    bail!("too many dead trees are mounted there: unmount them")
}

fn check_free(dir: &Path) -> anyhow::Result<()> {
    if std::fs::read_dir(dir)?.next().is_none() {
        return Ok(());
    }
    if mounted_type(dir)?.as_deref() == Some(TYPE) {
        bail!("another array has its files there: give each a directory of its own");
    }
    bail!("the directory is not empty: the files would hide what is in it")
}

/// The type of what is mounted at a path, on top if it is more than one.
fn mounted_type(dir: &Path) -> anyhow::Result<Option<String>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    Ok(table.lines().filter_map(parse).rfind(|(at, _)| at == dir).map(|(_, kind)| kind.to_owned()))
}

/// Mount point and type of a line of mountinfo.
fn parse(line: &str) -> Option<(PathBuf, &str)> {
    let (before, after) = line.split_once(" - ")?;
    Some((unescape(before.split(' ').nth(4)?), after.split(' ').next()?))
}

/// Blanks, tabs, line ends and backslashes are written as three octal digits there.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = if *first == b'\\' { after.get(..3) } else { None };
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = r"36 35 0:57 / /run/a\040b\134c rw,nosuid master:1 shared:2 - fuse.etherraid etherraid rw,user_id=0";
        assert_eq!(parse(line), Some((PathBuf::from(r"/run/a b\c"), TYPE)));
        assert_eq!(parse("22 1 0:21 / /sys rw - sysfs sysfs rw"), Some((PathBuf::from("/sys"), "sysfs")));
        assert_eq!(parse("22 1 0:21 / /sys rw"), None);
        assert_eq!(unescape(r"a\9b\"), PathBuf::from(r"a\9b\"));
    }

    #[test]
    fn only_an_empty_directory_is_free() {
        let dir = tempfile::tempdir().expect("a directory");
        check_free(dir.path()).expect("free");
        std::fs::write(dir.path().join("file"), "").expect("room");
        let text = check_free(dir.path()).expect_err("taken").to_string();
        assert!(text.contains("not empty"), "{text}");
        assert!(check_free(&dir.path().join("file")).is_err() && check_free(&dir.path().join("none")).is_err());
        take_stale_away(dir.path()).expect("nothing to do");
    }
}
