//! Tests of creation: the layouts that mdadm chose for the same devices, and refusals.

use super::*;

const MIB: u64 = 2048;
const GIB: u64 = 1024 * MIB;

fn array(members: u8) -> NewArray<'static> {
    NewArray {
        name: "vec",
        homehost: Some("none"),
        minor: Minor::V2,
        level: 5,
        layout: Layout::LeftSymmetric,
        chunk: Sectors(128),
        members: MemberCount(members),
        size: None,
        assume_clean: false,
        set_uuid: Uuid([7; 16]),
        now: 1_796_038_498,
    }
}

fn devices(count: u8, size: u64) -> Vec<NewDevice> {
    (0..count).map(|i| NewDevice { size: Sectors(size), uuid: Uuid([i; 16]) }).collect()
}

fn made(array: &NewArray<'_>, count: u8, size: u64) -> Created {
    let created = create(array, &devices(count, size)).unwrap();
    for superblock in &created.superblocks {
        // What is made is valid, fits, and comes back from its bytes.
        let mut block = [0; SUPERBLOCK_SIZE];
        superblock.emit(&mut block);
        assert_eq!(Superblock::parse(&block, array.minor, Sectors(size)).as_ref(), Ok(superblock));
        assert_eq!(superblock.check_device(Sectors(size)), Ok(()));
        assert_eq!(superblock.unsupported(Default::default()), None);
        assert_eq!(superblock.geometry(), Some(Ok(created.geometry)));
    }
    created
}

/// Data offset, data size, component size, bad-block log offset and size.
fn layout(created: &Created) -> (u64, u64, u64, i32, u16) {
    let sb = &created.superblocks[0];
    (sb.data_offset.0, sb.data_size.0, sb.size.0, sb.bblog_offset, sb.bblog_size)
}

#[test]
fn layouts_that_mdadm_chose() {
    // 6 MiB devices: the fixtures.
    assert_eq!(layout(&made(&array(4), 4, 6 * MIB)), (2048, 10240, 10240, 16, 8));
    let v11 = NewArray { minor: Minor::V1, chunk: Sectors(256), ..array(5) };
    assert_eq!(layout(&made(&v11, 5, 6 * MIB)), (2048, 10240, 10240, 16, 8));
    let v10 = NewArray { minor: Minor::V0, ..array(4) };
    let created = made(&v10, 4, 6 * MIB);
    assert_eq!(layout(&created), (0, 12256, 12160, -8, 8));
    assert_eq!(created.superblocks[0].super_offset, Sector(12272));
    // The offset known from disks of 128 GiB and more, and the larger bitmap spaces.
    let big = NewArray { chunk: CHUNK_DEFAULT, ..array(3) };
    assert_eq!(layout(&made(&big, 3, 160 * GIB)).0, 264_192);
    assert_eq!(layout(&made(&big, 3, 160 * GIB)).3, 8 + 128);
    assert_eq!(layout(&made(&big, 3, 1000 * GIB)).0, 264_192);
    assert_eq!(layout(&made(&big, 3, 1000 * GIB)).3, 8 + 256);
    // Between: headroom is about a thousandth of the device.
    assert_eq!(layout(&made(&big, 3, GIB)).0, 4096);
    assert_eq!(layout(&made(&big, 3, 16 * GIB)).0, 34_816);
}

#[test]
fn bitmap_space_steps() {
    for (size, space) in [
        (127, 0),
        (128, 8),
        (8 * GIB + 8, 8),
        (8 * GIB + 9, 128),
        (200 * GIB + 127, 128),
        (200 * GIB + 128, 256),
        (u64::MAX, 256),
    ] {
        assert_eq!(bitmap_space(Sectors(size)), space, "{size}");
    }
}

#[test]
fn roles_and_state() {
    let created = made(&array(3), 5, 64 * MIB);
    for (number, superblock) in created.superblocks.iter().enumerate() {
        assert_eq!(superblock.dev_number as usize, number);
        assert_eq!(superblock.device_uuid, Uuid([number as u8; 16]));
        let role = if number < 3 { Role::Active(number as u16) } else { Role::Spare };
        assert_eq!(superblock.role(), role);
        assert_eq!(superblock.roles.len(), 128);
        assert_eq!((superblock.events, superblock.recovery()), (0, None));
        assert_eq!(superblock.resync_offset, Some(Sector(0)));
        assert_eq!(superblock.ctime, superblock.utime);
        assert_eq!(superblock.logical_block_size, 0);
    }
    let clean = made(&NewArray { assume_clean: true, ..array(3) }, 3, 64 * MIB);
    assert_eq!(clean.superblocks[2].resync_offset, None);
}

#[test]
fn level_4_has_its_parity_last() {
    let level4 = NewArray { level: 4, layout: Layout::ParityLast, ..array(3) };
    let created = made(&level4, 3, 64 * MIB);
    assert_eq!((created.superblocks[0].level, created.superblocks[0].layout), (4, 0));
    assert_eq!(created.geometry.layout(), Layout::ParityLast);
    let refused = create(&NewArray { level: 4, ..array(3) }, &devices(3, 64 * MIB));
    assert_eq!(refused, Err(CreateError::LayoutOfLevel4));
}

