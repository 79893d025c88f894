//! Many clients, or cunning ones, that want to keep others out.

use std::fs::File;
use std::io::{Read, Write};

use super::plain::{Plain, connect};
use super::*;
use crate::nbd::proto::command;

const MIB: u32 = 1 << 20;
const SHORT: Duration = Duration::from_millis(50);

fn places(served: usize, per_address: usize, negotiating: usize) -> Limits {
    Limits { places: Places { served, per_address, negotiating }, ..Limits::default() }
}

/// The address of kind TCP.
fn tcp_of(served: &Served) -> &Address {
    &served.server.addresses()[1]
}

#[test]
fn clients_that_say_nothing_keep_nobody_out() {
    let served = serve_with(Array::new(1 << 20), places(64, 64, 4));
    let mut early = Plain::connect(tcp_of(&served), Headers::Structured).unwrap();
    let mut silent: Vec<File> = Vec::new();
    for round in 0..20 {
        for _ in 0..3 {
            silent.push(connect(tcp_of(&served)).unwrap());
        }
        // Tried again if the flood was faster.
        let mut honest = None;
        eventually("a place", || {
            honest = Plain::connect(tcp_of(&served), Headers::Extended).ok();
            honest.is_some()
        });
        assert_eq!(honest.unwrap().ask(command::READ, 0, 0, 512).1, 0, "round {round}");
        assert_eq!(early.ask(command::READ, 0, 0, 512).1, 0, "round {round}");
    }
    eventually("the end of those that were put out", || served.server.connections() <= 1 + 4);
    drop(silent);
    eventually("the end of all", || served.server.connections() == 1);
}

#[test]
fn one_address_does_not_take_all_places() {
    let served = serve_with(Array::new(1 << 20), places(4, 2, 4));
    let mut clients: Vec<_> = (0..2).map(|_| Plain::connect(tcp_of(&served), Headers::Simple).unwrap()).collect();
    assert!(Plain::greeted(tcp_of(&served)).is_err());
    // The Unix socket is for the owner, as often as there are places.
    let mut own: Vec<_> = (0..2).map(|_| Plain::connect(served.at(), Headers::Simple).unwrap()).collect();
    assert!(Plain::greeted(served.at()).is_err());
    for client in clients.iter_mut().chain(&mut own) {
        assert_eq!(client.ask(command::READ, 0, 0, 512).1, 0);
    }
}

#[test]
fn a_trickle_of_options_ends_in_time() {
    let served = serve_with(Array::new(1 << 20), Limits { handshake: SHORT, ..Limits::default() });
    let mut client = connect(tcp_of(&served)).unwrap();
    // An option that is far from whole: each byte is progress, and none of it counts.
    let option = b"\0\0\0\x03IHAVEOPT\0\0\0\x63\0\x0f\0\0";
    let mut bytes = option.iter().chain(std::iter::repeat(&0));
    eventually("the cut", || client.write_all(&[*bytes.next().unwrap()]).is_err());
    eventually("its end", || served.server.connections() == 0);
}

/// Clients that ask for all they may have and never read it.
fn hogs(served: &Served, count: usize) -> Vec<Plain> {
    (0..count)
        .map(|_| {
            let mut hog = Plain::connect(tcp_of(served), Headers::Structured).unwrap();
            let bytes: Vec<u8> = (0..20).flat_map(|_| hog.request(command::READ, 0, 0, 8 * MIB)).collect();
            hog.send(&bytes);
            hog
        })
        .collect()
}

#[test]
fn clients_that_never_read_do_not_take_all_memory() {
    let limits = Limits { payload_bytes: 64 << 20, pressed_stall: SHORT, ..Limits::default() };
    let served = serve_with(Array::new(32 << 20), limits);
    let hogs = hogs(&served, 12);
    let most = (64 << 20) + 12 * OWN_BYTES as usize;
    let held = || served.array.pool.held.load(Ordering::SeqCst);
    eventually("a shortage", || held() > 32 << 20);
    // What all clients are sure of is enough for ordinary requests, before any hog is cut off.
    let mut other = Plain::connect(served.at(), Headers::Extended).unwrap();
    for offset in 0..20u32 {
        let bytes = other.write(u64::from(offset * MIB), &vec![offset as u8; MIB as usize / 2]);
        other.send(&bytes);
        assert_eq!(other.answer().unwrap().1, 0);
        assert_eq!(other.ask(command::READ, 0, u64::from(offset * MIB), MIB).1, 0);
        assert!(held() <= most + 2 * MIB as usize);
    }
    // One that wants much gets it when hogs have been cut off.
    let (_, error, data) = other.ask(command::READ, 0, 0, 32 * MIB);
    assert_eq!((error, data.len()), (0, 32 << 20));
    drop(hogs);
    eventually("the end of the hogs", || served.server.connections() == 1);
    drop(other);
    eventually("the last buffer", || held() == 0);
}

#[test]
fn a_trickle_of_reads_is_no_progress() {
    let served = serve_with(Array::new(32 << 20), Limits { stall: SHORT, ..Limits::default() });
    let mut hog = Plain::connect(served.at(), Headers::Simple).unwrap();
    let bytes = hog.request(command::READ, 0, 0, 32 * MIB);
    hog.send(&bytes);
    eventually("its buffer", || served.array.pool.held.load(Ordering::SeqCst) > 0);
    let mut read = 0;
    eventually("the cut", || {
        read += hog.stream.read(&mut [0; 8]).unwrap_or(0);
        served.server.connections() == 0
    });
    assert!(read < 32 << 20);
}

#[test]
fn a_trickle_of_a_payload_is_no_progress() {
    let served = serve_with(Array::new(32 << 20), Limits { stall: SHORT, ..Limits::default() });
    let mut hog = Plain::connect(tcp_of(&served), Headers::Extended).unwrap();
    let bytes = hog.write(0, &vec![1; 32 << 20]);
    hog.send(&bytes[..1000]);
    let mut at = 1000;
    eventually("the cut", || {
        at += 1;
        hog.stream.write_all(&bytes[at..=at]).is_err()
    });
    eventually("its end", || served.server.connections() == 0);
    assert_eq!(served.array.seen(), 0);
    assert_eq!(served.array.pool.held.load(Ordering::SeqCst), 0);
}

#[test]
fn requests_of_all_sizes_share_little_memory() {
    let served = serve_with(Array::new(32 << 20), Limits { payload_bytes: 34 << 20, ..Limits::default() });
    std::thread::scope(|scope| {
        for n in 0..6u32 {
            let at = &served.server.addresses()[n as usize % 2];
            scope.spawn(move || {
                let mut client = Plain::connect(at, FORMS[n as usize % 3]).unwrap();
                let len = if n == 0 { 32 * MIB } else { n * MIB };
                for _ in 0..6 {
                    let bytes: Vec<u8> = (0..4).flat_map(|_| client.request(command::READ, 0, 0, len)).collect();
                    client.send(&bytes);
                    for _ in 0..4 {
                        let (_, error, data) = client.answer().unwrap();
                        assert_eq!((error, data.len()), (0, len as usize));
                    }
                }
            });
        }
    });
    eventually("the last buffer", || served.array.pool.held.load(Ordering::SeqCst) == 0);
}
