//! Arrays that Linux md made, kept under `tests/fixtures/md`.

use std::fs::File;
use std::path::{Path, PathBuf};

/// One unpacked array.
#[derive(Debug)]
pub struct MdArray {
    /// The member images, writable copies, in the order they were given to mdadm.
    pub members: Vec<PathBuf>,
    /// Size of the array in 512-byte sectors.
    pub array_sectors: u64,
    /// SHA-256 of the whole array, in hex.
    pub sha256: String,
}

/// Unpacks the array `name` into `dir`.
pub fn md_array(name: &str, dir: &Path) -> anyhow::Result<MdArray> {
    use anyhow::Context;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/md").join(name);
    let info = std::fs::read_to_string(from.join("info.txt"))
        .with_context(|| format!("no array {name} in {}", from.display()))?;
    let field = |key: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(key));
        line.map(|rest| rest.trim_start_matches('=').trim()).with_context(|| format!("{name}/info.txt has no {key}"))
    };
    let mut members = Vec::new();
    while let Ok(packed) = File::open(from.join(format!("member{}.img.zst", members.len()))) {
        let to = dir.join(format!("{name}-member{}.img", members.len()));
        zstd::stream::copy_decode(packed, File::create(&to)?)?;
        members.push(to);
    }
    Ok(MdArray { members, array_sectors: field("array_sectors")?.parse()?, sha256: field("sha256")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_array_unpacks_and_holds_a_superblock() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["r5-ls-64k-v12", "r5-la-4k-v12", "r5-pf-16k-v12", "r5-pl-16k-v12"] {
            let array = md_array(name, dir.path()).unwrap();
            assert!(array.members.len() >= 3, "{name}");
            assert_eq!(array.sha256.len(), 64, "{name}");
            assert!(array.array_sectors > 0, "{name}");
            for member in &array.members {
                let superblock = crate::md::superblock_bytes(member).unwrap();
                assert_eq!(&superblock[..4], [0xfc, 0x4e, 0x2b, 0xa9], "{name}");
            }
        }
        assert!(md_array("no-such-array", dir.path()).is_err());
    }
}
