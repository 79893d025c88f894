//! Arrays made by the Linux kernel and mdadm: superblocks byte for byte, fields as mdadm prints them, assembly, and the array's content through our geometry
//! and parity, with every single member left out.

use std::collections::BTreeMap;

use raid_core::geometry::Geometry;
use raid_core::md::assemble::{Assembly, Candidate, LeftOut, Options, Refusal, assemble};
use raid_core::md::superblock::{Support, Unsupported};
use raid_core::md::text;
use raid_core::parity::{Kernels, is_zero};
use raid_core::units::{DataIndex, MemberIndex, MemberSet, Sector, Sectors, StripeIndex};
use sha2::{Digest, Sha256};

use crate::common::{SECTOR, Vector, block, size};

/// All that the vectors need, so that arrays with a bitmap or a PPL can be looked into here.
const ALL: Support = Support { bitmap: true, ppl: true, bad_blocks: true };

fn candidates(vector: &Vector) -> Vec<Candidate<String>> {
    let images = vector.images.iter().enumerate();
    let name = |member| format!("member{member}");
    images
        .map(|(i, image)| Candidate { device: name(i), size: size(image), superblock: crate::common::find(image) })
        .collect()
}

fn assembled(vector: &Vector, options: Options) -> Assembly<String> {
    assemble(candidates(vector), &Options { support: ALL, ..options })
        .unwrap_or_else(|refusal| panic!("{}: {refusal}", vector.name))
}

#[test]
fn superblocks_come_out_as_they_went_in() {
    let vectors = Vector::all("r");
    assert_eq!(vectors.len(), 14);
    for vector in vectors {
        for (member, image) in vector.images.iter().enumerate() {
            let superblock = vector.superblock(member);
            let mut emitted = [0xee; 4096];
            superblock.emit(&mut emitted);
            let found = block(image, superblock.super_offset);
            assert!(emitted == *found, "{} member {member}", vector.name);
            assert_eq!(superblock.check_device(size(image)), Ok(()));
        }
    }
}

#[test]
fn fields_as_mdadm_prints_them() {
    for vector in Vector::all("r") {
        for (member, image) in vector.images.iter().enumerate() {
            let superblock = vector.superblock(member);
            let mut theirs = vector.examine[member].clone();
            for field in text::examine(&superblock, size(image), 0) {
                let value = theirs.remove(field.name);
                assert_eq!(Some(&field.value), value.as_ref(), "{} member {member}: {}", vector.name, field.name);
            }
            // Level 6 layouts are not ours to name yet.
            theirs.retain(|name, _| !(superblock.level == 6 && name == "Layout"));
            assert!(theirs.is_empty(), "{} member {member}: not printed: {theirs:?}", vector.name);
        }
    }
}

/// What `mdadm --detail` printed for the running array, against ours from its superblocks.
#[test]
fn detail_as_mdadm_prints_it() {
    use text::{Detail, DeviceRow, DeviceState};
    for vector in Vector::all("r5-") {
        let assembly = assembled(&vector, Options { force: true, ..Options::default() });
        let mut theirs = BTreeMap::new();
        for line in vector.info.lines() {
            if let Some((name, value)) = line.split_once(" : ") {
                theirs.insert(name.trim().to_owned(), value.trim().to_owned());
            }
        }
        let mut devices: Vec<DeviceRow> = (0u8..)
            .zip(&assembly.slots)
            .map(|(slot, seat)| DeviceRow {
                number: seat.as_ref().map(|seat| seat.superblock.dev_number),
                slot: Some(MemberIndex(slot)),
                state: if seat.is_some() { DeviceState::InSync } else { DeviceState::Removed },
                device: seat.as_ref().map_or_else(String::new, |seat| seat.device.clone()),
            })
            .collect();
        let rest = |state, device: &String| DeviceRow { number: None, slot: None, state, device: device.clone() };
        devices.extend(assembly.spares.iter().map(|(device, _)| rest(DeviceState::Spare, device)));
        // A failed device is listed until it is removed; the text tells which were.
        let faulty = assembly.left_out.iter().filter(|_| vector.info.contains("faulty"));
        devices.extend(faulty.map(|(device, _)| rest(DeviceState::Faulty, device)));
        let detail = Detail { superblock: &assembly.freshest, state: "active", activity: None, devices: &devices };
        for field in detail.fields(0) {
            let value = theirs.remove(field.name);
            // Printed before the array was stopped, so before the last superblock was written.
            if !["Update Time", "Events", "State"].contains(&field.name) {
                assert_eq!(Some(&field.value), value.as_ref(), "{}: {}", vector.name, field.name);
            }
        }
        assert!(theirs.is_empty(), "{}: not printed: {theirs:?}", vector.name);
    }
}

/// The data of an assembled array's members, in slot order; `None` where there is no member.
struct Members<'a> {
    geometry: Geometry,
    areas: Vec<Option<&'a [u8]>>,
}

