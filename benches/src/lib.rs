//! Benches of the pieces (`benches/`, with criterion: `cargo bench -p etherraid-benches`), scripts that measure the whole (`*.sh`), and `md` and `aoe`, which
//! put the same load on the Linux kernel's md and aoe driver. What they show is in docs/PERFORMANCE.md.
//!
//! The crate itself holds what `md` and `aoe` share.

pub mod fio;
