//! Test data that is a function of seed and place, image files, and digests.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes written or read at a time.
const PIECE: usize = 1 << 20;

/// One step of splitmix64.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Fills `buf` with the data of `seed` at byte `offset`, a multiple of 8; so does its length.
pub fn fill(seed: u64, offset: u64, buf: &mut [u8]) {
    assert!(offset.is_multiple_of(8) && buf.len().is_multiple_of(8), "pattern words are 8 bytes");
    let key = mix(seed);
    for (word, place) in buf.chunks_exact_mut(8).zip(offset / 8..) {
        word.copy_from_slice(&mix(key ^ place).to_le_bytes());
    }
}

/// As [`fill`], into a new buffer.
pub fn bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    fill(seed, offset, &mut buf);
    buf
}

/// Writes an image of `len` bytes, a multiple of 8.
pub fn image(path: &Path, seed: u64, len: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut offset = 0;
    while offset < len {
        let piece = PIECE.min(usize::try_from(len - offset).unwrap_or(PIECE));
        file.write_all(&bytes(seed, offset, piece))?;
        offset += piece as u64;
    }
    Ok(())
}

/// Overwrites ranges of an image, each an offset and a length in multiples of 8, with the data of `seed`.
pub fn overlay(path: &Path, seed: u64, ranges: &[(u64, u64)]) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    for &(offset, len) in ranges {
        file.write_all_at(&bytes(seed, offset, usize::try_from(len).expect("ranges fit memory")), offset)?;
    }
    Ok(())
}

/// An empty, sparse file of `len` bytes.
pub fn blank(path: &Path, len: u64) -> std::io::Result<()> {
    File::create(path)?.set_len(len)
}

/// SHA-256 of a file, in hex.
pub fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buf = vec![0; PIECE];
    loop {
        match file.read(&mut buf)? {
            0 => break,
            n => hash.update(&buf[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_equal_the_whole() {
        let whole = bytes(5, 0, 4096);
        assert_eq!(&whole[512..1024], bytes(5, 512, 512));
        assert_ne!(whole, bytes(6, 0, 4096));
        // Neighbouring seeds share no word.
        assert!(whole.chunks(8).all(|w| !bytes(6, 0, 4096).chunks(8).any(|v| v == w)));
    }

    #[test]
    fn images_and_digests() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        image(&path, 1, 3 * PIECE as u64 + 8).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes(1, 0, 3 * PIECE + 8), "an image is one pattern");
        overlay(&path, 2, &[(16, 8), (PIECE as u64, 4096)]).unwrap();
        let mut wanted = bytes(1, 0, 3 * PIECE + 8);
        wanted[16..24].copy_from_slice(&bytes(2, 16, 8));
        wanted[PIECE..PIECE + 4096].copy_from_slice(&bytes(2, PIECE as u64, 4096));
        assert!(std::fs::read(&path).unwrap() == wanted);
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(sha256(&path).unwrap(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        blank(&path, 4096).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![0; 4096]);
    }
}
