//! What became of each frame. Kept by the network per port and in total; read by tests.
//!
//! Invariant (checked by [`Counters::accounted`]): every frame that was sent or copied was delivered, lost for one named reason, or
//! is still under way.

/// Why a frame was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The loss fault.
    Fault,
    /// The corruption fault: the frame check sequence was wrong.
    Corrupt,
    /// The queue in front of a link was full.
    QueueFull,
    /// A link on its way was or went down, or the switch did.
    LinkDown,
    /// Sender and receiver are partitioned from each other.
    Partition,
    /// Longer than a link's MTU allows.
    TooBig,
    /// No port has the destination address, or the frame is too short to have one.
    NoPort,
}

/// Frames and bytes, in total or of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed in by [`crate::Network::send`].
    pub sent: u64,
    /// Bytes of those frames.
    pub sent_bytes: u64,
    /// Additional frames: duplicates, and the copies of a broadcast beyond its first.
    pub copied: u64,
    /// Frames handed out by [`crate::Network::poll`].
    pub delivered: u64,
    /// Bytes of those frames.
    pub delivered_bytes: u64,
    /// Times that the reordering fault held a frame back.
    pub reordered: u64,
    /// Frames in which the garbling fault flipped a bit.
    pub garbled: u64,
    /// Lost by [`Loss::Fault`].
    pub lost: u64,
    /// Lost by [`Loss::Corrupt`].
    pub corrupt: u64,
    /// Lost by [`Loss::QueueFull`].
    pub queue_full: u64,
    /// Lost by [`Loss::LinkDown`].
    pub link_down: u64,
    /// Lost by [`Loss::Partition`].
    pub partition: u64,
    /// Lost by [`Loss::TooBig`].
    pub too_big: u64,
    /// Lost by [`Loss::NoPort`].
    pub no_port: u64,
}

impl Counters {
    /// All frames that were not delivered.
    pub fn dropped(&self) -> u64 {
        self.lost + self.corrupt + self.queue_full + self.link_down + self.partition + self.too_big + self.no_port
    }

    /// Whether every frame is accounted for, `under_way` of them being still in the network. True of the totals at any time.
    pub fn accounted(&self, under_way: usize) -> bool {
        self.sent + self.copied == self.delivered + self.dropped() + under_way as u64
    }

    pub(crate) fn count(&mut self, loss: Loss) {
        match loss {
            Loss::Fault => self.lost += 1,
            Loss::Corrupt => self.corrupt += 1,
            Loss::QueueFull => self.queue_full += 1,
            Loss::LinkDown => self.link_down += 1,
            Loss::Partition => self.partition += 1,
            Loss::TooBig => self.too_big += 1,
            Loss::NoPort => self.no_port += 1,
        }
    }
}
