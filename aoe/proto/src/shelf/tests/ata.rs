//! Command 0: every opcode's registers, data, ranges, errors of the store, reservation.

use super::*;

/// A request without data and address.
fn bare(opcode: u8) -> AtaRequest {
    AtaRequest { opcode: Opcode(opcode), ..AtaRequest::flush(false) }
}

#[test]
fn reads_return_the_stores_bytes() {
    for opcode in [0x20, 0x24, 0x25, 0xC8] {
        let mut bench = Bench::new();
        let opcode = Opcode(opcode);
        let request = AtaRequest { opcode, ..AtaRequest::read(Lba(10), 2, opcode.is_extended()) };
        let (registers, data) = bench.ata(request, &[]).unwrap();
        assert_eq!(registers, ok(&request));
        assert_eq!(data, bench.store().bytes[10 * SECTOR..12 * SECTOR]);
        assert_eq!(bench.log(), [Asked::Read(10, 2)]);
        assert_eq!((bench.counters().reads, bench.counters().read_sectors), (1, 2));
    }
}

#[test]
fn writes_reach_the_store() {
    for (opcode, fua) in [(0x30, false), (0x34, false), (0x35, false), (0xCA, false), (0x3D, true), (0xCE, true)] {
        let mut bench = Bench::new();
        let opcode = Opcode(opcode);
        let request = AtaRequest { opcode, ..AtaRequest::write(Lba(10), 2, opcode.is_extended()) };
        let data = pattern(2, 3);
        // What is behind the data is padding.
        let padded = [&data[..], &[0xEE; 100]].concat();
        assert_eq!(bench.registers(request, &padded), Ok(ok(&request)));
        assert_eq!(bench.store().bytes[10 * SECTOR..12 * SECTOR], data);
        assert_eq!(bench.log(), [Asked::Write(10, 2, fua)]);
        assert_eq!((bench.counters().writes, bench.counters().write_sectors), (1, 2));
    }
}

#[test]
fn the_asynchronous_flag_changes_nothing() {
    let mut bench = Bench::new();
    let request = AtaRequest::write(Lba(1), 1, true);
    let request = AtaRequest { flags: request.flags.with(AFlags::ASYNC).with(AFlags::DEVICE), ..request };
    assert_eq!(bench.registers(request, &pattern(1, 1)), Ok(ok(&request)));
    assert_eq!(bench.log(), [Asked::Write(1, 1, false)]);
}

#[test]
fn flushes_flush_and_tell_the_boot_number() {
    for lba48 in [false, true] {
        let mut bench = Bench::new();
        let request = AtaRequest::flush(lba48);
        let registers = bench.registers(request, &[]).unwrap();
        assert_eq!(registers, AtaReply { lba: AtaReply::boot_number_lba(BOOT), ..ok(&request) });
        assert_eq!(registers.boot_number(), BOOT);
        assert_eq!(bench.log(), [Asked::Flush]);

        bench.store().script.push_back(Err(StoreError::Io));
        let registers = bench.registers(request, &[]).unwrap();
        assert_eq!((registers.status, registers.error), (Status(0x41), AtaError::ABRT));
        assert_eq!(registers.boot_number(), BOOT);
        assert_eq!((bench.counters().flushes, bench.counters().ata_errors), (2, 1));
    }
}

