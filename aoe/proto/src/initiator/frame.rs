//! Requests and frames as the initiator keeps them.
//!
//! A request is cut into frames as windows allow; each frame is one AoE message with a tag of its own, which all of its
//! copies carry. A frame outlives its request when that ends early: as a *ghost* it keeps its tag, its place in the
//! windows and its credit until it is answered or times out, because the target may still be at work on it.

use core::time::Duration;

use super::ranges::Range;
use super::slab::{Linked, Links, List, NONE};
use super::types::{Op, RequestId};
use crate::wire::{AFlags, AtaRequest, Lba, Opcode, SECTOR, Tag};

/// Link number of a device's queues of requests (ready, held).
pub(super) const QUEUE: usize = 0;
/// Link number of a device's requests in the order of their first send.
pub(super) const AGE: usize = 1;
/// Link number of the frames under way on a path, and of a device's frames that wait to be sent again.
pub(super) const FLIGHT: usize = 0;
/// Link number of a request's frames.
pub(super) const OF_REQUEST: usize = 1;
/// Link number of the frames under way on a path in the order in which they were sent.
pub(super) const SENT: usize = 2;

/// For whom a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The caller's.
    Caller(RequestId),
    /// IDENTIFY over one path: it must be the same device.
    Prove { path: u8 },
    /// A read over one path, with request and reply of this many sectors' length: what is answered passes, and a path that was down is good
    /// again.
    Probe { path: u8, sectors: u8 },
}

impl Owner {
    /// The caller's name for the request, unless it is internal.
    pub(super) fn id(self) -> Option<RequestId> {
        match self {
            Owner::Caller(id) => Some(id),
            Owner::Prove { .. } | Owner::Probe { .. } => None,
        }
    }

    /// The path that the request must use.
    pub(super) fn pinned(self) -> Option<u8> {
        match self {
            Owner::Caller(_) => None,
            Owner::Prove { path } | Owner::Probe { path, .. } => Some(path),
        }
    }
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// It has sectors that are not cut into frames yet.
    Ready,
    /// A write that must not start yet.
    Held,
    /// All of it is cut.
    None,
}

pub(super) struct RequestState {
    pub(super) owner: Owner,
    pub(super) device: u16,
    pub(super) op: Op,
    pub(super) lba: u64,
    /// Sectors in all; 1 for IDENTIFY, 0 for flush.
    pub(super) sectors: u32,
    /// Sectors that were cut into frames.
    pub(super) cut: u32,
    /// Whether a frame was cut, which for a flush is all there is.
    pub(super) started: bool,
    /// Whether this write's range is among the device's active ones.
    pub(super) active: bool,
    pub(super) queue: Queue,
    /// When its first frame was first sent: the one clock of `aoe_silence` and `aoe_deadsecs`.
    pub(super) first_sent: Option<Duration>,
    pub(super) frames: List<OF_REQUEST>,
    /// The boot number in the last reply to it.
    pub(super) boot: Option<u32>,
    /// Replies to it had different boot numbers.
    pub(super) boots_differ: bool,
    links: [Links; 2],
}

impl RequestState {
    pub(super) fn new(owner: Owner, device: u16, op: Op, lba: Lba, sectors: u32) -> RequestState {
        RequestState {
            owner,
            device,
            op,
            lba: lba.0,
            sectors,
            cut: 0,
            started: false,
            active: false,
            queue: Queue::None,
            first_sent: None,
            frames: List::EMPTY,
            boot: None,
            boots_differ: false,
            links: [Links::OFF; 2],
        }
    }

    pub(super) fn range(&self) -> Range {
        Range::new(self.lba, self.sectors)
    }

    /// Whether all of it was cut into frames.
    pub(super) fn is_cut(&self) -> bool {
        self.started && self.cut == self.sectors
    }
}

impl Linked for RequestState {
    fn links(&self, n: usize) -> &Links {
        &self.links[n]
    }

    fn links_mut(&mut self, n: usize) -> &mut Links {
        &mut self.links[n]
    }
}

/// Where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On no list: it is just being made or sent.
    Nowhere,
    /// Under way on its path, on the list of frames that time out with the path's timeout.
    Flying,
    /// The same, on the list of those that may take long: flushes.
    FlyingSlow,
    /// Timed out; waits to be sent again.
    Resend,
}

