//! Where running arrays keep their control sockets and locks: `/run/etherraid`, or for ordinary users a directory of their own.
//!
//! One array is run once on a host: an exclusive lock on a file named after its UUID, held as long as the array runs. The lock goes with the process,
//! however it ends; the file stays.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use raid_core::md::Uuid;

/// For those who may write there.
const SYSTEM: &str = "/run/etherraid";

/// The directory. It may not exist yet.
pub(crate) fn runtime_dir() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return SYSTEM.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Path::new(&dir).join("etherraid"),
        None => std::env::temp_dir().join(format!("etherraid-{}", user.as_raw())),
    }
}

/// The directory, made if need be. Nobody else may have made it: in a directory like /tmp they could.
pub(crate) fn make_runtime_dir() -> anyhow::Result<PathBuf> {
    let dir = runtime_dir();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("making {}", dir.display()))?;
    let metadata = std::fs::symlink_metadata(&dir).with_context(|| format!("looking at {}", dir.display()))?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        bail!("{} is not a directory of yours: set XDG_RUNTIME_DIR to one", dir.display());
    }
    Ok(dir)
}

/// The control socket of the array that is run as `name`.
pub(crate) fn control_socket(name: &str) -> PathBuf {
    runtime_dir().join(format!("{name}.sock"))
}

/// NAME on the command line: it becomes a file's name.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let bad = text.is_empty() || text == "." || text == ".." || text.contains('/') || text.contains(char::is_control);
    if bad || text.len() > 64 {
        return Err("an array's name has 1 to 64 bytes, and no slash or control character".to_owned());
    }
    Ok(text.to_owned())
}

/// The right to run an array.
#[derive(Debug)]
pub(crate) struct ArrayLock {
    _file: File,
}

impl ArrayLock {
    /// Takes it; `None` while somebody else has it.
    pub(crate) fn take(uuid: Uuid) -> anyhow::Result<Option<ArrayLock>> {
        let path = make_runtime_dir()?.join(format!("{}.lock", uuid.hyphenated()));
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(ArrayLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(locking(error, &path)),
        }
    }
}

fn locking(error: io::Error, path: &Path) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("locking {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["r5", "host:r5", "a b", "\u{fc}"] {
            assert_eq!(parse_name(name).as_deref(), Ok(name));
        }
        for name in ["", ".", "..", "a/b", "a\nb", &"x".repeat(65)] {
            assert!(parse_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_lock_is_held_until_dropped() {
        let uuid = raid_engine::assembly::random_uuid();
        let lock = ArrayLock::take(uuid).expect("a directory").expect("free");
        assert!(ArrayLock::take(uuid).expect("a directory").is_none());
        drop(lock);
        assert!(ArrayLock::take(uuid).expect("a directory").is_some());
        let _ = std::fs::remove_file(runtime_dir().join(format!("{}.lock", uuid.hyphenated())));
    }
}
