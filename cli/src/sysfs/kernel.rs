//! What the kernel asks by FUSE, as questions to [`Files`].
//!
//! Nothing is cached there: names and attributes are asked for each time, and files are opened for direct I/O.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner, OpenAccMode,
    OpenFlags, PollEvents, PollFlags, PollNotifier, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyPoll, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::files::Files;
use super::nodes::Node;

/// Ask again each time.
const NEVER_KEPT: Duration = Duration::ZERO;

/// Longest piece of a write that the kernel hands over: more than a page, so that what is too long is seen to be.
const WRITE_MAX: u32 = 128 << 10;

/// What poll(2) says of any file in sysfs.
const READY: PollEvents =
    PollEvents::POLLIN.union(PollEvents::POLLRDNORM).union(PollEvents::POLLOUT).union(PollEvents::POLLWRNORM);

/// What it says besides when the value has changed.
const CHANGED: PollEvents = PollEvents::POLLPRI.union(PollEvents::POLLERR);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Kernel(pub(super) Arc<Files>);

fn node(inode: INodeNo) -> Result<Node, Errno> {
    Node::of(inode).ok_or(Errno::ENOENT)
}

impl Filesystem for Kernel {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Smaller buffers of the kernel; any size works.
        let _ = config.set_max_write(WRITE_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = node(parent).and_then(|parent| {
            let found = self.0.lookup(parent, name.to_str().ok_or(Errno::ENOENT)?)?;
            self.0.attributes(found)
        });
        match found {
            Ok(attributes) => reply.entry(&NEVER_KEPT, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match node(inode).and_then(|node| self.0.attributes(node)) {
            Ok(attributes) => reply.attr(&NEVER_KEPT, &attributes),
            Err(error) => reply.error(error),
        }
    }

    /// `echo` truncates first, and whoever may write may set times; neither means anything. All else stays as it is.
    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let done = node(inode).and_then(|node| {
            if mode.is_some() || uid.is_some() || gid.is_some() {
                return Err(Errno::EPERM);
            }
            if size.is_some() && !node.is_writable() {
                return Err(Errno::EACCES);
            }
            self.0.attributes(node)
        });
        match done {
            Ok(attributes) => reply.attr(&NEVER_KEPT, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        let found = match node(inode) {
            Ok(Node::Slot(slot)) => self.0.link(slot),
            Ok(_) => Err(Errno::EINVAL),
            Err(error) => Err(error),
        };
        match found {
            Ok(name) => reply.data(name.as_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = match node(inode).and_then(|node| self.0.list(node)) {
            Ok(list) => list,
            Err(error) => return reply.error(error),
        };
        let here = [".", ".."].map(|name| (name.to_owned(), node(inode).unwrap_or(Node::Root)));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, node)) in here.into_iter().chain(list).enumerate().skip(from) {
            if reply.add(node.inode(), at as u64 + 1, node.kind(), name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        match node(inode).and_then(|node| self.0.open(node, writes, request.uid())) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.close(handle.0);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match node(inode).and_then(|node| self.0.read(node, handle.0, offset, size as usize)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match node(inode).and_then(|node| self.0.write(node, data)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn poll(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
        _: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let wanted = flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY).then_some(notifier);
        match node(inode).map(|node| self.0.poll(node, handle.0, wanted)) {
            Ok(changed) => reply.poll(if changed { READY | CHANGED } else { READY }),
            Err(error) => reply.error(error),
        }
    }

    /// Nothing is to be done when a descriptor is closed; the kernel need not ask again.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// What was written is in force.
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EACCES);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EACCES);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }
}
