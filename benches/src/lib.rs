//! Benches of the pieces (`benches/`, with criterion: `cargo bench -p etherraid-benches`), scripts that measure the whole (`*.sh`), and `md`, which puts the
//! same load on the Linux kernel's md. What they show is in docs/PERFORMANCE.md.
//!
//! The crate itself is empty.
