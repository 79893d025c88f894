//! Requests become parts.
//!
//! A front end gathers requests under a plug. [`split`] cuts each at chunk borders; [`sort`] puts a plug's parts into the order of
//! the rows, so that the worker sees neighbours together. Which worker gets a part is the region table's affair.
//!
//! Pure. Bound: [`PART_SECTORS_MAX`] per part; a request of 32 MiB with 4 KiB chunks makes 8192 parts.

use raid_core::geometry::Geometry;
use raid_core::units::{DataIndex, Sector, Sectors, StripeIndex};

use crate::message::{ClientId, Part, PartOp};
use crate::slab::Piece;

/// Longest part: one MiB, the zero area's length.
pub const PART_SECTORS_MAX: u64 = 2048;

/// Where a request's data lie.
#[derive(Clone, Copy, Debug)]
pub enum Memory {
    /// In the caller's piece, as long as the request.
    Piece(Piece),
    /// Zeroes, wherever the request goes; the piece is at least one part long.
    Zeroes(Piece),
}

/// A request as a front end has it.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// Who asks.
    pub client: ClientId,
    /// The client's number for it.
    pub request: u32,
    /// Read or write.
    pub op: PartOp,
    /// First sector of the array.
    pub at: Sector,
    /// Length. The range lies within the array: the caller has checked.
    pub sectors: Sectors,
    /// Where the data lie.
    pub memory: Memory,
}

/// Cuts a request at chunk borders; answers how many parts it made.
pub fn split(geometry: &Geometry, whole: &Whole, parts: &mut Vec<Part>) -> u32 {
    let Whole { client, request, op, at, sectors, memory } = *whole;
    let chunk = geometry.chunk().0;
    let (mut done, mut count) = (0, 0);
    while done < sectors.0 {
        let place = geometry.locate(at + Sectors(done));
        let length = (chunk - place.in_chunk.0).min(sectors.0 - done).min(PART_SECTORS_MAX) as u32;
        let piece = match memory {
            Memory::Piece(piece) => piece.sub(done as u32, length),
            Memory::Zeroes(piece) => piece.sub(0, length),
        };
        let (stripe, data, from) = (place.stripe, place.data, place.in_chunk.0 as u32);
        parts.push(Part { client, op, request, stripe, data, from, sectors: length, piece });
        done += u64::from(length);
        count += 1;
    }
    count
}

/// Sorts a plug's parts by row, so that neighbours form runs together.
pub fn sort(parts: &mut [Part]) {
    parts.sort_unstable_by_key(|p| (p.stripe, p.data, p.from));
}

/// The one part of a flush.
pub fn flush(client: ClientId, request: u32) -> Part {
    let (stripe, data) = (StripeIndex(0), DataIndex(0));
    Part { client, op: PartOp::Flush, request, stripe, data, from: 0, sectors: 0, piece: Piece::NONE }
}

#[cfg(test)]
mod tests;
