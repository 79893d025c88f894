//! Helpers of this crate's tests: the captures in `tests/fixtures/aoe`, and hexadecimal text.

use core::time::Duration;

/// A captured frame.
pub(crate) struct Captured {
    /// Time since the first frame.
    pub(crate) at: Duration,
    pub(crate) bytes: Vec<u8>,
}

/// The capture at MTU 1500.
pub(crate) const MTU_1500: &[u8] = include_bytes!("../../../tests/fixtures/aoe/linux-vblade-mtu1500.pcap");
/// The capture at MTU 9000.
pub(crate) const MTU_9000: &[u8] = include_bytes!("../../../tests/fixtures/aoe/linux-vblade-mtu9000.pcap");

/// The frames of a classic little-endian pcap file of Ethernet frames with microseconds.
pub(crate) fn capture(file: &[u8]) -> Vec<Captured> {
    const FILE_HEADER: usize = 24;
    const FRAME_HEADER: usize = 16;
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xA1B2_C3D4, "a pcap file in little-endian order");
    assert_eq!(word(20), 1, "Ethernet frames");
    let mut frames = Vec::new();
    let mut start = None;
    let mut at = FILE_HEADER;
    while at < file.len() {
        let time = Duration::from_secs(word(at).into()) + Duration::from_micros(word(at + 4).into());
        let len = word(at + 8) as usize;
        assert_eq!(len, word(at + 12) as usize, "whole frames");
        let bytes = file[at + FRAME_HEADER..at + FRAME_HEADER + len].to_vec();
        frames.push(Captured { at: time - *start.get_or_insert(time), bytes });
        at += FRAME_HEADER + len;
    }
    frames
}

/// Bytes of a hex dump; what is not a digit is for the eye.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// What `emit` writes into a buffer that was full of rubbish.
pub(crate) fn emitted(emit: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut buf = vec![0xEE; 9014];
    let len = emit(&mut buf);
    buf.truncate(len);
    buf
}
