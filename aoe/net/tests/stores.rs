//! Stores: each kind against a plain byte vector, and what files in particular must do.

use aoe_net::store::{FileOptions, FileStore, MemoryStore, NullStore, OpenError, Survivors, VolatileStore};
use aoe_proto::shelf::{BlockStore, StoreError};
use aoe_proto::wire::{Lba, SECTOR};
use proptest::prelude::*;
use std::fs::File;
use std::path::{Path, PathBuf};

const SECTORS: u64 = 256;

#[derive(Clone, Debug)]
enum Step {
    Read { lba: u64, sectors: u64 },
    Write { lba: u64, sectors: u64, fill: u8, fua: bool },
    Flush,
    Trim { lba: u64, sectors: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let extent = || (0..SECTORS).prop_flat_map(|lba| (Just(lba), 1..=(SECTORS - lba).min(40)));
    prop_oneof![
        4 => extent().prop_map(|(lba, sectors)| Step::Read { lba, sectors }),
        4 => (extent(), any::<u8>(), any::<bool>())
            .prop_map(|((lba, sectors), fill, fua)| Step::Write { lba, sectors, fill, fua }),
        1 => Just(Step::Flush),
        1 => extent().prop_map(|(lba, sectors)| Step::Trim { lba, sectors }),
    ]
}

fn bytes(lba: u64, sectors: u64) -> std::ops::Range<usize> {
    lba as usize * SECTOR..(lba + sectors) as usize * SECTOR
}

/// Plays `steps` on `store` and on a vector; `shift` moves buffers off their alignment.
fn play(store: &mut dyn BlockStore, steps: &[Step], shift: usize) -> Vec<u8> {
    let mut model = vec![0u8; SECTORS as usize * SECTOR];
    for (i, step) in steps.iter().enumerate() {
        match *step {
            Step::Read { lba, sectors } => {
                let len = sectors as usize * SECTOR;
                let mut buffer = vec![0xEE; len + shift];
                store.read(Lba(lba), &mut buffer[shift..]).unwrap();
                assert_eq!(buffer[shift..], model[bytes(lba, sectors)], "step {i}");
            }
            Step::Write { lba, sectors, fill, fua } => {
                let range = bytes(lba, sectors);
                let data: Vec<_> = (0..range.len() + shift).map(|at| fill.wrapping_add((at / 3) as u8)).collect();
                store.write(Lba(lba), &data[shift..], fua).unwrap();
                model[range].copy_from_slice(&data[shift..]);
            }
            Step::Flush => store.flush().unwrap(),
            Step::Trim { lba, sectors } => {
                store.trim(Lba(lba), sectors).unwrap();
                model[bytes(lba, sectors)].fill(0);
            }
        }
    }
    let mut all = vec![0; model.len()];
    store.read(Lba(0), &mut all).unwrap();
    assert!(all == model);
    model
}

fn file(directory: &Path, name: &str, len: u64) -> PathBuf {
    let path = directory.join(name);
    File::create(&path).unwrap().set_len(len).unwrap();
    path
}

/// A directory whose file system has direct I/O, if there is one.
fn direct_directory() -> Option<tempfile::TempDir> {
    let directory = tempfile::Builder::new().prefix("er-store").tempdir_in("/var/tmp").ok()?;
    let path = file(directory.path(), "probe", 4096);
    FileStore::open(&path, FileOptions { direct: true, ..FileOptions::default() }).ok()?;
    Some(directory)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_store_keeps_what_it_is_given(steps in prop::collection::vec(step(), 1..60), shift in 0usize..2) {
        let len = SECTORS * SECTOR as u64;
        play(&mut MemoryStore::new(SECTORS), &steps, shift);
        play(&mut VolatileStore::new(MemoryStore::new(SECTORS), Survivors::None), &steps, shift);
        let directory = tempfile::tempdir().unwrap();
        let all = [
            FileOptions::default(),
            FileOptions { sync: true, ..FileOptions::default() },
            FileOptions { offset: 512 * 3, length: Some(len), ..FileOptions::default() },
        ];
        for (i, options) in all.into_iter().enumerate() {
            let path = file(directory.path(), &i.to_string(), len + 512 * 5);
            play(&mut FileStore::open(&path, options).unwrap(), &steps, shift);
        }
        if let Some(directory) = direct_directory() {
            for (i, offset) in [0, 4096, 512].into_iter().enumerate() {
                let path = file(directory.path(), &i.to_string(), len + 8192);
                let options = FileOptions { direct: true, offset, ..FileOptions::default() };
                play(&mut FileStore::open(&path, options).unwrap(), &steps, shift * 16);
            }
        }
    }

    #[test]
    fn a_power_cut_loses_only_what_was_not_flushed(
        before in prop::collection::vec(step(), 0..40),
        after in prop::collection::vec(step(), 0..40),
        seed: u64,
    ) {
        for survivors in [Survivors::None, Survivors::Seeded(seed), Survivors::All] {
            let memory = MemoryStore::new(SECTORS);
            let mut store = VolatileStore::new(memory.clone(), survivors);
            let flushed = play(&mut store, &before, 0);
            store.flush().unwrap();
            prop_assert_eq!(store.unflushed(), 0);
            // What each sector may hold: anything written to it since the flush, in particular the last.
            let mut last = flushed.clone();
            let mut allowed: Vec<Vec<Vec<u8>>> = flushed.chunks(SECTOR).map(|s| vec![s.to_vec()]).collect();
            for step in &after {
                match *step {
                    Step::Write { lba, sectors, fill, fua } => {
                        let range = bytes(lba, sectors);
                        last[range.clone()].fill(fill);
                        store.write(Lba(lba), &last[range], fua).unwrap();
                        for sector in lba..lba + sectors {
                            let entry = &mut allowed[sector as usize];
                            if fua {
                                entry.clear();
                            }
                            entry.push(vec![fill; SECTOR]);
                        }
                    }
                    Step::Flush => {
                        store.flush().unwrap();
                        for (entry, now) in allowed.iter_mut().zip(last.chunks(SECTOR)) {
                            *entry = vec![now.to_vec()];
                        }
                    }
                    Step::Read { .. } | Step::Trim { .. } => {}
                }
            }
            drop(store);
            let contents = memory.contents();
            for (sector, (now, allowed)) in contents.chunks(SECTOR).zip(&allowed).enumerate() {
                let expected = match survivors {
                    Survivors::None => allowed[0] == now,
                    Survivors::All => allowed[allowed.len() - 1] == now,
                    Survivors::Seeded(_) => allowed.iter().any(|a| a == now),
                };
                prop_assert!(expected, "sector {} with {:?}", sector, survivors);
            }
        }
    }
}

#[test]
fn sizes_offsets_and_lengths() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "f", 64 << 10);
    let sectors = |offset, length| {
        let options = FileOptions { offset, length, ..FileOptions::default() };
        FileStore::open(&path, options).map(|store| store.sectors())
    };
    // (offset, length, sectors); None is refused.
    let table = [
        (0, None, Some(128)),
        (512, None, Some(120)),
        (4096, None, Some(120)),
        (0, Some(4096), Some(8)),
        (0, Some(4096 + 512), Some(8)),
        (61_440, Some(4096), Some(8)),
        (61_440, Some(4608), None),
        (65_536, None, None),
        (65_024, None, None),
        (70_000, None, None),
        (100, None, None),
        (0, Some(100), None),
        (0, Some(0), None),
        (512, Some(u64::MAX), None),
    ];
    for (offset, length, expected) in table {
        match (sectors(offset, length), expected) {
            (Ok(got), Some(expected)) => assert_eq!(got, expected, "{offset} {length:?}"),
            (Err(OpenError::Range { size: 65_536, .. }), None) => {}
            other => panic!("{offset} {length:?}: {other:?}"),
        }
    }
    let odd = file(directory.path(), "odd", 10_000);
    assert_eq!(FileStore::open(&odd, FileOptions::default()).unwrap().sectors(), 16);
}

