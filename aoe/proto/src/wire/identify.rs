//! IDENTIFY DEVICE data: 256 little-endian words in which a device tells what it is and what it can do.
//!
//! Only the words that matter over AoE are decoded; emitting fills the rest with what a plain ATA disk says. The
//! shelf's own additions sit in words 129 to 131, which ATA leaves to vendors: a number that is new at each start
//! ("boot number"), whether repeated requests are recognised, and whether replies to reads and writes carry the boot number.
//! They count only when the model is ours.

use core::fmt;

use super::{LBA28_END, SECTOR};

/// Model string of our shelf.
pub const MODEL: &str = "etherraid shelf";

/// Words of IDENTIFY data by their number in the ATA standard.
mod word {
    pub(super) const GENERAL: usize = 0;
    pub(super) const CYLINDERS: usize = 1;
    pub(super) const HEADS: usize = 3;
    pub(super) const TRACK_SECTORS: usize = 6;
    pub(super) const SERIAL: usize = 10;
    pub(super) const FIRMWARE: usize = 23;
    pub(super) const MODEL: usize = 27;
    pub(super) const MULTIPLE: usize = 47;
    pub(super) const CAPABILITIES: usize = 49;
    pub(super) const CAPABILITIES_2: usize = 50;
    pub(super) const VALID: usize = 53;
    pub(super) const CURRENT_CHS: usize = 54;
    pub(super) const SECTORS_28: usize = 60;
    pub(super) const TRIM_DETERMINATE: usize = 69;
    pub(super) const MAJOR_VERSION: usize = 80;
    pub(super) const SUPPORTED: usize = 82;
    pub(super) const ENABLED: usize = 85;
    pub(super) const RESET_RESULT: usize = 93;
    pub(super) const SECTORS_48: usize = 100;
    pub(super) const TRIM_BLOCKS: usize = 105;
    pub(super) const SECTOR_SIZE: usize = 106;
    pub(super) const WWN: usize = 108;
    pub(super) const LOGICAL_SECTOR: usize = 117;
    pub(super) const BOOT: usize = 129;
    pub(super) const SHELF_FLAGS: usize = 131;
    pub(super) const TRIM: usize = 169;
    pub(super) const ALIGNMENT: usize = 209;
    pub(super) const ROTATION: usize = 217;
    pub(super) const CHECKSUM: usize = 255;
}

/// Bit 14 set, bit 15 clear: the mark that a word is valid.
const VALID_MARK: u16 = 0x4000;
/// Words 82/85: SMART, power management, look-ahead.
const SMART_POWER_AHEAD: u16 = 0x0001 | 0x0008 | 0x0040;
/// Words 82/85: volatile write cache.
const WRITE_CACHE: u16 = 0x0020;
/// Words 83/86: 48-bit commands.
const LBA48: u16 = 0x0400;
/// Words 83/86: FLUSH CACHE.
const FLUSH: u16 = 0x1000;
/// Words 83/86: FLUSH CACHE EXT.
const FLUSH_EXT: u16 = 0x2000;
/// Words 84/87: FUA writes.
const FUA: u16 = 0x0040;
/// Words 84/87: a world wide name in words 108 to 111.
const WWN: u16 = 0x0100;
/// Word 106: several logical sectors per physical one.
const MULTI_LOGICAL: u16 = 0x2000;
/// Word 106: logical sectors longer than 256 words.
const LONG_LOGICAL: u16 = 0x1000;
/// Word 69: trimmed sectors read determinate data; they read zeros.
const TRIM_ZEROES: u16 = 0x4000 | 0x0020;
/// Word 131 of our shelf: repeated requests are recognised and not executed again.
const DEDUPES: u16 = 0x0001;
/// Word 131: see [`Identify::tells_boot`].
const TELLS_BOOT: u16 = 0x0002;
/// Low byte of word 255 when its high byte is a checksum.
const CHECKSUM_MARK: u8 = 0xA5;

/// [`MODEL`] as it is sent.
const OURS: AtaString<40> = {
    let mut bytes = [b' '; 40];
    bytes.split_at_mut(MODEL.len()).0.copy_from_slice(MODEL.as_bytes());
    AtaString(bytes)
};

/// A text of IDENTIFY data: N bytes, padded with spaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtaString<const N: usize>([u8; N]);

