//! What Linux's own tools say about our members, and a parity check that knows nothing of our code.

use crate::proc::Cmd;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Where a 1.2 superblock lies.
const SUPERBLOCK_OFFSET: u64 = 4096;
/// Bytes of it that a test compares: the header and the role table.
const SUPERBLOCK_BYTES: usize = 4096;
/// Bytes compared at a time.
const PIECE: usize = 1 << 20;

/// The raw bytes of a member's 1.2 superblock.
pub fn superblock_bytes(member: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    File::open(member)?.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    Ok(bytes)
}

/// What `mdadm -E` printed of a member.
#[derive(Debug)]
pub struct Examined(String);

/// Runs `mdadm -E`; panics unless it accepts the member.
pub fn examine(member: &Path) -> Examined {
    let text = Cmd::new("mdadm").arg("-E").arg(member).ok(Duration::from_secs(20));
    assert!(text.contains("Magic : a92b4efc"), "{text}");
    Examined(text)
}

impl Examined {
    /// The text after `key :`. Panics when there is none.
    pub fn field(&self, key: &str) -> &str {
        match self.find(key) {
            Some(value) => value,
            None => panic!("mdadm -E prints no `{key}`:\n{}", self.0),
        }
    }

    fn find(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (name, value) = line.split_once(" : ")?;
            (name.trim() == key).then_some(value.trim())
        })
    }

    /// Whether mdadm found the checksum right.
    pub fn checksum_is_right(&self) -> bool {
        self.field("Checksum").ends_with("- correct")
    }

    /// First data sector of the member.
    pub fn data_offset_sectors(&self) -> u64 {
        first_number(self.field("Data Offset"))
    }

    /// Sectors of the member that the array uses.
    pub fn used_sectors(&self) -> u64 {
        // mdadm leaves the line out when the array uses all there is.
        let used = self.find("Used Dev Size");
        first_number(used.unwrap_or_else(|| self.field("Avail Dev Size")))
    }

    /// The event counter.
    pub fn events(&self) -> u64 {
        first_number(self.field("Events"))
    }
}

fn first_number(text: &str) -> u64 {
    let word = text.split_whitespace().next().unwrap_or_default();
    match word.parse() {
        Ok(number) => number,
        Err(_) => panic!("no number at the start of {text:?}"),
    }
}

/// Checks that the XOR of all members is zero over `len` bytes from `offset`: RAID5 parity in any layout. `Err` tells the first
/// offset where it is not.
pub fn parity_is_right(members: &[&Path], offset: u64, len: u64) -> Result<(), String> {
    let files: Vec<File> = members
        .iter()
        .map(|path| File::open(path).map_err(|e| format!("{}: {e}", path.display())))
        .collect::<Result<_, _>>()?;
    let (mut sum, mut one) = (vec![0u8; PIECE], vec![0u8; PIECE]);
    let mut at = offset;
    while at < offset + len {
        let piece = PIECE.min(usize::try_from(offset + len - at).unwrap_or(PIECE));
        sum[..piece].fill(0);
        for file in &files {
            file.read_exact_at(&mut one[..piece], at).map_err(|e| e.to_string())?;
            sum[..piece].iter_mut().zip(&one[..piece]).for_each(|(s, o)| *s ^= o);
        }
        if let Some(wrong) = sum[..piece].iter().position(|&byte| byte != 0) {
            return Err(format!("members do not XOR to zero at byte {}", at + wrong as u64));
        }
        at += piece as u64;
    }
    Ok(())
}

/// Checks parity over all that the array uses, with offset and size as mdadm reads them from the first member.
pub fn parity_of_array_is_right(members: &[&Path]) -> Result<(), String> {
    let first = examine(members[0]);
    parity_is_right(members, first.data_offset_sectors() * 512, first.used_sectors() * 512)
}

/// Whether two files hold the same `len` bytes; `Err` tells the first difference.
pub fn same_bytes(a: &Path, b: &Path, len: u64) -> Result<(), String> {
    let open = |path: &Path| File::open(path).map_err(|e| format!("{}: {e}", path.display()));
    let (mut a, mut b) = (open(a)?.take(len), open(b)?.take(len));
    let (mut x, mut y) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < len {
        let piece = PIECE.min(usize::try_from(len - at).unwrap_or(PIECE));
        for (file, buf) in [(&mut a, &mut x), (&mut b, &mut y)] {
            file.read_exact(&mut buf[..piece]).map_err(|e| format!("at {at}: {e}"))?;
        }
        if let Some(wrong) = (0..piece).find(|&i| x[i] != y[i]) {
            return Err(format!("first difference at byte {}", at + wrong as u64));
        }
        at += piece as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures, pattern, require};

    #[test]
    fn mdadm_reads_the_kernels_members() {
        require!("mdadm");
        let dir = tempfile::tempdir().unwrap();
        let array = fixtures::md_array("r5-ls-64k-v12", dir.path()).unwrap();
        for member in &array.members {
            let examined = examine(member);
            assert!(examined.checksum_is_right());
            assert_eq!(examined.field("Raid Level"), "raid5");
            assert_eq!(examined.field("Layout"), "left-symmetric");
            assert_eq!(examined.used_sectors() * 3, array.array_sectors);
        }
        let members: Vec<&Path> = array.members.iter().map(|p| p.as_path()).collect();
        parity_of_array_is_right(&members).unwrap();
    }

    #[test]
    fn wrong_parity_is_found_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b", "p"].map(|name| dir.path().join(name));
        let (a, b) = (pattern::bytes(1, 0, 8192), pattern::bytes(2, 0, 8192));
        let mut p: Vec<u8> = a.iter().zip(&b).map(|(x, y)| x ^ y).collect();
        std::fs::write(&paths[0], &a).unwrap();
        std::fs::write(&paths[1], &b).unwrap();
        std::fs::write(&paths[2], &p).unwrap();
        let members: Vec<&Path> = paths.iter().map(|p| p.as_path()).collect();
        assert_eq!(parity_is_right(&members, 0, 8192), Ok(()));
        p[5000] ^= 1;
        std::fs::write(&paths[2], &p).unwrap();
        assert!(parity_is_right(&members, 0, 8192).unwrap_err().ends_with("byte 5000"));
        assert_eq!(parity_is_right(&members, 0, 5000), Ok(()));
        assert!(parity_is_right(&members, 0, 8193).is_err());
    }

    #[test]
    fn differing_files_differ_where_they_do() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, [1, 2, 3, 4]).unwrap();
        std::fs::write(&b, [1, 2, 3, 5]).unwrap();
        assert_eq!(same_bytes(&a, &b, 3), Ok(()));
        assert!(same_bytes(&a, &b, 4).unwrap_err().ends_with("byte 3"));
        assert!(same_bytes(&a, &b, 5).is_err());
    }
}
