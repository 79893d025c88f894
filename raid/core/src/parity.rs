//! XOR over blocks: the only arithmetic of level 5, and most of what a full-speed array does with its CPU.
//!
//! [`Kernels`] is a small `Copy` value that names one set of kernels (AVX-512, AVX2, NEON or portable). The engine makes it once, by
//! [`Kernels::calibrate`], and hands it to its workers. All lengths and alignments work; nothing is allocated.
//!
//! Up to [`SOURCES_PER_PASS`] sources are fused in one pass, so that the destination is touched once for them; more sources
//! take more passes. The caller keeps the pieces small enough that a pass over them stays in cache.
//!
//! Besides the safe forms over slices there are `unsafe` ones over raw pointers, for buffers that are not Rust slices (the
//! engine's slab, where blocks of one allocation are used by several owners in turn). Every kernel is held against the portable one in tests.

// Kernels read and write through raw pointers and use vector instructions: the crate's only unsafe code.
#![allow(unsafe_code)]

use core::fmt;

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// Sources fused in one pass over the destination.
pub const SOURCES_PER_PASS: usize = 8;

/// Sources fused in one pass that also copies: with more, the streams written push each other out of the first-level cache (at 8 the
/// rate was half of that at 4).
const COPIES_PER_PASS: usize = 4;

/// Alignment from which on stores may go past the caches: the longest vector.
const STREAM_ALIGN: usize = 64;

/// Bytes per source in the calibration: as much as a busy small-write row has, and in the first-level cache with its five sources.
const CALIBRATION_BYTES: usize = 4096;
/// Sources in the calibration.
const CALIBRATION_SOURCES: usize = 4;
/// Passes that are timed at once; some microseconds, well above a clock's resolution.
const CALIBRATION_PASSES: usize = 64;
/// Times each kernel is measured; the fastest counts, as disturbance only slows down.
const CALIBRATION_ROUNDS: usize = 32;

/// One pass: `dst = [dst ^] srcs[0] ^ ..`, for 1 to [`SOURCES_PER_PASS`] sources of `len` bytes.
///
/// Safety: as [`Kernels::xor_into_raw`], and the CPU has the instructions.
type XorPass = unsafe fn(dst: *mut u8, srcs: &[*const u8], len: usize);

/// One pass that copies too: `copies[i] = srcs[i]`, `dst = [dst ^] srcs[0] ^ ..`.
///
/// Safety: as [`Kernels::copy_xor_raw`], and the CPU has the instructions.
type CopyXorPass = unsafe fn(dst: *mut u8, copies: &[*mut u8], srcs: &[*const u8], len: usize);

/// One copy.
///
/// Safety: as [`Kernels::stream_copy_raw`], and the CPU has the instructions.
type CopyPass = unsafe fn(dst: *mut u8, src: *const u8, len: usize);

/// The kernels of one instruction set.
struct Set {
    name: &'static str,
    /// Whether this CPU has the instructions.
    available: fn() -> bool,
    /// `dst = srcs..`
    into: XorPass,
    /// `dst ^= srcs..`
    acc: XorPass,
    /// `dst = srcs..` with copies.
    copy_into: CopyXorPass,
    /// `dst ^= srcs..` with copies.
    copy_acc: CopyXorPass,
    /// As `copy_into`, with stores that go past the caches where the CPU has such; pointers and length are multiples of [`STREAM_ALIGN`].
    stream_copy_into: CopyXorPass,
    /// `dst = src`, with such stores, under the same condition.
    stream_copy: CopyPass,
}

/// Every set compiled in, the one expected to be fastest first, portable last.
static SETS: &[&Set] = &[
    #[cfg(target_arch = "x86_64")]
    &x86_64::AVX512,
    #[cfg(target_arch = "x86_64")]
    &x86_64::AVX2,
    #[cfg(target_arch = "aarch64")]
    &aarch64::NEON,
    &portable::PORTABLE,
];

/// A choice of kernels that this CPU can run.
#[derive(Clone, Copy)]
pub struct Kernels(&'static Set);

/// What calibration measured for one set of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The kernels.
    pub kernels: Kernels,
    /// Clock units for the fastest round.
    pub units: u64,
    /// Source bytes worked through in a round.
    pub source_bytes: u64,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({})", self.0.name)
    }
}

impl PartialEq for Kernels {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Kernels {}

impl Kernels {
    /// The kernels that every CPU runs.
    pub fn portable() -> Self {
        Self(&portable::PORTABLE)
    }

    /// Every set that this CPU runs, the one expected to be fastest first, portable last.
    pub fn available() -> impl Iterator<Item = Self> {
        SETS.iter().filter(|set| (set.available)()).map(|set| Self(set))
    }

