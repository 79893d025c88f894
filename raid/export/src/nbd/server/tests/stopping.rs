//! The stop.

use super::plain::Plain;
use super::*;
use crate::nbd::proto::command;

const SHUTDOWN: u32 = 108;

/// A grace that no test waits for: who has nothing to wait for goes at once.
fn unhurried() -> Limits {
    Limits { stop_grace: Duration::from_secs(3600), ..Limits::default() }
}

/// Stops on another thread, for what is still to be done meanwhile.
fn stop(server: Server) -> JoinHandle<()> {
    std::thread::spawn(move || server.stop())
}

#[test]
fn what_is_in_flight_is_finished_and_what_comes_later_refused() {
    let Served { server, array, dir } = serve_with(Array::new(1 << 20), unhurried());
    let path = server.addresses()[0].clone();
    let mut client = Plain::connect(&path, Headers::Structured).unwrap();
    array.hold(true);
    let bytes = [client.write(0, &[6; 4096]), client.request(command::READ, 0, 0, 512)].concat();
    client.send(&bytes);
    eventually("both requests", || array.seen() == 2);
    let stop = stop(server);
    eventually("the socket's end", || !path_of(&path).exists());
    // The client is told for as long as its old requests are under way.
    let mut refused = 0;
    while refused < 3 {
        let bytes = client.write(0, &[7; 4096]);
        client.send(&bytes);
        assert_eq!(client.answer().unwrap().1, SHUTDOWN);
        refused += 1;
    }
    assert!(!stop.is_finished());
    array.hold(false);
    let mut done = [client.answer().unwrap(), client.answer().unwrap()];
    done.sort();
    assert_eq!([(done[0].0, done[0].1), (done[1].0, done[1].1)], [(1, 0), (2, 0)]);
    assert!(client.is_closed());
    stop.join().unwrap();
    assert_eq!(array.bytes()[..4096], [6; 4096]);
    assert_eq!(array.seen(), 2);
    assert!(dir.path().read_dir().unwrap().next().is_none());
}

#[test]
fn idle_and_unfinished_clients_do_not_hold_up_a_stop() {
    let served = serve_with(Array::new(1 << 20), unhurried());
    let path = served.at();
    let mut clients = vec![Plain::connect(path, Headers::Simple).unwrap(), Plain::greeted(path).unwrap()];
    // Half a head, half a payload, half an option.
    let mut half_head = Plain::connect(path, Headers::Simple).unwrap();
    half_head.send(&[0x25, 0x60]);
    let mut half_payload = Plain::connect(path, Headers::Simple).unwrap();
    let bytes = half_payload.write(0, &[1; 4096]);
    half_payload.send(&bytes[..1000]);
    let mut half_option = Plain::greeted(path).unwrap();
    half_option.send(b"IHAVE");
    clients.extend([half_head, half_payload, half_option]);
    served.server.stop();
    for client in &mut clients {
        assert!(client.is_closed());
    }
    assert_eq!(served.array.seen(), 0);
    assert_eq!(served.array.pool.held.load(Ordering::SeqCst), 0);
    assert_eq!(served.array.open.load(Ordering::SeqCst), 0);
}

#[test]
fn one_that_does_not_take_its_replies_is_cut_off() {
    let limits = Limits { stop_grace: Duration::from_millis(50), ..Limits::default() };
    let served = serve_with(Array::new(4 << 20), limits);
    let mut lazy = Plain::connect(served.at(), Headers::Structured).unwrap();
    let reads: Vec<u8> = (0..20).flat_map(|_| lazy.request(command::READ, 0, 0, 1 << 20)).collect();
    lazy.send(&reads);
    eventually("all requests", || served.array.seen() == 20);
    served.server.stop();
    assert_eq!(served.array.pool.held.load(Ordering::SeqCst), 0);
}

#[test]
fn one_that_sends_without_end_is_cut_off() {
    let limits = Limits { stop_grace: Duration::from_millis(50), ..Limits::default() };
    let served = serve_with(Array::new(1 << 20), limits);
    let mut client = Plain::connect(served.at(), Headers::Simple).unwrap();
    let flushes: Vec<u8> = (0..100).flat_map(|_| client.request(command::FLUSH, 0, 0, 0)).collect();
    let mut reader = client.stream.try_clone().unwrap();
    let drain = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let flood = std::thread::spawn(move || while std::io::Write::write_all(&mut client.stream, &flushes).is_ok() {});
    eventually("the flood", || served.array.seen() > 1000);
    served.server.stop();
    flood.join().unwrap();
    // Ends with the stream, or with its reset.
    let _ = drain.join().unwrap();
}

#[test]
fn a_dropped_server_ends_too() {
    let Served { server, array, dir: _dir } = serve_with(Array::new(1 << 20), unhurried());
    let path = server.addresses()[0].clone();
    let mut client = Plain::connect(&path, Headers::Simple).unwrap();
    drop(server);
    assert!(client.is_closed());
    eventually("the socket's end", || !path_of(&path).exists());
    eventually("the backend's end", || array.open.load(Ordering::SeqCst) == 0);
}
