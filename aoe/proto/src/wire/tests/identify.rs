//! IDENTIFY DEVICE data: known words at their places, every field there and back, checksum.

use proptest::prelude::*;

use crate::wire::*;

fn emit(identify: &Identify) -> [u8; 512] {
    let mut data = [0xEE; 512];
    identify.emit(&mut data);
    data
}

fn word(data: &[u8; 512], index: usize) -> u16 {
    u16::from_le_bytes([data[2 * index], data[2 * index + 1]])
}

fn set_word(data: &mut [u8; 512], index: usize, value: u16) {
    data[2 * index..2 * index + 2].copy_from_slice(&value.to_le_bytes());
}

/// Our shelf with everything that can be said.
fn full() -> Identify {
    Identify {
        serial: AtaString::new("S123"),
        firmware: AtaString::new("1.0"),
        model: AtaString::new(MODEL),
        write_cache: true,
        write_cache_supported: true,
        fua: true,
        trim: true,
        trim_zeroes: true,
        trim_blocks: 17,
        physical_exponent: 3,
        solid_state: true,
        wwn: Some(0x5001_2345_6789_ABCD),
        boot: 0x8765_4321,
        dedupe_flag: true,
        boot_flag: true,
        ..Identify::disk(0x1234_5678_9ABC)
    }
}

