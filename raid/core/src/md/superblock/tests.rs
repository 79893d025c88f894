//! Tests of the superblock: refusals by name, hostile bytes, and any values through their bytes and back.

use proptest::prelude::*;

use super::*;
use crate::md::create::tests_support::superblock;
use crate::units::MemberIndex;

const DEVICE: Sectors = Sectors(12288);

fn emitted(superblock: &Superblock) -> [u8; SUPERBLOCK_SIZE] {
    let mut block = [0; SUPERBLOCK_SIZE];
    superblock.emit(&mut block);
    block
}

/// The block with `change` made, its checksum put right again.
fn resummed(change: impl FnOnce(&mut [u8; SUPERBLOCK_SIZE])) -> [u8; SUPERBLOCK_SIZE] {
    let mut block = emitted(&superblock(4));
    change(&mut block);
    let (header, table) = Header::ref_from_prefix(&block).unwrap();
    let entries = header.max_dev.get() as usize;
    let sum = checksum(header, &table[..2 * entries.min(ROLES_MAX)]);
    block[216..220].copy_from_slice(&sum.to_le_bytes());
    block
}

#[test]
fn the_header_has_its_size() {
    assert_eq!(HEADER_SIZE, 256);
    assert_eq!(ROLES_MAX, 1920);
    assert_eq!(core::mem::offset_of!(Header, data_offset), 128);
    assert_eq!(core::mem::offset_of!(Header, device_uuid), 168);
    assert_eq!(core::mem::offset_of!(Header, sb_csum), 216);
}

#[test]
fn places() {
    let at = |minor: Minor, device| minor.superblock_sector(Sectors(device)).map(|sector| sector.0);
    assert_eq!(Minor::ALL.map(|minor| at(minor, 12288)), [Some(12272), Some(0), Some(8)]);
    assert_eq!(Minor::ALL.map(|minor| at(minor, 12295)), [Some(12272), Some(0), Some(8)]);
    assert_eq!(Minor::ALL.map(|minor| at(minor, 23)), [None; 3]);
    assert_eq!(at(Minor::V0, 24), Some(8));
    for minor in Minor::ALL {
        assert_eq!(minor.to_string().parse(), Ok(minor));
    }
    assert!("0.90".parse::<Minor>().is_err());
}

#[test]
fn refusals_of_the_format() {
    let parse = |block: &[u8; SUPERBLOCK_SIZE]| Superblock::parse(block, Minor::V2, DEVICE);
    let refused = |block: [u8; SUPERBLOCK_SIZE]| parse(&block).unwrap_err();
    assert_eq!(parse(&emitted(&superblock(4))), Ok(superblock(4)));
    assert_eq!(refused([0; SUPERBLOCK_SIZE]), SuperblockError::Magic(0));
    assert_eq!(refused(resummed(|b| b[4] = 2)), SuperblockError::MajorVersion(2));
    let place = SuperblockError::Place { found: Sector(8), says: Sector(9) };
    assert_eq!(refused(resummed(|b| b[144] = 9)), place);
    assert_eq!(
        refused(resummed(|b| b[220..222].copy_from_slice(&1921u16.to_le_bytes()))),
        SuperblockError::Roles(1921)
    );
    assert_eq!(refused(resummed(|b| b[220..224].fill(0xff))), SuperblockError::Roles(u32::MAX));
    assert_eq!(refused(resummed(|b| b[12] = 1)), SuperblockError::Reserved);
    assert_eq!(refused(resummed(|b| b[255] = 1)), SuperblockError::Reserved);
    assert_eq!(
        Superblock::parse(&[0; SUPERBLOCK_SIZE], Minor::V2, Sectors(23)),
        Err(SuperblockError::DeviceTooSmall(Sectors(23)))
    );
    // A 1.0 superblock of a device that has since grown.
    let v10 = Superblock::parse(&emitted(&superblock(4)), Minor::V0, DEVICE);
    assert_eq!(v10, Err(SuperblockError::Place { found: Sector(12272), says: Sector(8) }));
}

