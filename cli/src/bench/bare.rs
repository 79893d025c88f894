//! The bare loop: nothing but the memory work of the same requests, as the limit of what an array of memory members can do.
//!
//! No queue, no thread crossing, no cache, no superblock: a write is cut into its rows, each of which is done at once. A row that is given whole has its
//! data copied and its parity computed in one pass, by plain stores or by stores past the caches ([`Stores`]; the caller takes what is faster).
//! Otherwise parity is changed by old and new data, or computed anew where more than half of the row is whole chunks. Reads are copies.
//! Requests in order are put together first as a plug does.
//!
//! Each thread has rows of its own, every so many of all: so each goes about in the whole memory, which is as much as that of the members under load, whatever
//! the number of threads. It has as many request buffers as a load thread. Bounds: the size of the members, and of the load's buffers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use raid_core::geometry::{Geometry, Layout};
use raid_core::units::{DataIndex, MEMBERS_MAX, MemberCount, Sector, Sectors, StripeIndex};
use raid_engine::runtime::topology::Cpu;
use raid_engine::slab::{Arena, PAGE_SECTORS, Piece, Slab, Stores};

use super::args::Mode;
use super::load::{PLUG_BYTES, PLUG_REQUESTS, Places};
use super::measure::{self, Phases, Subject, Tally};
use super::progress::Progress;
use super::report::size_text;

/// Requests done between two looks at the phase, which takes a look at the clock.
const BATCH: u64 = 16;

/// What the loop does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) mode: Mode,
    /// Length of a request.
    pub(super) size: Sectors,
    /// Request buffers of a thread, used in turn.
    pub(super) buffers: usize,
    pub(super) stores: Stores,
}

/// The loop's memory, and where its threads run.
#[derive(Debug)]
pub(super) struct Bare {
    threads: Vec<(Cpu, Arc<Mutex<Rows>>)>,
    bytes: u64,
}

impl Bare {
    /// Memory for `members` of `each`, over a thread for each CPU.
    pub(super) fn new(
        slab: &Arc<Slab>,
        members: MemberCount,
        each: Sectors,
        chunk: Sectors,
        cpus: &[Cpu],
    ) -> anyhow::Result<Bare> {
        let part = Sectors(each.0 / cpus.len() as u64);
        let geometry = Geometry::new(members, chunk, part, Layout::LeftSymmetric)?;
        let all = allocate(slab, &geometry, cpus.len() as u64)?;
        let threads = cpus.iter().zip(0..).map(|(cpu, first)| {
            let members = Arc::clone(&all);
            let rows = Rows { geometry, members, slab: Arc::clone(slab), first, every: cpus.len() as u64 };
            (*cpu, Arc::new(Mutex::new(rows)))
        });
        let threads = threads.collect();
        let member = geometry.member_sector(StripeIndex(geometry.stripes()));
        let bytes = Sectors(member.0).bytes().0 * members.len() as u64 * cpus.len() as u64;
        Ok(Bare { threads, bytes })
    }

    /// Memory that the rows take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a request of this length fits into each thread's rows.
    pub(super) fn fits(&self, size: Sectors) -> bool {
        let fits = |rows: &Rows| size.0 <= rows.geometry.array_sectors().0;
        self.threads.iter().all(|(_, rows)| fits(&rows.lock().expect("no panic while held")))
    }

    /// Which stores are faster for the job's requests, by a run of each where they fill rows.
    pub(super) fn faster(&self, job: Job, runtime: Duration, progress: &mut Progress) -> anyhow::Result<Stores> {
        if !self.fills_rows(job) {
            return Ok(Stores::Plain);
        }
        let mut rate = |stores| self.run(Job { stores, ..job }, runtime, progress);
        let (plain, stream) = (rate(Stores::Plain)?, rate(Stores::Stream)?);
        Ok(if stream > plain { Stores::Stream } else { Stores::Plain })
    }

