//! Units of an array: sectors, chunks, chunk rows and members, as types that cannot be mixed up.
//!
//! Owns no state. Everything in this crate and the engine counts with these. All are `Copy` and one machine
//! word or less; arithmetic exists only where it has a meaning (a position plus a length is a position, two positions
//! have a distance, positions are not added). Overflow panics in debug builds, as for plain integers; sizes that come from outside are
//! checked where they enter ([`crate::geometry`], [`crate::md`]).
//!
//! [`MemberSet`] is a bit set over the slots of one array; [`MEMBERS_MAX`] is its bound and that of an array.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Mul, Sub, SubAssign};

#[cfg(test)]
mod tests;

/// Bytes in a sector. md's formats and AoE both count 512-byte sectors whatever the disk's block size is.
pub const SECTOR_SIZE: u64 = 512;

/// The most members an array can have: the width of [`MemberSet`], and PPL's own limit.
pub const MEMBERS_MAX: usize = 64;

/// A position in sectors, on the array or on a member; the context says from where it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// A length in sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sectors(pub u64);

/// A length in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// Number of a chunk of array data, in array order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkIndex(pub u64);

/// Number of a chunk row: one chunk on each member, at the same place on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeIndex(pub u64);

/// A member's place in the array: md's slot, `raid_disk`. Below [`MEMBERS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberIndex(pub u8);

/// How many members an array has, parity included (md's `raid_disks`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberCount(pub u8);

/// Number of a data block within its row, in array order: 0 up to data members minus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataIndex(pub u8);

impl Sector {
    /// The first sector.
    pub const ZERO: Self = Self(0);

