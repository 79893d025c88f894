//! What of md's formats is supported, and the names of what is not.

use super::{Features, Superblock};
use crate::geometry::GeometryError;

/// Optional features that the caller can handle. The default is none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// Write-intent bitmaps are kept.
    pub bitmap: bool,
    /// The PPL is kept and replayed.
    pub ppl: bool,
    /// Bad-block logs with entries are honoured.
    pub bad_blocks: bool,
}

/// Something in a superblock that must not be ignored and is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// Feature bits that no known md has.
    #[error("unknown feature bits {0:#x}: the array was made by a newer md; update this program")]
    Features(u32),
    /// Another level.
    #[error("level {0}: only levels 4 and 5 are supported")]
    Level(i32),
    /// A layout that level 5 does not have.
    #[error("layout {0}: level 5 has layouts 0 to 5")]
    Layout(u32),
    /// Sizes that no array of this level can have.
    #[error("{0}")]
    Geometry(GeometryError),
    /// A reshape is under way.
    #[error("a reshape is under way: let Linux md finish it first")]
    Reshape,
    /// The array belongs to a cluster.
    #[error("clustered arrays are not supported")]
    Clustered,
    /// The array has a journal device.
    #[error("arrays with a journal device are not supported: remove the journal with Linux md first")]
    Journal,
    /// A level 0 layout on an array that is not level 0.
    #[error("a level 0 layout is not supported")]
    Raid0Layout,
    /// Both a bitmap and a PPL, or both kinds of PPL: nothing md would write.
    #[error("feature bits {0:#x} contradict each other: bitmap and PPL cannot be combined")]
    Contradiction(u32),
    /// There is a write-intent bitmap.
    #[error("write-intent bitmaps are not supported yet: remove it with `mdadm --grow --bitmap=none`")]
    Bitmap,
    /// There is a PPL.
    #[error("PPL is not supported yet: remove it with `mdadm --grow --consistency-policy=resync`")]
    Ppl,
    /// The bad-block log has entries.
    #[error(
        "the bad-block log has entries, which is not supported yet: clear them with `mdadm --assemble --update=force-no-bbl` once the blocks are readable"
    )]
    BadBlocks,
    /// Blocks of another size than a sector.
    #[error("a logical block size of {0} bytes is not supported: only 512")]
    LogicalBlockSize(u32),
}

impl Superblock {
    /// The first thing in this superblock that a caller with `support` must not ignore.
    pub fn unsupported(&self, support: Support) -> Option<Unsupported> {
        let has = |features| self.features.intersects(features);
        let unknown = self.features.minus(Features::KNOWN);
        let ppl = Features::PPL.union(Features::MULTIPLE_PPLS);
        let refusals = [
            (unknown != Features::default(), Unsupported::Features(unknown.0)),
            (has(Features::CLUSTERED), Unsupported::Clustered),
            (has(Features::JOURNAL), Unsupported::Journal),
            (has(Features::RESHAPE_ACTIVE.union(Features::RESHAPE_BACKWARDS)), Unsupported::Reshape),
            (has(Features::RAID0_LAYOUT), Unsupported::Raid0Layout),
            (!matches!(self.level, 4 | 5), Unsupported::Level(self.level)),
            (self.parity_layout().is_none(), Unsupported::Layout(self.layout)),
            (
                has(Features::PPL) && has(Features::MULTIPLE_PPLS) || has(Features::BITMAP_OFFSET) && has(ppl),
                Unsupported::Contradiction(self.features.0),
            ),
            (has(Features::BITMAP_OFFSET) && !support.bitmap, Unsupported::Bitmap),
            (has(ppl) && !support.ppl, Unsupported::Ppl),
            (has(Features::BAD_BLOCKS) && !support.bad_blocks, Unsupported::BadBlocks),
            (!matches!(self.logical_block_size, 0 | 512), Unsupported::LogicalBlockSize(self.logical_block_size)),
        ];
        let refused = refusals.into_iter().find_map(|(refused, what)| refused.then_some(what));
        refused.or_else(|| self.geometry()?.err().map(Unsupported::Geometry))
    }
}
