//! Where a sector of the array lies on its members, and back: level 5 in md's six layouts (level 4 is parity-last).
//!
//! Owns the shape of one array, made once by [`Geometry::new`] and then read by the engine for every request, by
//! assembly for sizes and by tests. Invariants: the chunk is a power of two of at least 4 KiB, so chunk arithmetic is
//! shifts and masks; `component_size` is a whole number of chunks and at least one; every array sector below
//! [`Geometry::array_sectors`] has exactly one place, on a member other than its row's parity member. The number of parity blocks in a row is
//! data ([`Geometry::parity_count`]), 1 for the levels known here.
//!
//! Member sectors are relative to the member's data area; adding `data_offset` is the caller's work, as it differs per member.

use core::fmt;
use core::str::FromStr;

use crate::units::{
    ChunkIndex, DataIndex, MEMBERS_MAX, MemberCount, MemberIndex, MemberSet, Sector, Sectors, StripeIndex,
};

#[cfg(test)]
mod tests;

/// The smallest chunk md allows: 4 KiB.
pub const CHUNK_MIN: Sectors = Sectors(8);

/// The largest chunk accepted: 1 GiB. md stores the chunk as a 32-bit count of sectors; mdadm stops far lower.
pub const CHUNK_MAX: Sectors = Sectors(1 << 21);

/// The fewest members: with two, parity is a copy of the one data block, which md accepts as well.
pub const MEMBERS_MIN: usize = 2;

/// How parity moves over the members from row to row, with md's numbers (`layout` in a superblock of level 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Layout {
    /// 0: parity starts at the last member and moves left; data from the first member on.
    LeftAsymmetric = 0,
    /// 1: parity starts at the first member and moves right; data from the first member on.
    RightAsymmetric = 1,
    /// 2, mdadm's default: parity moves left; data starts after it and wraps, so sequential reads use every member.
    LeftSymmetric = 2,
    /// 3: parity moves right; data starts after it and wraps.
    RightSymmetric = 3,
    /// 4: parity always on the first member.
    ParityFirst = 4,
    /// 5: parity always on the last member. Level 4 is this.
    ParityLast = 5,
}

impl Layout {
    /// All layouts in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::LeftAsymmetric,
        Self::RightAsymmetric,
        Self::LeftSymmetric,
        Self::RightSymmetric,
        Self::ParityFirst,
        Self::ParityLast,
    ];

    /// The layout with md's number, or `None` for one that level 5 does not have.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// md's number.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// mdadm's name, such as `left-symmetric`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LeftAsymmetric => "left-asymmetric",
            Self::RightAsymmetric => "right-asymmetric",
            Self::LeftSymmetric => "left-symmetric",
            Self::RightSymmetric => "right-symmetric",
            Self::ParityFirst => "parity-first",
            Self::ParityLast => "parity-last",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A layout name that level 5 does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "layout {0:?} is not known: use left-symmetric (ls), left-asymmetric (la), right-symmetric (rs), right-asymmetric (ra), parity-first or parity-last"
)]
pub struct UnknownLayout(pub String);

impl FromStr for Layout {
    type Err = UnknownLayout;

    /// Takes mdadm's names and its two-letter forms.
    fn from_str(name: &str) -> Result<Self, UnknownLayout> {
        match name {
            "la" => Ok(Self::LeftAsymmetric),
            "ra" => Ok(Self::RightAsymmetric),
            "ls" | "default" => Ok(Self::LeftSymmetric),
            "rs" => Ok(Self::RightSymmetric),
            _ => {
                Self::ALL.into_iter().find(|layout| layout.name() == name).ok_or_else(|| UnknownLayout(name.to_owned()))
            }
        }
    }
}

