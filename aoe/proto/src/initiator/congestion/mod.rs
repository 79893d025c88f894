//! Congestion control of one path: how many frames may be in flight to a remote address over a port.
//!
//! Called by the path alone. AoE has no stream of acknowledgements, so the textbook's events map like this: each reply
//! is one acknowledgement of one frame; a frame whose timeout passes is a loss, and so is one that later frames have
//! overtaken for longer than usual. The path says of each loss whether it begins a loss epoch (frames that were
//! under way when the window was cut do not cut it again) and whether any reply came since the last cut.
//!
//! Invariant of every algorithm: `1 <= window() <= cap`. The cap is the smaller of `aoe_maxout` and the target's
//! buffer count.

use core::time::Duration;

mod fixed;
mod reno;
mod sticky;
#[cfg(test)]
mod tests;

pub use fixed::Fixed;
pub use reno::Reno;
pub use sticky::Sticky;

/// Window at the start, in frames, as far as the cap allows.
pub const WINDOW_INITIAL: u32 = 4;

/// A congestion control algorithm.
pub trait Congestion {
    /// Frames that may be in flight, at least 1.
    fn window(&self) -> u32;
    /// Window above which growth is slow; `u32::MAX` while there was no loss.
    fn ssthresh(&self) -> u32;
    /// Sets the largest window there may be, at least 1.
    fn set_cap(&mut self, cap: u32);
    /// Time between two frames where the window is less than one frame per round trip; `None` where it is not.
    fn pause(&self) -> Option<Duration> {
        None
    }
    /// What was learned is of another network: frames have another size from now on, or the path was away for some time.
    fn forget(&mut self) {}
    /// A frame was answered.
    fn on_reply(&mut self, reply: Reply);
    /// A frame was lost.
    fn on_loss(&mut self, loss: Loss);
}

/// A frame that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Frames that were under way, this one included.
    pub in_flight: u32,
    /// Its round trip, if it was sent once.
    pub rtt: Option<Duration>,
    /// Whether it is a request's; else it is a small one that proves or probes the path.
    pub data: bool,
}

/// A frame that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The first one of a loss epoch: it was sent after the window was last cut.
    pub first: bool,
    /// No reply came since the first loss of the epoch before.
    pub consecutive: bool,
}

/// Which algorithm a path uses: the tunable `aoe_congestion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// Holds the window near the value that last worked.
    #[default]
    Sticky,
    /// A constant window.
    Fixed,
    /// Additive increase, multiplicative decrease.
    Reno,
}

/// The algorithm of a path, chosen at run time without a virtual call.
#[derive(Clone, Copy, Debug)]
pub enum Controller {
    /// See [`Sticky`].
    Sticky(Sticky),
    /// See [`Fixed`].
    Fixed(Fixed),
    /// See [`Reno`].
    Reno(Reno),
}

impl Controller {
    /// A new path's controller. `fixed_window` matters to [`Algorithm::Fixed`] only.
    pub fn new(algorithm: Algorithm, cap: u32, fixed_window: u32) -> Controller {
        match algorithm {
            Algorithm::Sticky => Controller::Sticky(Sticky::new(cap)),
            Algorithm::Fixed => Controller::Fixed(Fixed::new(fixed_window, cap)),
            Algorithm::Reno => Controller::Reno(Reno::new(cap)),
        }
    }
}

impl Congestion for Controller {
    fn window(&self) -> u32 {
        match self {
            Controller::Sticky(inner) => inner.window(),
            Controller::Fixed(inner) => inner.window(),
            Controller::Reno(inner) => inner.window(),
        }
    }

    fn ssthresh(&self) -> u32 {
        match self {
            Controller::Sticky(inner) => inner.ssthresh(),
            Controller::Fixed(inner) => inner.ssthresh(),
            Controller::Reno(inner) => inner.ssthresh(),
        }
    }

    fn pause(&self) -> Option<Duration> {
        match self {
            Controller::Sticky(inner) => inner.pause(),
            Controller::Fixed(inner) => inner.pause(),
            Controller::Reno(inner) => inner.pause(),
        }
    }

    fn set_cap(&mut self, cap: u32) {
        match self {
            Controller::Sticky(inner) => inner.set_cap(cap),
            Controller::Fixed(inner) => inner.set_cap(cap),
            Controller::Reno(inner) => inner.set_cap(cap),
        }
    }

    fn on_reply(&mut self, reply: Reply) {
        match self {
            Controller::Sticky(inner) => inner.on_reply(reply),
            Controller::Fixed(inner) => inner.on_reply(reply),
            Controller::Reno(inner) => inner.on_reply(reply),
        }
    }

    fn forget(&mut self) {
        match self {
            Controller::Sticky(inner) => inner.forget(),
            Controller::Fixed(inner) => inner.forget(),
            Controller::Reno(inner) => inner.forget(),
        }
    }

    fn on_loss(&mut self, loss: Loss) {
        match self {
            Controller::Sticky(inner) => inner.on_loss(loss),
            Controller::Fixed(inner) => inner.on_loss(loss),
            Controller::Reno(inner) => inner.on_loss(loss),
        }
    }
}