impl<const N: usize> AtaString<N> {
    /// The text, cut to N bytes; what is not printable ASCII becomes `?`.
    pub fn new(text: &str) -> AtaString<N> {
        let mut bytes = [b' '; N];
        for (byte, c) in bytes.iter_mut().zip(text.bytes()) {
            *byte = if c == b' ' || c.is_ascii_graphic() { c } else { b'?' };
        }
        AtaString(bytes)
    }

    /// The text without leading and trailing spaces and NULs; "" if it is not ASCII.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).map_or("", |text| text.trim_matches([' ', '\0']))
    }

    /// The first character of each word is in its high byte, so bytes are swapped in memory.
    fn parse(words: &[u16; 256], at: usize) -> AtaString<N> {
        let mut bytes = [0; N];
        for (pair, word) in bytes.chunks_exact_mut(2).zip(&words[at..]) {
            pair.copy_from_slice(&word.to_be_bytes());
        }
        AtaString(bytes)
    }

    fn emit(&self, words: &mut [u16; 256], at: usize) {
        for (pair, word) in self.0.chunks_exact(2).zip(&mut words[at..]) {
            *word = u16::from_be_bytes([pair[0], pair[1]]);
        }
    }
}

impl<const N: usize> fmt::Display for AtaString<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for AtaString<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why IDENTIFY data can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifyError {
    /// Fewer than 512 bytes.
    #[error("IDENTIFY data has fewer than 512 bytes")]
    Short,
    /// A checksum is there and wrong.
    #[error("IDENTIFY data has a wrong checksum")]
    Checksum,
    /// Not an ATA disk that is addressed by LBA.
    #[error("IDENTIFY data is not that of a disk addressed by LBA")]
    NotDisk,
}

/// What a device tells about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Serial number.
    pub serial: AtaString<20>,
    /// Firmware version.
    pub firmware: AtaString<8>,
    /// Model.
    pub model: AtaString<40>,
    /// Capacity in sectors of [`Identify::logical_sector`] bytes.
    pub sectors: u64,
    /// 48-bit commands work.
    pub lba48: bool,
    /// FLUSH CACHE works.
    pub flush: bool,
    /// FLUSH CACHE EXT works.
    pub flush_ext: bool,
    /// A volatile write cache is enabled.
    pub write_cache: bool,
    /// There is a volatile write cache, enabled or not.
    pub write_cache_supported: bool,
    /// FUA writes work.
    pub fua: bool,
    /// TRIM works.
    pub trim: bool,
    /// Trimmed sectors read zeros.
    pub trim_zeroes: bool,
    /// Most 512-byte blocks of ranges in one TRIM; 0 means not told.
    pub trim_blocks: u16,
    /// Bytes of a logical sector; anything but 512 can't be served over AoE.
    pub logical_sector: u32,
    /// A physical sector is 2 to this power logical ones.
    pub physical_exponent: u8,
    /// Whether the medium does not rotate.
    pub solid_state: bool,
    /// World wide name.
    pub wwn: Option<u64>,
    /// Our shelf only: a number that is new at each start of the target.
    pub boot: u32,
    /// Our shelf only: repeated requests are recognised and not executed again. See [`Identify::dedupes`].
    pub dedupe_flag: bool,
    /// Our shelf only: replies to reads and writes carry the boot number. See [`Identify::tells_boot`].
    pub boot_flag: bool,
}

impl Identify {
    /// A disk of `sectors` sectors with 48-bit commands and both flushes, and nothing else.
    pub fn disk(sectors: u64) -> Identify {
        Identify {
            serial: AtaString::new(""),
            firmware: AtaString::new(""),
            model: AtaString::new(""),
            sectors,
            lba48: true,
            flush: true,
            flush_ext: true,
            write_cache: false,
            write_cache_supported: false,
            fua: false,
            trim: false,
            trim_zeroes: false,
            trim_blocks: 0,
            logical_sector: SECTOR as u32,
            physical_exponent: 0,
            solid_state: false,
            wwn: None,
            boot: 0,
            dedupe_flag: false,
            boot_flag: false,
        }
    }

    /// Whether the target is our shelf, so that its additions count.
    pub fn is_ours(&self) -> bool {
        // Asked for every frame: the bytes as our shelves send them.
        self.model == OURS
    }

    /// The boot number, if the target has one.
    pub fn boot_number(&self) -> Option<u32> {
        self.is_ours().then_some(self.boot)
    }

    /// Whether the target recognises repeated requests, so that a late copy of a write does no harm.
    pub fn dedupes(&self) -> bool {
        self.is_ours() && self.dedupe_flag
    }

