//! Frame buffers in one allocation, placed so that the data of an ATA frame (byte 36 on) begin on a page.
//!
//! Owned by whoever fills frames: the packet socket for arriving ones, the shelf server for replies. A store that does direct I/O
//! can then read and write frame data where they are. Allocated before use, never on the data path.

/// Alignment of each slot's data.
const ALIGN: usize = 4096;
/// Bytes before the data: Ethernet, AoE and ATA headers.
const DATA_OFFSET: usize = 36;

/// A number of equal frame buffers.
#[derive(Debug)]
pub struct Slots {
    bytes: Vec<u8>,
    /// Where slot 0 begins in `bytes`.
    first: usize,
    stride: usize,
    capacity: usize,
    count: usize,
}

impl Slots {
    /// `count` buffers for frames of up to `capacity` bytes, zeroed.
    pub fn new(count: usize, capacity: usize) -> Slots {
        // The header of a slot lies at the end of the page before its data, which the slot before it leaves free.
        let stride = capacity.next_multiple_of(ALIGN);
        let bytes = vec![0u8; count * stride + 2 * ALIGN];
        let first = bytes.as_ptr().align_offset(ALIGN) + ALIGN - DATA_OFFSET;
        assert!(first + count * stride <= bytes.len(), "alignment of a byte pointer is always possible");
        Slots { bytes, first, stride, capacity, count }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of each.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Slot `index`.
    pub fn slot(&self, index: usize) -> &[u8] {
        let start = self.start(index);
        &self.bytes[start..start + self.capacity]
    }

    /// Slot `index`, to be filled.
    pub fn slot_mut(&mut self, index: usize) -> &mut [u8] {
        let start = self.start(index);
        &mut self.bytes[start..start + self.capacity]
    }

    fn start(&self, index: usize) -> usize {
        assert!(index < self.count, "slot {index} of {}", self.count);
        self.first + index * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_aligned_and_slots_do_not_overlap() {
        for capacity in [60, 1518, 4096, 4132, 4133, 9018, 65_553] {
            let mut slots = Slots::new(5, capacity);
            assert_eq!((slots.count(), slots.capacity()), (5, capacity));
            for index in 0..5 {
                slots.slot_mut(index).fill(index as u8 + 1);
                assert_eq!((slots.slot(index).as_ptr() as usize + DATA_OFFSET) % ALIGN, 0);
            }
            for index in 0..5 {
                assert!(slots.slot(index).iter().all(|&b| b == index as u8 + 1), "capacity {capacity}");
            }
        }
    }
}
