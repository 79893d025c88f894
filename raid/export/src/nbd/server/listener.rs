//! The listening Unix socket and its file.
//!
//! Owned by the acceptor. The file is created with mode 0600 whatever the umask: nobody can connect before `listen`, and the mode
//! is set before that. Two servers that start on one path at once are kept apart by a lock on the directory, held only
//! while binding. On drop the file is removed if it is still ours.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Longest path of a Unix socket in bytes: what `sockaddr_un` holds besides the final NUL.
pub const MAX_PATH_BYTES: usize = 107;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How often and at what distance the directory's lock is tried: 2 s together, and binding takes microseconds.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Why a socket cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The path does not fit in a socket address.
    #[error("socket path {} is {} bytes long, the limit is {MAX_PATH_BYTES}: choose a shorter one", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// A server answers there.
    #[error("{} is in use by a running server: stop that or choose another path", .0.display())]
    InUse(PathBuf),
    /// A file that is no socket is there.
    #[error("{} exists and is not a socket: remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot listen on {}: {what}", .path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, to know it again.
    file: (u64, u64),
}

impl Listener {
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
        let listener = Self { socket, path: path.to_owned(), file: (stat.st_dev, stat.st_ino) };
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(at("chmod failed"))?;
        rustix::net::listen(&listener.socket, BACKLOG).map_err(at("listen failed"))?;
        Ok(listener)
    }

    /// Where it listens.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next client, as a non-blocking socket; `None` when none waits any more.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
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
