//! The listening Unix socket and its file.
//!
//! Owned by the acceptor, by way of [`Listener`](super::listener::Listener). The file is created with mode 0600 whatever the umask: nobody can connect before `listen`, and the mode
//! is set before that. Two servers that start on one path at once are kept apart by a lock on the directory, held only
//! while binding. On drop the file is removed if it is still ours.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::listener::{BACKLOG, BindError, MAX_PATH_BYTES};

/// How often and at what distance the directory's lock is tried: 2 s together, and binding takes microseconds.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct UnixSocket {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, to know it again.
    file: (u64, u64),
}

impl UnixSocket {
    pub(super) fn bind(path: &Path) -> Result<Self, BindError> {
        let at = |what: &'static str| {
            move |errno: Errno| BindError::System { path: path.to_owned(), what, source: errno.into() }
        };
        if path.as_os_str().len() > MAX_PATH_BYTES {
            return Err(BindError::PathTooLong(path.to_owned()));
        }
        let address = SocketAddrUnix::new(path).map_err(at("bad socket path"))?;
        let _lock = lock_directory(path)?;
        remove_stale(path, &address)?;
        let socket = stream_socket().map_err(at("no socket"))?;
        rustix::net::bind(&socket, &address).map_err(at("bind failed"))?;
        let stat = rustix::fs::lstat(path).map_err(at("socket file vanished"))?;
        // From here on dropping removes the file again.
        let bound = Self { socket, path: path.to_owned(), file: (stat.st_dev, stat.st_ino) };
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(at("chmod failed"))?;
        rustix::net::listen(&bound.socket, BACKLOG).map_err(at("listen failed"))?;
        Ok(bound)
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let is_ours = rustix::fs::lstat(&self.path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file);
        if is_ours && let Err(errno) = rustix::fs::unlink(&self.path) {
            tracing::warn!(path = %self.path.display(), error = %errno, "cannot remove the NBD socket");
        }
    }
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Locks the directory of `path` until the result is dropped.
fn lock_directory(path: &Path) -> Result<OwnedFd, BindError> {
    let at = |what: &'static str| {
        move |errno: Errno| BindError::System { path: path.to_owned(), what, source: errno.into() }
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty()).map_err(at("cannot open its directory"))?;
    for tries in 1.. {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK | Errno::INTR) if tries < LOCK_TRIES => std::thread::sleep(LOCK_PAUSE),
            Err(errno) => return Err(at("its directory is locked by another process")(errno)),
        }
    }
    Ok(directory)
}

/// Removes a socket file that nobody listens on. A server that binds but does not listen yet looks the same: hence the lock.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), BindError> {
    let at = |what: &'static str| {
        move |errno: Errno| BindError::System { path: path.to_owned(), what, source: errno.into() }
    };
    let stat = match rustix::fs::lstat(path) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(at("cannot look at the path")(errno)),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    let probe = stream_socket().map_err(at("no socket"))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(at("cannot remove the socket of a dead server")(errno)),
        },
        Err(Errno::NOENT) => Ok(()),
        // EAGAIN is a full backlog: somebody listens.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse(path.to_owned())),
        Err(errno) => Err(at("cannot tell whether a server answers there")(errno)),
    }
}

#[cfg(test)]
mod tests;