    fn fills_rows(&self, job: Job) -> bool {
        let (_, rows) = &self.threads[0];
        let rows = rows.lock().expect("no panic while held");
        job.mode.writes() && job.size.0 * merged(job) >= rows.geometry.stripe_sectors().0
    }

    /// Runs the loop; answers with requests per second.
    pub(super) fn run(&self, job: Job, runtime: Duration, progress: &mut Progress) -> anyhow::Result<f64> {
        let bytes = job.size.bytes().0;
        let what = format!("{} {} of the bare loop", job.mode.word(), size_text(bytes));
        let subject = Subject { runtime, what, bytes, progress };
        let mut threads = Vec::new();
        for (cpu, rows) in &self.threads {
            let rows = Arc::clone(rows);
            let work =
                move |phases: &Phases, tally: Tally| rows.lock().expect("no panic while held").work(job, phases, tally);
            threads.push((*cpu, work));
        }
        let nobody_waits = || {};
        Ok(measure::run(threads, subject, || (), nobody_waits)?.iops)
    }
}

/// How many requests are put together.
fn merged(job: Job) -> u64 {
    match job.mode.random() {
        true => 1,
        false => (PLUG_BYTES / job.size.bytes().0).clamp(1, PLUG_REQUESTS as u64),
    }
}

/// Memory of the members for so many threads with rows of this shape each: it is there, and zero.
fn allocate(slab: &Arc<Slab>, geometry: &Geometry, threads: u64) -> anyhow::Result<Arc<Vec<Arena>>> {
    let sectors = Sectors(geometry.stripes() * geometry.chunk().0 * threads);
    let bytes = usize::try_from(sectors.bytes().0).context("more memory than can be had")?;
    let mut members = Vec::new();
    for _ in 0..geometry.members().len() {
        let arena = slab.huge_arena(bytes).context("more memory than can be had")?;
        slab.populate(arena.piece()).context("memory for the bare loop")?;
        members.push(arena);
    }
    Ok(Arc::new(members))
}

/// One thread's rows.
#[derive(Debug)]
struct Rows {
    /// Of these rows alone.
    geometry: Geometry,
    /// All threads'.
    members: Arc<Vec<Arena>>,
    slab: Arc<Slab>,
    /// Which of all rows are the thread's: the first, and so many on.
    first: u64,
    every: u64,
}

impl Rows {
    /// Does requests until told to stop.
    fn work(&self, job: Job, phases: &Phases, mut tally: Tally) -> anyhow::Result<Tally> {
        let merged = merged(job).min(self.geometry.array_sectors().0 / job.size.0);
        let step = Sectors(job.size.0 * merged);
        let count = (job.buffers as u64 / merged).max(1);
        let arena = self.slab.arena(usize::try_from(step.bytes().0 * count)?);
        let arena = arena.context("memory for the bare loop's buffers")?;
        self.slab.populate(arena.piece()).context("memory for the bare loop's buffers")?;
        let mut places = Places::new(job.mode, self.geometry.array_sectors(), step, 0, 1);
        let buffer = |index: u64| arena.piece().sub((index * step.0) as u32, step.0 as u32);
        let mut next = 0;
        while tally.follow(phases, Instant::now()) {
            for _ in 0..BATCH.div_ceil(merged) {
                let (at, piece) = (places.next(), buffer(next));
                match job.mode.writes() {
                    true => self.write(at, piece, job.stores),
                    false => self.read(at, piece),
                }
                next = if next + 1 == count { 0 } else { next + 1 };
                tally.did(merged);
            }
        }
        Ok(tally)
    }

    /// A stretch of a member within one of the thread's rows.
    fn member(&self, member: usize, from: Sector, sectors: u32) -> Piece {
        let (row, in_chunk) = self.geometry.stripe_at(from);
        let at = (row.0 * self.every + self.first) * self.geometry.chunk().0 + in_chunk.0;
        self.members[member].piece().sub(at as u32, sectors)
    }

