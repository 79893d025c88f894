//! Memory that stays: the kernel may write pages to the array to free memory, so what serves the array must not wait to be read back.
//!
//! All pages of the process are locked as they are touched, those of later mappings and threads included. What the engine gives back to the
//! system goes although it is locked (MADV_DONTNEED_LOCKED). See `docs/decisions/0007-memory-is-locked-as-it-is-touched.md`.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, configure_io_flusher_behavior, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// Locks memory, and tells the kernel that it may write pages to us. Answers with the capability that later mappings need, if any: beyond
/// the limit on locked memory they would fail. What is not permitted is told and done without.
pub(crate) fn lock() -> CapabilitySet {
    // The kernel must not write pages to us when it is we who ask for memory. Threads inherit it.
    if let Err(error) = configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "PR_SET_IO_FLUSHER");
    }
    let unlimited = Rlimit { current: None, maximum: None };
    // It fails where the limit is lower and may not be lifted.
    let _ = setrlimit(Resource::Memlock, unlimited);
    let needed = match capabilities(None) {
        _ if getrlimit(Resource::Memlock) == unlimited => CapabilitySet::empty(),
        Ok(held) if held.effective.contains(CapabilitySet::IPC_LOCK) => CapabilitySet::IPC_LOCK,
        _ => {
            tracing::debug!("memory is not locked: start it as root, or lift the limit on locked memory (ulimit -l)");
            return CapabilitySet::empty();
        }
    };
    match mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
        Ok(()) => needed,
        Err(error) => {
            tracing::info!(%error, "memory is not locked");
            CapabilitySet::empty()
        }
    }
}
