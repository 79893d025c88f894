//! Congestion control of one path: how many frames may be in flight to a remote address over a port.
//!
//! Called by the path alone. AoE has no stream of acknowledgements, so the textbook's events map like this: each reply
//! is one acknowledgement of one frame; a frame whose timeout passes is a loss; there are no duplicate
//! acknowledgements, as replies come in any order. The path reports at most one loss per loss epoch (frames that were
//! under way when the window was cut do not cut it again) and says whether any reply came since the last cut.
//!
//! Invariant of every algorithm: `1 <= window() <= cap`. The cap is the smaller of `aoe_maxout` and the target's
//! buffer count.

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
    /// A frame was answered while `in_flight` frames (this one included) were under way.
    fn on_reply(&mut self, in_flight: u32);
    /// The first loss of a loss epoch. `consecutive`: no reply came since the last one.
    fn on_loss(&mut self, consecutive: bool);
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

    fn set_cap(&mut self, cap: u32) {
        match self {
            Controller::Sticky(inner) => inner.set_cap(cap),
            Controller::Fixed(inner) => inner.set_cap(cap),
            Controller::Reno(inner) => inner.set_cap(cap),
        }
    }

    fn on_reply(&mut self, in_flight: u32) {
        match self {
            Controller::Sticky(inner) => inner.on_reply(in_flight),
            Controller::Fixed(inner) => inner.on_reply(in_flight),
            Controller::Reno(inner) => inner.on_reply(in_flight),
        }
    }

    fn on_loss(&mut self, consecutive: bool) {
        match self {
            Controller::Sticky(inner) => inner.on_loss(consecutive),
            Controller::Fixed(inner) => inner.on_loss(consecutive),
            Controller::Reno(inner) => inner.on_loss(consecutive),
        }
    }
}
