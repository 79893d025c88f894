//! Tests of the kernels: each available set against a byte-by-byte XOR, at all source counts, odd lengths and alignments, and
//! against an independent Reed-Solomon code where its one parity row is plain XOR.

use proptest::prelude::*;
use reed_solomon_erasure::galois_8::ReedSolomon;

use super::*;

/// Bytes around each destination that must stay as they are.
const GUARD: usize = 70;

/// A seeded stream of bytes (splitmix64).
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn slow_xor(start: &[u8], srcs: &[&[u8]]) -> Vec<u8> {
    (0..start.len()).map(|at| srcs.iter().fold(start[at], |sum, src| sum ^ src[at])).collect()
}

/// Runs every form of every available kernel on `count` sources of `len` bytes at `offset` from an aligned start.
fn check(count: usize, len: usize, offset: usize, seed: u64) {
    let pool: Vec<Vec<u8>> = (0..count).map(|i| noise(seed + i as u64, 128 + offset + i + len)).collect();
    let srcs: Vec<&[u8]> = pool.iter().enumerate().map(|(i, bytes)| &bytes[offset + i..][..len]).collect();
    let raw: Vec<*const u8> = srcs.iter().map(|src| src.as_ptr()).collect();
    let old = noise(!seed, GUARD + offset + len + GUARD);
    let place = GUARD + offset..GUARD + offset + len;
    let expect = |start: &[u8]| {
        let mut whole = old.clone();
        whole[place.clone()].copy_from_slice(&slow_xor(start, &srcs));
        whole
    };
    let (into, acc) = (expect(&vec![0; len]), expect(&old[place.clone()]));
    for kernels in Kernels::available() {
        let what = format!("{} {count} x {len} at {offset}", kernels.name());
        let run = |form: &dyn Fn(&mut [u8])| {
            let mut dst = old.clone();
            form(&mut dst[place.clone()]);
            dst
        };
        assert!(run(&|dst| kernels.xor_into(dst, &srcs)) == into, "xor_into {what}");
        assert!(run(&|dst| kernels.xor_acc(dst, &srcs)) == acc, "xor_acc {what}");
        // SAFETY: the pointers come from live slices of `len` bytes, and `dst` is a buffer of its own.
        let raw_into = run(&|dst| unsafe { kernels.xor_into_raw(dst.as_mut_ptr(), &raw, len) });
        assert!(raw_into == into, "xor_into_raw {what}");
        // SAFETY: as above.
        let raw_acc = run(&|dst| unsafe { kernels.xor_acc_raw(dst.as_mut_ptr(), &raw, len) });
        assert!(raw_acc == acc, "xor_acc_raw {what}");
        let mut copies = vec![vec![0u8; len]; count];
        let mut slices: Vec<&mut [u8]> = copies.iter_mut().map(Vec::as_mut_slice).collect();
        let mut parity = old.clone();
        kernels.copy_xor(&mut parity[place.clone()], &mut slices, &srcs);
        assert!(parity == into && copies == srcs, "copy_xor {what}");
        let mut copies = vec![vec![0u8; len]; count];
        let to: Vec<*mut u8> = copies.iter_mut().map(|copy| copy.as_mut_ptr()).collect();
        // SAFETY: as above; each copy is a buffer of its own.
        let raw_copy = run(&|dst| unsafe { kernels.copy_xor_raw(dst.as_mut_ptr(), &to, &raw, len) });
        assert!(raw_copy == into && copies == srcs, "copy_xor_raw {what}");
    }
}

/// The part of `bytes` from the first aligned address on, `len` bytes of it.
fn aligned(bytes: &mut [u8], len: usize) -> &mut [u8] {
    let start = bytes.as_ptr().align_offset(STREAM_ALIGN);
    &mut bytes[start..][..len]
}

/// `stream_copy_xor_raw` of every available kernel, its destinations `offset` bytes beyond aligned addresses.
fn check_stream(count: usize, len: usize, offset: usize) {
    let pool: Vec<Vec<u8>> = (0..count as u64).map(|i| noise(i, len)).collect();
    let srcs: Vec<&[u8]> = pool.iter().map(Vec::as_slice).collect();
    let raw: Vec<*const u8> = srcs.iter().map(|src| src.as_ptr()).collect();
    let parity = slow_xor(&vec![0; len], &srcs);
    for kernels in Kernels::available() {
        let mut to: Vec<Vec<u8>> = vec![vec![0; STREAM_ALIGN + offset + len]; count + 1];
        let mut to: Vec<&mut [u8]> = to.iter_mut().map(|to| &mut aligned(to, offset + len)[offset..]).collect();
        let pointers: Vec<*mut u8> = to.iter_mut().map(|to| to.as_mut_ptr()).collect();
        // SAFETY: the pointers come from live slices of `len` bytes, each of a buffer of its own.
        unsafe { kernels.stream_copy_xor_raw(pointers[count], &pointers[..count], &raw, len) };
        assert!(to[count] == parity && to[..count] == srcs, "{} {count} x {len} at {offset}", kernels.name());
        for (to, src) in pointers.iter().zip(&raw) {
            // SAFETY: as above.
            unsafe {
                to.write_bytes(0, len);
                kernels.stream_copy_raw(*to, *src, len);
            }
        }
        assert!(to[..count] == srcs, "{} copies {len} at {offset}", kernels.name());
    }
}

