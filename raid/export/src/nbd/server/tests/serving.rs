//! Requests, plugs, and clients that behave badly.

use super::memory::Seen;
use std::io::Read;

use super::plain::{Plain, connect};
use super::*;
use crate::nbd::backend::{Op, Status};
use crate::nbd::proto::{command, command_flag, option, option_reply_type};

const MIB: usize = 1 << 20;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 512) as u8 ^ (i as u8).wrapping_mul(31) ^ seed).collect()
}

/// All buffers are back and all backends closed.
fn assert_all_returned(served: &Served) {
    eventually("the last buffer", || served.array.pool.held.load(Ordering::SeqCst) == 0);
    eventually("the last backend", || served.array.open.load(Ordering::SeqCst) == 0);
}

#[test]
fn writes_are_read_back_by_both_kinds_of_reply() {
    for headers in FORMS {
        let served = serve(Array::new(8 * MIB));
        let mut client = Plain::connect(served.at(), headers).unwrap();
        let mut expected = vec![0; 8 * MIB];
        // Sizes around heads, read-ahead and socket buffer; sent from a thread because replies come meanwhile.
        for (i, sectors) in [1usize, 2, 3, 7, 8, 100, 1000, 4095, 4096].into_iter().enumerate() {
            let data = pattern(sectors * 512, i as u8);
            let offset = i * 333 * 512;
            expected[offset..offset + data.len()].copy_from_slice(&data);
            let bytes = client.write(offset as u64, &data);
            client.send(&bytes);
            assert_eq!(client.answer().unwrap(), (client_cookie(i), 0, vec![]));
        }
        assert!(served.array.bytes() == expected);
        let (_, error, data) = client.ask(command::READ, 0, 0, 8 * MIB as u32);
        assert!(error == 0 && data == expected);
        drop(client);
        assert_all_returned(&served);
    }
}

fn client_cookie(i: usize) -> u64 {
    i as u64 + 1
}

#[test]
fn many_in_flight_come_back_in_another_order_each_once() {
    let served = serve(Array::new(MIB));
    served.array.fill(&pattern(MIB, 5));
    let mut client = Plain::connect(served.at(), Headers::Structured).unwrap();
    served.array.hold(true);
    let requests: Vec<u8> = (0..100).flat_map(|i| client.request(command::READ, 0, i * 4096, 4096)).collect();
    client.send(&requests);
    eventually("all requests", || served.array.seen() == 100);
    served.array.hold(false);
    let mut order = vec![];
    for _ in 0..100 {
        let (cookie, error, data) = client.answer().unwrap();
        assert_eq!(error, 0);
        let at = (cookie as usize - 1) * 4096;
        assert!(data == pattern(MIB, 5)[at..at + 4096]);
        order.push(cookie);
    }
    assert!(!order.is_sorted());
    order.sort_unstable();
    assert!(order.into_iter().eq(1..=100));
}

/// Sends `bytes` as one piece, waits for all replies, and returns the plugs.
fn plugs(served: &Served, client: &mut Plain, bytes: &[u8], requests: usize) -> Vec<Vec<Seen>> {
    client.send(bytes);
    for _ in 0..requests {
        assert_eq!(client.answer().unwrap().1, 0);
    }
    served.array.take_plugs()
}

#[test]
fn a_plug_ends_when_nothing_is_left_to_read_or_at_its_bounds() {
    let served = serve(Array::new(16 * MIB));
    let mut client = Plain::connect(served.at(), Headers::Structured).unwrap();

    let reads: Vec<u8> = (0..10).flat_map(|i| client.request(command::READ, 0, i * 512, 512)).collect();
    let expected: Vec<Seen> = (0..10).map(|i| (Op::Read, i, 1)).collect();
    assert_eq!(plugs(&served, &mut client, &reads, 10), [expected]);

    let reads: Vec<u8> = (0..100).flat_map(|i| client.request(command::READ, 0, i * 512, 512)).collect();
    let sizes: Vec<usize> = plugs(&served, &mut client, &reads, 100).iter().map(Vec::len).collect();
    assert_eq!(sizes, [64, 36]);

    let half = MIB as u32 / 2;
    let reads: Vec<u8> = (0..5).flat_map(|i| client.request(command::READ, 0, i * 512, half)).collect();
    let sizes: Vec<usize> = plugs(&served, &mut client, &reads, 5).iter().map(Vec::len).collect();
    assert_eq!(sizes, [2, 2, 1]);

    let writes: Vec<u8> = (0..4).flat_map(|i| client.write(i * 4096, &[7; 4096])).collect();
    let sizes: Vec<usize> = plugs(&served, &mut client, &writes, 4).iter().map(Vec::len).collect();
    assert_eq!(sizes, [4]);

    // A request whose payload has not come whole does not hold up the one before it.
    let mut bytes = client.write(0, &[1; 512]);
    let second = client.write(512, &[2; 2048]);
    bytes.extend(&second[..100]);
    assert_eq!(plugs(&served, &mut client, &bytes, 1), [[(Op::Write { fua: false }, 0, 1)]]);
    assert_eq!(plugs(&served, &mut client, &second[100..], 1), [[(Op::Write { fua: false }, 1, 4)]]);
}

