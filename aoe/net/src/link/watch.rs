//! Changes of this host's interfaces, as the kernel tells them: one that appears, vanishes, goes up or down, or has another MTU or
//! address.
//!
//! Owned by a driver or whoever else looks at links. What a message says is not read: any of them is a reason to look at all links,
//! and so is one that was lost. Bound: the socket's buffer, and [`MESSAGES_MAX`] messages a look.

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The kernel's group of messages about links.
const GROUP_LINK: u32 = 1;
/// Messages taken at a time; more are left for the next look.
const MESSAGES_MAX: usize = 256;

/// See the module's text.
#[derive(Debug)]
pub struct LinkWatch {
    socket: OwnedFd,
}

impl LinkWatch {
    /// Watches the interfaces of this thread's network namespace.
    pub fn new() -> io::Result<LinkWatch> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is that of routes and links.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUP_LINK))?;
        Ok(LinkWatch { socket })
    }

    /// Whether something may have changed since the last call.
    pub fn changed(&mut self) -> bool {
        let mut message = [0u8; 64];
        for count in 0..MESSAGES_MAX {
            match recv(&self.socket, &mut message, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => return count > 0,
            }
        }
        true
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_changed_at_first() {
        let mut watch = LinkWatch::new().expect("a socket needs no rights");
        // Other programs of this machine may change interfaces at any time; it ends all the same.
        while watch.changed() {}
    }
}
