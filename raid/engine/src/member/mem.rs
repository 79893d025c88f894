//! Memory members (`mem:SIZE`): for tests, benches and the demo.
//!
//! The bytes lie in the slab like all other data, so a request is a copy within it. Workers share a disk without a lock: each
//! works on the rows of its own regions. Bound: the disk's size.

use raid_core::units::Sectors;

use super::{MemberOp, MemberRequest};
use crate::message::IoStatus;
use crate::slab::{Arena, Piece};

/// Writes from this length on of what is in no cache go past the caches: nobody reads them soon, and what they would push out is the next requests'
/// data. Where the sectors are in a cache, such stores take four times as long as plain ones.
const STREAM_SECTORS: u32 = 64;

/// See the module's text.
#[derive(Debug)]
pub struct MemoryDisk {
    arena: Arena,
    sectors: Sectors,
}

impl MemoryDisk {
    /// A disk of zeroes over the arena.
    pub fn new(arena: Arena, sectors: Sectors) -> MemoryDisk {
        assert!(u64::from(arena.piece().sectors()) >= sectors.0, "the arena holds the disk");
        MemoryDisk { arena, sectors }
    }

    /// Its size.
    pub fn sectors(&self) -> Sectors {
        self.sectors
    }

    /// Carries a request out.
    pub(super) fn run(&self, request: &MemberRequest, segs: &[Piece]) -> IoStatus {
        let MemberRequest { op, lba, sectors, warm, .. } = *request;
        if op == MemberOp::Flush {
            return IoStatus::Ok;
        }
        if lba.checked_add(Sectors(u64::from(sectors))).is_none_or(|end| end.0 > self.sectors.0) {
            return IoStatus::Failed;
        }
        let slab = self.arena.slab();
        let mut at = self.arena.piece().sub(lba.0 as u32, sectors);
        for seg in segs {
            let here = at.sub(0, seg.sectors());
            match op {
                MemberOp::Read => slab.copy(here, *seg),
                _ if sectors >= STREAM_SECTORS && !warm => slab.stream(*seg, here),
                _ => slab.copy(*seg, here),
            }
            at = at.sub(seg.sectors(), at.sectors() - seg.sectors());
        }
        IoStatus::Ok
    }
}