    /// Whether the target's replies to reads and writes carry its boot number, as those to flushes do.
    pub fn tells_boot(&self) -> bool {
        self.is_ours() && self.boot_flag
    }

    /// Decodes the first 512 bytes of `data`. The checksum is verified if there is one.
    pub fn parse(data: &[u8]) -> Result<Identify, IdentifyError> {
        let data: &[u8; SECTOR] = data.first_chunk().ok_or(IdentifyError::Short)?;
        if data[510] == CHECKSUM_MARK && sum(data) != 0 {
            return Err(IdentifyError::Checksum);
        }
        let mut words = [0u16; 256];
        for (word, pair) in words.iter_mut().zip(data.as_chunks::<2>().0) {
            *word = u16::from_le_bytes(*pair);
        }
        let lba = words[word::CAPABILITIES] & 0x0200 != 0;
        if words[word::GENERAL] & 0x8000 != 0 || !lba {
            return Err(IdentifyError::NotDisk);
        }
        Ok(Identify::from_words(&words))
    }

    fn from_words(words: &[u16; 256]) -> Identify {
        // A feature counts as there when either the "supported" or the "enabled" word has it, as Linux does for
        // LBA48: targets fill in one, the other, or both. The write cache is the exception: supported is not enabled.
        let either = |index: usize, bit: u16| (words[index] | words[index + 3]) & bit != 0;
        let lba48 = either(83, LBA48);
        let sectors = if lba48 {
            number(&words[word::SECTORS_48..word::SECTORS_48 + 4]) & 0xFFFF_FFFF_FFFF
        } else {
            number(&words[word::SECTORS_28..word::SECTORS_28 + 2])
        };
        let size = words[word::SECTOR_SIZE];
        let size_valid = size & 0xC000 == VALID_MARK;
        let logical_words = number(&words[word::LOGICAL_SECTOR..word::LOGICAL_SECTOR + 2]) as u32;
        let long = size_valid && size & LONG_LOGICAL != 0;
        let multi = size_valid && size & MULTI_LOGICAL != 0;
        Identify {
            serial: AtaString::parse(words, word::SERIAL),
            firmware: AtaString::parse(words, word::FIRMWARE),
            model: AtaString::parse(words, word::MODEL),
            sectors,
            lba48,
            flush: either(83, FLUSH),
            flush_ext: either(83, FLUSH_EXT),
            write_cache: words[word::ENABLED] & WRITE_CACHE != 0,
            write_cache_supported: words[word::SUPPORTED] & WRITE_CACHE != 0,
            fua: either(84, FUA),
            trim: words[word::TRIM] & 1 != 0,
            trim_zeroes: words[word::TRIM_DETERMINATE] & TRIM_ZEROES == TRIM_ZEROES,
            trim_blocks: words[word::TRIM_BLOCKS],
            logical_sector: if long { logical_words.saturating_mul(2) } else { SECTOR as u32 },
            physical_exponent: if multi { (size & 0x000F) as u8 } else { 0 },
            solid_state: words[word::ROTATION] == 1,
            wwn: (words[87] & WWN != 0).then(|| wwn_of(words)),
            boot: number(&words[word::BOOT..word::BOOT + 2]) as u32,
            dedupe_flag: words[word::SHELF_FLAGS] & DEDUPES != 0,
            boot_flag: words[word::SHELF_FLAGS] & TELLS_BOOT != 0,
        }
    }

