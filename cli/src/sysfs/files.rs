//! The tree as the kernel asks for it: names, attributes, contents. [`super::kernel`] translates.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, PollNotifier};
use raid_core::units::MemberIndex;
use raid_engine::array::{CommandError, CommandErrorKind, Detail, DeviceRow};
use raid_engine::runtime::watch::Changes;
use raid_engine::tunables::table;

use super::content::{self, ARRAY, DEVICE, tunable};
use super::handles::{Counter, Handles};
use super::nodes::{DeviceId, Node};
use crate::run::served::Served;

/// Longest content, and longest that can be written: a page, as in sysfs. `mdstat` alone may be longer.
const PAGE: usize = 4096;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Files {
    name: String,
    served: OnceLock<Arc<Served>>,
    /// Names of members, by [`DeviceId`]. One that has left keeps its number.
    members: Mutex<Vec<String>>,
    handles: Handles,
    since: SystemTime,
    user: u32,
    group: u32,
}

impl Files {
    pub(super) fn new(name: &str) -> Files {
        Files {
            name: name.to_owned(),
            served: OnceLock::new(),
            members: Mutex::default(),
            handles: Handles::default(),
            since: SystemTime::now(),
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        }
    }

    pub(super) fn serve(&self, served: Arc<Served>) {
        assert!(self.served.set(served).is_ok(), "a tree serves one array");
    }

    /// Tells those who wait in poll(2) for what has changed.
    pub(super) fn wake(&self, changes: &Changes) {
        for notifier in self.handles.changed(changes) {
            if let Err(error) = notifier.notify() {
                // It was closed meanwhile, or the tree unmounted.
                tracing::debug!(%error, "waking a poller");
            }
        }
    }

    /// What is there under this name.
    pub(super) fn lookup(&self, parent: Node, name: &str) -> Result<Node, Errno> {
        let found = |list: Vec<(String, Node)>| list.into_iter().find(|(of, _)| of == name).map(|(_, node)| node);
        if let Some(node) = found(self.fixed(parent)) {
            return Ok(node);
        }
        let changing = if name.starts_with("dev-") || name.starts_with("rd") { self.changing(parent)? } else { vec![] };
        found(changing).ok_or(Errno::ENOENT)
    }

    /// All that is in a directory.
    pub(super) fn list(&self, directory: Node) -> Result<Vec<(String, Node)>, Errno> {
        if directory.kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let mut all = self.fixed(directory);
        all.extend(self.changing(directory)?);
        Ok(all)
    }