#[test]
fn fua_flush_trim_and_zeroes_reach_the_array() {
    let served = serve(Array::new(32 * MIB));
    served.array.fill(&pattern(32 * MIB, 1));
    let mut client = Plain::connect(served.at(), Headers::Simple).unwrap();
    let mut bytes = client.request(command::WRITE, command_flag::FUA, 1024, 512);
    bytes.extend([9; 512]);
    assert_eq!(plugs(&served, &mut client, &bytes, 1), [[(Op::Write { fua: true }, 2, 1)]]);
    let flush = client.request(command::FLUSH, 0, 0, 0);
    assert_eq!(plugs(&served, &mut client, &flush, 1), [[(Op::Flush, 0, 0)]]);
    let trim = client.request(command::TRIM, 0, 4096, 4096);
    assert_eq!(plugs(&served, &mut client, &trim, 1), [[(Op::WriteZeroes { fua: false }, 8, 8)]]);

    // A long one comes in pieces, one after another, and has one reply.
    let zero = client.request(command::WRITE_ZEROES, command_flag::FUA, MIB as u64, 20 * MIB as u32);
    let pieces = [(1, 8), (9, 8), (17, 4)].map(|(at, len)| [(Op::WriteZeroes { fua: true }, at * 2048, len * 2048)]);
    assert_eq!(plugs(&served, &mut client, &zero, 1), pieces);
    let mut expected = pattern(32 * MIB, 1);
    expected[1024..1536].fill(9);
    expected[4096..8192].fill(0);
    expected[MIB..21 * MIB].fill(0);
    assert!(served.array.bytes() == expected);

    // It ends with the first piece that fails.
    served.array.fates(&[Status::Ok, Status::NoSpace]);
    assert_eq!(client.ask(command::WRITE_ZEROES, 0, 0, 32 * MIB as u32).1, 28);
    assert_eq!(served.array.take_plugs().len(), 2);
    assert_eq!(client.ask(command::FLUSH, 0, 0, 0).1, 0);
}

#[test]
fn the_arrays_status_reaches_the_client() {
    for headers in FORMS {
        let served = serve(Array::new(MIB));
        let mut client = Plain::connect(served.at(), headers).unwrap();
        let table = [
            (Status::Ok, 0),
            (Status::Io, 5),
            (Status::NoSpace, 28),
            (Status::ReadOnly, 1),
            (Status::ShuttingDown, 108),
        ];
        for (status, error) in table {
            for command in [command::READ, command::FLUSH] {
                served.array.fates(&[status]);
                let len = if command == command::READ { 512 } else { 0 };
                let (_, told, data) = client.ask(command, 0, 0, len);
                assert_eq!(told, error);
                assert_eq!(data.len(), if error == 0 { len as usize } else { 0 });
            }
        }
    }
}