#[test]
fn registers_of_commands_without_data() {
    let signed = |feature| AtaRequest { feature, lba: LbaBytes([0, 0x4F, 0xC2, 0xA0, 0, 0]), ..bare(0xB0) };
    let set = |feature| AtaRequest { feature, ..bare(0xEF) };
    let native = bare(0xF8);
    let native_ext = AtaRequest { flags: AFlags::EXTENDED, opcode: Opcode(0x27), ..AtaRequest::flush(true) };
    let table = [
        (bare(0xE0), ok(&bare(0xE0)), &[Asked::Flush][..]),
        (bare(0xE1), ok(&bare(0xE1)), &[]),
        (bare(0xE2), ok(&bare(0xE2)), &[Asked::Flush]),
        (bare(0xE3), ok(&bare(0xE3)), &[]),
        (bare(0xE5), AtaReply { sectors: 0xFF, ..ok(&bare(0xE5)) }, &[]),
        (bare(0xE6), ok(&bare(0xE6)), &[Asked::Flush]),
        (native, AtaReply { lba: LbaBytes([0xE7, 0x03, 0, 0xE0, 0, 0]), ..ok(&native) }, &[]),
        (native_ext, AtaReply { lba: LbaBytes([0xE7, 0x03, 0, 0, 0, 0]), ..ok(&native_ext) }, &[]),
        (signed(0xD8), ok(&signed(0xD8)), &[]),
        (signed(0xD9), ok(&signed(0xD9)), &[]),
        (signed(0xDA), ok(&signed(0xDA)), &[]),
        (signed(0xD0), failure(&signed(0xD0), 0x04), &[]),
        (bare(0xB0), failure(&bare(0xB0), 0x04), &[]),
        (set(0x02), ok(&set(0x02)), &[]),
        (set(0x82), ok(&set(0x82)), &[Asked::Flush]),
        (set(0x55), ok(&set(0x55)), &[]),
        (set(0xAA), ok(&set(0xAA)), &[]),
        (set(0x03), ok(&set(0x03)), &[]),
        (set(0x99), failure(&set(0x99), 0x04), &[]),
    ];
    let mut bench = Bench::new();
    for (request, registers, asked) in table {
        assert_eq!(bench.registers(request, &[]), Ok(registers), "{request:?}");
        assert_eq!(bench.log(), asked, "{request:?}");
    }
}

#[test]
fn opcodes_outside_the_table_are_aborted() {
    let mut bench = Bench::new();
    for opcode in (0..=255).map(Opcode).filter(|opcode| opcode.direction().is_none()) {
        for flags in [AFlags(0), AFlags::WRITE, AFlags::EXTENDED] {
            let request = AtaRequest { flags, sectors: 2, ..bare(opcode.0) };
            assert_eq!(bench.registers(request, &[]), Ok(failure(&request, 0x04)), "{opcode:?}");
        }
    }
    assert_eq!(bench.log(), []);
}

#[test]
fn native_max_of_a_large_device_is_cut_to_28_bits() {
    let mut bench = Bench::new();
    bench.store().sectors = (1 << 40) + 1;
    let registers = bench.registers(bare(0xF8), &[]).unwrap();
    assert_eq!(registers.lba.lba(false), Lba(0x0FFF_FFFF));
    let request = AtaRequest { flags: AFlags::EXTENDED, ..bare(0x27) };
    assert_eq!(bench.registers(request, &[]).unwrap().lba.lba(true), Lba(1 << 40));
}

#[test]
fn verify_reads_all_and_gives_nothing_away() {
    for lba48 in [false, true] {
        let mut bench = Bench::new();
        let request = AtaRequest::verify(Lba(745), 255, lba48);
        assert_eq!(bench.registers(request, &[]), Ok(ok(&request)));
        let mut at = 745;
        for asked in bench.log() {
            let Asked::Read(lba, sectors) = asked else { panic!("{asked:?}") };
            assert_eq!(lba, at);
            at += sectors as u64;
        }
        assert_eq!(at, SECTORS);
        bench.store().script = [Ok(()), Err(StoreError::Medium)].into();
        assert_eq!(bench.registers(request, &[]), Ok(failure(&request, 0x40)));
        let beyond = AtaRequest::verify(Lba(746), 255, lba48);
        assert_eq!(bench.registers(beyond, &[]), Ok(failure(&beyond, 0x10)));
    }
}

#[test]
fn ranges_at_the_end() {
    let mut bench = Bench::new();
    for (lba, sectors, inside) in [
        (0, 1, true),
        (SECTORS - 1, 1, true),
        (SECTORS - 2, 2, true),
        (SECTORS, 1, false),
        (SECTORS - 1, 2, false),
        (SECTORS + 1, 1, false),
        (LBA28_END - 1, 2, false),
    ] {
        for lba48 in [false, true] {
            let read = AtaRequest::read(Lba(lba), sectors, lba48);
            let write = AtaRequest::write(Lba(lba), sectors, lba48);
            let read_back = bench.ata(read, &[]).unwrap();
            let written = bench.registers(write, &pattern(sectors.into(), 1)).unwrap();
            if inside {
                assert_eq!((read_back.0, written), (ok(&read), ok(&write)), "{lba}+{sectors}");
            } else {
                assert_eq!((read_back.0, written), (failure(&read, 0x10), failure(&write, 0x10)), "{lba}+{sectors}");
            }
        }
    }
    let last = AtaRequest::read(Lba(LBA48_END - 1), 2, true);
    assert_eq!(bench.ata(last, &[]).unwrap().0, failure(&last, 0x10));
    // A 28-bit command's address is 28 bits wide: the rest of the fourth byte is the device register.
    let read = AtaRequest { lba: LbaBytes([1, 0, 0, 0xF0, 0xFF, 0xFF]), ..AtaRequest::read(Lba(1), 1, false) };
    assert_eq!(bench.ata(read, &[]).unwrap().0, ok(&read));
}