    /// What is in a directory as long as the array runs.
    fn fixed(&self, directory: Node) -> Vec<(String, Node)> {
        let named = |name: &str, node| (name.to_owned(), node);
        match directory {
            Node::Root => vec![named("block", Node::Block), named("proc", Node::Proc)],
            Node::Block if self.served.get().is_some() => vec![named(&self.name, Node::Array)],
            Node::Array => vec![named("md", Node::Md), named("size", Node::Size)],
            Node::Proc => vec![named("mdstat", Node::Mdstat)],
            Node::Md => {
                let attributes = ARRAY.iter().enumerate().map(|(row, file)| named(file.name, Node::Attribute(row)));
                let tunables = table().enumerate().map(|(row, file)| named(file.name, Node::Tunable(row)));
                attributes.chain(tunables).collect()
            }
            Node::Device(id) => {
                let file =
                    |(row, file): (usize, &content::DeviceAttribute)| named(file.name, Node::DeviceFile(id, row));
                DEVICE.iter().enumerate().map(file).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What comes and goes with members.
    fn changing(&self, directory: Node) -> Result<Vec<(String, Node)>, Errno> {
        if directory != Node::Md {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for row in self.detail()?.devices {
            let Some(member) = row.device else { continue };
            all.push((content::device_dir(&member), Node::Device(self.id_of(&member))));
            if let Some(MemberIndex(slot)) = row.raid_device {
                all.push((format!("rd{slot}"), Node::Slot(slot)));
            }
        }
        Ok(all)
    }

    /// Attributes of what is there.
    pub(super) fn attributes(&self, node: Node) -> Result<FileAttr, Errno> {
        match node {
            Node::Device(id) | Node::DeviceFile(id, _) => drop(self.device(id)?),
            Node::Slot(slot) => drop(self.link(slot)?),
            _ => {}
        }
        let kind = node.kind();
        let (perm, nlink) = match kind {
            FileType::Directory => (0o555, 2),
            FileType::Symlink => (0o777, 1),
            _ if node.is_writable() => (0o644, 1),
            _ => (0o444, 1),
        };
        let size = if kind == FileType::RegularFile { PAGE as u64 } else { 0 };
        let time = self.since;
        Ok(FileAttr {
            ino: node.inode(),
            size,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink,
            uid: self.user,
            gid: self.group,
            rdev: 0,
            blksize: PAGE as u32,
            flags: 0,
        })
    }

    /// Where the link of a slot leads.
    pub(super) fn link(&self, slot: u8) -> Result<String, Errno> {
        let mut devices = self.detail()?.devices.into_iter();
        let row = devices.find(|row| row.raid_device == Some(MemberIndex(slot)));
        Ok(content::device_dir(&row.and_then(|row| row.device).ok_or(Errno::ENOENT)?))
    }

    /// Opens a file for user `user`; answers with its handle.
    pub(super) fn open(&self, node: Node, writes: bool, user: u32) -> Result<u64, Errno> {
        if node.kind() != FileType::RegularFile {
            return Err(Errno::EISDIR);
        }
        // Root may write to any file as far as modes go, but there is nothing that these could take.
        if writes && !node.is_writable() {
            return Err(Errno::EACCES);
        }
        self.handles.open(user != self.user && user != 0).ok_or(Errno::ENFILE)
    }

    pub(super) fn close(&self, handle: u64) {
        self.handles.close(handle);
    }

    /// Up to `size` bytes. At the beginning of a file its content is made anew.
    pub(super) fn read(&self, node: Node, handle: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        if offset > 0
            && let Some(bytes) = self.handles.slice(handle, offset, size)
        {
            return Ok(bytes);
        }
        // Counted first: what changes from now on may not be in the content.
        let seen = self.counter(node).map(|counter| self.count(counter));
        let mut content = self.content(node)?.into_bytes();
        if node != Node::Mdstat {
            content.truncate(PAGE);
        }
        self.handles.fill(handle, content, seen);
        self.handles.slice(handle, offset, size).ok_or(Errno::EBADF)
    }

    /// Carries out what was written, whatever the offset.
    pub(super) fn write(&self, node: Node, data: &[u8]) -> Result<(), Errno> {
        let word = if data.len() > PAGE { None } else { content::word(data) };
        let word = word.ok_or(Errno::EINVAL)?;
        let served = self.served.get().ok_or(Errno::EAGAIN)?;
        let done = match node {
            Node::Tunable(row) => content::store_tunable(served, &tunable(row).ok_or(Errno::EACCES)?, word),
            Node::Attribute(row) => ARRAY[row].store.ok_or(Errno::EACCES)?(served, word),
            Node::DeviceFile(id, row) => {
                let member = self.device(id)?.1.device.ok_or(Errno::ENODEV)?;
                DEVICE[row].store.ok_or(Errno::EACCES)?(served, &member, word)
            }
            _ => return Err(Errno::EACCES),
        };
        done.map_err(|error| {
            // The writer gets a number; here is why.
            tracing::info!("refused: {error}");
            errno(&error)
        })
    }

    /// Whether what is in a file has changed since it was read; always `false` for those that are not watched.
    pub(super) fn poll(&self, node: Node, handle: u64, notifier: Option<PollNotifier>) -> bool {
        let Some(counter) = self.counter(node) else { return false };
        self.handles.poll(handle, counter, notifier, || self.count(counter))
    }

    fn counter(&self, node: Node) -> Option<Counter> {
        match node {
            Node::Attribute(row) => ARRAY[row].count,
            Node::Mdstat => Some(|changes| changes.array_state + changes.degraded + changes.sync_action),
            _ => None,
        }
    }

    fn count(&self, counter: Counter) -> u64 {
        self.served.get().map_or(0, |served| counter(&served.running().watch().changes()))
    }

    fn content(&self, node: Node) -> Result<String, Errno> {
        Ok(match node {
            Node::Mdstat => content::mdstat(&self.name, self.detail().ok()),
            Node::Size => format!("{}\n", self.detail()?.array_size.0),
            Node::Attribute(row) => {
                let served = self.served.get().ok_or(Errno::EAGAIN)?;
                ARRAY[row].text(&self.detail()?, &served.running().totals())
            }
            Node::Tunable(row) => {
                let served = self.served.get().ok_or(Errno::EAGAIN)?;
                let row = served.tunables().into_iter().nth(row).ok_or(Errno::ENOENT)?;
                content::tunable_text(&row.name, &row.value, &row.default)
            }
            Node::DeviceFile(id, row) => DEVICE[row].text(&self.device(id)?.1),
            _ => return Err(Errno::EISDIR),
        })
    }

    fn detail(&self) -> Result<Detail, Errno> {
        let served = self.served.get().ok_or(Errno::EAGAIN)?;
        served.running().detail().map_err(|error| errno(&error))
    }

    /// The number of a member.
    fn id_of(&self, member: &str) -> DeviceId {
        let mut members = self.members.lock().expect("no panic while held");
        let known = members.iter().position(|known| known == member);
        DeviceId(known.unwrap_or_else(|| {
            members.push(member.to_owned());
            members.len() - 1
        }))
    }

    /// A member that the array still has.
    fn device(&self, id: DeviceId) -> Result<(Detail, DeviceRow), Errno> {
        let member = self.members.lock().expect("no panic while held").get(id.0).cloned().ok_or(Errno::ENOENT)?;
        let detail = self.detail()?;
        let row = detail.devices.iter().find(|row| row.device.as_deref() == Some(&member)).cloned();
        Ok((detail, row.ok_or(Errno::ENODEV)?))
    }
}

fn errno(error: &CommandError) -> Errno {
    match error.kind {
        CommandErrorKind::Busy => Errno::EBUSY,
        CommandErrorKind::NoDevice => Errno::ENODEV,
        CommandErrorKind::Invalid => Errno::EINVAL,
        CommandErrorKind::TooSmall => Errno::ENOSPC,
        CommandErrorKind::Io => Errno::EIO,
        CommandErrorKind::ReadOnly => Errno::EROFS,
        CommandErrorKind::Stopping => Errno::from_i32(libc::ESHUTDOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_array_is_there_the_tree_has_none() {
        let files = Files::new("r5");
        let names = |node| files.list(node).expect("a directory").into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(Node::Root), ["block", "proc"]);
        assert!(names(Node::Block).is_empty());
        assert_eq!(files.lookup(Node::Block, "r5"), Err(Errno::ENOENT));
        assert_eq!(files.lookup(Node::Proc, "mdstat"), Ok(Node::Mdstat));
        assert_eq!(files.list(Node::Mdstat), Err(Errno::ENOTDIR));
        let handle = files.open(Node::Mdstat, false, 0).expect("room");
        let text = files.read(Node::Mdstat, handle, 0, PAGE).expect("readable");
        assert_eq!(String::from_utf8_lossy(&text), content::mdstat("r5", None));
        assert!(!files.poll(Node::Mdstat, handle, None));
        let attribute = files.lookup(Node::Md, "sync_action").expect("there");
        assert_eq!(files.read(attribute, handle, 0, PAGE), Err(Errno::EAGAIN));
        assert_eq!(files.write(attribute, b"check\n"), Err(Errno::EAGAIN));
    }

    #[test]
    fn modes_say_what_can_be_written() {
        let files = Files::new("r5");
        let find = |name| files.lookup(Node::Md, name).expect(name);
        for (name, writable) in
            [("array_state", true), ("degraded", false), ("sync_action", true), ("stripe_cache_size", true)]
        {
            let mode = files.attributes(find(name)).expect("there").perm;
            assert_eq!(mode, if writable { 0o644 } else { 0o444 }, "{name}");
            assert_eq!(files.open(find(name), true, 0).is_ok(), writable, "{name}: root, too");
        }
        assert_eq!(files.open(Node::Md, false, 0), Err(Errno::EISDIR));
    }

    #[test]
    fn one_word_of_a_page_is_taken() {
        let files = Files::new("r5");
        let cache = files.lookup(Node::Md, "stripe_cache_size").expect("there");
        for bad in [&b"\n"[..], b"1 2\n", &[b'1'; PAGE + 1]] {
            assert_eq!(files.write(cache, bad), Err(Errno::EINVAL));
        }
    }
}
