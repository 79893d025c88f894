//! What each sector of the array may hold, given what clients were told: the oracle of the simulation.
//!
//! Every write has a number, and its data name it, so that a sector read tells which write it comes from. A sector may hold a write that is not
//! replaced by a later one; a write is replaced by one that was submitted after it ended, was acknowledged, and cannot have been
//! lost since. What caches lost makes writes that were not flushed uncertain; reading a sector then settles what it holds.
//!
//! Steps are the world's count of what happened; a request lasts from the step of its submission to that of its reply.

use std::collections::BTreeMap;

/// Bytes in a sector.
pub const SECTOR: usize = 512;

/// Number of a write. 0 is what the members held before the first one.
pub type WriteId = u32;

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Zeroes.
    Zeroes,
    /// The data of this write, or of the initial contents.
    Of(WriteId),
    /// No contents that this model gives out.
    Torn,
}

/// A write, for all of its sectors.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// Its data are zeroes.
    zeroes: bool,
    submitted: u64,
    /// `u64::MAX` while it is under way.
    ended: u64,
    /// Acknowledged: it was carried out.
    ok: bool,
    /// Flushed after it ended, or written through.
    durable: bool,
    /// Caches were lost at this step, after it was submitted and before it was durable.
    lost: Option<u64>,
}

impl Write {
    /// Whether it surely replaced all that ended before it.
    fn counts(&self) -> bool {
        self.ok && self.lost.is_none()
    }
}

/// Anything may be there.
const UNKNOWN: WriteId = WriteId::MAX;

/// One entry of a sector's history: a write, or a reading that settled what is there.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Whose data.
    data: WriteId,
    /// Whose times and state; differs from `data` for readings.
    write: WriteId,
}

/// See the module's text.
#[derive(Debug)]
pub struct Model {
    writes: Vec<Write>,
    sectors: BTreeMap<u64, Vec<Entry>>,
    /// Acknowledged and not durable yet.
    unflushed: Vec<WriteId>,
    /// Initial contents are data of write 0, not zeroes.
    garbage: bool,
    /// When caches were last lost.
    lost_at: u64,
    /// The oldest read under way began at this step or later.
    pub floor: u64,
}

impl Model {
    /// Of an array that holds zeroes, or with `garbage` the data of write 0.
    pub fn new(garbage: bool) -> Model {
        let initial = Write { zeroes: !garbage, submitted: 0, ended: 0, ok: true, durable: true, lost: None };
        let (sectors, unflushed) = (BTreeMap::new(), Vec::new());
        Model { writes: vec![initial], sectors, unflushed, garbage, lost_at: 0, floor: 0 }
    }

    /// Begins a write and names it.
    pub fn submit(&mut self, step: u64, zeroes: bool, at: u64, sectors: u64) -> WriteId {
        let write = Write { zeroes, submitted: step, ended: u64::MAX, ok: false, durable: false, lost: None };
        let id = self.push(write);
        for sector in at..at + sectors {
            self.prune(sector);
            self.history(sector).push(Entry { data: id, write: id });
        }
        id
    }

    /// A write was replied to. `fua`: it is durable as well, if `ok`.
    pub fn ended(&mut self, step: u64, id: WriteId, ok: bool, fua: bool) {
        let write = &mut self.writes[id as usize];
        (write.ended, write.ok) = (step, ok);
        if ok && fua {
            (write.durable, write.lost) = (true, None);
        } else if ok {
            self.unflushed.push(id);
        }
    }

    /// A flush that was submitted at step `from` was acknowledged.
    pub fn flushed(&mut self, from: u64) {
        let writes = &mut self.writes;
        self.unflushed.retain(|id| {
            let write = &mut writes[*id as usize];
            let covered = write.ended < from;
            // What was lost before the flush was asked for is not brought back by it.
            if covered && write.lost.is_none_or(|lost| lost >= from) {
                (write.durable, write.lost) = (true, None);
            }
            !covered
        });
    }

    /// The engine is gone: what was under way may or may not have been carried out.
    pub fn crashed(&mut self, step: u64) {
        for write in self.writes.iter_mut().filter(|write| write.ended == u64::MAX) {
            write.ended = step;
        }
    }

    /// Caches were lost: what was not flushed may be gone.
    pub fn caches_lost(&mut self, step: u64) {
        self.lost_at = step;
        for write in self.writes.iter_mut().filter(|write| !write.durable) {
            write.lost = Some(step);
        }
    }

    /// These sectors may hold anything until they are written again.
    pub fn unknown(&mut self, step: u64, sectors: impl IntoIterator<Item = u64>) {
        let state = Write { zeroes: false, submitted: step, ended: step, ok: false, durable: false, lost: None };
        let write = self.push(state);
        for sector in sectors {
            self.history(sector).push(Entry { data: UNKNOWN, write });
        }
    }

    /// Sectors of writes that are under way, and with `unflushed` of those that are not durable.
    pub fn at_risk(&self, unflushed: bool) -> Vec<u64> {
        let risky = |entry: &Entry| {
            let write = &self.writes[entry.write as usize];
            entry.data == entry.write && (write.ended == u64::MAX || unflushed && !write.durable && write.submitted > 0)
        };
        self.sectors.iter().filter(|(_, entries)| entries.iter().any(risky)).map(|(sector, _)| *sector).collect()
    }

