//! The system calls of a packet socket, each behind a safe function. The crate's unsafe code is here and in [`super::ring`].
//!
//! Called by [`super::PacketLink`] and its ring. Nothing here keeps state besides the scratch arrays of [`SendBatch`] and [`ReceiveBatch`], whose
//! pointers are written anew for each call and not used after it.

use super::filter::Instruction;
use crate::link::{BATCH, FrameRef, Slots};
use std::ffi::CStr;
use std::io::{self, Error};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// What frames are padded with.
static ZEROS: [u8; 65_536] = [0; 65_536];

/// What the kernel tells about an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: i32,
    /// Administratively up.
    pub(super) up: bool,
    /// Up and with carrier. The kernel may notice a carrier only after a second.
    pub(super) running: bool,
    pub(super) mtu: u32,
    pub(super) mac: [u8; 6],
    /// Of Ethernet's kind, rather than a loop or a tunnel.
    pub(super) ethernet: bool,
}

/// A packet socket that receives nothing yet.
pub(super) fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor was made just now and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option whose value is a plain C value.
pub(super) fn set_option<T>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length are those of `value`, which outlives the call.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) };
    if rc < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option into `value`.
///
/// # Safety
/// Any bytes are a valid `T`.
unsafe fn option<T>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &mut T) -> io::Result<()> {
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: both pointers are to what outlives the call, and `len` is the size of `value`.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut *value).cast(), &raw mut len) };
    if rc < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// An option of sockets in general that is a number.
fn int_option(fd: BorrowedFd<'_>, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    // SAFETY: any bytes are a number.
    unsafe { option(fd, libc::SOL_SOCKET, name, &mut value)? };
    Ok(value)
}

/// Attaches a filter; frames that arrive from now on pass it.
pub(super) fn attach_filter(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| Error::from(io::ErrorKind::InvalidInput))?;
    // The kernel copies the program and does not write to it.
    let fprog = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &fprog)
}

/// Keeps frames that this host sends on the interface out of the receive queue.
pub(super) fn ignore_outgoing(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)
}

/// Makes sending skip the interface's queueing discipline.
pub(super) fn bypass_qdisc(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
}

/// Makes the kernel note when each frame arrived, for [`ReceiveBatch::receive`] to tell. It begins a moment later; frames until then count as
/// arrived when they are received.
pub(super) fn stamp_arrivals(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)
}

/// A direction's socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffer {
    Receive,
    Send,
}

/// Asks for a socket buffer of `bytes` (the kernel grants up to double), beyond the system's limit where allowed. Returns what it is.
pub(super) fn set_buffer(fd: BorrowedFd<'_>, which: Buffer, bytes: usize) -> io::Result<usize> {
    let (force, plain) = match which {
        Buffer::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        Buffer::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    };
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    if set_option(fd, libc::SOL_SOCKET, force, &wanted).is_err() {
        set_option(fd, libc::SOL_SOCKET, plain, &wanted)?;
    }
    let granted = int_option(fd, plain)?;
    Ok(usize::try_from(granted).unwrap_or(0))
}

/// Receives `ethertype` on the interface `index` from now on.
pub(super) fn bind(fd: BorrowedFd<'_>, index: i32, ethertype: u16) -> io::Result<()> {
    // SAFETY: all zeros is a valid value of this plain C structure.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = index;
    let len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: pointer and length are those of `address`, which outlives the call.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    if rc < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Looks up an interface by its name, in the network namespace that `fd` was made in.
pub(super) fn interface(fd: BorrowedFd<'_>, name: &str) -> io::Result<Interface> {
    let mut request = interface_request(name)?;
    let mut ask = |what: libc::c_ulong| {
        // SAFETY: these requests read the name and write the union of a valid `ifreq`.
        let rc = unsafe { libc::ioctl(fd.as_raw_fd(), what as _, &raw mut request) };
        if rc < 0 { Err(Error::last_os_error()) } else { Ok(request.ifr_ifru) }
    };
    // SAFETY: each request fills the member of the union that is read after it.
    unsafe {
        let index = ask(libc::SIOCGIFINDEX)?.ifru_ifindex;
        let flags = i32::from(ask(libc::SIOCGIFFLAGS)?.ifru_flags);
        let mtu = ask(libc::SIOCGIFMTU)?.ifru_mtu;
        let libc::sockaddr { sa_family, sa_data: hardware } = ask(libc::SIOCGIFHWADDR)?.ifru_hwaddr;
        let mut mac = [0u8; 6];
        for (to, from) in mac.iter_mut().zip(hardware) {
            *to = from as u8;
        }
        let both = libc::IFF_UP | libc::IFF_RUNNING;
        Ok(Interface {
            index,
            up: flags & libc::IFF_UP != 0,
            running: flags & both == both,
            mtu: u32::try_from(mtu).unwrap_or(0),
            mac,
            ethernet: sa_family == libc::ARPHRD_ETHER,
        })
    }
}

/// Names of the interfaces that exist.
pub(super) fn interface_names() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: the array ends with an entry whose index is 0; each name before is a C string; it is freed once, after use.
    unsafe {
        let first = libc::if_nameindex();
        if first.is_null() {
            return names;
        }
        let mut entry = first;
        while (*entry).if_index != 0 {
            names.push(CStr::from_ptr((*entry).if_name).to_string_lossy().into_owned());
            entry = entry.add(1);
        }
        libc::if_freenameindex(first);
    }
    names
}

