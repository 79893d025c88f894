//! The classic pcap format, with nanoseconds: what tcpdump and wireshark read. Pure.

use std::time::Duration;

/// Marks the format, and the order of the bytes.
const MAGIC: u32 = 0xA1B2_3C4D;
/// Frames begin with an Ethernet header.
const LINK_ETHERNET: u32 = 1;
/// Longest frame, in bytes, that readers are to expect.
pub(super) const FRAME_MAX: u32 = 65_553;

/// What the file begins with.
pub(super) fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..6].copy_from_slice(&2u16.to_le_bytes());
    header[6..8].copy_from_slice(&4u16.to_le_bytes());
    header[16..20].copy_from_slice(&FRAME_MAX.to_le_bytes());
    header[20..].copy_from_slice(&LINK_ETHERNET.to_le_bytes());
    header
}

/// What stands before a frame of so many bytes that was seen at this time, since 1970.
pub(super) fn frame_header(time: Duration, len: usize) -> [u8; 16] {
    let len = u32::try_from(len).expect("a frame is shorter than 4 GiB");
    let mut header = [0; 16];
    // The format has 32 bits for seconds.
    let words = [time.as_secs() as u32, time.subsec_nanos(), len, len];
    for (to, word) in header.chunks_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_the_format_says() {
        let file = file_header();
        assert_eq!(file[..8], [0x4D, 0x3C, 0xB2, 0xA1, 2, 0, 4, 0]);
        assert_eq!(file[8..16], [0; 8]);
        assert_eq!(file[16..], [0x11, 0, 1, 0, 1, 0, 0, 0]);
        let frame = frame_header(Duration::new(0x0102_0304, 5), 60);
        assert_eq!(frame, [4, 3, 2, 1, 5, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0]);
    }
}
