//! The captured requests of Linux, aoeping and aoecfg, answered by our shelf: the bytes that the protocol fixes are
//! those that vblade answered.

use super::*;
use crate::testing::{Captured, MTU_1500, MTU_9000, capture};

const E20_0: Address = Address::new(20, 0);

/// Sectors that the capture shows before they are written: the contents of vblade's file.
fn primed(frames: &[Captured]) -> Memory {
    let mut store = Memory::new(16384);
    store.bytes.fill(0);
    let mut known = vec![false; 16384];
    let mut asked = std::collections::HashMap::new();
    for captured in frames {
        let frame = Frame::parse(&captured.bytes).unwrap();
        match frame.body {
            Body::AtaRequest(request, _) => {
                if request.opcode.is_write() {
                    known[request.lba().0 as usize..][..request.sectors.into()].fill(true);
                }
                asked.insert(frame.header.tag, request);
            }
            Body::AtaReply(_, data) if asked[&frame.header.tag].opcode.is_read() => {
                let first = asked[&frame.header.tag].lba().0 as usize;
                for (index, sector) in data.chunks_exact(SECTOR).enumerate() {
                    if !std::mem::replace(&mut known[first + index], true) {
                        store.bytes[(first + index) * SECTOR..][..SECTOR].copy_from_slice(sector);
                    }
                }
            }
            _ => {}
        }
    }
    store
}

/// Our reply to a request, if there is one.
fn ours(shelf: &mut Shelf<Memory>, now: Duration, request: &[u8]) -> Option<Vec<u8>> {
    let mut reply = vec![0xEE; shelf.reply_len(PORT)];
    let outcome = match shelf.handle_frame(now, PORT, request, &mut reply) {
        Outcome::Many => shelf.poll_reply(&mut reply).unwrap_or(Outcome::Drop),
        outcome => outcome,
    };
    match outcome {
        Outcome::Reply(len) | Outcome::Save { len, .. } => {
            reply.truncate(len);
            Some(reply)
        }
        Outcome::Drop | Outcome::Many => None,
    }
}

/// Compares two replies in everything but what each target chooses for itself.
fn compare(ours: &[u8], theirs: &[u8]) {
    let (our, their) = (Frame::parse(ours).unwrap(), Frame::parse(theirs).unwrap());
    assert_eq!(our.header, their.header);
    match (our.body, their.body) {
        (Body::Config(a), Body::Config(b)) => assert_eq!(a, b),
        (Body::Error, Body::Error) => {}
        (Body::AtaReply(a, data), Body::AtaReply(b, their_data)) => {
            // vblade moves the LBA past the transfer; nobody may depend on it.
            assert_eq!(AtaReply { lba: b.lba, ..a }, b);
            if b.flags.contains(AFlags::WRITE) {
                assert_eq!(ours.len(), theirs.len());
            } else if b.flags.contains(AFlags::EXTENDED) {
                assert_eq!(data, their_data);
            } else {
                assert_eq!(a.lba, b.lba);
                let (a, b) = (Identify::parse(data).unwrap(), Identify::parse(their_data).unwrap());
                assert_eq!((a.sectors, a.serial, a.lba48), (b.sectors, b.serial, b.lba48));
            }
        }
        (a, b) => panic!("{a:?} for {b:?}"),
    }
}

fn replay(file: &[u8], mtu: u32) {
    let frames = capture(file);
    let replies: Vec<_> = frames.iter().filter(|captured| captured.bytes[14] & 0x08 != 0).collect();
    let mac = Header::parse(&replies[0].bytes).unwrap().0.src;
    let mut shelf = Shelf::new(ShelfConfig { firmware: 0x4019, ..ShelfConfig::new(BOOT) });
    shelf.set_port(PORT, Some(PortInfo { mac, mtu })).unwrap();
    let device = DeviceConfig::new(E20_0, 16, "20.0:vm");
    shelf.add_device(device, DeviceState::default(), primed(&frames)).unwrap();
    let mut answered = 0;
    let mut taken = vec![false; replies.len()];
    for captured in frames.iter().filter(|captured| captured.bytes[14] & 0x08 == 0) {
        let request = Header::parse(&captured.bytes).unwrap().0;
        // Their reply: the first one after the request with its tag that was not another's.
        let theirs = replies.iter().zip(&mut taken).find(|(reply, taken)| {
            let header = Header::parse(&reply.bytes).unwrap().0;
            !**taken && reply.at >= captured.at && (header.tag, header.dst) == (request.tag, request.src)
        });
        let ours = ours(&mut shelf, captured.at, &captured.bytes);
        match (ours, theirs) {
            (Some(ours), Some((theirs, taken))) => {
                compare(&ours, &theirs.bytes);
                *taken = true;
                answered += 1;
            }
            (None, None) => {}
            (ours, theirs) => panic!("{request:?}: {:02x?} for {:?}", ours, theirs.map(|(reply, _)| &reply.bytes)),
        }
    }
    assert_eq!(answered, replies.len(), "every captured reply has its counterpart");
}

#[test]
fn mtu_1500() {
    replay(MTU_1500, 1500);
}

#[test]
fn mtu_9000() {
    replay(MTU_9000, 9000);
}
