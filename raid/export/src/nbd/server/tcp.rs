//! TCP sockets: those that listen, and what is set on those that are accepted.
//!
//! A name is listened on at each of its addresses that this host has, and nowhere else; `[::]` is IPv6 alone. Port 0 is chosen once, for the first
//! address, and taken for the others too.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::listener::{BACKLOG, BindError};

/// Addresses that a name may have; further ones are not listened on.
const MAX_ADDRESSES: usize = 16;

/// A client that is silent for so long is asked whether it is still there.
const KEEP_IDLE: Duration = Duration::from_secs(60);
/// How often it is asked again.
const KEEP_INTERVAL: Duration = Duration::from_secs(10);
/// Questions without an answer after which it is gone.
const KEEP_COUNT: u32 = 6;
/// How long what was sent may stay unacknowledged: as long as silence.
const UNACKED_MS: u32 = 120_000;

/// Listens on the addresses of `host`; the sockets, and their port.
pub(super) fn bind(host: &str, port: u16) -> Result<(Vec<OwnedFd>, u16), BindError> {
    let found = (host, port).to_socket_addrs().map_err(|source| BindError::Host { host: host.to_owned(), source })?;
    let mut sockets = Vec::new();
    let mut chosen = port;
    let mut tried = Vec::new();
    for mut address in found.take(MAX_ADDRESSES) {
        address.set_port(chosen);
        if tried.contains(&address) {
            continue;
        }
        tried.push(address);
        match listen(address) {
            Ok((socket, port)) => {
                chosen = port;
                sockets.push(socket);
            }
            // IPv6 may be switched off, and a name may have addresses of other hosts too.
            Err(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => {}
            Err(Errno::ADDRINUSE) => return Err(BindError::PortInUse(address)),
            Err(errno) => return Err(BindError::Port { address, source: errno.into() }),
        }
    }
    if sockets.is_empty() {
        return Err(BindError::NotLocal { host: host.to_owned() });
    }
    Ok((sockets, chosen))
}

fn listen(address: SocketAddr) -> Result<(OwnedFd, u16), Errno> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Connections of a server that has ended may linger in TIME_WAIT; they are in nobody's way.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, bound.port()))
}

/// Sets what a client's socket needs: no delay of small replies, and an end to clients that have vanished without a word.
pub(super) fn tune(socket: &OwnedFd) {
    let set = [
        ("TCP_NODELAY", sockopt::set_tcp_nodelay(socket, true)),
        ("SO_KEEPALIVE", sockopt::set_socket_keepalive(socket, true)),
        ("TCP_KEEPIDLE", sockopt::set_tcp_keepidle(socket, KEEP_IDLE)),
        ("TCP_KEEPINTVL", sockopt::set_tcp_keepintvl(socket, KEEP_INTERVAL)),
        ("TCP_KEEPCNT", sockopt::set_tcp_keepcnt(socket, KEEP_COUNT)),
        ("TCP_USER_TIMEOUT", sockopt::set_tcp_user_timeout(socket, UNACKED_MS)),
    ];
    for (option, result) in set {
        // The client can be served without; a client that is gone already is found out soon.
        if let Err(error) = result {
            tracing::debug!(option, %error, "NBD client");
        }
    }
}

#[cfg(test)]
mod tests;