    fn read(&self, at: Sector, to: Piece) {
        let mut done = 0;
        while done < to.sectors() {
            let place = self.geometry.locate(at + Sectors(u64::from(done)));
            let sectors = (to.sectors() - done).min((self.geometry.chunk().0 - place.in_chunk.0) as u32);
            self.slab.copy(self.member(place.member.index(), place.member_sector, sectors), to.sub(done, sectors));
            done += sectors;
        }
    }

    fn write(&self, at: Sector, data: Piece, stores: Stores) {
        let row = self.geometry.stripe_sectors().0;
        let mut done = 0;
        while done < data.sectors() {
            let at = at + Sectors(u64::from(done));
            let sectors = (data.sectors() - done).min((row - at.0 % row) as u32);
            self.write_row(at, data.sub(done, sectors), stores);
            done += sectors;
        }
    }

    /// A write within one row.
    fn write_row(&self, at: Sector, data: Piece, stores: Stores) {
        let chunk = self.geometry.chunk().0 as u32;
        let count = self.geometry.data_count();
        let whole = at.0.is_multiple_of(u64::from(chunk)) && data.sectors().is_multiple_of(chunk);
        let given = (data.sectors() / chunk) as usize;
        if whole && given == count {
            self.write_full(at, data, stores);
        } else if whole && 2 * given > count {
            self.write_anew(at, data);
        } else {
            let mut done = 0;
            while done < data.sectors() {
                let place = self.geometry.locate(at + Sectors(u64::from(done)));
                let sectors = (data.sectors() - done).min(chunk - place.in_chunk.0 as u32);
                let parity = self.geometry.parity_member(place.stripe).index();
                let from = place.member_sector;
                self.change(place.member.index(), parity, from, data.sub(done, sectors));
                done += sectors;
            }
        }
    }

    /// All data of a row.
    fn write_full(&self, at: Sector, data: Piece, stores: Stores) {
        let chunk = self.geometry.chunk().0 as u32;
        let place = self.geometry.locate(at);
        let count = self.geometry.data_count();
        let mut copies = [Piece::NONE; MEMBERS_MAX];
        let mut sources = [Piece::NONE; MEMBERS_MAX];
        for index in 0..count {
            let data_index = DataIndex(index as u8);
            let member = self.geometry.data_member(place.stripe, data_index).index();
            copies[index] = self.member(member, place.member_sector, chunk);
            sources[index] = data.sub(index as u32 * chunk, chunk);
        }
        let parity = self.geometry.parity_member(place.stripe).index();
        let parity = self.member(parity, place.member_sector, chunk);
        self.slab.copy_xor(parity, &copies[..count], &sources[..count], stores);
    }

    /// Whole chunks, more than half of the row: parity from them and from the rest of the row, in steps that stay in the nearest cache.
    fn write_anew(&self, at: Sector, data: Piece) {
        let chunk = self.geometry.chunk().0 as u32;
        let first = self.geometry.locate(at);
        let parity = self.geometry.parity_member(first.stripe).index();
        let given = first.data.index()..first.data.index() + (data.sectors() / chunk) as usize;
        for from in (0..chunk).step_by(PAGE_SECTORS as usize) {
            let sectors = PAGE_SECTORS.min(chunk - from);
            let on_member = first.member_sector + Sectors(u64::from(from));
            let mut sources = [Piece::NONE; MEMBERS_MAX];
            let count = self.geometry.data_count();
            for (index, source) in sources.iter_mut().enumerate().take(count) {
                let data_index = DataIndex(index as u8);
                let member = self.geometry.data_member(first.stripe, data_index).index();
                let there = self.member(member, on_member, sectors);
                *source = there;
                if given.contains(&index) {
                    *source = data.sub((index - given.start) as u32 * chunk + from, sectors);
                    self.slab.copy(*source, there);
                }
            }
            self.slab.xor_into(self.member(parity, on_member, sectors), &sources[..count]);
        }
    }

