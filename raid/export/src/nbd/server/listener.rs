//! What a server listens on: one socket per address, whatever its kind.
//!
//! Owned by the acceptor. Unix sockets are made by [`unix`](super::unix), TCP sockets by [`tcp`](super::tcp); a host's name may stand for several
//! addresses, each with a socket of its own.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::tcp;
use super::unix::UnixSocket;
use crate::nbd::address::Address;

/// Longest path of a Unix socket in bytes: what `sockaddr_un` holds besides the final NUL.
pub const MAX_PATH_BYTES: usize = 107;

/// Connections that wait to be accepted.
pub(super) const BACKLOG: i32 = 64;

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
    /// Something answers there, or holds the port.
    #[error("{0} is in use: stop what listens there or choose another port")]
    PortInUse(SocketAddr),
    /// The name has no address, or nobody can be asked.
    #[error("cannot find an address of the host {host:?}")]
    Host {
        /// The name.
        host: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No address of the name belongs to this host.
    #[error("{host:?} is not an address of this host: the NBD server listens on local addresses only")]
    NotLocal {
        /// The name.
        host: String,
    },
    /// The system refused a port.
    #[error("cannot listen on {address}")]
    Port {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The system refused a path.
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

/// A client that has come.
#[derive(Debug)]
pub(super) struct Accepted {
    /// Non-blocking.
    pub(super) socket: OwnedFd,
    /// Where it comes from; absent on a Unix socket.
    pub(super) peer: Option<IpAddr>,
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixSocket),
    Tcp(OwnedFd),
}

impl Listener {
    /// Listens on everything that an address stands for, and says where clients find it: port 0 has become a port.
    pub(super) fn bind(address: &Address) -> Result<(Vec<Self>, Address), BindError> {
        match address {
            Address::Unix(path) => Ok((vec![Self::Unix(UnixSocket::bind(path)?)], address.clone())),
            Address::Tcp { host, port } => {
                let (sockets, port) = tcp::bind(host, *port)?;
                let bound = Address::Tcp { host: host.clone(), port };
                Ok((sockets.into_iter().map(Self::Tcp).collect(), bound))
            }
        }
    }

    /// The next client; `None` when none waits any more.
    pub(super) fn accept(&self) -> io::Result<Option<Accepted>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, from) = match rustix::net::acceptfrom_with(self, flags) {
            Ok(accepted) => accepted,
            // A client that is gone again, or whose network has failed meanwhile, is no error of the listening socket.
            Err(
                Errno::AGAIN
                | Errno::INTR
                | Errno::CONNABORTED
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTUNREACH
                | Errno::PROTO
                | Errno::PERM,
            ) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let peer = match self {
            Self::Unix(_) => None,
            Self::Tcp(_) => {
                tcp::tune(&socket);
                from.and_then(|from| SocketAddr::try_from(from).ok()).map(|from| from.ip().to_canonical())
            }
        };
        Ok(Some(Accepted { socket, peer }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}
