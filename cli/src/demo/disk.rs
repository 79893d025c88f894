//! The array as a disk whose every byte is known: writes a pattern, remembers what it wrote, and compares what it reads.
//!
//! A block's content is made from its number and from how often it was written, so an old, foreign or torn block is told from a right one. Two
//! requests in flight never share a block. Bound: [`DEPTH`] requests of [`REQUEST_BLOCKS`] blocks.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use raid_core::units::{SECTOR_SIZE, Sector, Sectors};
use raid_engine::runtime::client::{Client, Op, Reply, Request};

/// Bytes of a block.
pub(super) const BLOCK: u64 = 4096;

/// Requests in flight.
const DEPTH: usize = 16;

/// Blocks of a request that goes through the disk in order.
const REQUEST_BLOCKS: u64 = 256;

/// Blocks of a random write at most.
const RANDOM_BLOCKS: u64 = 16;

/// So long may nothing end, even while a shelf is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest wait at a time.
const WAIT: Duration = Duration::from_millis(100);

/// What a pass over the disk has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    /// Requests that ended.
    pub(super) requests: u64,
    /// Of those, how many failed.
    pub(super) failed: u64,
    /// Blocks read with a wrong byte in them.
    pub(super) wrong: u64,
    /// The longest that a request took.
    pub(super) longest: Duration,
    /// How long the pass took.
    pub(super) time: Duration,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Job {
    first: u64,
    blocks: u64,
    write: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Disk {
    client: Client,
    /// How often each block was written.
    written: Vec<u64>,
    flying: Vec<(u64, Job, Instant)>,
    next_id: u64,
    random: u64,
}

impl Disk {
    /// A disk of which nothing is known.
    pub(super) fn new(client: Client) -> Disk {
        let blocks = client.sectors().bytes().0 / BLOCK;
        Disk { client, written: vec![0; blocks as usize], flying: Vec::new(), next_id: 0, random: 0 }
    }

    /// Its size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.written.len() as u64 * BLOCK
    }

    /// Writes all of it in order.
    pub(super) fn fill(&mut self) -> anyhow::Result<Pass> {
        self.in_order(true)
    }

    /// Reads all of it and compares.
    pub(super) fn verify(&mut self) -> anyhow::Result<Pass> {
        self.in_order(false)
    }

    /// Writes at random places, until `enough` says so of what was done so far.
    pub(super) fn scatter(&mut self, mut enough: impl FnMut(&Pass) -> anyhow::Result<bool>) -> anyhow::Result<Pass> {
        self.drive(|disk, pass| {
            if enough(pass)? {
                return Ok(None);
            }
            loop {
                let blocks = disk.below(RANDOM_BLOCKS) + 1;
                let first = disk.below(disk.written.len() as u64 - blocks + 1);
                let job = Job { first, blocks, write: true };
                let apart = |other: Job| other.first >= first + blocks || other.first + other.blocks <= first;
                if disk.flying.iter().all(|(_, other, _)| apart(*other)) {
                    return Ok(Some(job));
                }
            }
        })
    }

    /// Makes durable what was written.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        self.client.submit(Request { id: 0, op: Op::Flush, at: Sector::ZERO, sectors: Sectors::ZERO, buf: None });
        self.client.unplug();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.client.poll() {
                Some(reply) if reply.status.is_ok() => return Ok(()),
                Some(reply) => bail!("a flush failed: {:?}", reply.status),
                None => self.client.wait(Some(WAIT)),
            }
        }
        bail!("a flush does not end")
    }

    fn in_order(&mut self, write: bool) -> anyhow::Result<Pass> {
        let mut next = 0;
        self.drive(|disk, _| {
            let blocks = REQUEST_BLOCKS.min(disk.written.len() as u64 - next);
            let job = Job { first: next, blocks, write };
            next += blocks;
            Ok((blocks > 0).then_some(job))
        })
    }

    /// Keeps requests in flight as long as `next` names one.
    fn drive<F>(&mut self, mut next: F) -> anyhow::Result<Pass>
    where
        F: FnMut(&mut Disk, &Pass) -> anyhow::Result<Option<Job>>,
    {
        let start = Instant::now();
        let (mut pass, mut more, mut heard) = (Pass::default(), true, start);
        while more || !self.flying.is_empty() {
            while more && self.flying.len() < DEPTH {
                match next(self, &pass)? {
                    Some(job) => self.submit(job)?,
                    None => more = false,
                }
            }
            self.client.unplug();
            match self.client.poll() {
                Some(reply) => {
                    heard = Instant::now();
                    self.ended(reply, &mut pass);
                }
                None if heard.elapsed() > PATIENCE => bail!("no request has ended for {} s", PATIENCE.as_secs()),
                None => self.client.wait(Some(WAIT)),
            }
        }
        pass.time = start.elapsed();
        Ok(pass)
    }

    fn submit(&mut self, job: Job) -> anyhow::Result<()> {
        let bytes = job.blocks * BLOCK;
        let mut buf = self.client.alloc(bytes as usize).context("memory for a request")?;
        if job.write {
            for (block, data) in (job.first..).zip(buf.chunks_exact_mut(BLOCK as usize)) {
                let times = &mut self.written[block as usize];
                *times += 1;
                fill_block(data, block, *times);
            }
        }
        let op = if job.write { Op::Write { fua: false } } else { Op::Read };
        let (at, sectors) = (Sector(job.first * BLOCK / SECTOR_SIZE), Sectors(bytes / SECTOR_SIZE));
        self.flying.push((self.next_id, job, Instant::now()));
        self.client.submit(Request { id: self.next_id, op, at, sectors, buf: Some(buf) });
        self.next_id += 1;
        Ok(())
    }

    fn ended(&mut self, reply: Reply, pass: &mut Pass) {
        let at = self.flying.iter().position(|(id, ..)| *id == reply.id).expect("a reply to a request in flight");
        let (_, job, since) = self.flying.swap_remove(at);
        let buf = reply.buf.expect("a request's buffer comes back with its reply");
        pass.requests += 1;
        pass.longest = pass.longest.max(since.elapsed());
        if !reply.status.is_ok() {
            pass.failed += 1;
        } else if !job.write {
            let blocks = (job.first..).zip(buf.chunks_exact(BLOCK as usize));
            let right = |(block, data): &(u64, &[u8])| is_block(data, *block, self.written[*block as usize]);
            pass.wrong += blocks.filter(|block| !right(block)).count() as u64;
        }
        self.client.free(buf);
    }

    /// A random number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.random += 1;
        mix(self.random) % end
    }
}

/// Spreads a number over all bits (the finaliser of splitmix64).
fn mix(number: u64) -> u64 {
    let x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The words of a block that was written so many times.
fn words(block: u64, times: u64) -> impl Iterator<Item = u64> {
    let seed = mix(mix(block).wrapping_add(times));
    (0..).map(move |word: u64| seed.wrapping_add(word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn fill_block(data: &mut [u8], block: u64, times: u64) {
    for (to, word) in data.as_chunks_mut::<8>().0.iter_mut().zip(words(block, times)) {
        *to = word.to_ne_bytes();
    }
}

fn is_block(data: &[u8], block: u64, times: u64) -> bool {
    data.as_chunks::<8>().0.iter().zip(words(block, times)).all(|(is, word)| *is == word.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_told_from_others_and_from_older_ones() {
        let mut data = [0; BLOCK as usize];
        fill_block(&mut data, 5, 2);
        assert!(is_block(&data, 5, 2));
        assert!(!is_block(&data, 5, 1), "older");
        assert!(!is_block(&data, 6, 2), "another");
        for at in [0, 7, 2048, 4095] {
            data[at] ^= 0x10;
            assert!(!is_block(&data, 5, 2), "byte {at}");
            data[at] ^= 0x10;
        }
    }
}
