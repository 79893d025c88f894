//! A constant window: for measurements, and for networks whose capacity is known.

use super::{Congestion, Loss, Reply};

/// The window never moves, except that the cap binds.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    window: u32,
    cap: u32,
}

impl Fixed {
    /// A window of `window` frames under `cap`.
    pub fn new(window: u32, cap: u32) -> Fixed {
        Fixed { window: window.max(1), cap: cap.max(1) }
    }
}

impl Congestion for Fixed {
    fn window(&self) -> u32 {
        self.window.min(self.cap)
    }

    fn ssthresh(&self) -> u32 {
        self.window()
    }

    fn set_cap(&mut self, cap: u32) {
        self.cap = cap.max(1);
    }

    fn on_reply(&mut self, _reply: Reply) {}

    fn on_loss(&mut self, _loss: Loss) {}
}