#[test]
fn addresses_beyond_32_bits() {
    let mut bench = Bench::new();
    bench.store().sectors = (1 << 40) + 1;
    let beyond = AtaRequest::read(Lba((1 << 40) + 1), 1, true);
    assert_eq!(bench.ata(beyond, &[]).unwrap().0, failure(&beyond, 0x10));
    bench.store().sectors = SECTORS;
    for bit in 10..48 {
        let request = AtaRequest::write(Lba(1 << bit), 1, true);
        assert_eq!(bench.registers(request, &pattern(1, 9)), Ok(failure(&request, 0x10)), "bit {bit}");
    }
    assert_eq!(bench.log(), []);
}

#[test]
fn errors_of_the_store() {
    let read = AtaRequest::read(Lba(5), 2, true);
    let write = AtaRequest::write(Lba(5), 2, true);
    let table = [(StoreError::Medium, 0x40, 0x04), (StoreError::Io, 0x04, 0x04), (StoreError::ReadOnly, 0x04, 0x04)];
    for (error, on_read, on_write) in table {
        let mut bench = Bench::new();
        bench.store().script = [Err(error), Err(error)].into();
        assert_eq!(bench.ata(read, &[]), Ok((failure(&read, on_read), vec![])));
        assert_eq!(bench.registers(write, &pattern(2, 1)), Ok(failure(&write, on_write)));
        assert_eq!(bench.counters().ata_errors, 2);
    }
}

#[test]
fn a_read_only_store_is_not_written() {
    let mut bench = Bench::new();
    bench.store().read_only = true;
    let write = AtaRequest::write(Lba(5), 2, true);
    assert_eq!(bench.registers(write, &pattern(2, 1)), Ok(failure(&write, 0x04)));
    let trim = AtaRequest::trim(1);
    assert_eq!(bench.registers(trim, &[0; SECTOR]), Ok(failure(&trim, 0x04)));
    assert_eq!(bench.log(), []);
    let read = AtaRequest::read(Lba(5), 2, true);
    assert_eq!(bench.ata(read, &[]).unwrap().0, ok(&read));
}

#[test]
fn trim_takes_all_ranges_or_none() {
    let mut bench = Bench::new();
    let ranges = |list: &[(u64, u16)]| {
        let mut data: Vec<u8> =
            list.iter().flat_map(|&(lba, sectors)| AtaRequest::trim_entry(Lba(lba), sectors)).collect();
        data.resize(data.len().next_multiple_of(SECTOR).max(SECTOR), 0);
        data
    };
    let trim = AtaRequest::trim(1);
    // Length 0 is an unused entry, wherever it points.
    let data = ranges(&[(10, 5), (LBA48_END - 1, 0), (990, 10)]);
    assert_eq!(bench.registers(trim, &data), Ok(ok(&trim)));
    assert_eq!(bench.log(), [Asked::Trim(10, 5), Asked::Trim(990, 10)]);
    assert!(bench.store().bytes[10 * SECTOR..15 * SECTOR].iter().all(|byte| *byte == 0));

    let crossing = ranges(&[(20, 5), (990, 11)]);
    assert_eq!(bench.registers(trim, &crossing), Ok(failure(&trim, 0x10)));
    let beyond = ranges(&[(LBA48_END - 1, u16::MAX)]);
    assert_eq!(bench.registers(trim, &beyond), Ok(failure(&trim, 0x10)));
    assert_eq!(bench.log(), []);

    // Two blocks of ranges.
    let mut long = ranges(&[(1, 1)]);
    long.extend(ranges(&[(2, 2)]));
    assert_eq!(bench.registers(AtaRequest::trim(2), &long), Ok(ok(&AtaRequest::trim(2))));
    assert_eq!(bench.log(), [Asked::Trim(1, 1), Asked::Trim(2, 2)]);

    let other = AtaRequest { feature: 0, ..trim };
    assert_eq!(bench.registers(other, &data), Ok(failure(&other, 0x04)));
    bench.store().script.push_back(Err(StoreError::Io));
    assert_eq!(bench.registers(trim, &data), Ok(failure(&trim, 0x04)));
    assert_eq!(bench.log().len(), 1);

    let mut plain = Bench::with(ShelfConfig::new(BOOT), |device| device.trim = false);
    assert_eq!(plain.registers(trim, &data), Ok(failure(&trim, 0x04)));
}