#[test]
fn stores_past_the_caches() {
    for count in 0..=SOURCES_PER_PASS + 1 {
        for (len, offset) in [(0, 0), (64, 0), (4096, 0), (4096 + 192, 0), (4096, 8), (100, 0)] {
            check_stream(count, len, offset);
        }
    }
}

#[test]
fn every_count_at_lengths_around_the_steps() {
    for count in 0..=2 * SOURCES_PER_PASS + 1 {
        for len in [0, 1, 31, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 4096 + 17] {
            check(count, len, len % 5, 7);
        }
    }
}

#[test]
fn every_offset() {
    for offset in 0..64 {
        check(3, 600, offset, 11);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_shape(count in 0usize..=64, len in 0usize..3000, offset in 0usize..65, seed: u64) {
        check(count, len, offset, seed >> 1);
    }

    #[test]
    fn zero_is_seen_and_one_bit_too(len in 1usize..2000, at: prop::sample::Index, bit in 0u32..8) {
        let mut bytes = vec![0u8; len];
        prop_assert!(is_zero(&bytes));
        bytes[at.index(len)] = 1 << bit;
        prop_assert!(!is_zero(&bytes));
    }
}

#[test]
fn no_bytes_are_zero() {
    assert!(is_zero(&[]));
}

/// With 3 and 7 data shards the code's one parity row is all ones, so its parity is md's.
#[test]
fn parity_equals_reed_solomon() {
    for data in [3, 7] {
        let code = ReedSolomon::new(data, 1).unwrap();
        let mut shards: Vec<Vec<u8>> = (0..=data as u64).map(|i| noise(i, 4096)).collect();
        code.encode(&mut shards).unwrap();
        let srcs: Vec<&[u8]> = shards[..data].iter().map(Vec::as_slice).collect();
        for kernels in Kernels::available() {
            let mut parity = vec![0xff; 4096];
            kernels.xor_into(&mut parity, &srcs);
            assert!(parity == shards[data], "{} with {data} data members", kernels.name());
        }
        // Each lost data block, rebuilt by both.
        for lost in 0..data {
            let others: Vec<&[u8]> =
                shards.iter().enumerate().filter(|(i, _)| *i != lost).map(|(_, s)| s.as_slice()).collect();
            let mut rebuilt = vec![0; 4096];
            Kernels::detect().xor_into(&mut rebuilt, &others);
            let mut damaged: Vec<Option<Vec<u8>>> = shards.iter().cloned().map(Some).collect();
            damaged[lost] = None;
            code.reconstruct(&mut damaged).unwrap();
            assert!(damaged[lost].as_ref() == Some(&rebuilt), "block {lost} of {data}");
        }
    }
}

#[test]
fn a_clock_that_stands_still_gives_the_expected_set() {
    assert_eq!(Kernels::calibrate(|| 5), Kernels::detect());
    // One that runs backwards as well.
    let mut now = u64::MAX;
    let backwards = Kernels::calibrate(|| {
        now -= 1000;
        now
    });
    assert_eq!(backwards, Kernels::detect());
}

#[test]
fn calibration_takes_the_fastest() {
    let sets: Vec<Kernels> = Kernels::available().collect();
    for fastest in 0..sets.len() {
        // Each set is timed by two readings: all take 100 units but one, which takes 40.
        let mut readings = 0usize;
        let mut now = 0;
        let chosen = Kernels::calibrate(|| {
            if readings % 2 == 1 {
                now += if readings / 2 % sets.len() == fastest { 40 } else { 100 };
            }
            readings += 1;
            now
        });
        assert_eq!(chosen, sets[fastest]);
    }
}

#[test]
fn measurements_name_every_available_set() {
    let mut now = 0;
    let results = Kernels::measure(|| {
        now += 10;
        now
    });
    let names: Vec<&str> = results.iter().map(|result| result.kernels.name()).collect();
    let available: Vec<&str> = Kernels::available().map(|kernels| kernels.name()).collect();
    assert_eq!(names, available);
    assert_eq!(names.last(), Some(&"portable"));
    assert!(results.iter().all(|result| result.units == 10 && result.source_bytes == 64 * 4 * 4096));
}

#[test]
#[should_panic(expected = "length differs")]
fn unequal_lengths_are_caught() {
    Kernels::portable().xor_into(&mut [0; 4], &[&[1; 4], &[1; 3]]);
}
