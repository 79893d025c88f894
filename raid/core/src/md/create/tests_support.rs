//! A superblock for the tests of other modules.

use super::*;

/// The first superblock of a new, dirty array of `members` members of 6 MiB.
pub(crate) fn superblock(members: u8) -> Superblock {
    superblocks(members).swap_remove(0)
}

/// The superblocks of a new, dirty array of `members` members of 6 MiB.
pub(crate) fn superblocks(members: u8) -> Vec<Superblock> {
    let array = NewArray {
        name: "vec",
        homehost: Some("none"),
        minor: Minor::V2,
        level: 5,
        layout: Layout::LeftSymmetric,
        chunk: Sectors(128),
        members: MemberCount(members),
        size: None,
        assume_clean: false,
        set_uuid: Uuid([7; 16]),
        now: 1_796_038_498,
    };
    let device = |i| NewDevice { size: Sectors(12288), uuid: Uuid([i; 16]) };
    create(&array, &(0..members).map(device).collect::<Vec<_>>()).expect("a valid array").superblocks
}