#[test]
fn refused_requests_do_not_reach_the_array() {
    let served = serve(Array::new(MIB));
    let mut client = Plain::connect(served.at(), Headers::Structured).unwrap();
    // The payload of a refused write is used up, the largest that the field can tell but a few included.
    for (offset, len, error) in [(1, 512, 22), (0, 40 << 20, 22), (MIB as u64, 512, 28), (0, 100_001, 22)] {
        let bytes = client.write(offset, &vec![1; len]);
        client.send(&bytes);
        assert_eq!(client.answer().unwrap().1, error);
    }
    assert_eq!(client.ask(command::READ, 0, MIB as u64, 512).1, 22);
    assert_eq!(client.ask(8, 0, 0, 512).1, 22);
    assert_eq!(served.array.seen(), 0);
    assert_eq!(client.ask(command::READ, 0, 0, 512).1, 0);

    let served = serve(Array::new(MIB).with_info(|info| info.read_only = true));
    let mut client = Plain::connect(served.at(), Headers::Simple).unwrap();
    let bytes = client.write(0, &[1; 512]);
    client.send(&bytes);
    assert_eq!(client.answer().unwrap().1, 1);
    assert_eq!(client.ask(command::READ, 0, 0, 512).1, 0);
}

#[test]
fn more_requests_than_the_bounds_wait_in_the_socket() {
    let served = serve(Array::new(64 * MIB));
    let mut client = Plain::connect(served.at(), Headers::Simple).unwrap();
    served.array.hold(true);
    let flushes: Vec<u8> = (0..300).flat_map(|_| client.request(command::FLUSH, 0, 0, 0)).collect();
    client.send(&flushes);
    eventually("the bound", || served.array.seen() == 128);
    served.array.hold(false);
    for _ in 0..300 {
        assert_eq!(client.answer().unwrap().1, 0);
    }
    served.array.take_plugs();
    served.array.hold(true);
    let reads: Vec<u8> = (0..5).flat_map(|_| client.request(command::READ, 0, 0, 32 * MIB as u32)).collect();
    client.send(&reads);
    eventually("the bound", || served.array.seen() == 2);
    assert_eq!(served.array.pool.held.load(Ordering::SeqCst), 64 * MIB);
    served.array.hold(false);
    for _ in 0..5 {
        assert_eq!(client.answer().unwrap().2.len(), 32 * MIB);
    }
}

#[test]
fn a_client_that_vanishes_gives_back_what_it_held() {
    let served = serve(Array::new(16 * MIB));
    let mut other = Plain::connect(served.at(), Headers::Structured).unwrap();
    let path = served.at();

    // In the greeting, in an option, between requests, in a head, in a payload, in a payload that is refused.
    drop(connect(path).unwrap());
    let mut client = Plain::greeted(path).unwrap();
    client.send(b"IHAVEOPT\0\0");
    drop(client);
    for cut in [0, 10, 28, 29, 28 + 4000] {
        for offset in [0, 1] {
            let mut client = Plain::connect(path, Headers::Simple).unwrap();
            let bytes = client.write(offset, &[1; 8192]);
            client.send(&bytes[..cut]);
            drop(client);
        }
    }
    eventually("one connection", || served.server.connections() == 1);
    assert_eq!(served.array.seen(), 0);

    // With requests in the array, and with replies that it never reads.
    served.array.hold(true);
    let mut client = Plain::connect(path, Headers::Structured).unwrap();
    let mut bytes: Vec<u8> = (0..20).flat_map(|_| client.request(command::READ, 0, 0, MIB as u32)).collect();
    bytes.extend(client.write(0, &[3; 4096]));
    bytes.extend(client.request(command::WRITE_ZEROES, 0, 0, 16 * MIB as u32));
    client.send(&bytes);
    eventually("all requests", || served.array.seen() == 22);
    drop(client);
    assert_eq!(served.server.connections(), 2);
    served.array.hold(false);
    eventually("one connection", || served.server.connections() == 1);
    assert_eq!(other.ask(command::READ, 0, 0, 512).1, 0);
    drop(other);
    assert_all_returned(&served);
}

