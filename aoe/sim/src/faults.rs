//! What goes wrong on one direction of one link. Set by the test, before or during a run; read by the network for each frame.

use core::time::Duration;

/// A probability in parts per million, 0 to 1 000 000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ppm(pub u32);

impl Ppm {
    /// Never.
    pub const ZERO: Ppm = Ppm(0);
    /// Always.
    pub const ONE: Ppm = Ppm(1_000_000);

    /// `percent` in a hundred.
    pub const fn percent(percent: u32) -> Ppm {
        Ppm(percent * 10_000)
    }
}

/// A range of durations, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The shortest.
    pub min: Duration,
    /// The longest; read as `min` when below it.
    pub max: Duration,
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span { min: Duration::ZERO, max: Duration::ZERO };

    /// From `min` to `max`.
    pub const fn new(min: Duration, max: Duration) -> Span {
        Span { min, max }
    }

    /// Whole milliseconds from `min` to `max`.
    pub const fn millis(min: u64, max: u64) -> Span {
        Span { min: Duration::from_millis(min), max: Duration::from_millis(max) }
    }

    /// Whole microseconds from `min` to `max`.
    pub const fn micros(min: u64, max: u64) -> Span {
        Span { min: Duration::from_micros(min), max: Duration::from_micros(max) }
    }
}

/// Faults of one direction of one link. The default has none.
///
/// Each frame meets them in this order: loss, corruption, garbling, duplication, reordering, jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The frame vanishes.
    pub loss: Ppm,
    /// Bits are damaged on the way and the frame check sequence shows it: the receiving end drops the frame.
    pub corrupt: Ppm,
    /// One bit is flipped and the check sequence did *not* show it: the frame arrives damaged. AoE has no checksum of its own, so
    /// nothing above can promise intact data under this one; it is for showing that damaged frames do no other harm.
    pub garble: Ppm,
    /// The frame arrives twice; the second copy comes `duplicate_delay` after the first.
    pub duplicate: Ppm,
    /// How far behind the second copy is.
    pub duplicate_delay: Span,
    /// The frame is held back by `reorder_delay`, so that later ones overtake it.
    pub reorder: Ppm,
    /// How long a reordered frame is held back.
    pub reorder_delay: Span,
    /// Added to every frame's delay; with more than zero width frames overtake each other.
    pub jitter: Span,
}

impl Faults {
    /// No faults.
    pub const NONE: Faults = Faults {
        loss: Ppm::ZERO,
        corrupt: Ppm::ZERO,
        garble: Ppm::ZERO,
        duplicate: Ppm::ZERO,
        duplicate_delay: Span::ZERO,
        reorder: Ppm::ZERO,
        reorder_delay: Span::ZERO,
        jitter: Span::ZERO,
    };
}
