//! Benches of the pieces (`benches/`, with criterion: `cargo bench -p etherraid-benches`) and scripts that measure the whole (`engine.sh`,
//! `device.sh`). What they show is in docs/PERFORMANCE.md.
//!
//! The crate itself is empty.