/// Why a shape was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Fewer than [`MEMBERS_MIN`] or more than [`MEMBERS_MAX`] members.
    #[error("{0} members: level 5 takes {MEMBERS_MIN} to {MEMBERS_MAX}")]
    Members(MemberCount),
    /// The chunk is no power of two, or outside [`CHUNK_MIN`] to [`CHUNK_MAX`].
    #[error("chunk of {0} sectors: it must be a power of two from {CHUNK_MIN} to {CHUNK_MAX} sectors")]
    Chunk(Sectors),
    /// The member data area holds not even one chunk.
    #[error("component size of {size} sectors is less than one chunk of {chunk} sectors")]
    TooSmall {
        /// The size asked for.
        size: Sectors,
        /// The chunk.
        chunk: Sectors,
    },
    /// The array would have 2^63 sectors or more.
    #[error("component size of {0} sectors makes the array larger than 2^63 sectors")]
    TooLarge(Sectors),
}

/// Where an array sector lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The chunk row.
    pub stripe: StripeIndex,
    /// Which data block of the row.
    pub data: DataIndex,
    /// The member that holds it.
    pub member: MemberIndex,
    /// The sector on that member, from the start of its data area.
    pub member_sector: Sector,
    /// How far into the chunk it lies.
    pub in_chunk: Sectors,
}

/// The shape of one array. See the module's text for the invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// All members, parity included.
    members: u8,
    /// Members that hold data in a row.
    data: u8,
    /// Log2 of the chunk in sectors.
    chunk_shift: u8,
    /// How parity moves.
    layout: Layout,
    /// Rows of the array.
    stripes: u64,
}

impl Geometry {
    /// A level 5 array of `members` members with `component_size` sectors used on each, rounded down to whole chunks as md does.
    pub fn new(
        members: MemberCount,
        chunk: Sectors,
        component_size: Sectors,
        layout: Layout,
    ) -> Result<Self, GeometryError> {
        if members.len() < MEMBERS_MIN || members.len() > MEMBERS_MAX {
            return Err(GeometryError::Members(members));
        }
        if !chunk.0.is_power_of_two() || chunk < CHUNK_MIN || chunk > CHUNK_MAX {
            return Err(GeometryError::Chunk(chunk));
        }
        if component_size < chunk {
            return Err(GeometryError::TooSmall { size: component_size, chunk });
        }
        let data = members.0 - 1;
        let size = component_size.round_down(chunk);
        // Below 2^63 sectors no later product or sum of array sectors can overflow.
        if size.0.checked_mul(u64::from(members.0)).is_none_or(|all| all >= 1 << 63) {
            return Err(GeometryError::TooLarge(component_size));
        }
        let chunk_shift = chunk.0.trailing_zeros() as u8;
        Ok(Self { members: members.0, data, chunk_shift, layout, stripes: size.0 >> chunk_shift })
    }

    /// All members, parity included.
    pub const fn members(&self) -> MemberCount {
        MemberCount(self.members)
    }

    /// Data blocks in a row.
    pub const fn data_count(&self) -> usize {
        self.data as usize
    }

    /// Parity blocks in a row.
    pub const fn parity_count(&self) -> usize {
        (self.members - self.data) as usize
    }

    /// How parity moves.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The chunk.
    pub const fn chunk(&self) -> Sectors {
        Sectors(1 << self.chunk_shift)
    }

    /// Sectors used on each member: whole chunks.
    pub const fn component_size(&self) -> Sectors {
        Sectors(self.stripes << self.chunk_shift)
    }

    /// Sectors of the array.
    pub const fn array_sectors(&self) -> Sectors {
        Sectors((self.stripes << self.chunk_shift) * self.data as u64)
    }

    /// Array sectors in one row: the chunk times the data blocks.
    pub const fn stripe_sectors(&self) -> Sectors {
        Sectors((self.data as u64) << self.chunk_shift)
    }

    /// Rows of the array.
    pub const fn stripes(&self) -> u64 {
        self.stripes
    }

    /// Every member.
    pub const fn all_members(&self) -> MemberSet {
        MemberSet::all(self.members())
    }

    /// The members that hold data in `stripe`.
    pub fn data_members(&self, stripe: StripeIndex) -> MemberSet {
        self.all_members().without(self.parity_member(stripe))
    }

    /// The member that holds the parity of `stripe`.
    pub fn parity_member(&self, stripe: StripeIndex) -> MemberIndex {
        let turn = || (stripe.0 % u64::from(self.members)) as u8;
        MemberIndex(match self.layout {
            Layout::LeftAsymmetric | Layout::LeftSymmetric => self.data - turn(),
            Layout::RightAsymmetric | Layout::RightSymmetric => turn(),
            Layout::ParityFirst => 0,
            Layout::ParityLast => self.data,
        })
    }