pub(super) struct Frame {
    /// The request, [`NONE`] for a ghost.
    pub(super) request: u32,
    pub(super) device: u16,
    /// The path of the last copy.
    pub(super) path: u8,
    /// Its serial number: the place may have another path by now.
    pub(super) path_serial: u64,
    /// Whether copies went over different paths, so that a target may not see them as repetitions of each other.
    pub(super) several_paths: bool,
    pub(super) place: Place,
    pub(super) tag: Tag,
    pub(super) ata: AtaRequest,
    /// Sectors of data, in either direction.
    pub(super) sectors: u8,
    /// First sector of the frame, counted from the request's first.
    pub(super) offset: u32,
    /// Copies sent.
    pub(super) copies: u32,
    pub(super) first_sent: Duration,
    pub(super) last_sent: Duration,
    /// When the last copy counts as lost.
    pub(super) deadline: Duration,
    /// The path's send number of the last copy.
    pub(super) send_number: u64,
    /// When the last copy left that had another tag, before the frame was split into smaller ones.
    pub(super) orphan_sent: Option<Duration>,
    /// Whether it belongs, or belonged, to an internal request, which must use its path.
    pub(super) pinned: bool,
    /// Whether it holds a credit of the device.
    pub(super) credit: bool,
    links: [Links; 3],
}

impl Frame {
    /// A frame that was not sent yet.
    pub(super) fn new(request: u32, device: u16, ata: AtaRequest, sectors: u8, offset: u32) -> Frame {
        Frame {
            request,
            device,
            path: 0,
            path_serial: 0,
            several_paths: false,
            place: Place::Nowhere,
            tag: Tag::default(),
            ata,
            sectors,
            offset,
            copies: 0,
            first_sent: Duration::ZERO,
            last_sent: Duration::ZERO,
            deadline: Duration::ZERO,
            send_number: 0,
            orphan_sent: None,
            pinned: false,
            credit: false,
            links: [Links::OFF; 3],
        }
    }

    pub(super) fn is_ghost(&self) -> bool {
        self.request == NONE
    }

    /// Whether data follow its header.
    pub(super) fn is_write(&self) -> bool {
        self.ata.flags.contains(AFlags::WRITE)
    }

    /// Whether it is a read or a write, so that it can be split.
    pub(super) fn has_data(&self) -> bool {
        self.is_write() || matches!(self.ata.opcode, Opcode::READ_SECTORS | Opcode::READ_SECTORS_EXT)
    }

    /// When the last copy left, those from before a split included.
    pub(super) fn last_copy_sent(&self) -> Option<Duration> {
        let sent = (self.copies > 0).then_some(self.last_sent);
        sent.max(self.orphan_sent)
    }

    /// Bytes of data.
    pub(super) fn len(&self) -> usize {
        usize::from(self.sectors) * SECTOR
    }

    /// Bytes from the start of the request's buffer.
    pub(super) fn byte_offset(&self) -> usize {
        self.offset as usize * SECTOR
    }

    /// The sectors of the device, for a read or write.
    pub(super) fn range(&self) -> Range {
        Range::new(self.ata.lba().0, u32::from(self.sectors))
    }
}

impl Linked for Frame {
    fn links(&self, n: usize) -> &Links {
        &self.links[n]
    }

    fn links_mut(&mut self, n: usize) -> &mut Links {
        &mut self.links[n]
    }
}

/// How many sectors the next frame takes of a request that has `left` sectors from `lba` on, when a frame may have `max`.
///
/// Frames end at multiples of 8 KiB (16 sectors) where they can hold that much, else of 4 KiB, so that the target's
/// reads and writes stay aligned: at an MTU of 9000, 16 of the 17 sectors. What fits into one frame is one frame.
pub(super) fn cut_len(lba: u64, left: u32, max: u8) -> u8 {
    let max = u32::from(max);
    if left <= max {
        return left as u8;
    }
    let align = match max {
        16.. => 16,
        8.. => 8,
        _ => 1,
    };
    let end = (lba + u64::from(max)) / align * align;
    // The alignment is at most `max`, so there is a multiple of it behind `lba`.
    (end - lba) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_are_cut_at_aligned_sectors() {
        for (lba, left, max, len) in [
            (0, 100, 2, 2),
            (1, 100, 2, 2),
            (0, 100, 17, 16),
            (0, 17, 17, 17),
            (0, 18, 17, 16),
            (1, 100, 17, 15),
            (15, 100, 17, 17),
            (16, 100, 17, 16),
            (3, 100, 8, 5),
            (8, 100, 8, 8),
            (0, 300, 127, 112),
            (0, 300, 255, 240),
            (5, 1, 255, 1),
            ((1 << 48) - 1, 1, 2, 1),
        ] {
            assert_eq!(cut_len(lba, left, max), len, "{lba} {left} {max}");
        }
    }

    proptest! {
        #[test]
        fn each_cut_makes_progress_within_the_frame(
            lba in 0u64..1 << 48, left in 1u32.., max in 1u8..,
        ) {
            let len = cut_len(lba, left, max);
            prop_assert!(len >= 1 && len <= max && u32::from(len) <= left);
        }
    }
}