#[test]
fn garbage_ends_that_connection_alone() {
    let served = serve(Array::new(MIB));
    let path = served.at();
    let mut other = Plain::connect(path, Headers::Structured).unwrap();
    let mut client = connect(path).unwrap();
    std::io::Write::write_all(&mut client, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut greeted = Plain::greeted(path).unwrap();
    greeted.send(&[0x55; 64]);
    let mut started = Plain::connect(path, Headers::Structured).unwrap();
    let mut bytes = started.request(command::READ, 0, 0, 512);
    bytes.extend([0x55; 64]);
    started.send(&bytes);
    // What came before the garbage is still answered.
    assert_eq!(started.answer().unwrap().1, 0);
    assert!(started.is_closed());
    assert!(greeted.is_closed());
    eventually("one connection", || served.server.connections() == 1);
    assert_eq!(other.ask(command::READ, 0, 0, 512).1, 0);
}

#[test]
fn options_over_the_socket() {
    let served = serve(Array::new(MIB));
    let mut client = Plain::greeted(served.at()).unwrap();
    assert_eq!(client.option(option::LIST, b"").unwrap(), option_reply_type::ACK);
    assert_eq!(client.option(77, &[0; 100]).unwrap(), option_reply_type::ERR_UNSUP);
    assert_eq!(client.option(77, &vec![0; 1 << 20]).unwrap(), option_reply_type::ERR_TOO_BIG);
    assert_eq!(client.option(option::GO, b"\0\0\0\x01x\0\0").unwrap(), option_reply_type::ERR_UNKNOWN);
    assert_eq!(client.option(option::ABORT, b"").unwrap(), option_reply_type::ACK);
    assert!(client.is_closed());
}

#[test]
fn a_client_that_disconnects_gets_its_replies_first() {
    let served = serve(Array::new(MIB));
    let mut client = Plain::connect(served.at(), Headers::Simple).unwrap();
    served.array.hold(true);
    let mut bytes = client.write(0, &[8; 512]);
    bytes.extend(client.request(command::DISC, 0, 0, 0));
    client.send(&bytes);
    eventually("the write", || served.array.seen() == 1);
    served.array.hold(false);
    assert_eq!(client.answer().unwrap(), (1, 0, vec![]));
    assert!(client.is_closed());
    assert_eq!(served.array.bytes()[..512], [8; 512]);
}

#[test]
fn one_that_does_not_read_holds_up_no_other() {
    let served = serve(Array::new(4 * MIB));
    let mut lazy = Plain::connect(served.at(), Headers::Structured).unwrap();
    let reads: Vec<u8> = (0..60).flat_map(|_| lazy.request(command::READ, 0, 0, MIB as u32)).collect();
    lazy.send(&reads);
    eventually("all requests", || served.array.seen() == 60);
    let mut other = Plain::connect(served.at(), Headers::Structured).unwrap();
    for _ in 0..50 {
        assert_eq!(other.ask(command::READ, 0, 0, 4096).1, 0);
    }
    // And when it does read, all is there.
    for _ in 0..60 {
        assert_eq!(lazy.answer().unwrap().2.len(), MIB);
    }
}

#[test]
fn requests_wait_for_memory_and_are_all_done() {
    let served = serve(Array::new(4 * MIB));
    served.array.limit_memory(64 << 10);
    std::thread::scope(|scope| {
        for n in 0..4u64 {
            let path = served.at();
            scope.spawn(move || {
                let mut client =
                    Plain::connect(path, if n % 2 == 0 { Headers::Structured } else { Headers::Extended }).unwrap();
                for _ in 0..20 {
                    let mut bytes = client.write(n << 20, &pattern(32 << 10, n as u8));
                    bytes.extend((0..4).flat_map(|i| client.request(command::READ, 0, i << 20, 32 << 10)));
                    client.send(&bytes);
                    for _ in 0..5 {
                        assert_eq!(client.answer().unwrap().1, 0);
                    }
                }
                let (_, _, data) = client.ask(command::READ, 0, n << 20, 32 << 10);
                assert!(data == pattern(32 << 10, n as u8));
            });
        }
    });
    assert_all_returned(&served);
}

#[test]
fn requests_wait_for_room_and_are_all_done() {
    let served = serve(Array::new(64 * MIB));
    served.array.limit_room(20_000);
    let mut client = Plain::connect(served.at(), Headers::Structured).unwrap();
    let mut bytes = vec![];
    for i in 0..8u64 {
        bytes.extend(client.request(command::WRITE_ZEROES, 0, i << 23, 32 * MIB as u32 - (i as u32) * MIB as u32 * 4));
        bytes.extend(client.request(command::READ, 0, i << 20, MIB as u32));
        bytes.extend(client.write(i << 20, &pattern(4096, i as u8)));
        bytes.extend(client.request(command::FLUSH, 0, 0, 0));
    }
    client.send(&bytes);
    let mut cookies: Vec<u64> = (0..32)
        .map(|_| client.answer().unwrap())
        .map(|(cookie, error, _)| {
            assert_eq!(error, 0);
            cookie
        })
        .collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(1..=32));
    // A client that goes away while requests wait leaves nothing behind.
    served.array.hold(true);
    let zeroes = (0..4).flat_map(|_| client.request(command::WRITE_ZEROES, 0, 0, 32 * MIB as u32));
    let bytes: Vec<u8> = zeroes.collect();
    let before = served.array.seen();
    client.send(&bytes);
    eventually("the first piece", || served.array.seen() > before);
    drop(client);
    served.array.hold(false);
    assert_all_returned(&served);
}