#[test]
fn what_can_not_be_opened_says_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let error = FileStore::open(&missing, FileOptions::default()).unwrap_err();
    assert!(matches!(error, OpenError::Open { .. }) && error.to_string().contains("missing"));
    assert!(FileStore::open(directory.path(), FileOptions::default()).is_err());
}

#[test]
fn read_only_refuses_writes_and_takes_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "f", 8192);
    let mut store = FileStore::open(&path, FileOptions { read_only: true, ..FileOptions::default() }).unwrap();
    let mut memory = MemoryStore::new(16);
    memory.set_read_only();
    for store in [&mut store as &mut dyn BlockStore, &mut memory] {
        assert!(store.read_only());
        assert_eq!(store.write(Lba(0), &[1; 512], false), Err(StoreError::ReadOnly));
        assert_eq!(store.trim(Lba(0), 1), Err(StoreError::ReadOnly));
        let mut sector = [1; 512];
        store.read(Lba(15), &mut sector).unwrap();
        assert_eq!(sector, [0; 512]);
    }
}

#[test]
fn a_file_that_was_cut_gives_an_error_and_no_zeros() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "f", 8192);
    let mut store = FileStore::open(&path, FileOptions::default()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let mut buffer = [0; 1024];
    assert_eq!(store.read(Lba(7), &mut buffer), Err(StoreError::Io));
    assert_eq!(store.read(Lba(8), &mut buffer), Err(StoreError::Io));
    assert_eq!(store.read(Lba(6), &mut buffer), Ok(()));
}

