//! What a shelf counts. Plain numbers, read by the shell; they only grow.

/// Counted per device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceCounters {
    /// Read commands executed.
    pub reads: u64,
    /// Sectors read by them.
    pub read_sectors: u64,
    /// Write commands executed, FUA writes included.
    pub writes: u64,
    /// Sectors written by them.
    pub write_sectors: u64,
    /// Flushes executed.
    pub flushes: u64,
    /// TRIM commands executed.
    pub trims: u64,
    /// Other ATA commands.
    pub others: u64,
    /// Config, mask and reserve messages answered.
    pub controls: u64,
    /// ATA commands answered with an error status.
    pub ata_errors: u64,
    /// Messages answered with an AoE error other than "reserved".
    pub protocol_errors: u64,
    /// Messages answered with "reserved".
    pub reserved: u64,
    /// Repeated requests answered from memory.
    pub duplicates: u64,
    /// Frames dropped because their sender is not on the mask list.
    pub masked: u64,
}

/// Counted per shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ShelfCounters {
    /// Frames handed in.
    pub frames: u64,
    /// Frames that are no AoE request to us: too short, another protocol, replies, to or from impossible addresses.
    pub ignored: u64,
    /// Requests to a device that is not here.
    pub no_device: u64,
    /// Requests with a wildcard address and a command that may not have one.
    pub wildcards_refused: u64,
    /// Requests dropped because the duplicate cache was full; their senders repeat them.
    pub cache_full: u64,
    /// Requests dropped because it was too early to change anything; their senders repeat them.
    pub too_early: u64,
    /// Beacons made.
    pub beacons: u64,
}