    /// Sectors that were ever written.
    pub fn touched(&self) -> impl Iterator<Item = u64> + '_ {
        self.sectors.keys().copied()
    }

    /// Checks what a read from step `from` to step `to` found at a sector, and learns from it.
    pub fn check(&mut self, sector: u64, data: &[u8], from: u64, to: u64) -> Result<(), String> {
        let value = self.value(sector, data);
        let Some(entries) = self.sectors.get(&sector) else {
            let right = if self.garbage { Value::Of(0) } else { Value::Zeroes };
            let wrong = || format!("sector {sector} was never written and holds {value:?}");
            return (value == right).then_some(()).ok_or_else(wrong);
        };
        let visible: Vec<Entry> =
            entries.iter().copied().filter(|entry| self.may_see(entries, entry, from, to)).collect();
        let matches = |entry: &Entry| entry.data == UNKNOWN || self.data_is(entry.data, value);
        let Some(seen) = visible.iter().find(|entry| matches(entry)) else {
            let named = |entry: &Entry| (entry.data, self.writes[entry.write as usize]);
            let history: Vec<_> = entries.iter().map(named).collect();
            return Err(format!("sector {sector} holds {value:?} in steps {from}..{to}; its history: {history:?}"));
        };
        let quiet = |entry: &Entry| self.writes[entry.write as usize].ended < from;
        // One that was under way when caches were lost may have read what was there before.
        let settles = self.lost_at < from && seen.data != UNKNOWN;
        if visible.len() > 1 && entries.iter().all(quiet) && settles {
            let settled = Entry { data: seen.data, write: 0 };
            self.settle(sector, settled, from, to);
        }
        Ok(())
    }

    /// From now on the sector holds this; flushed writes may replace it only if caches are lost.
    fn settle(&mut self, sector: u64, entry: Entry, from: u64, to: u64) {
        let state = Write { zeroes: false, submitted: from, ended: to, ok: true, durable: false, lost: None };
        let write = self.push(state);
        self.unflushed.push(write);
        self.history(sector).push(Entry { write, ..entry });
    }

    /// Whether nothing is known to have replaced an entry before step `from`.
    fn may_see(&self, entries: &[Entry], entry: &Entry, from: u64, to: u64) -> bool {
        let seen = &self.writes[entry.write as usize];
        let replaces = |other: &Entry| {
            let other = &self.writes[other.write as usize];
            other.counts() && seen.ended < other.submitted && other.ended < from
        };
        seen.submitted < to && !entries.iter().any(replaces)
    }

    /// Whether a sector of this write has been, or may be being, written by another since this one was submitted.
    pub fn contended(&self, sector: u64, id: WriteId) -> bool {
        let from = self.writes[id as usize].submitted;
        let later = |entry: &Entry| entry.write != id && self.writes[entry.write as usize].ended >= from;
        self.sectors.get(&sector).is_some_and(|entries| entries.iter().any(later))
    }

    /// Whether caches were lost since it was submitted.
    pub fn is_lost(&self, id: WriteId) -> bool {
        self.writes[id as usize].lost.is_some()
    }

    /// What this write puts into a sector.
    pub fn data_of(&self, id: WriteId, sector: u64) -> [u8; SECTOR] {
        if self.writes[id as usize].zeroes { [0; SECTOR] } else { contents(id, sector) }
    }

    fn data_is(&self, id: WriteId, value: Value) -> bool {
        if self.writes[id as usize].zeroes { value == Value::Zeroes } else { value == Value::Of(id) }
    }

    fn value(&self, sector: u64, data: &[u8]) -> Value {
        let words = data.as_chunks::<8>().0;
        if words.iter().all(|word| *word == [0; 8]) {
            return Value::Zeroes;
        }
        let id = u64::from_le_bytes(words[0]) & u64::from(u32::MAX);
        let known = (id as usize) < self.writes.len();
        if known && data == contents(id as WriteId, sector) { Value::Of(id as WriteId) } else { Value::Torn }
    }

    fn push(&mut self, write: Write) -> WriteId {
        self.writes.push(write);
        WriteId::try_from(self.writes.len() - 1).expect("a run has few writes")
    }

    fn history(&mut self, sector: u64) -> &mut Vec<Entry> {
        self.sectors.entry(sector).or_insert_with(|| vec![Entry { data: 0, write: 0 }])
    }

    /// Forgets what durable writes have replaced for good.
    fn prune(&mut self, sector: u64) {
        let Some(entries) = self.sectors.get_mut(&sector) else { return };
        let writes = &self.writes;
        let firm = |entry: &Entry| {
            let write = &writes[entry.write as usize];
            (write.counts() && write.durable && write.ended < self.floor).then_some(write.submitted)
        };
        if let Some(last) = entries.iter().filter_map(firm).max() {
            entries.retain(|entry| writes[entry.write as usize].ended >= last);
        }
    }
}

/// The data of a write: its number and the sector, then words that follow from both.
pub fn contents(id: WriteId, sector: u64) -> [u8; SECTOR] {
    let mut data = [0; SECTOR];
    let key = (u64::from(id) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ sector.wrapping_mul(0xA24B_AED4_963E_E407);
    for (at, word) in (0_u64..).zip(data.as_chunks_mut::<8>().0.iter_mut()) {
        let value = if at == 0 { (sector << 32) | u64::from(id) } else { key.rotate_left(at as u32).wrapping_add(at) };
        *word = value.to_le_bytes();
    }
    data
}

#[cfg(test)]
mod tests;
