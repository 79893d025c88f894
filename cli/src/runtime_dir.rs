//! Where running arrays keep their control sockets and locks: `/run/etherraid`, or for ordinary users a directory of their own.
//!
//! One array is run once on a host: an exclusive lock on a file named after its UUID, held as long as the array runs. The lock goes with the process,
//! however it ends; so does the file, but after a kill. The file says what the array is called and where its control socket is, wherever `--control`
//! has put that: a line with the name, then the path. Nobody answers at the path of a file that a kill has left behind.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use raid_core::md::Uuid;

/// For those who may write there.
const SYSTEM: &str = "/run/etherraid";

/// Extension of the locks' files.
const LOCK: &str = "lock";

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

/// The arrays of this host that were announced: name and control socket. Some may have ended.
pub(crate) fn announced() -> anyhow::Result<Vec<(String, PathBuf)>> {
    let dir = runtime_dir();
    let at = || format!("looking for arrays in {}", dir.display());
    let entries = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(at)?,
    };
    let mut arrays = Vec::new();
    for entry in entries {
        let path = entry.with_context(at)?.path();
        if path.extension().is_none_or(|extension| extension != LOCK) {
            continue;
        }
        match std::fs::read(&path) {
            Ok(text) => arrays.extend(parse_announcement(&text)),
            // It has ended since it was found.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }
    arrays.sort();
    Ok(arrays)
}

/// What a lock's file says; nothing while its array is not announced yet.
fn parse_announcement(text: &[u8]) -> Option<(String, PathBuf)> {
    let end = text.iter().position(|&byte| byte == b'\n')?;
    let name = parse_name(std::str::from_utf8(&text[..end]).ok()?).ok()?;
    let control = Path::new(OsStr::from_bytes(&text[end + 1..]));
    control.is_absolute().then(|| (name, control.to_owned()))
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
    file: File,
    path: PathBuf,
}

impl ArrayLock {
    /// Takes it; `None` while somebody else has it.
    pub(crate) fn take(uuid: Uuid) -> anyhow::Result<Option<ArrayLock>> {
        let path = make_runtime_dir()?.join(format!("{}.{LOCK}", uuid.hyphenated()));
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            let file = file.with_context(|| format!("opening {}", path.display()))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(locking(error, &path)),
            }
            let lock = ArrayLock { file, path: path.clone() };
            // Who held it may have removed the file before we locked it: then it means nothing any more.
            if lock.is_in_place().map_err(|error| locking(error, &path))? {
                // What it says is of an array that was killed.
                lock.file.set_len(0).map_err(|error| locking(error, &path))?;
                return Ok(Some(lock));
            }
        }
    }

    /// Lets other commands on this host find the array: by the name that it runs under, at its control socket.
    pub(crate) fn announce(&self, name: &str, control: &Path) -> anyhow::Result<()> {
        let control = std::path::absolute(control).with_context(|| format!("{}", control.display()))?;
        let text = [name.as_bytes(), b"\n", control.as_os_str().as_bytes()].concat();
        // One write: who reads meanwhile finds all of it or nothing.
        self.file.write_all_at(&text, 0).with_context(|| format!("writing {}", self.path.display()))
    }

    fn is_in_place(&self) -> io::Result<bool> {
        let ours = self.file.metadata()?;
        match std::fs::symlink_metadata(&self.path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for ArrayLock {
    fn drop(&mut self) {
        if self.is_in_place().unwrap_or(false) {
            // A file that stays is in nobody's way.
            let _ = std::fs::remove_file(&self.path);
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
        let path = lock.path.clone();
        drop(lock);
        assert!(!path.exists());
        assert!(ArrayLock::take(uuid).expect("a directory").is_some());
    }

    #[test]
    fn a_lock_tells_where_its_array_is() {
        let uuid = raid_engine::assembly::random_uuid();
        let name = uuid.hyphenated();
        let found = || announced().expect("a directory").into_iter().find(|(found, _)| *found == name);
        let lock = ArrayLock::take(uuid).expect("a directory").expect("free");
        assert_eq!(found(), None);
        lock.announce(&name, Path::new("/some where/socket")).expect("room");
        assert_eq!(found(), Some((name.clone(), "/some where/socket".into())));
        drop(lock);
        assert_eq!(found(), None);
        assert!(parse_announcement(b"").is_none() && parse_announcement(b"name").is_none());
        assert!(parse_announcement(b"a/b\n/x").is_none() && parse_announcement(b"a\nx").is_none());
    }

    #[test]
    fn a_lock_on_a_file_that_was_removed_is_none() {
        let uuid = raid_engine::assembly::random_uuid();
        let lock = ArrayLock::take(uuid).expect("a directory").expect("free");
        std::fs::remove_file(&lock.path).expect("there");
        assert!(!lock.is_in_place().expect("looked at"));
        let other = ArrayLock::take(uuid).expect("a directory").expect("free");
        drop(lock);
        assert!(other.is_in_place().expect("looked at"), "not removed by who held the old one");
    }
}