/// Frames dropped for want of room in the receive queue since this was last asked.
pub(super) fn take_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all zeros is a valid value of this plain C structure.
    let mut statistics: libc::tpacket_stats = unsafe { mem::zeroed() };
    // SAFETY: a plain C structure of numbers.
    unsafe { option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut statistics)? };
    Ok(u64::from(statistics.tp_drops))
}

/// The error that waits at the socket, if there is one, which is taken away: the interface went down.
pub(super) fn take_error(fd: BorrowedFd<'_>) -> io::Result<Option<Error>> {
    let error = int_option(fd, libc::SO_ERROR)?;
    Ok((error != 0).then(|| Error::from_raw_os_error(error)))
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) bytes: &'a [u8],
    /// The frame was longer than its place.
    pub(super) truncated: bool,
    /// When it arrived, by the system's clock, since 1970; of a queue only if [`stamp_arrivals`] was called.
    pub(super) arrived: Option<Duration>,
}

/// Room for one control message with a time, aligned as control messages must be.
type Control = [u64; 8];

/// Empty message headers.
fn messages() -> Vec<libc::mmsghdr> {
    // SAFETY: all zeros is a valid value of this plain C structure.
    let message: libc::mmsghdr = unsafe { mem::zeroed() };
    vec![message; BATCH]
}

/// Scratch arrays for sending in batches.
pub(super) struct SendBatch {
    messages: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    /// Pieces of each frame.
    counts: [usize; BATCH],
}

// SAFETY: the pointers in the arrays are written and used within one call of `send`; between calls nothing reads them.
unsafe impl Send for SendBatch {}

impl SendBatch {
    pub(super) fn new() -> SendBatch {
        SendBatch { messages: messages(), pieces: Vec::with_capacity(8 * BATCH), counts: [0; BATCH] }
    }

    /// Sends up to [`BATCH`] frames; the number that the kernel took, or the error of the first.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>, frames: &[FrameRef<'_>]) -> io::Result<usize> {
        let frames = &frames[..frames.len().min(BATCH)];
        self.pieces.clear();
        for (frame, count) in frames.iter().zip(&mut self.counts) {
            let before = self.pieces.len();
            assert!(frame.pad <= ZEROS.len(), "no frame is that long");
            let pad = &ZEROS[..frame.pad];
            let all = [frame.head].into_iter().chain(frame.data.iter().map(|piece| &piece[..])).chain([pad]);
            for piece in all.filter(|piece| !piece.is_empty()) {
                self.pieces.push(libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
            }
            *count = self.pieces.len() - before;
        }
        let mut at = 0;
        for (message, &count) in self.messages.iter_mut().zip(&self.counts[..frames.len()]) {
            message.msg_hdr.msg_iov = self.pieces[at..at + count].as_mut_ptr();
            message.msg_hdr.msg_iovlen = count as _;
            at += count;
        }
        let count = frames.len() as libc::c_uint;
        // SAFETY: the first `count` headers point at iovecs in `self.pieces`, those at bytes that `frames` borrows; the kernel reads
        // them during the call and writes nothing but `msg_len`.
        let rc = unsafe { libc::sendmmsg(fd.as_raw_fd(), self.messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
        if rc < 0 { Err(Error::last_os_error()) } else { Ok(rc as usize) }
    }
}

/// Slots and scratch arrays for receiving in batches.
pub(super) struct ReceiveBatch {
    slots: Slots,
    messages: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    controls: Vec<Control>,
}

// SAFETY: the pointers in the arrays lead to what the same value owns on the heap, and are written anew by each call of `receive`.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    /// Slots for frames of up to `longest` bytes.
    pub(super) fn new(longest: usize) -> ReceiveBatch {
        let slots = Slots::new(BATCH, longest);
        ReceiveBatch { slots, messages: messages(), pieces: Vec::with_capacity(BATCH), controls: vec![[0; 8]; BATCH] }
    }

    /// Receives up to [`BATCH`] frames into the slots; how many. `stamped` asks for the times of arrival.
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>, stamped: bool) -> io::Result<usize> {
        self.pieces.clear();
        for index in 0..BATCH {
            let slot = self.slots.slot_mut(index);
            self.pieces.push(libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() });
        }
        for ((message, piece), control) in self.messages.iter_mut().zip(&mut self.pieces).zip(&mut self.controls) {
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = control.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = if stamped { mem::size_of::<Control>() } else { 0 } as _;
        }
        // SAFETY: each header points at one iovec in `self.pieces`, that at a slot of its own with its length, and at a control buffer
        // of its own; the kernel writes into these and the headers during the call, while all are borrowed mutably.
        let rc = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        if rc < 0 {
            return Err(Error::last_os_error());
        }
        Ok(rc as usize)
    }

    /// Frame `index` of those that were received last.
    pub(super) fn arrival(&self, index: usize) -> Arrival<'_> {
        let message = &self.messages[index];
        Arrival {
            bytes: &self.slots.slot(index)[..message.msg_len as usize],
            truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            arrived: arrival(&message.msg_hdr),
        }
    }
}

/// The time in a received message's first control message, if that is what it is.
fn arrival(message: &libc::msghdr) -> Option<Duration> {
    // SAFETY: the kernel has set the control length to that of the messages that it wrote to the buffer.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    if first.is_null() {
        return None;
    }
    // SAFETY: not null: a whole header is in the buffer, which is aligned for it.
    let header = unsafe { *first };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
        return None;
    }
    // SAFETY: a message of this type carries a timespec; it need not be aligned.
    let time = unsafe { ptr::read_unaligned(libc::CMSG_DATA(first).cast::<libc::timespec>()) };
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}
