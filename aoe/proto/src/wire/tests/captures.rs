//! Every frame of real traffic decodes completely, and what we would send for the same purpose is the same bytes.
//!
//! The other half, our shelf's answers to the captured requests, is in the shelf's tests.

use crate::testing::{MTU_1500, MTU_9000, capture, emitted};
use crate::wire::*;

/// Frames seen, by kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    identify: [usize; 2],
    read: [usize; 2],
    write: [usize; 2],
    config: [usize; 2],
    errors: usize,
}

/// How many bytes of a frame the protocol defines: the rest is padding, or left over in the sender's buffer.
fn defined_len(frame: &Frame<'_>) -> usize {
    match frame.body {
        Body::AtaRequest(ata, _) if ata.opcode.is_write() => ATA_HEADER + ata.data_len(),
        Body::AtaRequest(..) => ATA_HEADER,
        Body::AtaReply(ata, _) if ata.flags.contains(AFlags::WRITE) => ATA_HEADER,
        Body::AtaReply(_, data) => ATA_HEADER + data.len(),
        Body::Config(config) => CONFIG_HEADER + config.string.len(),
        Body::Error => AOE_HEADER,
        Body::Mask(_) | Body::Reserve(_) | Body::Unknown(_) => panic!("not in these captures: {frame:?}"),
    }
}

/// The same frame made by our constructors from what it is for, not from its fields.
fn rebuilt(frame: &Frame<'_>) -> Vec<u8> {
    let old = frame.header;
    let device = Address::new(20, 0);
    emitted(|buf| match frame.body {
        Body::AtaRequest(ata, data) => {
            let header = Header::request(old.dst, old.src, device, Command::ATA, old.tag);
            let ours = match ata.opcode {
                Opcode::IDENTIFY => AtaRequest::identify(),
                Opcode::READ_SECTORS_EXT => AtaRequest::read(ata.lba(), ata.sectors, true),
                Opcode::WRITE_SECTORS_EXT => AtaRequest::write(ata.lba(), ata.sectors, true),
                other => panic!("{other:?}"),
            };
            let start = ours.emit(&header, buf);
            let len = if ours.opcode.is_write() { ours.data_len() } else { 0 };
            buf[start..start + len].copy_from_slice(&data[..len]);
            start + len
        }
        Body::AtaReply(ata, data) => {
            let header = Header::request(old.src, old.dst, device, Command::ATA, old.tag).reply(old.src, device, None);
            let start = ata.emit(&header, buf);
            let len = if ata.flags.contains(AFlags::WRITE) { 0 } else { data.len() };
            buf[start..start + len].copy_from_slice(&data[..len]);
            start + len
        }
        Body::Config(config) if old.response => {
            let header = Header::request(old.src, old.dst, old.address, Command::CONFIG, old.tag);
            ConfigInfo::reply(16, 0x4019, config.sectors, config.ccmd, config.string)
                .emit(&header.reply(old.src, device, None), buf)
        }
        Body::Config(config) => {
            let header = Header::request(MacAddr::BROADCAST, old.src, old.address, Command::CONFIG, old.tag);
            ConfigInfo::request(config.ccmd, config.string).emit(&header, buf)
        }
        Body::Error => Header::request(old.src, old.dst, device, Command::CONFIG, old.tag)
            .reply(old.src, device, Some(AoeError::CONFIG_PRESENT))
            .emit(buf),
        Body::Mask(_) | Body::Reserve(_) | Body::Unknown(_) => panic!("not in these captures: {frame:?}"),
    })
}

fn check(file: &[u8]) -> Seen {
    let mut seen = Seen::default();
    for captured in capture(file) {
        let bytes = &captured.bytes;
        let frame = Frame::parse(bytes).unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"));
        let len = defined_len(&frame);
        assert_eq!(rebuilt(&frame), bytes[..len], "{frame:?}");
        let reply = usize::from(frame.header.response);
        match frame.body {
            Body::AtaRequest(ata, data) => match ata.opcode {
                Opcode::IDENTIFY => seen.identify[0] += 1,
                Opcode::READ_SECTORS_EXT => seen.read[0] += 1,
                _ => {
                    assert_eq!(data.len(), ata.data_len());
                    seen.write[0] += 1;
                }
            },
            Body::AtaReply(ata, data) => {
                assert!(!ata.status.is_error());
                if ata.flags.contains(AFlags::WRITE) {
                    seen.write[1] += 1;
                } else if ata.flags.contains(AFlags::EXTENDED) {
                    seen.read[1] += 1;
                } else {
                    check_identify(data);
                    seen.identify[1] += 1;
                }
            }
            Body::Config(config) => {
                assert_eq!(config.version, u8::from(frame.header.response));
                seen.config[reply] += 1;
            }
            _ => seen.errors += 1,
        }
    }
    seen
}

/// What Debian's vblade 25 says about itself.
fn check_identify(data: &[u8]) {
    let identify = Identify::parse(data).unwrap();
    assert_eq!(identify.model.as_str(), "Coraid EtherDrive vblade");
    assert_eq!(identify.firmware.as_str(), "V25");
    assert_eq!(identify.serial.as_str(), "20.0:vm");
    assert_eq!(identify.sectors, 16384);
    assert!(identify.lba48 && identify.flush && !identify.flush_ext && !identify.write_cache && !identify.fua);
    assert!(!identify.is_ours() && !identify.dedupes() && identify.boot_number().is_none());
    assert_eq!((identify.logical_sector, identify.physical_exponent, identify.wwn), (512, 0, None));
}

#[test]
fn mtu_1500() {
    let want = Seen { identify: [6, 6], read: [61, 61], write: [36, 36], config: [11, 10], errors: 1 };
    assert_eq!(check(MTU_1500), want);
}

#[test]
fn mtu_9000() {
    let want = Seen { identify: [5, 5], read: [10, 10], write: [6, 6], config: [11, 10], errors: 1 };
    assert_eq!(check(MTU_9000), want);
}
