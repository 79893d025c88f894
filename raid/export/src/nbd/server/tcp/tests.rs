//! Addresses, ports, and what is set on clients.

use std::net::{TcpListener, TcpStream};

use rustix::net::AddressFamily;

use super::*;
use crate::nbd::server::tests::eventually;

/// Whether this machine has IPv6 on its loopback.
fn has_ipv6() -> bool {
    let has = TcpListener::bind("[::1]:0").is_ok();
    if !has {
        println!("SKIPPED: no IPv6 here");
    }
    has
}

#[test]
fn port_0_becomes_a_port_that_is_taken_then() {
    let (sockets, port) = bind("127.0.0.1", 0).unwrap();
    assert_eq!(sockets.len(), 1);
    assert_ne!(port, 0);
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    let error = bind("127.0.0.1", port).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, BindError::PortInUse(address) if address.port() == port), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{port} is in use")), "{text}");
    // Nobody listens elsewhere.
    assert!(TcpStream::connect(("127.0.0.2", port)).is_err());
    drop(sockets);
    // A program that another test starts right now may hold a copy of the socket for a moment.
    eventually("the end of the port", || TcpStream::connect(("127.0.0.1", port)).is_err());
    // A connection that lingers does not keep the port.
    eventually("the port", || bind("127.0.0.1", port).is_ok());
}

#[test]
fn a_name_is_listened_on_at_each_of_its_addresses_with_one_port() {
    let (sockets, port) = bind("localhost", 0).unwrap();
    for socket in &sockets {
        let bound = SocketAddr::try_from(rustix::net::getsockname(socket).unwrap()).unwrap();
        assert!(bound.ip().is_loopback() && bound.port() == port, "{bound}");
    }
    TcpStream::connect(("localhost", port)).unwrap();
}

#[test]
fn ipv6_is_ipv6_alone() {
    if !has_ipv6() {
        return;
    }
    let (six, port) = bind("::", 0).unwrap();
    assert!(TcpStream::connect(("::1", port)).is_ok());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    let (four, _) = bind("0.0.0.0", port).unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    drop((six, four));
}

#[test]
fn hosts_that_cannot_be() {
    let unknown = bind("no-such-host.invalid", 0).unwrap_err();
    assert!(matches!(&unknown, BindError::Host { host, .. } if host == "no-such-host.invalid"), "{unknown}");
    // Of a range for documentation.
    let foreign = bind("192.0.2.1", 0).unwrap_err();
    assert!(matches!(foreign, BindError::NotLocal { .. }), "{foreign}");
    assert!(foreign.to_string().contains("\"192.0.2.1\" is not an address of this host"), "{foreign}");
}

#[test]
fn clients_are_asked_whether_they_are_there() {
    let (sockets, port) = bind("127.0.0.1", 0).unwrap();
    let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut waiting = [rustix::event::PollFd::new(&sockets[0], rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut waiting, None).unwrap();
    let accepted = rustix::net::accept(&sockets[0]).unwrap();
    tune(&accepted);
    assert!(sockopt::tcp_nodelay(&accepted).unwrap());
    assert!(sockopt::socket_keepalive(&accepted).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), KEEP_IDLE);
    assert_eq!(sockopt::tcp_keepintvl(&accepted).unwrap(), KEEP_INTERVAL);
    assert_eq!(sockopt::tcp_keepcnt(&accepted).unwrap(), KEEP_COUNT);
    assert_eq!(sockopt::tcp_user_timeout(&accepted).unwrap(), UNACKED_MS);
    // What cannot be set on another kind of socket does no harm.
    let (unix, _other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    tune(&unix);
}