    /// Some sectors of one chunk: parity ^= old ^ new, in steps that stay in the nearest cache.
    fn change(&self, member: usize, parity: usize, from: Sector, data: Piece) {
        let mut done = 0;
        while done < data.sectors() {
            let sectors = PAGE_SECTORS.min(data.sectors() - done);
            let at = from + Sectors(u64::from(done));
            let (old, new) = (self.member(member, at, sectors), data.sub(done, sectors));
            self.slab.xor_acc(self.member(parity, at, sectors), &[old, new]);
            self.slab.copy(new, old);
            done += sectors;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raid_core::parity::Kernels;
    use raid_engine::runtime::topology;

    /// Writes at every size and place go where the geometry says, and parity is right afterwards.
    #[test]
    fn it_does_the_whole_work() {
        let slab = Slab::with_bytes(Kernels::detect(), 256 << 20).expect("address space");
        let geometry = Geometry::new(MemberCount(5), Sectors(16), Sectors(16 * 40), Layout::LeftSymmetric);
        let geometry = geometry.expect("valid");
        let members = allocate(&slab, &geometry, 2).expect("memory");
        let rows = Rows { geometry, members, slab: Arc::clone(&slab), first: 1, every: 2 };
        let data = slab.arena(1 << 20).expect("room");
        let space = rows.geometry.array_sectors();
        let mut model = vec![0; space.bytes().0 as usize];
        let mut seed = 1_u8;
        for (size, stores) in
            [1, 8, 16, 32, 48, 64, 200, 128].into_iter().zip([Stores::Plain, Stores::Stream].into_iter().cycle())
        {
            let mut places = Places::new(Mode::Randwrite, space, Sectors(size), 0, 1);
            for _ in 0..50 {
                seed = seed.wrapping_mul(29).wrapping_add(3);
                let (at, piece) = (places.next(), data.piece().sub(0, size as u32));
                let bytes: Vec<u8> = (0..piece.bytes()).map(|i| seed ^ (i % 251) as u8).collect();
                slab.fill(piece, 0, &bytes);
                rows.write(at, piece, stores);
                let from = at.0 as usize * 512;
                model[from..from + bytes.len()].copy_from_slice(&bytes);
            }
        }
        let mut read = vec![0; model.len()];
        for at in (0..space.0).step_by(64) {
            let piece = data.piece().sub(0, 64);
            rows.read(Sector(at), piece);
            slab.read_out(piece, 0, &mut read[at as usize * 512..][..64 * 512]);
        }
        assert!(read == model, "what was written is read");
        let member = 2 * rows.geometry.stripes() as usize * 16 * 512;
        let mut sum = vec![0; member];
        for arena in rows.members.iter() {
            let mut bytes = vec![0; member];
            slab.read_out(arena.piece(), 0, &mut bytes);
            let others = bytes.chunks(16 * 512).step_by(2);
            assert!(others.flatten().all(|byte| *byte == 0), "another thread's rows are left alone");
            sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        }
        assert!(sum.iter().all(|byte| *byte == 0), "parity is right everywhere");
    }

    #[test]
    fn it_runs() {
        let slab = Slab::with_bytes(Kernels::detect(), 1 << 30).expect("address space");
        let cpus = topology::allowed().expect("CPUs");
        let bare = Bare::new(&slab, MemberCount(3), Sectors(8192), Sectors(16), &cpus).expect("memory");
        assert!(bare.bytes() <= (12 << 20) && bare.fits(Sectors(64)) && !bare.fits(Sectors(1 << 20)));
        for mode in [Mode::Randwrite, Mode::Randread, Mode::Write, Mode::Read] {
            let runtime = Duration::from_millis(50);
            let job = Job { mode, size: Sectors(8), buffers: 16, stores: Stores::Plain };
            assert_eq!(bare.fills_rows(job), mode == Mode::Write, "in order, 16 requests are put together");
            let mut progress = Progress::new(runtime);
            assert!(bare.run(job, runtime, &mut progress).expect("runs") > 0.0);
            bare.faster(job, runtime, &mut progress).expect("runs");
        }
    }
}
