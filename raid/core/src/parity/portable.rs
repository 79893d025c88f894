//! Kernels in plain Rust, for any CPU, and the tails of the vector kernels.
//!
//! Works in steps of [`STEP`] bytes held in an array, a shape that compilers turn into vector instructions; the rest goes byte by byte.

use super::Set;

/// Bytes per step: a cache line.
const STEP: usize = 64;

/// The portable set.
pub(super) static PORTABLE: Set = Set {
    name: "portable",
    available: || true,
    into: xor::<false>,
    acc: xor::<true>,
    copy_into: copy_xor::<false>,
    copy_acc: copy_xor::<true>,
    stream_copy_into: copy_xor::<false>,
    stream_copy: copy,
};

/// Safety: as [`super::CopyPass`].
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { src.copy_to_nonoverlapping(dst, len) }
}

/// Safety: as [`super::XorPass`].
unsafe fn xor<const ACC: bool>(dst: *mut u8, srcs: &[*const u8], len: usize) {
    // SAFETY: the caller's promise; no copies.
    unsafe { steps::<ACC>(dst, &[], srcs, 0, len) }
}

/// Safety: as [`super::CopyXorPass`].
unsafe fn copy_xor<const ACC: bool>(dst: *mut u8, copies: &[*mut u8], srcs: &[*const u8], len: usize) {
    // SAFETY: the caller's promise.
    unsafe { steps::<ACC>(dst, copies, srcs, 0, len) }
}

/// The bytes `from..len` of one pass. `copies` is empty or has one pointer for each source.
///
/// Safety: as [`super::CopyXorPass`].
pub(super) unsafe fn steps<const ACC: bool>(
    dst: *mut u8,
    copies: &[*mut u8],
    srcs: &[*const u8],
    from: usize,
    len: usize,
) {
    let mut at = from;
    while at + STEP <= len {
        // SAFETY: at + STEP <= len, within which all pointers are valid.
        unsafe { step::<STEP, ACC>(dst, copies, srcs, at) };
        at += STEP;
    }
    while at < len {
        // SAFETY: at < len, within which all pointers are valid.
        unsafe { step::<1, ACC>(dst, copies, srcs, at) };
        at += 1;
    }
}

/// `N` bytes at offset `at`.
///
/// Safety: as [`super::CopyXorPass`], with at + N within the length.
#[inline(always)]
unsafe fn step<const N: usize, const ACC: bool>(dst: *mut u8, copies: &[*mut u8], srcs: &[*const u8], at: usize) {
    // SAFETY: N bytes at `at` are within every pointer's length; byte arrays need no alignment.
    unsafe {
        let mut sum = if ACC { dst.add(at).cast::<[u8; N]>().read() } else { [0; N] };
        for (index, src) in srcs.iter().enumerate() {
            let bytes = src.add(at).cast::<[u8; N]>().read();
            if let Some(copy) = copies.get(index) {
                copy.add(at).cast::<[u8; N]>().write(bytes);
            }
            for (sum, byte) in sum.iter_mut().zip(bytes) {
                *sum ^= byte;
            }
        }
        dst.add(at).cast::<[u8; N]>().write(sum);
    }
}