    /// Writes 512 bytes of data with their checksum.
    pub fn emit(&self, data: &mut [u8; SECTOR]) {
        let mut words = [0u16; 256];
        self.emit_fixed(&mut words);
        self.serial.emit(&mut words, word::SERIAL);
        self.firmware.emit(&mut words, word::FIRMWARE);
        self.model.emit(&mut words, word::MODEL);
        self.emit_features(&mut words);
        let sectors_28 = self.sectors.min(LBA28_END - 1);
        put_number(&mut words[word::SECTORS_28..word::SECTORS_28 + 2], sectors_28);
        if self.lba48 {
            put_number(&mut words[word::SECTORS_48..word::SECTORS_48 + 4], self.sectors);
        }
        if self.logical_sector != SECTOR as u32 {
            words[word::SECTOR_SIZE] |= VALID_MARK | LONG_LOGICAL;
            put_number(&mut words[word::LOGICAL_SECTOR..word::LOGICAL_SECTOR + 2], u64::from(self.logical_sector / 2));
        }
        if self.physical_exponent != 0 {
            words[word::SECTOR_SIZE] |= VALID_MARK | MULTI_LOGICAL | u16::from(self.physical_exponent & 0x0F);
        }
        if let Some(wwn) = self.wwn {
            for (index, word) in words[word::WWN..word::WWN + 4].iter_mut().enumerate() {
                *word = (wwn >> (48 - 16 * index)) as u16;
            }
        }
        put_number(&mut words[word::BOOT..word::BOOT + 2], u64::from(self.boot));
        words[word::SHELF_FLAGS] =
            (if self.dedupe_flag { DEDUPES } else { 0 }) | (if self.boot_flag { TELLS_BOOT } else { 0 });
        for (pair, word) in data.as_chunks_mut::<2>().0.iter_mut().zip(words) {
            *pair = word.to_le_bytes();
        }
        data[2 * word::CHECKSUM] = CHECKSUM_MARK;
        data[2 * word::CHECKSUM + 1] = 0;
        data[2 * word::CHECKSUM + 1] = sum(data).wrapping_neg();
    }

    /// What any disk addressed by LBA says.
    fn emit_fixed(&self, words: &mut [u16; 256]) {
        const HEADS: u16 = 16;
        const TRACK: u16 = 63;
        const CYLINDERS_MAX: u64 = 16383;
        let per_cylinder = u64::from(HEADS) * u64::from(TRACK);
        let cylinders = (self.sectors / per_cylinder).min(CYLINDERS_MAX) as u16;
        words[word::GENERAL] = 0x0040;
        words[word::CYLINDERS] = cylinders;
        words[word::HEADS] = HEADS;
        words[word::TRACK_SECTORS] = TRACK;
        words[word::MULTIPLE] = 0x8000;
        words[word::CAPABILITIES] = 0x0200;
        words[word::CAPABILITIES_2] = VALID_MARK;
        words[word::VALID] = 0x0001;
        words[word::CURRENT_CHS..word::CURRENT_CHS + 3].copy_from_slice(&[cylinders, HEADS, TRACK]);
        let chs = u64::from(cylinders) * per_cylinder;
        put_number(&mut words[word::CURRENT_CHS + 3..word::CURRENT_CHS + 5], chs);
        // ATA-4 to ATA8-ACS.
        words[word::MAJOR_VERSION] = 0x01F0;
        words[word::RESET_RESULT] = 0x400B;
        words[word::ALIGNMENT] = VALID_MARK;
    }

    /// The feature words.
    fn emit_features(&self, words: &mut [u16; 256]) {
        let bit = |on: bool, bit: u16| if on { bit } else { 0 };
        let second = bit(self.lba48, LBA48) | bit(self.flush, FLUSH) | bit(self.flush_ext, FLUSH_EXT);
        let third = bit(self.fua, FUA) | bit(self.wwn.is_some(), WWN);
        words[word::SUPPORTED] = SMART_POWER_AHEAD | bit(self.write_cache_supported, WRITE_CACHE);
        words[word::SUPPORTED + 1] = VALID_MARK | second;
        words[word::SUPPORTED + 2] = VALID_MARK | third;
        words[word::ENABLED] = SMART_POWER_AHEAD | bit(self.write_cache, WRITE_CACHE);
        words[word::ENABLED + 1] = second;
        words[word::ENABLED + 2] = VALID_MARK | third;
        words[word::TRIM] = u16::from(self.trim);
        words[word::TRIM_DETERMINATE] = bit(self.trim_zeroes, TRIM_ZEROES);
        words[word::TRIM_BLOCKS] = self.trim_blocks;
        words[word::ROTATION] = u16::from(self.solid_state);
    }
}

/// Sum of all bytes, modulo 256: 0 when the checksum is right.
fn sum(data: &[u8; SECTOR]) -> u8 {
    data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte))
}

/// A number over several words, the least significant first.
fn number(words: &[u16]) -> u64 {
    words.iter().rev().fold(0, |number, word| number << 16 | u64::from(*word))
}

fn put_number(words: &mut [u16], number: u64) {
    for (index, word) in words.iter_mut().enumerate() {
        *word = (number >> (16 * index)) as u16;
    }
}

/// The world wide name has its most significant word first.
fn wwn_of(words: &[u16; 256]) -> u64 {
    words[word::WWN..word::WWN + 4].iter().fold(0, |wwn, word| wwn << 16 | u64::from(*word))
}
