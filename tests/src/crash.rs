//! Writes until a crash, with a model of what each block may hold after it.
//!
//! A block holds what it held at the last flush or anything sent since, sector by sector; blocks that no flush has covered may
//! hold the zeroes of a fresh array.

use crate::array::Running;
use crate::nbd::Client;
use crate::pattern;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// What each block of an array may hold, as versions of the pattern; version 0 is the zeroes of a fresh array.
#[derive(Debug)]
pub struct Model {
    /// Per block: the version that a flush has covered, and those sent since.
    blocks: HashMap<u64, Vec<u64>>,
    next_version: u64,
    random: u64,
    range: u64,
}

impl Model {
    /// Nothing written yet; writes will go to the first `range_blocks` blocks.
    pub fn new(range_blocks: u64) -> Self {
        Self { blocks: HashMap::new(), next_version: 1, random: 7, range: range_blocks }
    }

    fn data(block: u64, version: u64) -> Vec<u8> {
        match version {
            0 => vec![0; BLOCK],
            _ => pattern::bytes(version, block * BLOCK as u64, BLOCK),
        }
    }

    /// Picks a block and the data of a new version of it.
    pub fn next_write(&mut self) -> (u64, Vec<u8>) {
        self.random = pattern::mix(self.random);
        let block = self.random % self.range;
        let version = self.next_version;
        self.next_version += 1;
        self.blocks.entry(block).or_insert_with(|| vec![0]).push(version);
        (block * BLOCK as u64, Self::data(block, version))
    }

    /// Everything sent so far has been answered, and then a flush was.
    pub fn flushed(&mut self) {
        for versions in self.blocks.values_mut() {
            versions.drain(..versions.len() - 1);
        }
    }

    /// Checks each sector of each block that was ever written, as the array's client reads it.
    pub fn check(&self, client: &mut Client) {
        self.check_blocks(|offset| client.read(offset, BLOCK).unwrap());
    }

    /// As [`Model::check`], from a copy of the array.
    pub fn check_image(&self, image: &Path) {
        let file = File::open(image).unwrap();
        self.check_blocks(|offset| {
            let mut block = vec![0; BLOCK];
            file.read_exact_at(&mut block, offset).unwrap();
            block
        });
    }

    fn check_blocks(&self, mut read: impl FnMut(u64) -> Vec<u8>) {
        for (&block, versions) in &self.blocks {
            let found = read(block * BLOCK as u64);
            let allowed: Vec<Vec<u8>> = versions.iter().map(|&v| Self::data(block, v)).collect();
            for at in (0..BLOCK).step_by(SECTOR) {
                let sector = at..at + SECTOR;
                let fits = allowed.iter().any(|data| data[sector.clone()] == found[sector.clone()]);
                assert!(fits, "block {block}, byte {at}: none of versions {versions:?}");
            }
        }
    }
}

/// Sends `count` writes at once, and takes as many answers.
fn write_batch(client: &mut Client, model: &mut Model, count: usize) {
    for _ in 0..count {
        let (offset, data) = model.next_write();
        client.send_write(offset, &data, false).unwrap();
    }
    for _ in 0..count {
        assert_eq!(client.answer().unwrap().error, 0);
    }
}

/// Writes with a flush now and then, and kills the process with writes in flight.
pub fn write_and_kill(array: Running, model: &mut Model) {
    let mut client = Client::connect(array.socket()).unwrap();
    for _ in 0..8 {
        for _ in 0..8 {
            write_batch(&mut client, model, 32);
        }
        client.flush().unwrap();
        model.flushed();
    }
    write_batch(&mut client, model, 32);
    for _ in 0..64 {
        let (offset, data) = model.next_write();
        client.send_write(offset, &data, false).unwrap();
    }
    let _first = client.answer().unwrap();
    array.sigkill();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of one block and the model of its first version, which is in it.
    fn one_block() -> (tempfile::NamedTempFile, Model, Vec<u8>) {
        let image = tempfile::NamedTempFile::new().unwrap();
        let mut model = Model::new(1);
        let (_, data) = model.next_write();
        std::fs::write(image.path(), &data).unwrap();
        (image, model, data)
    }

    #[test]
    fn before_a_flush_old_and_new_sectors_fit() {
        let (image, mut model, mut data) = one_block();
        data[..SECTOR].fill(0);
        std::fs::write(image.path(), &data).unwrap();
        model.check_image(image.path());
        let (_, newer) = model.next_write();
        data[SECTOR..2 * SECTOR].copy_from_slice(&newer[SECTOR..2 * SECTOR]);
        std::fs::write(image.path(), &data).unwrap();
        model.check_image(image.path());
    }

    #[test]
    #[should_panic(expected = "block 0, byte 0")]
    fn after_a_flush_an_old_sector_is_a_loss() {
        let (image, mut model, mut data) = one_block();
        model.flushed();
        data[..SECTOR].fill(0);
        std::fs::write(image.path(), &data).unwrap();
        model.check_image(image.path());
    }
}