#[test]
fn every_changed_bit_is_seen() {
    let block = emitted(&superblock(4));
    let used = HEADER_SIZE + 2 * superblock(4).roles.len();
    for at in 0..used {
        for bit in 0..8 {
            let mut damaged = block;
            damaged[at] ^= 1 << bit;
            assert!(Superblock::parse(&damaged, Minor::V2, DEVICE).is_err(), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn sizes_against_the_device() {
    let check = |change: fn(&mut Superblock)| {
        let mut superblock = superblock(4);
        change(&mut superblock);
        superblock.check_device(DEVICE)
    };
    assert_eq!(check(|_| ()), Ok(()));
    assert!(matches!(check(|sb| sb.data_size = Sectors(9)), Err(SuperblockError::DataSize { .. })));
    assert!(matches!(check(|sb| sb.size = sb.data_size + Sectors(1)), Err(SuperblockError::DataSize { .. })));
    assert!(matches!(check(|sb| sb.data_offset = Sector(15)), Err(SuperblockError::DataOverlaps { .. })));
    assert!(matches!(check(|sb| sb.data_size = Sectors(10241)), Err(SuperblockError::Truncated { .. })));
    assert!(matches!(check(|sb| sb.data_offset = Sector(u64::MAX)), Err(SuperblockError::Truncated { .. })));
    let end = |size| {
        let (minor, super_offset) = (Minor::V0, Sector(12272));
        Superblock { minor, super_offset, data_offset: Sector(0), data_size: Sectors(size), ..superblock(4) }
    };
    assert_eq!(end(12272).check_device(DEVICE), Ok(()));
    assert!(matches!(end(12273).check_device(DEVICE), Err(SuperblockError::DataOverlaps { .. })));
}

#[test]
fn what_is_unsupported_has_a_name() {
    let all = Support { bitmap: true, ppl: true, bad_blocks: true };
    let with = |features: u32| Superblock { features: Features(features), ..superblock(4) };
    for features in [0, 2, 16, 64, 128, 2 | 16] {
        assert_eq!(with(features).unsupported(Support::default()), None, "{features}");
    }
    let table = [
        (1, Unsupported::Bitmap, true),
        (1024, Unsupported::Ppl, true),
        (2048, Unsupported::Ppl, true),
        (8, Unsupported::BadBlocks, true),
        (4, Unsupported::Reshape, false),
        (32, Unsupported::Reshape, false),
        (256, Unsupported::Clustered, false),
        (512, Unsupported::Journal, false),
        (4096, Unsupported::Raid0Layout, false),
        (0x2000, Unsupported::Features(0x2000), false),
        (0x8000_0001, Unsupported::Features(0x8000_0000), false),
        (1 | 1024, Unsupported::Contradiction(1 | 1024), false),
        (1024 | 2048, Unsupported::Contradiction(1024 | 2048), false),
    ];
    for (features, want, optional) in table {
        assert_eq!(with(features).unsupported(Support::default()), Some(want), "{features}");
        let still = if optional { None } else { Some(want) };
        assert_eq!(with(features).unsupported(all), still, "{features}");
    }
    let refused = |superblock: Superblock| superblock.unsupported(all);
    assert_eq!(refused(Superblock { level: 6, ..superblock(4) }), Some(Unsupported::Level(6)));
    assert_eq!(refused(Superblock { level: 4, layout: 77, ..superblock(4) }), None);
    assert_eq!(refused(Superblock { layout: 6, ..superblock(4) }), Some(Unsupported::Layout(6)));
    let blocks = |size| refused(Superblock { logical_block_size: size, ..superblock(4) });
    assert_eq!([blocks(0), blocks(512), blocks(4096)], [None, None, Some(Unsupported::LogicalBlockSize(4096))]);
    for superblock in [
        Superblock { chunk: Sectors(3), ..superblock(4) },
        Superblock { size: Sectors(0), ..superblock(4) },
        Superblock { raid_disks: 0, ..superblock(4) },
        Superblock { raid_disks: 257, ..superblock(4) },
        Superblock { raid_disks: u32::MAX, ..superblock(4) },
    ] {
        assert!(matches!(refused(superblock), Some(Unsupported::Geometry(_))));
    }
}

#[test]
fn areas_and_recovery() {
    let mut sb = superblock(4);
    assert_eq!((sb.bitmap_offset(), sb.ppl(), sb.recovery()), (None, None, None));
    sb.bitmap_or_ppl = (-16i32).to_le_bytes();
    sb.features = Features::BITMAP_OFFSET;
    assert_eq!((sb.bitmap_offset(), sb.ppl()), (Some(-16), None));
    sb.bitmap_or_ppl = [0xf8, 0xff, 0, 8];
    sb.features = Features::MULTIPLE_PPLS;
    assert_eq!((sb.bitmap_offset(), sb.ppl()), (None, Some((-8, 2048))));
    sb.set_recovery(Some(Sector(77)));
    assert_eq!((sb.recovery(), sb.features), (Some(Sector(77)), Features(2048 | 2)));
    sb.set_recovery(None);
    assert_eq!((sb.recovery(), sb.features, sb.recovery_offset), (None, Features(2048), Sector(0)));
    assert_eq!((sb.role_of(3), sb.role_of(4), sb.role_of(9999)), (Role::Active(3), Role::Spare, Role::Faulty));
    assert_eq!(Role::from(MemberIndex(3)), Role::Active(3));
    sb.set_name = [b'x'; 32];
    assert_eq!(sb.name(), "x".repeat(32));
    sb.set_name[..6].copy_from_slice(b"a\x1b[2J\n");
    sb.set_name[6] = 0;
    assert_eq!(sb.name(), "a\u{fffd}[2J\u{fffd}", "nothing that a terminal obeys");
}

#[test]
fn the_latest_creation_counts() {
    let at = |minor, seconds| Superblock { minor, ctime: Timestamp::from_seconds(seconds), ..superblock(4) };
    assert_eq!(latest([]), None);
    let found = latest([at(Minor::V0, 5), at(Minor::V1, 9), at(Minor::V2, 9)]).unwrap();
    assert_eq!(found.minor, Minor::V1);
}

proptest! {
    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 300), at in 0usize..3796) {
        let block = resummed(|block| {
            block[at..at + bytes.len()].copy_from_slice(&bytes);
            block[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
        });
        for minor in Minor::ALL {
            if let Ok(superblock) = Superblock::parse(&block, minor, DEVICE) {
                // Nothing of it panics, whatever the numbers.
                let _ = superblock.check_device(DEVICE);
                let _ = superblock.unsupported(Support { bitmap: true, ppl: true, bad_blocks: true });
                prop_assert!(crate::md::text::examine(&superblock, DEVICE, 0).len() > 15);
                let again = emitted(&superblock);
                let used = HEADER_SIZE + 2 * superblock.roles.len();
                prop_assert!(again[..used] == block[..used]);
            }
        }
    }

    #[test]
    fn any_values_come_back(
        words in prop::collection::vec(any::<u64>(), 20), roles in prop::collection::vec(any::<u16>(), 0..=ROLES_MAX),
        name: [u8; 32], uuids: [[u8; 16]; 2],
    ) {
        let mut block = [0; SUPERBLOCK_SIZE];
        superblock(4).emit(&mut block);
        let mut sb = Superblock::parse(&block, Minor::V2, DEVICE).unwrap();
        sb.set_name = name;
        (sb.set_uuid, sb.device_uuid) = (Uuid(uuids[0]), Uuid(uuids[1]));
        (sb.features, sb.level, sb.layout) = (Features(words[0] as u32), words[1] as i32, words[2] as u32);
        (sb.size, sb.chunk) = (Sectors(words[3]), Sectors(words[4] & 0xffff_ffff));
        (sb.events, sb.ctime, sb.utime) = (words[5], Timestamp(words[6]), Timestamp(words[7]));
        sb.resync_offset = (words[8] != u64::MAX && words[9] % 2 == 0).then_some(Sector(words[8]));
        (sb.recovery_offset, sb.data_offset) = (Sector(words[10]), Sector(words[11]));
        (sb.bblog_offset, sb.bblog_size, sb.bblog_shift) = (words[12] as i32, words[13] as u16, words[13] as u8);
        sb.reshape = Reshape {
            new_level: words[14] as i32, position: Sector(words[15]), delta_disks: words[16] as i32,
            new_layout: words[17] as u32, new_chunk: words[18] as u32, new_offset: words[19] as i32,
        };
        sb.roles = roles.iter().map(|role| Role::from_disk(*role)).collect();
        let block = emitted(&sb);
        prop_assert_eq!(Superblock::parse(&block, Minor::V2, DEVICE), Ok(sb.clone()));
        prop_assert_eq!(sb.checksum().to_le_bytes(), [block[216], block[217], block[218], block[219]]);
    }
}