#[test]
fn high_addresses_are_not_cut_to_32_bits() {
    let directory = tempfile::tempdir().unwrap();
    // 3 TiB, sparse.
    let path = file(directory.path(), "f", 3 << 40);
    let mut store = FileStore::open(&path, FileOptions::default()).unwrap();
    let last = store.sectors() - 1;
    for lba in [last, 1 << 32, 1 << 31, (1 << 23) - 1, 0] {
        store.write(Lba(lba), &[lba as u8 | 1; 512], false).unwrap();
    }
    for lba in [last, 1 << 32, 1 << 31, (1 << 23) - 1, 0] {
        let mut sector = [0; 512];
        store.read(Lba(lba), &mut sector).unwrap();
        assert_eq!(sector, [lba as u8 | 1; 512], "sector {lba}");
    }
    // A trim gives the room back.
    use std::os::unix::fs::MetadataExt;
    store.flush().unwrap();
    store.trim(Lba(0), last + 1).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0);
}

#[test]
fn a_null_store_forgets_all_but_its_start() {
    const KEPT: u64 = 2048;
    let mut store = NullStore::new(1 << 35);
    assert_eq!((store.sectors(), store.read_only()), (1 << 35, false));
    for lba in [0, 7, KEPT - 1, KEPT, KEPT + 1, (1 << 35) - 4] {
        store.write(Lba(lba), &[lba as u8 | 1; 4 * SECTOR], true).unwrap();
        store.flush().unwrap();
        let mut buf = [0xEE; 4 * SECTOR];
        store.read(Lba(lba), &mut buf).unwrap();
        let kept = KEPT.saturating_sub(lba).min(4) as usize * SECTOR;
        assert!(buf[..kept].iter().all(|byte| *byte == lba as u8 | 1), "{lba}");
        assert!(buf[kept..].iter().all(|byte| *byte == 0), "{lba}");
    }
    store.trim(Lba(0), 1 << 34).unwrap();
    let mut buf = [0xEE; 16 * SECTOR];
    store.read(Lba(0), &mut buf).unwrap();
    assert!(buf.iter().all(|byte| *byte == 0));
}