#[test]
fn names() {
    let name = |name, homehost| {
        create(&NewArray { name, homehost, ..array(3) }, &devices(3, 64 * MIB)).map(|made| made.superblocks[0].name())
    };
    assert_eq!(name("data", Some("host")), Ok("host:data".to_owned()));
    assert_eq!(name("data", None), Ok("data".to_owned()));
    assert_eq!(name("other:data", Some("host")), Ok("other:data".to_owned()));
    assert_eq!(name("data", Some("")), Ok("data".to_owned()));
    // 31 bytes at most, the host's name included.
    assert_eq!(name("data", Some("h234567890123456789012345")), Ok("h234567890123456789012345:data".to_owned()));
    assert_eq!(name("data", Some("h23456789012345678901234567")), Ok("data".to_owned()));
    for bad in ["", "a\nb", "12345678901234567890123456789012"] {
        assert_eq!(name(bad, None), Err(CreateError::Name(bad.to_owned())));
    }
}

#[test]
fn sizes() {
    let mut uneven = devices(3, 64 * MIB);
    uneven[1].size = Sectors(48 * MIB + 40);
    let created = create(&array(3), &uneven).unwrap();
    assert!(created.sizes_differ);
    let usable = 48 * MIB + 40 - created.superblocks[0].data_offset.0;
    assert_eq!(created.geometry.component_size(), Sectors(usable).round_down(Sectors(128)));
    assert_eq!(created.superblocks[0].data_size.0, 64 * MIB - created.superblocks[0].data_offset.0);
    assert!(!made(&array(3), 3, 64 * MIB).sizes_differ);

    let limited = NewArray { size: Some(Sectors(10_000)), ..array(3) };
    assert_eq!(made(&limited, 3, 64 * MIB).geometry.component_size(), Sectors(9984));
}

#[test]
fn refusals() {
    let refused = |array: NewArray<'_>, devices: &[NewDevice]| create(&array, devices).unwrap_err();
    assert_eq!(refused(NewArray { level: 6, ..array(4) }, &devices(4, 64 * MIB)), CreateError::Level(6));
    let few = CreateError::TooFewDevices { devices: 3, members: MemberCount(4) };
    assert_eq!(refused(array(4), &devices(3, 64 * MIB)), few);
    let none = CreateError::TooFewDevices { devices: 0, members: MemberCount(0) };
    assert_eq!(refused(array(0), &[]), none);
    let many: Vec<NewDevice> = (0..1921).map(|_| devices(1, 64 * MIB)[0]).collect();
    assert_eq!(refused(array(4), &many), CreateError::TooManyDevices(1921));
    assert!(matches!(refused(array(1), &devices(1, 64 * MIB)), CreateError::Geometry(GeometryError::Members(_))));
    let odd = NewArray { chunk: Sectors(100), ..array(3) };
    assert!(matches!(refused(odd, &devices(3, 64 * MIB)), CreateError::Geometry(GeometryError::Chunk(_))));
    for minor in Minor::ALL {
        for size in [0, 8, 23, 24, 100, 2000] {
            let mut small = devices(3, 64 * MIB);
            small[2].size = Sectors(size);
            let error = refused(NewArray { minor, chunk: Sectors(2048), ..array(3) }, &small);
            let CreateError::DeviceTooSmall { index: 2, needed, .. } = error else { panic!("{error}") };
            // The size it names is enough.
            small[2].size = needed;
            create(&NewArray { minor, chunk: Sectors(2048), ..array(3) }, &small).unwrap();
        }
    }
}

#[test]
fn a_device_that_joins() {
    for minor in Minor::ALL {
        let mut array = made(&NewArray { minor, ..array(3) }, 3, 64 * MIB).superblocks[0].clone();
        array.features = Features::RECOVERY_OFFSET.union(Features::BAD_BLOCKS);
        array.recovery_offset = Sector(1000);
        array.devflags = 1;
        array.cnt_corrected_read = 5;
        array.events = 40;
        let new = NewDevice { size: Sectors(80 * MIB), uuid: Uuid([9; 16]) };
        let own = place_on(&array, 3, &new).unwrap();
        assert_eq!(own.check_device(new.size), Ok(()));
        assert_eq!((own.recovery(), own.features, own.devflags, own.cnt_corrected_read), (None, Features(0), 0, 0));
        assert_eq!((own.dev_number, own.device_uuid, own.events), (3, new.uuid, 40));
        assert!(own.data_size > array.data_size);
        // Exactly large enough, and one chunk short of that.
        let needed = array.data_offset.0 + array.size.0 + if minor == Minor::V0 { 16 } else { 0 };
        assert!(place_on(&array, 3, &NewDevice { size: Sectors(needed), ..new }).is_some(), "{minor}");
        assert_eq!(place_on(&array, 3, &NewDevice { size: Sectors(needed - 128), ..new }), None);
        assert_eq!(place_on(&array, 3, &NewDevice { size: Sectors(1), ..new }), None);
    }
}
