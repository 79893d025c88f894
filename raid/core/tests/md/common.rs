//! Arrays made by the Linux kernel, from `tests/fixtures/md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use raid_core::md::superblock::{SUPERBLOCK_SIZE, latest};
use raid_core::md::{Minor, Superblock, SuperblockError};
use raid_core::units::{Sector, Sectors};

/// Bytes in a sector.
pub(crate) const SECTOR: usize = 512;

/// One array of the fixtures.
pub(crate) struct Vector {
    /// Its folder's name.
    pub(crate) name: String,
    /// `info.txt`.
    pub(crate) info: String,
    /// The members' images, in the order given to mdadm.
    pub(crate) images: Vec<Vec<u8>>,
    /// For each member the fields that `mdadm --examine` printed.
    pub(crate) examine: Vec<BTreeMap<String, String>>,
}

impl Vector {
    /// Reads the array in folder `name`.
    pub(crate) fn load(name: &str) -> Self {
        let folder = folder().join(name);
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
        let images: Vec<Vec<u8>> = (0..)
            .map(|member| folder.join(format!("member{member}.img.zst")))
            .take_while(|path| path.exists())
            .map(|path| zstd::decode_all(fs::File::open(path).unwrap()).unwrap())
            .collect();
        let examine: Vec<_> = read("examine.txt").split("== member").skip(1).map(examine_fields).collect();
        assert_eq!(images.len(), examine.len(), "{name}");
        Self { name: name.to_owned(), info: read("info.txt"), images, examine }
    }

    /// Every array whose folder starts with `prefix`.
    pub(crate) fn all(prefix: &str) -> Vec<Self> {
        let mut names: Vec<String> =
            fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names.into_iter().filter(|name| name.starts_with(prefix)).map(|name| Self::load(&name)).collect()
    }

    /// The value of `key=` in `info.txt`.
    pub(crate) fn info(&self, key: &str) -> String {
        let line = self.info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("{}: no {key}", self.name)).to_owned()
    }

    /// The superblock of member `member`.
    pub(crate) fn superblock(&self, member: usize) -> Superblock {
        find(&self.images[member]).unwrap_or_else(|error| panic!("{} member {member}: {error}", self.name))
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/md")
}

/// `Name : value` lines up to the last one that is about the superblock.
pub(crate) fn examine_fields(text: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(" : ") {
            fields.insert(name.trim().to_owned(), value.trim().to_owned());
        }
        if line.contains("Array State") {
            break;
        }
    }
    fields
}

/// The size of an image.
pub(crate) fn size(image: &[u8]) -> Sectors {
    Sectors((image.len() / SECTOR) as u64)
}

/// The bytes of the superblock's block at `at`.
pub(crate) fn block(image: &[u8], at: Sector) -> &[u8; SUPERBLOCK_SIZE] {
    image[at.bytes().0 as usize..][..SUPERBLOCK_SIZE].try_into().unwrap()
}

/// The superblock on a device, whatever its format.
pub(crate) fn find(image: &[u8]) -> Result<Superblock, SuperblockError> {
    let tried = Minor::ALL.map(|minor| {
        let at = minor.superblock_sector(size(image)).expect("the image is large enough");
        Superblock::parse(block(image, at), minor, size(image))
    });
    let error = tried[2].clone().err();
    latest(tried.into_iter().flatten()).ok_or_else(|| error.expect("without a superblock there is an error"))
}
