//! What each sector may hold: writes with their beginning and end, and which of them a read may see.

use aoe_proto::wire::SECTOR;

/// Number of a write; 0 is the zeros that a device starts with.
pub(crate) type WriteId = u64;

#[derive(Clone, Copy, Debug)]
struct Written {
    id: WriteId,
    /// Step at which it was submitted.
    submitted: u64,
    /// Step at which it ended; `u64::MAX` while it is outstanding.
    ended: u64,
    /// It is known to have been executed.
    done: bool,
}

/// The history of each sector of a device.
pub(crate) struct Model {
    sectors: Vec<Vec<Written>>,
}

impl Model {
    pub(crate) fn new(sectors: u64) -> Model {
        let zeros = Written { id: 0, submitted: 0, ended: 0, done: true };
        Model { sectors: vec![vec![zeros]; sectors as usize] }
    }

    pub(crate) fn submitted(&mut self, step: u64, id: WriteId, lba: u64, sectors: u32) {
        for history in &mut self.sectors[lba as usize..][..sectors as usize] {
            history.push(Written { id, submitted: step, ended: u64::MAX, done: false });
        }
    }

    /// A write ended; `done` says that it was executed, otherwise it may have been, wholly or in part.
    pub(crate) fn ended(&mut self, step: u64, id: WriteId, lba: u64, sectors: u32, done: bool) {
        for history in &mut self.sectors[lba as usize..][..sectors as usize] {
            let written = history.iter_mut().find(|written| written.id == id).expect("it was submitted");
            (written.ended, written.done) = (step, done);
        }
    }

    /// Whether a read from step `from` to step `to` may find the data of write `id` in the sector.
    ///
    /// Not if the write began after the read ended, nor if another write that was executed lies wholly between the two.
    fn may_see(&self, sector: u64, id: WriteId, from: u64, to: u64) -> bool {
        let history = &self.sectors[sector as usize];
        let Some(seen) = history.iter().find(|written| written.id == id) else { return false };
        let replaced = |other: &Written| other.done && seen.ended < other.submitted && other.ended < from;
        seen.submitted < to && !history.iter().any(replaced)
    }

    /// Checks what a read from step `from` to step `to` found.
    pub(crate) fn check(&self, lba: u64, data: &[u8], from: u64, to: u64) -> Result<(), String> {
        for (sector, found) in (lba..).zip(data.as_chunks::<SECTOR>().0) {
            let (stamp, rest) = found.split_first_chunk::<8>().expect("a sector has 512 bytes");
            let id = u64::from_le_bytes(*stamp);
            if rest != &contents(id, sector)[8..] {
                return Err(format!("sector {sector} has torn or damaged data, stamped as write {id}"));
            }
            if !self.may_see(sector, id, from, to) {
                let history = &self.sectors[sector as usize];
                let last = &history[history.len().saturating_sub(8)..];
                return Err(format!("sector {sector} has write {id} at steps {from}..{to}, of {last:?}"));
            }
        }
        Ok(())
    }
}

/// What write `id` puts into a sector. Zeros for write 0.
pub(crate) fn contents(id: WriteId, sector: u64) -> [u8; SECTOR] {
    let mut data = [0; SECTOR];
    if id == 0 {
        return data;
    }
    for (word, at) in data.as_chunks_mut::<8>().0.iter_mut().zip(0u64..) {
        *word = (id ^ (sector * at).wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
    }
    data
}
