//! What is in the tree, and its inode numbers: fixed for all but members, which get theirs by name when they are first seen.

use fuser::{FileType, INodeNo};

use super::content::{ARRAY, DEVICE, tunable};

const TUNABLES: u64 = 0x1000;
const ATTRIBUTES: u64 = 0x2000;
const SLOTS: u64 = 0x3000;
const DEVICES: u64 = 0x1_0000;
/// Numbers for each member: its directory's and those of the files in it.
const PER_DEVICE: u64 = 0x10;
const _: () = assert!(DEVICE.len() < PER_DEVICE as usize, "each file of a member has a number of its own");

/// A member, by the order in which names were first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceId(pub(super) usize);

/// A directory, file or link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// DIR.
    Root,
    /// `block`.
    Block,
    /// `block/NAME`.
    Array,
    /// `block/NAME/size`.
    Size,
    /// `block/NAME/md`.
    Md,
    /// A row of the table of tunables.
    Tunable(usize),
    /// A row of [`ARRAY`].
    Attribute(usize),
    /// `rdN`.
    Slot(u8),
    /// `dev-*`.
    Device(DeviceId),
    /// A row of [`DEVICE`] in it.
    DeviceFile(DeviceId, usize),
    /// `proc`.
    Proc,
    /// `proc/mdstat`.
    Mdstat,
}

/// Those with fixed numbers, which begin at 1, the root's.
const FIXED: [Node; 7] = [Node::Root, Node::Block, Node::Array, Node::Size, Node::Md, Node::Proc, Node::Mdstat];

impl Node {
    pub(super) fn inode(self) -> INodeNo {
        let place = |node| FIXED.iter().position(|fixed| *fixed == node).expect("all others are below") as u64;
        INodeNo(match self {
            Node::Tunable(row) => TUNABLES + row as u64,
            Node::Attribute(row) => ATTRIBUTES + row as u64,
            Node::Slot(slot) => SLOTS + u64::from(slot),
            Node::Device(DeviceId(id)) => DEVICES + id as u64 * PER_DEVICE,
            Node::DeviceFile(DeviceId(id), row) => DEVICES + id as u64 * PER_DEVICE + 1 + row as u64,
            fixed => INodeNo::ROOT.0 + place(fixed),
        })
    }

    /// What has this number; it may be gone.
    pub(super) fn of(inode: INodeNo) -> Option<Node> {
        let row = |base: u64| (inode.0 - base) as usize;
        match inode.0 {
            DEVICES.. => {
                let id = DeviceId(row(DEVICES) / PER_DEVICE as usize);
                match row(DEVICES) % PER_DEVICE as usize {
                    0 => Some(Node::Device(id)),
                    file => DEVICE.get(file - 1).map(|_| Node::DeviceFile(id, file - 1)),
                }
            }
            SLOTS.. => u8::try_from(row(SLOTS)).ok().map(Node::Slot),
            ATTRIBUTES.. => ARRAY.get(row(ATTRIBUTES)).map(|_| Node::Attribute(row(ATTRIBUTES))),
            TUNABLES.. => tunable(row(TUNABLES)).map(|_| Node::Tunable(row(TUNABLES))),
            _ => FIXED.get(usize::try_from(inode.0.checked_sub(INodeNo::ROOT.0)?).ok()?).copied(),
        }
    }

    pub(super) fn kind(self) -> FileType {
        match self {
            Node::Root | Node::Block | Node::Array | Node::Md | Node::Device(_) | Node::Proc => FileType::Directory,
            Node::Slot(_) => FileType::Symlink,
            _ => FileType::RegularFile,
        }
    }

    pub(super) fn is_writable(self) -> bool {
        match self {
            Node::Tunable(_) => true,
            Node::Attribute(row) => ARRAY[row].store.is_some(),
            Node::DeviceFile(_, row) => DEVICE[row].store.is_some(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back() {
        let tunables = (0..).take_while(|row| tunable(*row).is_some()).map(Node::Tunable);
        let attributes = (0..ARRAY.len()).map(Node::Attribute);
        let slots = [0, 255].map(Node::Slot);
        let devices = [0, 1, 70].map(DeviceId);
        let files = devices.iter().flat_map(|id| (0..DEVICE.len()).map(|row| Node::DeviceFile(*id, row)));
        let all = FIXED.into_iter().chain(tunables).chain(attributes).chain(slots);
        let all: Vec<Node> = all.chain(devices.map(Node::Device)).chain(files).collect();
        for node in &all {
            assert_eq!(Node::of(node.inode()), Some(*node));
        }
        let mut numbers: Vec<u64> = all.iter().map(|node| node.inode().0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all.len(), "each has a number of its own");
        assert_eq!(Node::Root.inode(), INodeNo::ROOT);
        let unused = [0, 99, TUNABLES + 999, ATTRIBUTES + 999, SLOTS + 256, DEVICES + PER_DEVICE - 1];
        assert!(unused.iter().all(|number| Node::of(INodeNo(*number)).is_none()));
    }
}
