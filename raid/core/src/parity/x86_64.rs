//! Kernels for x86-64: AVX2, and AVX-512 with its three-way XOR.
//!
//! Each is compiled for every source count up to [`super::SOURCES_PER_PASS`], so that the loop over sources is unrolled and the pointers
//! stay in registers. Four vectors are summed at once to hide the latency of the loads.

use core::arch::x86_64::{
    __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_stream_si256,
    _mm256_xor_si256, _mm512_loadu_si512, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use super::{Set, portable};

/// Vectors summed at once.
const WIDE: usize = 4;

/// AVX2: every x86-64 CPU since 2015 or so.
pub(super) static AVX2: Set = Set {
    name: "avx2",
    available: || std::arch::is_x86_feature_detected!("avx2"),
    into: avx2::into,
    acc: avx2::acc,
    copy_into: avx2::copy_into,
    copy_acc: avx2::copy_acc,
    stream_copy_into: avx2::stream_copy_into,
    stream_copy: avx2::stream_copy,
};

/// AVX-512 F.
pub(super) static AVX512: Set = Set {
    name: "avx512",
    available: || std::arch::is_x86_feature_detected!("avx512f"),
    into: avx512::into,
    acc: avx512::acc,
    copy_into: avx512::copy_into,
    copy_acc: avx512::copy_acc,
    stream_copy_into: avx512::stream_copy_into,
    stream_copy: avx512::stream_copy,
};

/// The four passes over one vector type: `$sum` adds up to two sources into the vectors of a block.
macro_rules! passes {
    ($module:ident, $feature:literal, $vector:ty, $load:ident, $store:ident, $stream:ident, $zero:ident, $xor:ident, $xor3:ident) => {
        mod $module {
            use super::*;

            const VECTOR: usize = size_of::<$vector>();
            const BLOCK: usize = VECTOR * WIDE;

            /// Safety: as [`super::super::XorPass`].
            pub(super) unsafe fn into(dst: *mut u8, srcs: &[*const u8], len: usize) {
                // SAFETY: the caller's promise.
                unsafe { by_count::<false, false, false>(dst, &[], srcs, len) }
            }

            /// Safety: as [`super::super::XorPass`].
            pub(super) unsafe fn acc(dst: *mut u8, srcs: &[*const u8], len: usize) {
                // SAFETY: the caller's promise.
                unsafe { by_count::<true, false, false>(dst, &[], srcs, len) }
            }

            /// Safety: as [`super::super::CopyXorPass`].
            pub(super) unsafe fn copy_into(dst: *mut u8, copies: &[*mut u8], srcs: &[*const u8], len: usize) {
                // SAFETY: the caller's promise.
                unsafe { by_count::<false, true, false>(dst, copies, srcs, len) }
            }

            /// Safety: as [`super::super::CopyXorPass`].
            pub(super) unsafe fn copy_acc(dst: *mut u8, copies: &[*mut u8], srcs: &[*const u8], len: usize) {
                // SAFETY: the caller's promise.
                unsafe { by_count::<true, true, false>(dst, copies, srcs, len) }
            }

            /// Safety: as [`super::super::CopyXorPass`], aligned as [`super::Set::stream_copy_into`] says.
            pub(super) unsafe fn stream_copy_into(dst: *mut u8, copies: &[*mut u8], srcs: &[*const u8], len: usize) {
                // SAFETY: the caller's promise.
                unsafe { by_count::<false, true, true>(dst, copies, srcs, len) }
                // Stores past the caches are not ordered with others; whoever is told of these must see them.
                // SAFETY: every x86-64 CPU has it.
                unsafe { _mm_sfence() };
            }

            /// Safety: as [`super::super::CopyPass`], aligned as [`super::Set::stream_copy_into`] says.
            pub(super) unsafe fn stream_copy(dst: *mut u8, src: *const u8, len: usize) {
                // SAFETY: the caller's promise.
                unsafe { copy_blocks(dst, src, len) }
            }

            /// Safety: as [`stream_copy`], on a CPU with the feature.
            #[target_feature(enable = $feature)]
            unsafe fn copy_blocks(dst: *mut u8, src: *const u8, len: usize) {
                let mut at = 0;
                while at + BLOCK <= len {
                    // SAFETY: BLOCK bytes at `at` are within both lengths, and `dst` is aligned.
                    unsafe { store::<true>(dst.add(at), load(src.add(at))) };
                    at += BLOCK;
                }
                // SAFETY: the rest of both.
                unsafe { portable::copy(dst.add(at), src.add(at), len - at) };
                // As in `stream_copy_into`.
                _mm_sfence();
            }

            /// Safety: as [`super::super::CopyXorPass`]; `copies` is as long as `srcs` where COPY, else empty.
            unsafe fn by_count<const ACC: bool, const COPY: bool, const STREAM: bool>(
                dst: *mut u8,
                copies: &[*mut u8],
                srcs: &[*const u8],
                len: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe {
                    match srcs.len() {
                        1 => blocks::<1, ACC, COPY, STREAM>(dst, copies, srcs, len),
                        2 => blocks::<2, ACC, COPY, STREAM>(dst, copies, srcs, len),
                        3 => blocks::<3, ACC, COPY, STREAM>(dst, copies, srcs, len),
                        4 => blocks::<4, ACC, COPY, STREAM>(dst, copies, srcs, len),
                        5 => blocks::<5, ACC, COPY, STREAM>(dst, copies, srcs, len),
                        6 => blocks::<6, ACC, COPY, STREAM>(dst, copies, srcs, len),
                        7 => blocks::<7, ACC, COPY, STREAM>(dst, copies, srcs, len),
                        8 => blocks::<8, ACC, COPY, STREAM>(dst, copies, srcs, len),
                        count => unreachable!("a pass of {count} sources"),
                    }
                }
            }

            /// Safety: as [`by_count`], with `N` sources, on a CPU with the feature; where STREAM, all but the sources is aligned for the vector.
            #[target_feature(enable = $feature)]
            unsafe fn blocks<const N: usize, const ACC: bool, const COPY: bool, const STREAM: bool>(
                dst: *mut u8,
                copies: &[*mut u8],
                srcs: &[*const u8],
                len: usize,
            ) {
                let mut from = [core::ptr::null::<u8>(); N];
                from.copy_from_slice(srcs);
                let mut to = [core::ptr::null_mut::<u8>(); N];
                if COPY {
                    to.copy_from_slice(copies);
                }
                let mut at = 0;
                while at + BLOCK <= len {
                    // SAFETY: BLOCK bytes at `at` are within every pointer's length; the loads and stores need no alignment.
                    unsafe {
                        let mut sum = [$zero(); WIDE];
                        if ACC {
                            sum = load(dst.add(at));
                        }
                        let mut source = 0;
                        while source + 1 < N {
                            let (a, b) = (load(from[source].add(at)), load(from[source + 1].add(at)));
                            if COPY {
                                store::<STREAM>(to[source].add(at), a);
                                store::<STREAM>(to[source + 1].add(at), b);
                            }
                            for vector in 0..WIDE {
                                sum[vector] = if !ACC && source == 0 {
                                    $xor(a[vector], b[vector])
                                } else {
                                    $xor3(sum[vector], a[vector], b[vector])
                                };
                            }
                            source += 2;
                        }
                        if source < N {
                            let a = load(from[source].add(at));
                            if COPY {
                                store::<STREAM>(to[source].add(at), a);
                            }
                            for vector in 0..WIDE {
                                sum[vector] = $xor(sum[vector], a[vector]);
                            }
                        }
                        store::<STREAM>(dst.add(at), sum);
                    }
                    at += BLOCK;
                }
                let copies = if COPY { &to[..] } else { &[] };
                // SAFETY: the caller's promise; `at` is not beyond `len`.
                unsafe { portable::steps::<ACC>(dst, copies, &from, at, len) }
            }

            /// Safety: BLOCK bytes at `from` are readable, on a CPU with the feature.
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn load(from: *const u8) -> [$vector; WIDE] {
                // SAFETY: all four vectors lie within BLOCK bytes.
                unsafe {
                    [
                        $load(from.cast()),
                        $load(from.add(VECTOR).cast()),
                        $load(from.add(2 * VECTOR).cast()),
                        $load(from.add(3 * VECTOR).cast()),
                    ]
                }
            }

            /// Safety: BLOCK bytes at `to` are writable, on a CPU with the feature; where STREAM, `to` is aligned for the vector.
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn store<const STREAM: bool>(to: *mut u8, block: [$vector; WIDE]) {
                for (vector, value) in block.into_iter().enumerate() {
                    // SAFETY: all four vectors lie within BLOCK bytes, and are aligned where they must be.
                    unsafe {
                        match STREAM {
                            true => $stream(to.add(vector * VECTOR).cast(), value),
                            false => $store(to.add(vector * VECTOR).cast(), value),
                        }
                    }
                }
            }
        }
    };
}

/// Three-way XOR by two instructions.
#[inline]
#[target_feature(enable = "avx2")]
fn xor3_avx2(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
    _mm256_xor_si256(_mm256_xor_si256(a, b), c)
}

/// Three-way XOR by one instruction: 0x96 is the truth table of odd parity.
#[inline]
#[target_feature(enable = "avx512f")]
fn xor3_avx512(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(a, b, c)
}

passes!(
    avx2,
    "avx2",
    __m256i,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_stream_si256,
    _mm256_setzero_si256,
    _mm256_xor_si256,
    xor3_avx2
);
passes!(
    avx512,
    "avx512f",
    __m512i,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_stream_si512,
    _mm512_setzero_si512,
    _mm512_xor_si512,
    xor3_avx512
);
