//! The harness of the end-to-end tests: network namespaces, peers, our own binary, clients and the kernel runner.
//!
//! The files under `tests/tests/` call it; nothing else does. What it promises them: whatever a test starts (process, namespace,
//! mount, temporary file) is gone when the test ends, panics or is killed; every wait has a bound and fails with the output of
//! the process it waited for; a test that lacks root or a program is counted as skipped, never as passed.

pub mod array;
pub mod binary;
pub mod crash;
pub mod fault;
pub mod fixtures;
pub mod kernel;
pub mod md;
pub mod nbd;
pub mod netns;
pub mod pattern;
pub mod proc;
pub mod rig;
pub mod shelf;
pub mod sim;
pub mod skip;
pub mod vblade;
pub mod wait;
pub mod world;
