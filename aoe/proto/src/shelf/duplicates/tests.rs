//! The duplicate cache against a plain map, and its bounds.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::wire::{Lba, Status};

const LIFETIME: Duration = Duration::from_secs(1);

fn key(number: u32) -> Key {
    // Neighbouring keys differ in one field only, each time in another one.
    let request = AtaRequest::write(Lba(u64::from(number / 3)), 1, true);
    Key { tag: Tag(number % 2), device: Address::new(1, (number % 3) as u8), request, checksum: number / 7 }
}

fn answer(number: u32) -> Answer {
    let request = AtaRequest::write(Lba(0), 1, true);
    let [a, b, c, d] = number.to_le_bytes();
    Answer::Done(AtaReply {
        flags: request.flags,
        error: crate::wire::AtaError(0),
        sectors: 0,
        status: Status::OK,
        lba: crate::wire::LbaBytes([a, b, c, d, 0, 0]),
    })
}

#[test]
fn an_entry_lives_two_lifetimes_from_the_last_answer() {
    let mut cache = Duplicates::new(8, LIFETIME, 1);
    let at = |millis| Duration::from_millis(millis);
    cache.insert(at(0), key(1), answer(1));
    assert_eq!(cache.find(at(1999), &key(1)), Some(answer(1)));
    assert_eq!(cache.find(at(3998), &key(1)), Some(answer(1)));
    assert_eq!(cache.find(at(5998), &key(1)), None);
    assert_eq!(cache.len(), 0);
    cache.insert(at(5998), key(1), answer(2));
    assert_eq!(cache.find(at(5999), &key(1)), Some(answer(2)));
}

#[test]
fn every_part_of_the_key_counts() {
    let mut cache = Duplicates::new(8, LIFETIME, 1);
    let write = AtaRequest::write(Lba(5), 2, true);
    let base = Key { tag: Tag(1), device: Address::new(1, 0), request: write, checksum: 9 };
    cache.insert(Duration::ZERO, base, answer(1));
    let others = [
        Key { tag: Tag(2), ..base },
        Key { device: Address::new(1, 1), ..base },
        Key { device: Address::new(2, 0), ..base },
        Key { checksum: 8, ..base },
        Key { request: AtaRequest::write(Lba(6), 2, true), ..base },
        Key { request: AtaRequest { sectors: 3, ..write }, ..base },
        Key { request: AtaRequest { feature: 1, ..write }, ..base },
        Key { request: AtaRequest::write_fua(Lba(5), 2), ..base },
    ];
    for other in others {
        assert_eq!(cache.find(Duration::ZERO, &other), None, "{other:?}");
    }
    assert_eq!(cache.find(Duration::ZERO, &base), Some(answer(1)));
}

#[test]
fn a_full_cache_forgets_nothing_early() {
    let mut cache = Duplicates::new(5, LIFETIME, 7);
    for number in 0..5 {
        assert!(cache.has_room(Duration::from_millis(number.into())));
        cache.insert(Duration::from_millis(number.into()), key(number), answer(number));
    }
    assert!(!cache.has_room(Duration::from_millis(1999)));
    assert!(cache.has_room(Duration::from_millis(2000)));
    assert_eq!(cache.len(), 4);
    for number in 1..5 {
        assert_eq!(cache.find(Duration::from_millis(2000), &key(number)), Some(answer(number)));
    }
}

#[test]
#[should_panic(expected = "room")]
fn insertion_without_room_is_a_bug() {
    let mut cache = Duplicates::new(1, LIFETIME, 0);
    cache.insert(Duration::ZERO, key(0), answer(0));
    cache.insert(Duration::ZERO, key(1), answer(1));
}

#[test]
fn an_entry_is_small_and_a_long_idle_time_is_paid_in_pieces() {
    assert!(size_of::<Entry>() <= 64, "{}", size_of::<Entry>());
    let mut cache = Duplicates::new(1000, LIFETIME, 0);
    for number in 0..1000 {
        cache.insert(Duration::ZERO, key(number), answer(number));
    }
    assert_eq!(cache.find(Duration::from_secs(60), &key(5000)), None);
    assert_eq!(cache.len(), 1000 - EXPIRE_BATCH);
    // An entry that is still in the table is not an answer any more.
    assert_eq!(cache.find(Duration::from_secs(60), &key(999)), None);
    let mut calls = 0;
    while cache.len() > 0 {
        assert!(cache.has_room(Duration::from_secs(60)));
        calls += 1;
    }
    assert_eq!(calls, (1000usize - 1 - 2 * EXPIRE_BATCH).div_ceil(EXPIRE_BATCH));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the order of requests and pauses: found exactly while it lives, never lost, never more than allowed.
    #[test]
    fn agrees_with_a_map(
        capacity in 1usize..40,
        seed: u32,
        steps in vec((0u64..300, 0u32..60), 0..400),
    ) {
        let mut cache = Duplicates::new(capacity, LIFETIME, seed);
        let mut model: HashMap<u32, (Duration, u32)> = HashMap::new();
        let mut now = Duration::ZERO;
        for (serial, (pause, number)) in (0u32..).zip(steps) {
            now += Duration::from_millis(pause);
            model.retain(|_, (answered, _)| now < *answered + 2 * LIFETIME);
            let want = model.get_mut(&number).map(|(answered, serial)| {
                *answered = now;
                answer(*serial)
            });
            prop_assert_eq!(cache.find(now, &key(number)), want);
            if want.is_none() {
                let room = cache.has_room(now);
                prop_assert!(room || cache.len() == capacity);
                prop_assert!(!room || model.len() < capacity);
                if room {
                    cache.insert(now, key(number), answer(serial));
                    model.insert(number, (now, serial));
                }
            }
            prop_assert!(model.len() <= cache.len() && cache.len() <= capacity);
        }
        // In the end nothing is left behind.
        for _ in 0..capacity.div_ceil(EXPIRE_BATCH) {
            cache.has_room(now + 2 * LIFETIME);
        }
        prop_assert_eq!(cache.len(), 0);
    }
}