    /// The member that holds data block `data` of `stripe`. `data` must be below [`Self::data_count`].
    pub fn data_member(&self, stripe: StripeIndex, data: DataIndex) -> MemberIndex {
        self.data_member_beside(self.parity_member(stripe), data)
    }

    fn data_member_beside(&self, parity: MemberIndex, data: DataIndex) -> MemberIndex {
        debug_assert!(data.0 < self.data, "data block {data} of a row of {}", self.data);
        MemberIndex(match self.layout {
            Layout::LeftAsymmetric | Layout::RightAsymmetric => data.0 + u8::from(data.0 >= parity.0),
            Layout::LeftSymmetric | Layout::RightSymmetric => {
                // Below 2 * 64 + 1, so no overflow; one subtraction replaces the remainder.
                let slot = parity.0 + 1 + data.0;
                if slot >= self.members { slot - self.members } else { slot }
            }
            Layout::ParityFirst => data.0 + 1,
            Layout::ParityLast => data.0,
        })
    }

    /// Which data block of `stripe` `member` holds; `None` for the row's parity member.
    pub fn data_index(&self, stripe: StripeIndex, member: MemberIndex) -> Option<DataIndex> {
        debug_assert!(member.0 < self.members, "member {member} of {}", self.members);
        let parity = self.parity_member(stripe);
        if member == parity {
            return None;
        }
        Some(DataIndex(match self.layout {
            Layout::LeftAsymmetric | Layout::RightAsymmetric | Layout::ParityFirst | Layout::ParityLast => {
                member.0 - u8::from(member.0 > parity.0)
            }
            Layout::LeftSymmetric | Layout::RightSymmetric => {
                let after = if member.0 > parity.0 { member.0 } else { member.0 + self.members };
                after - parity.0 - 1
            }
        }))
    }

    /// Where array sector `sector` lies. `sector` must be below [`Self::array_sectors`]: the caller has checked the request's range.
    pub fn locate(&self, sector: Sector) -> Location {
        assert!(sector.0 < self.array_sectors().0, "sector {sector} is beyond the array");
        let chunk = ChunkIndex(sector.0 >> self.chunk_shift);
        let stripe = StripeIndex(chunk.0 / u64::from(self.data));
        let data = DataIndex((chunk.0 % u64::from(self.data)) as u8);
        let in_chunk = Sectors(sector.0 & (self.chunk().0 - 1));
        Location {
            stripe,
            data,
            member: self.data_member(stripe, data),
            member_sector: self.member_sector(stripe) + in_chunk,
            in_chunk,
        }
    }

    /// The array sector at `in_chunk` of data block `data` of `stripe`: the inverse of [`Self::locate`].
    pub fn array_sector(&self, stripe: StripeIndex, data: DataIndex, in_chunk: Sectors) -> Sector {
        debug_assert!(data.0 < self.data && in_chunk < self.chunk());
        let chunk = ChunkIndex(stripe.0 * u64::from(self.data) + u64::from(data.0));
        Sector((chunk.0 << self.chunk_shift) + in_chunk.0)
    }

    /// Where `stripe` starts on every member, from the start of the data area.
    pub const fn member_sector(&self, stripe: StripeIndex) -> Sector {
        Sector(stripe.0 << self.chunk_shift)
    }

    /// The row that holds sector `sector` of a member's data area, and how far into the chunk it lies.
    pub const fn stripe_at(&self, sector: Sector) -> (StripeIndex, Sectors) {
        (StripeIndex(sector.0 >> self.chunk_shift), Sectors(sector.0 & (self.chunk().0 - 1)))
    }

    /// The array sector that sector `sector` of `member`'s data area holds; `None` where that is parity.
    pub fn array_sector_on(&self, member: MemberIndex, sector: Sector) -> Option<Sector> {
        let (stripe, in_chunk) = self.stripe_at(sector);
        Some(self.array_sector(stripe, self.data_index(stripe, member)?, in_chunk))
    }
}