impl<'a> Members<'a> {
    fn of(vector: &'a Vector, assembly: &Assembly<String>) -> Self {
        let area = |seat: &raid_core::md::assemble::Seat<String>| {
            let image = &vector.images[seat.device.strip_prefix("member").unwrap().parse::<usize>().unwrap()];
            let start = seat.superblock.data_offset.bytes().0 as usize;
            &image[start..start + assembly.geometry.component_size().bytes().0 as usize]
        };
        Self { geometry: assembly.geometry, areas: assembly.slots.iter().map(|seat| seat.as_ref().map(area)).collect() }
    }

    fn without(&self, member: usize) -> Self {
        let mut areas = self.areas.clone();
        areas[member] = None;
        Self { geometry: self.geometry, areas }
    }

    /// One row's chunk on a member.
    fn chunk(&self, stripe: StripeIndex, member: MemberIndex) -> Option<&'a [u8]> {
        let start = self.geometry.member_sector(stripe).bytes().0 as usize;
        let len = self.geometry.chunk().bytes().0 as usize;
        self.areas[member.index()].map(|area| &area[start..start + len])
    }

    /// The whole array, missing chunks rebuilt from the others of their row.
    fn content(&self) -> Vec<u8> {
        let kernels = Kernels::detect();
        let mut content = Vec::new();
        let chunk_bytes = self.geometry.chunk().bytes().0 as usize;
        for stripe in (0..self.geometry.stripes()).map(StripeIndex) {
            for data in (0..self.geometry.data_count() as u8).map(DataIndex) {
                let member = self.geometry.data_member(stripe, data);
                let at = self.geometry.array_sector(stripe, data, Sectors::ZERO);
                assert_eq!(at.bytes().0 as usize, content.len(), "chunks come in array order");
                if let Some(chunk) = self.chunk(stripe, member) {
                    content.extend_from_slice(chunk);
                    continue;
                }
                let others = self.geometry.all_members().without(member);
                let others: Vec<&[u8]> = others.iter().map(|other| self.chunk(stripe, other).unwrap()).collect();
                let mut rebuilt = vec![0; chunk_bytes];
                kernels.xor_into(&mut rebuilt, &others);
                content.extend_from_slice(&rebuilt);
            }
        }
        content
    }

    /// Rows whose parity does not match.
    fn mismatches(&self) -> Vec<u64> {
        let wrong = |stripe: &StripeIndex| {
            let chunks: Vec<&[u8]> =
                self.geometry.all_members().iter().map(|member| self.chunk(*stripe, member).unwrap()).collect();
            let mut sum = vec![0; chunks[0].len()];
            Kernels::detect().xor_into(&mut sum, &chunks);
            !is_zero(&sum)
        };
        (0..self.geometry.stripes()).map(StripeIndex).filter(wrong).map(|stripe| stripe.0).collect()
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A sector as the fixtures' writer filled it.
fn pattern(pass: &str, sector: usize) -> Vec<u8> {
    format!("{pass} sector {sector}\n").into_bytes().into_iter().cycle().take(SECTOR).collect()
}

#[test]
fn clean_arrays_read_with_their_checksum() {
    let clean = Vector::all("r5-").into_iter().filter(|vector| !vector.name.contains("dirty"));
    let mut arrays = 0;
    for vector in clean {
        let assembly = assembled(&vector, Options::default());
        let members = Members::of(&vector, &assembly);
        assert!(!assembly.dirty());
        assert_eq!(vector.info("array_sectors"), assembly.geometry.array_sectors().to_string());
        assert_eq!(sha256(&members.content()), vector.info("sha256"), "{}", vector.name);
        if assembly.missing().is_empty() {
            assert_eq!(members.mismatches(), [0u64; 0], "{}", vector.name);
            for left_out in 0..members.areas.len() {
                let content = members.without(left_out).content();
                assert_eq!(sha256(&content), vector.info("sha256"), "{} without {left_out}", vector.name);
            }
        }
        arrays += 1;
    }
    assert_eq!(arrays, 10);
}

#[test]
fn clean_arrays_assemble_with_every_member_in_sync() {
    for vector in Vector::all("r5-") {
        if ["dirty", "degraded"].iter().any(|word| vector.name.contains(word)) {
            continue;
        }
        let assembly = assembled(&vector, Options::default());
        assert_eq!((assembly.degraded(), assembly.left_out.len()), (0, 0), "{}", vector.name);
        assert_eq!(assembly.spares.len(), usize::from(vector.name == "r5-spare"), "{}", vector.name);
        for (slot, seat) in assembly.slots.iter().enumerate() {
            let seat = seat.as_ref().unwrap();
            assert_eq!((&seat.device, seat.recovered, seat.forced), (&format!("member{slot}"), None, false));
        }
        // One member fewer: only with `run`.
        for left_out in 0..assembly.slots.len() {
            let mut candidates = candidates(&vector);
            candidates.remove(left_out);
            let options = Options { support: ALL, ..Options::default() };
            let missing = MemberSet::of(MemberIndex(left_out as u8));
            let refused = assemble(candidates.clone(), &options).unwrap_err();
            assert!(matches!(refused, Refusal::Missing { missing: found, .. } if found == missing), "{refused}");
            let degraded = assemble(candidates, &Options { run: true, ..options }).unwrap();
            assert_eq!((degraded.missing(), degraded.degraded()), (missing, 1));
        }
    }
}

#[test]
fn a_stale_member_is_left_out() {
    let vector = Vector::load("r5-degraded-stale");
    let assembly = assembled(&vector, Options::default());
    assert_eq!(assembly.left_out, [("member2".to_owned(), LeftOut::Stale { events: 2, freshest: 8 })]);
    assert_eq!((assembly.missing(), assembly.freshest.events), (MemberSet::of(MemberIndex(2)), 8));
    let content = Members::of(&vector, &assembly).content();
    for (sector, found) in content.chunks(SECTOR).enumerate() {
        let pass = if (1000..5000).contains(&sector) { "second" } else { "first" };
        assert!(found == pattern(pass, sector), "sector {sector}");
    }
    // With one fresh member fewer too few are left, and force takes the stale one.
    let mut candidates = candidates(&vector);
    candidates.remove(0);
    let options = Options { support: ALL, run: true, ..Options::default() };
    let refused = assemble(candidates.clone(), &options).unwrap_err();
    assert!(matches!(refused, Refusal::TooFew { in_sync: 2, needed: 3, stale: true, .. }), "{refused}");
    let forced = assemble(candidates, &Options { force: true, ..options }).unwrap();
    assert!(forced.slots[2].as_ref().unwrap().forced);
    assert_eq!(forced.missing(), MemberSet::of(MemberIndex(0)));
}

#[test]
fn a_dirty_array_is_resynced() {
    let vector = Vector::load("r5-dirty");
    let assembly = assembled(&vector, Options::default());
    assert_eq!((assembly.resync_from, assembly.degraded()), (Some(Sector(0)), 0));
    let content = Members::of(&vector, &assembly).content();
    for (sector, found) in content.chunks(SECTOR).enumerate() {
        let second = (1000..1500).contains(&sector) && found == pattern("second", sector);
        assert!(second || found == pattern("first", sector), "sector {sector}");
    }
}

#[test]
fn dirty_and_degraded_starts_by_force_alone() {
    let vector = Vector::load("r5-dirty-degraded");
    let missing = MemberSet::of(MemberIndex(2));
    let options = Options { support: ALL, run: true, ..Options::default() };
    let refused = assemble(candidates(&vector), &options).unwrap_err();
    assert!(matches!(refused, Refusal::DirtyDegraded { missing: found } if found == missing), "{refused}");
    let forced = assembled(&vector, Options { force: true, ..options });
    assert_eq!((forced.missing(), forced.dirty()), (missing, true));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (name, want) in [
        ("r5-bitmap", Unsupported::Bitmap),
        ("r5-ppl", Unsupported::Ppl),
        ("r6-ls-64k-v12", Unsupported::Level(6)),
        ("r6-degraded2", Unsupported::Level(6)),
    ] {
        let refused = assemble(candidates(&Vector::load(name)), &Options::default()).unwrap_err();
        assert!(matches!(&refused, Refusal::Unsupported { what, .. } if *what == want), "{name}: {refused}");
    }
}

#[test]
fn members_of_two_arrays_are_refused_unless_one_is_named() {
    let (first, second) = (Vector::load("r5-ls-64k-v12"), Vector::load("r5-spare"));
    let mut mixed = candidates(&first);
    mixed.push(candidates(&second).remove(1));
    let refused = assemble(mixed.clone(), &Options::default()).unwrap_err();
    assert!(matches!(refused, Refusal::SeveralArrays { .. }), "{refused}");
    let uuid = first.superblock(0).set_uuid;
    let assembly = assemble(mixed, &Options { uuid: Some(uuid), ..Options::default() }).unwrap();
    assert_eq!(assembly.left_out, [("member1".to_owned(), LeftOut::OtherArray(second.superblock(0).set_uuid))]);
    assert_eq!(assembly.degraded(), 0);
}

#[test]
fn a_truncated_device_is_left_out() {
    let vector = Vector::load("r5-ls-64k-v12");
    let mut candidates = candidates(&vector);
    candidates[1].size -= Sectors(8);
    let refused = assemble(candidates, &Options::default()).unwrap_err();
    assert!(matches!(refused, Refusal::Missing { .. }), "{refused}");
    assert!(refused.to_string().contains("truncated device"), "{refused}");
}
