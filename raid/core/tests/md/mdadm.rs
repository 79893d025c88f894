//! `mdadm --examine` on superblocks that we made: it accepts them and prints the same fields as we do.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use raid_core::geometry::Layout;
use raid_core::md::create::{NewArray, NewDevice, create};
use raid_core::md::superblock::SUPERBLOCK_SIZE;
use raid_core::md::{Minor, Superblock, Uuid, text};
use raid_core::units::{MemberCount, Sector, Sectors};

use crate::common::Vector;

/// A sparse device with nothing but a superblock; its file goes when it is dropped.
struct Device(PathBuf);

impl Device {
    fn new(name: &str, size: Sectors, superblock: &Superblock) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.set_len(size.bytes().0).unwrap();
        let mut block = [0; SUPERBLOCK_SIZE];
        superblock.emit(&mut block);
        file.seek(SeekFrom::Start(superblock.super_offset.bytes().0)).unwrap();
        file.write_all(&block).unwrap();
        Self(path)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A file left behind in the build folder does no harm.
        let _ = fs::remove_file(&self.0);
    }
}

fn mdadm() -> Option<&'static str> {
    let found = ["/sbin/mdadm", "/usr/sbin/mdadm"].into_iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        println!("SKIPPED: mdadm is not installed");
    }
    found
}

/// Compares what mdadm prints for `superblock` with our own listing.
fn compare(mdadm: &str, name: &str, size: Sectors, superblock: &Superblock) {
    let device = Device::new(name, size, superblock);
    let output = Command::new(mdadm).env("TZ", "UTC").arg("--examine").arg(&device.0).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {stderr}");
    let mut theirs = crate::common::examine_fields(&stdout);
    for field in text::examine(superblock, size, 0) {
        assert_eq!(Some(&field.value), theirs.remove(field.name).as_ref(), "{name}: {}\n{stdout}", field.name);
    }
    assert!(theirs.is_empty(), "{name}: not printed: {theirs:?}");
}

fn array(minor: Minor, members: u8, layout: Layout, chunk: u64) -> NewArray<'static> {
    NewArray {
        name: "made",
        homehost: Some("here"),
        minor,
        level: 5,
        layout,
        chunk: Sectors(chunk),
        members: MemberCount(members),
        size: None,
        assume_clean: false,
        set_uuid: Uuid(*b"array uuid 0123."),
        now: 1_796_038_498,
    }
}

fn devices(count: u8, size: Sectors) -> Vec<NewDevice> {
    (0..count).map(|number| NewDevice { size, uuid: Uuid([number; 16]) }).collect()
}

#[test]
fn new_arrays() {
    let Some(mdadm) = mdadm() else { return };
    for minor in Minor::ALL {
        for (layout, chunk, mib) in [(Layout::LeftSymmetric, 1024, 100), (Layout::RightAsymmetric, 8, 7000)] {
            let size = Sectors(mib * 2048 + 7);
            let made = create(&array(minor, 3, layout, chunk), &devices(4, size)).unwrap();
            for (number, superblock) in made.superblocks.iter().enumerate() {
                compare(mdadm, &format!("{minor}-{layout}-{number}"), size, superblock);
            }
        }
    }
}

#[test]
fn states_of_a_member() {
    let Some(mdadm) = mdadm() else { return };
    let size = Sectors(6 * 2048);
    let made = create(&array(Minor::V2, 4, Layout::LeftSymmetric, 128), &devices(4, size)).unwrap();
    let clean = Superblock { resync_offset: None, events: 1 << 40, ..made.superblocks[1].clone() };
    compare(mdadm, "clean", size, &clean);
    let mut recovering = clean.clone();
    recovering.set_recovery(Some(Sector(4096)));
    recovering.roles[3] = raid_core::md::Role::Faulty;
    compare(mdadm, "recovering", size, &recovering);
    let named = NewArray {
        homehost: None,
        level: 4,
        layout: Layout::ParityLast,
        ..array(Minor::V2, 4, Layout::ParityLast, 128)
    };
    let level4 = create(&named, &devices(4, size)).unwrap();
    compare(mdadm, "level4", size, &level4.superblocks[0]);
    // As many members as an array can have: the table has more than one sector.
    let wide = create(&array(Minor::V2, 64, Layout::LeftSymmetric, 128), &devices(64, size)).unwrap();
    compare(mdadm, "wide", size, &wide.superblocks[63]);
}

#[test]
fn superblocks_of_the_kernel_emitted_again() {
    let Some(mdadm) = mdadm() else { return };
    for vector in Vector::all("r5-") {
        for (member, image) in vector.images.iter().enumerate() {
            // A bitmap's size counts in the unused space that mdadm prints, and there is none on the copy.
            if vector.name != "r5-bitmap" {
                compare(
                    mdadm,
                    &format!("{}-{member}", vector.name),
                    crate::common::size(image),
                    &vector.superblock(member),
                );
            }
        }
    }
}