#[test]
fn words_are_where_ata_has_them() {
    let data = emit(&full());
    let table = [
        (0, 0x0040),
        (1, 16383),
        (3, 16),
        (6, 63),
        (47, 0x8000),
        (49, 0x0200),
        (50, 0x4000),
        (53, 0x0001),
        (54, 16383),
        (55, 16),
        (56, 63),
        (57, 0xFC10),
        (58, 0x00FB),
        (60, 0xFFFF),
        (61, 0x0FFF),
        (69, 0x4020),
        (75, 0),
        (76, 0),
        (80, 0x01F0),
        (82, 0x0069),
        (83, 0x7400),
        (84, 0x4140),
        (85, 0x0069),
        (86, 0x3400),
        (87, 0x4140),
        (93, 0x400B),
        (100, 0x9ABC),
        (101, 0x5678),
        (102, 0x1234),
        (103, 0),
        (105, 17),
        (106, 0x6003),
        (108, 0x5001),
        (109, 0x2345),
        (110, 0x6789),
        (111, 0xABCD),
        (117, 0),
        (129, 0x4321),
        (130, 0x8765),
        (131, 3),
        (169, 1),
        (209, 0x4000),
        (217, 1),
    ];
    for (index, want) in table {
        assert_eq!(word(&data, index), want, "word {index}");
    }
    // The first character of each pair is in the high byte.
    assert_eq!(&data[20..40], b"1S32                ");
    assert_eq!(&data[46..54], b".1 0    ");
    assert_eq!(&data[54..70], b"teehrria dhsle f");
    assert_eq!(data[510], 0xA5);
    assert_eq!(data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
}

#[test]
fn ours_is_told_by_the_model() {
    let ours = Identify::parse(&emit(&full())).unwrap();
    assert_eq!(ours, full());
    assert!(ours.is_ours() && ours.dedupes());
    assert_eq!(ours.boot_number(), Some(0x8765_4321));
    // Another vendor's words 129 to 131 mean something else.
    let other = Identify { model: AtaString::new("etherraid shelf 2"), ..full() };
    let other = Identify::parse(&emit(&other)).unwrap();
    assert!(!other.is_ours() && !other.dedupes());
    assert_eq!(other.boot_number(), None);
}

#[test]
fn feature_bits_are_independent() {
    let plain = Identify { lba48: false, flush: false, flush_ext: false, ..Identify::disk(1000) };
    assert_eq!(Identify::parse(&emit(&plain)), Ok(plain));
    let variants = [
        Identify { lba48: true, ..plain },
        Identify { flush: true, ..plain },
        Identify { flush_ext: true, ..plain },
        Identify { write_cache_supported: true, ..plain },
        Identify { write_cache_supported: true, write_cache: true, ..plain },
        Identify { fua: true, ..plain },
        Identify { trim: true, ..plain },
        Identify { trim_zeroes: true, ..plain },
        Identify { solid_state: true, ..plain },
        Identify { dedupe_flag: true, ..plain },
        Identify { boot_flag: true, ..plain },
        Identify { logical_sector: 4096, ..plain },
        Identify { physical_exponent: 3, ..plain },
        Identify { wwn: Some(7), ..plain },
        Identify { boot: 1 << 31, ..plain },
    ];
    for variant in variants {
        assert_ne!(variant, plain);
        assert_eq!(Identify::parse(&emit(&variant)), Ok(variant));
    }
}

#[test]
fn capacity_with_28_and_48_bits() {
    for (sectors, lba48, want) in [
        (1, true, 1),
        (1, false, 1),
        ((1 << 28) - 1, false, (1 << 28) - 1),
        (1 << 28, false, (1 << 28) - 1),
        (1 << 28, true, 1 << 28),
        (1 << 40, true, 1 << 40),
        ((1 << 48) - 1, true, (1 << 48) - 1),
    ] {
        let data = emit(&Identify { lba48, ..Identify::disk(sectors) });
        assert_eq!(Identify::parse(&data).unwrap().sectors, want, "{sectors} {lba48}");
    }
}

#[test]
fn either_word_is_enough_for_lba48_and_flush() {
    for index in [83, 86] {
        let mut data = emit(&Identify { lba48: false, flush: false, flush_ext: false, ..Identify::disk(1000) });
        set_word(&mut data, index, 0x7400);
        set_word(&mut data, 100, 5000);
        set_word(&mut data, 255, 0);
        let identify = Identify::parse(&data).unwrap();
        assert!(identify.lba48 && identify.flush && identify.flush_ext);
        assert_eq!(identify.sectors, 5000);
    }
}

#[test]
fn bad_data_is_refused() {
    let good = emit(&full());
    for len in 0..512 {
        assert_eq!(Identify::parse(&good[..len]), Err(IdentifyError::Short));
    }
    for index in (0..512).filter(|index| *index != 510) {
        let mut bad = good;
        bad[index] ^= 0x10;
        assert_eq!(Identify::parse(&bad), Err(IdentifyError::Checksum), "byte {index}");
    }
    // Without the mark there is no checksum to be wrong.
    let mut unmarked = good;
    unmarked[510] = 0;
    assert_eq!(Identify::parse(&unmarked), Ok(full()));
    for (index, value) in [(0, 0x8000), (49, 0)] {
        let mut other = unmarked;
        set_word(&mut other, index, value);
        assert_eq!(Identify::parse(&other), Err(IdentifyError::NotDisk));
    }
    assert_eq!(Identify::parse(&[0; 512]), Err(IdentifyError::NotDisk));
}

#[test]
fn texts() {
    assert_eq!(AtaString::<8>::new("a much longer text").as_str(), "a much l");
    assert_eq!(AtaString::<8>::new("t\u{e4}\n").as_str(), "t???");
    assert_eq!(AtaString::<4>::new("").as_str(), "");
    assert_eq!(AtaString::<8>::new(" x y ").to_string(), "x y");
    let mut data = emit(&full());
    data[20..40].fill(0);
    data[54] = 0xFF;
    data[510] = 0;
    let identify = Identify::parse(&data).unwrap();
    assert_eq!((identify.serial.as_str(), identify.model.as_str()), ("", ""));
}

proptest! {
    #[test]
    fn identify_round_trip(
        serial in "[!-~][ -~]{0,18}",
        sectors in 0..LBA48_END,
        flags: [bool; 9],
        (trim_blocks, boot) in any::<(u16, u32)>(),
        (physical_exponent, wwn) in (0u8..16, any::<Option<u64>>()),
    ) {
        let [flush, flush_ext, write_cache, supported, fua, trim, solid_state, dedupe_flag, boot_flag] = flags;
        let identify = Identify {
            serial: AtaString::new(&serial), flush, flush_ext, write_cache, write_cache_supported: supported, fua,
            trim, trim_blocks, physical_exponent, solid_state, wwn, boot, dedupe_flag, boot_flag,
            ..Identify::disk(sectors)
        };
        prop_assert_eq!(Identify::parse(&emit(&identify)), Ok(identify));
    }
}