    /// The distance from the start in bytes.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0 * SECTOR_SIZE)
    }

    /// The position plus a length, or `None` where that does not fit.
    pub const fn checked_add(self, length: Sectors) -> Option<Self> {
        match self.0.checked_add(length.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl Sectors {
    /// No sectors.
    pub const ZERO: Self = Self(0);

    /// The length in bytes.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0 * SECTOR_SIZE)
    }

    /// The largest multiple of `unit` that is not above this length. `unit` must not be zero.
    pub const fn round_down(self, unit: Self) -> Self {
        Self(self.0 - self.0 % unit.0)
    }

    /// The smallest multiple of `unit` that is not below this length. `unit` must not be zero.
    pub const fn round_up(self, unit: Self) -> Self {
        Self(self.0.next_multiple_of(unit.0))
    }

    /// Whether there is nothing.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Bytes {
    /// The length in whole sectors, or `None` when it is not a whole number of them.
    pub const fn whole_sectors(self) -> Option<Sectors> {
        if self.0.is_multiple_of(SECTOR_SIZE) { Some(Sectors(self.0 / SECTOR_SIZE)) } else { None }
    }

    /// The whole sectors that fit in this length.
    pub const fn sectors_within(self) -> Sectors {
        Sectors(self.0 / SECTOR_SIZE)
    }
}

impl StripeIndex {
    /// The row `count` rows further on.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl MemberIndex {
    /// The slot as an index into a slice that has one entry per member.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl DataIndex {
    /// The number as an index into a slice that has one entry per data member.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl MemberCount {
    /// The count as a length of slices.
    pub const fn len(self) -> usize {
        self.0 as usize
    }

    /// Whether there are no members.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All slots in order.
    pub fn indices(self) -> impl DoubleEndedIterator<Item = MemberIndex> + ExactSizeIterator {
        (0..self.0).map(MemberIndex)
    }
}

impl Add<Sectors> for Sector {
    type Output = Self;
    fn add(self, length: Sectors) -> Self {
        Self(self.0 + length.0)
    }
}

impl AddAssign<Sectors> for Sector {
    fn add_assign(&mut self, length: Sectors) {
        self.0 += length.0;
    }
}

impl Sub<Sectors> for Sector {
    type Output = Self;
    fn sub(self, length: Sectors) -> Self {
        Self(self.0 - length.0)
    }
}

impl Sub for Sector {
    type Output = Sectors;
    fn sub(self, start: Self) -> Sectors {
        Sectors(self.0 - start.0)
    }
}

impl Add for Sectors {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Sectors {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Sectors {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Sectors {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl Mul<u64> for Sectors {
    type Output = Self;
    fn mul(self, count: u64) -> Self {
        Self(self.0 * count)
    }
}

impl Sum for Sectors {
    fn sum<I: Iterator<Item = Self>>(lengths: I) -> Self {
        lengths.fold(Self::ZERO, Add::add)
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl From<Sectors> for Bytes {
    fn from(length: Sectors) -> Self {
        length.bytes()
    }
}

macro_rules! display_number {
    ($($unit:ty),+) => {
        $(impl fmt::Display for $unit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        })+
    };
}

display_number!(Sector, Sectors, Bytes, ChunkIndex, StripeIndex, MemberIndex, MemberCount, DataIndex);

/// A set of slots of one array, 64 bits wide.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MemberSet(pub u64);

impl MemberSet {
    /// No member.
    pub const EMPTY: Self = Self(0);

    /// One member.
    pub const fn of(member: MemberIndex) -> Self {
        Self(1 << member.0)
    }

    /// The slots 0 up to `count` - 1.
    pub const fn all(count: MemberCount) -> Self {
        assert!(count.len() <= MEMBERS_MAX, "an array has at most 64 members");
        if count.0 == 0 { Self::EMPTY } else { Self(u64::MAX >> (MEMBERS_MAX - count.len())) }
    }

    /// Whether `member` is in the set.
    pub const fn contains(self, member: MemberIndex) -> bool {
        self.0 & Self::of(member).0 != 0
    }

    /// Whether every member of `other` is in the set.
    pub const fn contains_all(self, other: Self) -> bool {
        other.minus(self).is_empty()
    }

    /// How many members are in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no member is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The members of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The members of this set that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the sets share a member.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The set and `member`.
    #[must_use]
    pub const fn with(self, member: MemberIndex) -> Self {
        self.union(Self::of(member))
    }

    /// The set without `member`.
    #[must_use]
    pub const fn without(self, member: MemberIndex) -> Self {
        self.minus(Self::of(member))
    }

    /// Adds `member`.
    pub const fn insert(&mut self, member: MemberIndex) {
        *self = self.with(member);
    }

    /// Takes `member` out.
    pub const fn remove(&mut self, member: MemberIndex) {
        *self = self.without(member);
    }

    /// The lowest slot in the set.
    pub const fn first(self) -> Option<MemberIndex> {
        if self.is_empty() { None } else { Some(MemberIndex(self.0.trailing_zeros() as u8)) }
    }

    /// The members in slot order.
    pub const fn iter(self) -> MemberSetIter {
        MemberSetIter(self)
    }
}

impl fmt::Debug for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|member| member.0)).finish()
    }
}

impl fmt::Display for MemberSet {
    /// The slots with commas between them, such as `0, 3`; `none` when empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (position, member) in self.iter().enumerate() {
            if position > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{member}")?;
        }
        Ok(())
    }
}

impl FromIterator<MemberIndex> for MemberSet {
    fn from_iter<I: IntoIterator<Item = MemberIndex>>(members: I) -> Self {
        members.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl From<MemberIndex> for MemberSet {
    fn from(member: MemberIndex) -> Self {
        Self::of(member)
    }
}

impl IntoIterator for MemberSet {
    type Item = MemberIndex;
    type IntoIter = MemberSetIter;
    fn into_iter(self) -> MemberSetIter {
        self.iter()
    }
}

/// Iterator over a [`MemberSet`] in slot order.
#[derive(Clone, Debug)]
pub struct MemberSetIter(MemberSet);

impl Iterator for MemberSetIter {
    type Item = MemberIndex;

    fn next(&mut self) -> Option<MemberIndex> {
        let member = self.0.first()?;
        self.0.remove(member);
        Some(member)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl ExactSizeIterator for MemberSetIter {}