#[test]
fn one_that_stalls_is_cut_off_and_an_idle_one_is_not() {
    let limits = Limits { stall: Duration::from_millis(50), ..Limits::default() };
    // One holds replies that it does not read, far more than its socket takes; one a payload that it does not send.
    for writes in [false, true] {
        let served = serve_with(Array::new(32 * MIB), limits);
        served.array.limit_memory(32 * MIB);
        let mut lazy = Plain::connect(served.at(), Headers::Structured).unwrap();
        let bytes = match writes {
            false => lazy.request(command::READ, 0, 0, 32 * MIB as u32),
            true => lazy.write(0, &vec![1; 32 * MIB])[..1000].to_vec(),
        };
        lazy.send(&bytes);
        eventually("its buffer", || served.array.pool.held.load(Ordering::SeqCst) == 32 * MIB);
        let mut other = Plain::connect(served.at(), Headers::Structured).unwrap();
        // It waits for the memory that the first one holds.
        assert_eq!(other.ask(command::READ, 0, 0, 512).1, 0);
        eventually("the cut", || served.server.connections() == 1);
        std::thread::sleep(4 * limits.stall);
        assert_eq!(other.ask(command::READ, 0, 0, 512).1, 0);
    }
}

#[test]
fn connections_are_bounded() {
    let served = serve_with(
        Array::new(MIB),
        Limits { places: Places { served: 3, ..Limits::default().places }, ..Limits::default() },
    );
    let path = served.at();
    let mut clients: Vec<_> = (0..3).map(|_| Plain::connect(path, Headers::Simple).unwrap()).collect();
    assert!(Plain::greeted(path).is_err());
    assert_eq!(clients[0].ask(command::READ, 0, 0, 512).1, 0);
    clients.pop();
    eventually("room", || served.server.connections() == 2);
    assert!(Plain::connect(path, Headers::Simple).is_ok());
}

#[test]
fn a_client_that_chooses_nothing_is_cut_off() {
    let served = serve_with(Array::new(MIB), Limits { handshake: Duration::from_millis(30), ..Limits::default() });
    // On a busy machine this one may be too slow, too.
    let mut started = None;
    eventually("one that is in time", || {
        started = Plain::connect(served.at(), Headers::Simple).ok();
        started.is_some()
    });
    let mut started = started.unwrap();
    let mut client = connect(served.at()).unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(started.ask(command::READ, 0, 0, 512).1, 0);
}

#[test]
fn an_array_that_takes_no_client() {
    let served = serve(Array::new(MIB));
    served.array.refuse_open.store(true, Ordering::SeqCst);
    // It is open only once an export was chosen.
    let mut refused = Plain::greeted(served.at()).unwrap();
    assert!(refused.option(option::GO, b"\0\0\0\0\0\0").is_err());
    served.array.refuse_open.store(false, Ordering::SeqCst);
    assert!(Plain::connect(served.at(), Headers::Simple).is_ok());
}

#[test]
fn what_cannot_be_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd");
    let array = Array::new(MIB).with_info(|info| info.preferred_block = 3 * 65536);
    let at = [Address::Unix(path.clone())];
    let error = Server::bind(&at).unwrap().serve(Arc::new(array)).unwrap_err();
    assert!(matches!(error, StartError::Info(InfoError::PreferredBlock(196_608))));
    assert!(!path.exists());
    let server = Server::bind(&at).unwrap().serve(Arc::new(Array::new(MIB))).unwrap();
    let error = Server::bind(&at).unwrap_err();
    assert!(matches!(error, BindError::InUse(_)));
    server.stop();
}