#[test]
fn a_write_cache_that_is_off_makes_writes_durable() {
    let mut bench = Bench::new();
    let set = |feature| AtaRequest { feature, ..bare(0xEF) };
    let write = AtaRequest::write(Lba(0), 1, true);
    let identify = |bench: &mut Bench| {
        let (_, data) = bench.ata(AtaRequest::identify(), &[]).unwrap();
        Identify::parse(&data).unwrap()
    };
    assert!(identify(&mut bench).write_cache);

    // Off only if what is in the cache could be flushed.
    bench.store().script.push_back(Err(StoreError::Io));
    assert_eq!(bench.registers(set(0x82), &[]), Ok(failure(&set(0x82), 0x04)));
    assert!(identify(&mut bench).write_cache);
    bench.registers(set(0x82), &[]).unwrap();
    let off = identify(&mut bench);
    assert!(!off.write_cache && off.write_cache_supported);
    bench.log();
    bench.registers(write, &pattern(1, 1)).unwrap();
    assert_eq!(bench.log(), [Asked::Write(0, 1, true)]);
    bench.registers(set(0x02), &[]).unwrap();
    bench.registers(write, &pattern(1, 2)).unwrap();
    assert_eq!(bench.log(), [Asked::Write(0, 1, false)]);
}

#[test]
fn identify_tells_what_we_are() {
    let mut bench = Bench::with(ShelfConfig::new(BOOT), |device| {
        device.wwn = Some(0x5000_1111_2222_3333);
        device.trim_zeroes = true;
    });
    let request = AtaRequest::identify();
    // Probes pad it to a full frame.
    let (registers, data) = bench.ata(request, &[0; 1024]).unwrap();
    assert_eq!(registers, ok(&request));
    let identify = Identify::parse(&data).unwrap();
    assert!(identify.is_ours() && identify.dedupes());
    assert_eq!(identify.boot_number(), Some(BOOT));
    assert_eq!(identify.serial.as_str(), "S1");
    assert_eq!(identify.firmware.as_str(), env!("CARGO_PKG_VERSION"));
    assert_eq!((identify.sectors, identify.logical_sector, identify.physical_exponent), (SECTORS, 512, 3));
    assert_eq!((identify.trim, identify.trim_zeroes, identify.trim_blocks), (true, true, 2));
    assert_eq!(identify.wwn, Some(0x5000_1111_2222_3333));
    assert!(identify.lba48 && identify.flush && identify.flush_ext && identify.fua && identify.write_cache);

    // The size is asked for each time.
    bench.store().sectors = 500;
    let (_, data) = bench.ata(request, &[]).unwrap();
    assert_eq!(Identify::parse(&data).unwrap().sectors, 500);
}

#[test]
fn a_reservation_keeps_others_out() {
    let mut bench = Bench::new();
    let header = bench.header(Command::RESERVE);
    let frame = crate::testing::emitted(|buf| Reserve::emit(&header, RCmd::SET, [HOST].into_iter(), buf));
    assert!(matches!(bench.handle(&frame), Outcome::Save { .. }));
    let read = AtaRequest::read(Lba(0), 1, true);
    let write = AtaRequest::write(Lba(0), 1, true);
    for request in [read, write, AtaRequest::flush(true), AtaRequest::verify(Lba(0), 1, true), bare(0xE5), bare(0x99)] {
        bench.source = OTHER;
        let data = if request == write { pattern(1, 1) } else { vec![] };
        assert_eq!(bench.ata(request, &data), Err(AoeError::RESERVED), "{request:?}");
        bench.source = HOST;
        assert!(bench.ata(request, &data).is_ok(), "{request:?}");
    }
    bench.source = OTHER;
    assert!(bench.ata(AtaRequest::identify(), &[]).is_ok());
    assert_eq!(bench.counters().reserved, 6);
    assert_eq!(bench.counters().protocol_errors, 0);
}