    /// The set expected to be fastest on this CPU, without measuring.
    pub fn detect() -> Self {
        Self::available().next().unwrap_or_else(Self::portable)
    }

    /// The name of the instruction set, such as `avx2`.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The fastest set by a measurement of about a millisecond. `clock` is any rising count of time, nanoseconds say; with a
    /// clock that stands still the choice is that of [`Self::detect`].
    pub fn calibrate(clock: impl FnMut() -> u64) -> Self {
        Self::measure(clock)
            .into_iter()
            .min_by_key(|result| result.units)
            .map_or_else(Self::detect, |best| best.kernels)
    }

    /// Measures every available set, in the order of [`Self::available`].
    pub fn measure(mut clock: impl FnMut() -> u64) -> Vec<Calibration> {
        // One block more than used, so that all of them can start on a page as the engine's do; unaligned ones favour short vectors.
        let mut pool = vec![0x5au8; CALIBRATION_BYTES * (CALIBRATION_SOURCES + 2)];
        let start = pool.as_ptr().align_offset(CALIBRATION_BYTES).min(CALIBRATION_BYTES);
        let blocks = &mut pool[start..][..CALIBRATION_BYTES * (CALIBRATION_SOURCES + 1)];
        let (parity, sources) = blocks.split_at_mut(CALIBRATION_BYTES);
        let sources: Vec<&[u8]> = sources.chunks_exact(CALIBRATION_BYTES).collect();
        let mut results: Vec<Calibration> = Self::available()
            .map(|kernels| Calibration {
                kernels,
                units: u64::MAX,
                source_bytes: (CALIBRATION_BYTES * CALIBRATION_SOURCES * CALIBRATION_PASSES) as u64,
            })
            .collect();
        // Rounds go over all sets, so that a change of clock rate half way meets them all.
        for _ in 0..CALIBRATION_ROUNDS {
            for result in &mut results {
                let start = clock();
                for _ in 0..CALIBRATION_PASSES {
                    result.kernels.xor_into(parity, &sources);
                }
                result.units = result.units.min(clock().saturating_sub(start));
            }
        }
        results
    }

    /// `dst` = XOR of `srcs`. `dst` is not read. Without sources it becomes zero. All lengths must be equal.
    pub fn xor_into(&self, dst: &mut [u8], srcs: &[&[u8]]) {
        assert_lengths(dst.len(), srcs);
        self.passes(dst, srcs, self.0.into);
    }

    /// `dst` ^= XOR of `srcs`. All lengths must be equal.
    pub fn xor_acc(&self, dst: &mut [u8], srcs: &[&[u8]]) {
        assert_lengths(dst.len(), srcs);
        if !srcs.is_empty() {
            self.passes(dst, srcs, self.0.acc);
        }
    }

    fn passes(&self, dst: &mut [u8], srcs: &[&[u8]], first: XorPass) {
        if srcs.is_empty() {
            dst.fill(0);
        }
        let mut pass = first;
        for group in srcs.chunks(SOURCES_PER_PASS) {
            let mut pointers = [core::ptr::null(); SOURCES_PER_PASS];
            for (pointer, src) in pointers.iter_mut().zip(group) {
                *pointer = src.as_ptr();
            }
            // SAFETY: every source is a slice of dst.len() bytes (asserted by the callers), `dst` is borrowed mutably and so overlaps none,
            // and sets are only handed out where their instructions are available.
            unsafe { pass(dst.as_mut_ptr(), &pointers[..group.len()], dst.len()) };
            pass = self.0.acc;
        }
    }

    /// As [`Self::xor_into`], over raw pointers.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `len` bytes and each of `srcs` for reads of `len` bytes, for the whole call and without any other
    /// thread writing there. `dst` must overlap no source. No alignment is needed.
    pub unsafe fn xor_into_raw(&self, dst: *mut u8, srcs: &[*const u8], len: usize) {
        if srcs.is_empty() {
            // SAFETY: `dst` is valid for writes of `len` bytes.
            unsafe { dst.write_bytes(0, len) };
        }
        let mut pass = self.0.into;
        for group in srcs.chunks(SOURCES_PER_PASS) {
            // SAFETY: the caller's promise, and sets are only handed out where their instructions are available.
            unsafe { pass(dst, group, len) };
            pass = self.0.acc;
        }
    }

    /// As [`Self::xor_acc`], over raw pointers.
    ///
    /// # Safety
    /// As [`Self::xor_into_raw`]; `dst` must be valid for reads too and its bytes initialised.
    pub unsafe fn xor_acc_raw(&self, dst: *mut u8, srcs: &[*const u8], len: usize) {
        for group in srcs.chunks(SOURCES_PER_PASS) {
            // SAFETY: the caller's promise, and sets are only handed out where their instructions are available.
            unsafe { (self.0.acc)(dst, group, len) };
        }
    }

