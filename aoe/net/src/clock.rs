//! Clocks that cost next to nothing, for times that are asked for with every frame. Used by links and the shelf server.

use core::time::Duration;
use rustix::time::{ClockId, clock_gettime};

/// What a coarse clock says, as of its last tick: it lags by a few milliseconds and costs a fifth of the exact time. For times of a second and more.
pub(crate) fn coarse_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
