//! What a device seems to hold, by well-known bytes at well-known places: enough to ask before it is overwritten.
//!
//! Pure. Looks at [`LOOK_BYTES`] only.

/// How much of a device is looked at.
pub(super) const LOOK_BYTES: usize = 68 << 10;

/// A place, the bytes there, and what they tell.
type Mark = (usize, &'static [u8], &'static str);

const MARKS: &[Mark] = &[
    (0x438, &[0x53, 0xEF], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (0x18, b"LVM2 001", "an LVM physical volume"),
    (0, b"LUKS\xBA\xBE", "LUKS encrypted data"),
    (0xFF6, b"SWAPSPACE2", "swap space"),
    (0x200, b"EFI PART", "a GPT partition table"),
    (0x1FE, &[0x55, 0xAA], "a partition table or boot sector"),
];

/// What is found in the first bytes of a device.
pub(super) fn find(head: &[u8]) -> Option<&'static str> {
    let is_there = |&&(at, bytes, _): &&Mark| head.get(at..at + bytes.len()) == Some(bytes);
    MARKS.iter().find(is_there).map(|&(_, _, what)| what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_found_and_zeroes_are_nothing() {
        assert_eq!(find(&[0; LOOK_BYTES]), None);
        for &(at, bytes, what) in MARKS {
            let mut head = vec![0; LOOK_BYTES];
            head[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(find(&head), Some(what));
            assert_eq!(find(&head[..at + bytes.len() - 1]), None, "a device that ends there");
        }
    }
}