    /// Copies each of `srcs` to the one of `copies` at the same place, and sets `parity` to their XOR, reading each source once.
    /// As many copies as sources, all lengths equal.
    pub fn copy_xor(&self, parity: &mut [u8], copies: &mut [&mut [u8]], srcs: &[&[u8]]) {
        assert_lengths(parity.len(), srcs);
        assert_eq!(copies.len(), srcs.len(), "a copy for each source");
        assert!(copies.iter().all(|copy| copy.len() == parity.len()), "a copy's length differs from the parity's");
        if srcs.is_empty() {
            parity.fill(0);
        }
        let mut pass = self.0.copy_into;
        for (copies, srcs) in copies.chunks_mut(COPIES_PER_PASS).zip(srcs.chunks(COPIES_PER_PASS)) {
            let mut from = [core::ptr::null(); COPIES_PER_PASS];
            let mut to = [core::ptr::null_mut(); COPIES_PER_PASS];
            for (index, (copy, src)) in copies.iter_mut().zip(srcs).enumerate() {
                (to[index], from[index]) = (copy.as_mut_ptr(), src.as_ptr());
            }
            let count = srcs.len();
            // SAFETY: all slices are parity.len() bytes long (asserted above), the mutable ones overlap nothing, and sets are only
            // handed out where their instructions are available.
            unsafe { pass(parity.as_mut_ptr(), &to[..count], &from[..count], parity.len()) };
            pass = self.0.copy_acc;
        }
    }

    /// As [`Self::copy_xor`], over raw pointers.
    ///
    /// # Safety
    /// As [`Self::xor_into_raw`], with each of `copies` valid for writes of `len` bytes and overlapping neither a source, nor `parity`, nor
    /// another copy.
    pub unsafe fn copy_xor_raw(&self, parity: *mut u8, copies: &[*mut u8], srcs: &[*const u8], len: usize) {
        assert_eq!(copies.len(), srcs.len(), "a copy for each source");
        if srcs.is_empty() {
            // SAFETY: `parity` is valid for writes of `len` bytes.
            unsafe { parity.write_bytes(0, len) };
        }
        let mut pass = self.0.copy_into;
        for (copies, srcs) in copies.chunks(COPIES_PER_PASS).zip(srcs.chunks(COPIES_PER_PASS)) {
            // SAFETY: the caller's promise, and sets are only handed out where their instructions are available.
            unsafe { pass(parity, copies, srcs, len) };
            pass = self.0.copy_acc;
        }
    }

    /// As [`Self::copy_xor_raw`], for destinations that nobody reads soon: the stores go past the caches, so that what lies there is neither fetched
    /// first nor pushes out anything else. Where alignment, the CPU, or more than [`SOURCES_PER_PASS`] sources forbid it, they are plain ones.
    ///
    /// # Safety
    /// As [`Self::copy_xor_raw`].
    pub unsafe fn stream_copy_xor_raw(&self, parity: *mut u8, copies: &[*mut u8], srcs: &[*const u8], len: usize) {
        let aligned = parity.addr() | len | copies.iter().fold(0, |bits, copy| bits | copy.addr());
        if srcs.is_empty() || srcs.len() > SOURCES_PER_PASS || !aligned.is_multiple_of(STREAM_ALIGN) {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_xor_raw(parity, copies, srcs, len) };
        }
        assert_eq!(copies.len(), srcs.len(), "a copy for each source");
        // SAFETY: the caller's promise, alignment was just seen, and sets are only handed out where their instructions are available.
        unsafe { (self.0.stream_copy_into)(parity, copies, srcs, len) };
    }

    /// Copies `len` bytes, with stores as those of [`Self::stream_copy_xor_raw`].
    ///
    /// # Safety
    /// `src` must be valid for reads and `dst` for writes of `len` bytes, for the whole call and without any other thread writing there. They
    /// must not overlap.
    pub unsafe fn stream_copy_raw(&self, dst: *mut u8, src: *const u8, len: usize) {
        if !(dst.addr() | len).is_multiple_of(STREAM_ALIGN) {
            // SAFETY: the caller's promise.
            return unsafe { src.copy_to_nonoverlapping(dst, len) };
        }
        // SAFETY: the caller's promise, alignment was just seen, and sets are only handed out where their instructions are available.
        unsafe { (self.0.stream_copy)(dst, src, len) };
    }
}

/// Whether every byte is zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Pieces long enough for vector instructions, short enough to stop early.
    bytes.chunks(256).all(|piece| piece.iter().fold(0, |seen, byte| seen | byte) == 0)
}

fn assert_lengths(len: usize, srcs: &[&[u8]]) {
    assert!(srcs.iter().all(|src| src.len() == len), "a source's length differs from the destination's");
}
