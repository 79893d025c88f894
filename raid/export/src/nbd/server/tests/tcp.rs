//! The server on TCP, beside its Unix socket.

use std::net::TcpStream;

use super::plain::Plain;
use super::*;
use crate::nbd::proto::command;

fn tcp_of(served: &Served) -> Address {
    let address = served.server.addresses()[1].clone();
    assert!(matches!(&address, Address::Tcp { host, port } if host == "127.0.0.1" && *port != 0), "{address}");
    address
}

#[test]
fn both_sockets_show_the_same_in_every_form() {
    for headers in FORMS {
        let served = serve(Array::new(8 << 20));
        let (mut tcp, mut unix) =
            (Plain::connect(&tcp_of(&served), headers).unwrap(), Plain::connect(served.at(), headers).unwrap());
        let data: Vec<u8> = (0..4 << 20).map(|i: u32| (i >> 9) as u8 ^ i as u8).collect();
        let bytes = tcp.write(1 << 20, &data);
        tcp.send(&bytes);
        assert_eq!(tcp.answer().unwrap(), (1, 0, vec![]));
        assert_eq!(unix.ask(command::FLUSH, 0, 0, 0).1, 0);
        for client in [&mut unix, &mut tcp] {
            let (_, error, read) = client.ask(command::READ, 0, 1 << 20, 4 << 20);
            assert!(error == 0 && read == data);
        }
        assert_eq!(served.server.connections(), 2);
    }
}

#[test]
fn block_status_and_cache_are_answered_at_once() {
    let served = serve(Array::new(1 << 20));
    served.array.hold(true);
    let extents: [(Headers, &[u8]); 2] = [
        (Headers::Structured, b"\0\0\0\x01\0\0\x10\0\0\0\0\0"),
        (Headers::Extended, b"\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0"),
    ];
    for (headers, extent) in extents {
        let mut client = Plain::connect(&tcp_of(&served), headers).unwrap();
        for _ in 0..300 {
            assert_eq!(client.ask(command::BLOCK_STATUS, 0, 8192, 4096), client_answer(&client, extent));
            assert_eq!(client.ask(command::CACHE, 0, 0, 1 << 20).1, 0);
        }
        assert_eq!(client.ask(command::BLOCK_STATUS, 0, 1 << 20, 512).1, 22);
    }
    assert_eq!(served.array.seen(), 0);
}

fn client_answer(client: &Plain, extent: &[u8]) -> super::plain::Answer {
    (client.last_cookie(), 0, extent.to_vec())
}

#[test]
fn a_stop_closes_the_port() {
    let served = serve(Array::new(1 << 20));
    let address = tcp_of(&served);
    let mut client = Plain::connect(&address, Headers::Extended).unwrap();
    assert_eq!(client.ask(command::READ, 0, 0, 512).1, 0);
    served.server.stop();
    assert!(client.is_closed());
    // A program that another test starts right now may hold a copy of the socket for a moment.
    eventually("the end of the port", || super::plain::connect(&address).is_err());
    // The port is free for the next server, although the old connection lingers.
    eventually("the port", || Server::bind(std::slice::from_ref(&address)).is_ok());
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(Array::new(1 << 20));
    let unix = Address::Unix(dir.path().join("nbd"));
    let error = Server::bind(&[unix.clone(), tcp_of(&served)]).unwrap_err();
    assert!(matches!(error, BindError::PortInUse(_)), "{error}");
    assert!(!path_of(&unix).exists());
    let error = Server::bind(&[unix.clone(), unix.clone()]).unwrap_err();
    assert!(matches!(error, BindError::InUse(_)), "{error}");
    assert!(!path_of(&unix).exists());
}

#[test]
fn a_client_that_resets_gives_back_what_it_held() {
    let served = serve(Array::new(8 << 20));
    let Address::Tcp { host, port } = tcp_of(&served) else { unreachable!("checked") };
    let mut client = Plain::connect(&tcp_of(&served), Headers::Simple).unwrap();
    let bytes: Vec<u8> = (0..8).flat_map(|_| client.request(command::READ, 0, 0, 8 << 20)).collect();
    client.send(&bytes);
    eventually("a full socket", || served.array.pool.held.load(Ordering::SeqCst) > 16 << 20);
    // Unread bytes make the close a reset.
    drop(client);
    eventually("the end", || served.server.connections() == 0);
    assert_eq!(served.array.pool.held.load(Ordering::SeqCst), 0);
    assert!(TcpStream::connect((host.as_str(), port)).is_ok());
}
