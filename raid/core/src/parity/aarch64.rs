//! Kernels for 64-bit ARM: NEON, which all of them have.
//!
//! Four vectors of 16 bytes, a cache line, are summed at once.

use core::arch::aarch64::{uint8x16_t, veorq_u8, vld1q_u8, vst1q_u8};

use super::{Set, portable};

/// Bytes in a vector.
const VECTOR: usize = 16;
/// Bytes per step: four vectors.
const BLOCK: usize = 4 * VECTOR;

/// NEON.
pub(super) static NEON: Set = Set {
    name: "neon",
    available: || std::arch::is_aarch64_feature_detected!("neon"),
    into: xor::<false>,
    acc: xor::<true>,
    copy_into: blocks::<false>,
    copy_acc: blocks::<true>,
    stream_copy_into: blocks::<false>,
    stream_copy: portable::copy,
};

/// Safety: as [`super::XorPass`].
unsafe fn xor<const ACC: bool>(dst: *mut u8, srcs: &[*const u8], len: usize) {
    // SAFETY: the caller's promise; no copies.
    unsafe { blocks::<ACC>(dst, &[], srcs, len) }
}

/// Safety: as [`super::CopyXorPass`]; `copies` may be empty.
unsafe fn blocks<const ACC: bool>(dst: *mut u8, copies: &[*mut u8], srcs: &[*const u8], len: usize) {
    let mut at = 0;
    while at + BLOCK <= len {
        // SAFETY: BLOCK bytes at `at` are within every pointer's length; NEON loads and stores of bytes need no alignment.
        unsafe {
            let mut sum = load(if ACC { dst } else { srcs[0] }.add(at));
            if !ACC && let Some(copy) = copies.first() {
                store(copy.add(at), sum);
            }
            for (index, src) in srcs.iter().enumerate().skip(usize::from(!ACC)) {
                let block = load(src.add(at));
                if let Some(copy) = copies.get(index) {
                    store(copy.add(at), block);
                }
                for vector in 0..4 {
                    sum[vector] = veorq_u8(sum[vector], block[vector]);
                }
            }
            store(dst.add(at), sum);
        }
        at += BLOCK;
    }
    // SAFETY: the caller's promise; `at` is not beyond `len`.
    unsafe { portable::steps::<ACC>(dst, copies, srcs, at, len) }
}

/// Safety: BLOCK bytes at `from` are readable.
#[inline(always)]
unsafe fn load(from: *const u8) -> [uint8x16_t; 4] {
    // SAFETY: all four vectors lie within BLOCK bytes, and every aarch64 CPU that Rust's std runs on has NEON.
    unsafe { [0, 1, 2, 3].map(|vector| vld1q_u8(from.add(vector * VECTOR))) }
}

/// Safety: BLOCK bytes at `to` are writable.
#[inline(always)]
unsafe fn store(to: *mut u8, block: [uint8x16_t; 4]) {
    for (vector, value) in block.into_iter().enumerate() {
        // SAFETY: all four vectors lie within BLOCK bytes, and every aarch64 CPU that Rust's std runs on has NEON.
        unsafe { vst1q_u8(to.add(vector * VECTOR), value) };
    }
}
