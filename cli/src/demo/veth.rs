//! A network namespace of this process alone, with a cable in it: two interfaces that see each other's frames.
//!
//! The namespace goes away with the process, however that ends, and the interfaces with it. Made with plain netlink messages, so no tool is
//! needed. Used by the demo before it starts any thread, because only the calling thread and those that it starts are moved.

use anyhow::{Context, bail};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use rustix::thread::UnshareFlags;

/// The two ends.
pub(super) const ENDS: [&str; 2] = ["er-host", "er-shelves"];

const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CREATE_NEW: u16 = 0x600;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;

/// Bytes of a message's header, and of the part of it that describes an interface.
const HEADER: usize = 16;

/// Moves this process to a namespace of its own and lays the cable.
pub(super) fn make(mtu: u32) -> anyhow::Result<()> {
    #[expect(
        deprecated,
        reason = "what makes it unsafe is a flag that is not used here; this flag moves no descriptor"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNET).context("a network namespace of its own")?;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let ask = |message: Vec<u8>| -> anyhow::Result<()> {
        send(&socket, &message, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (_, len) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        check(&answer[..len.min(answer.len())])
    };
    ask(create(mtu)).context("a pair of veth interfaces")?;
    for end in ENDS {
        ask(set_up(end)).with_context(|| format!("setting {end} up"))?;
    }
    Ok(())
}

fn create(mtu: u32) -> Vec<u8> {
    let mut message = Message::new(NLM_F_CREATE_NEW, 0);
    message.end(ENDS[0], mtu);
    message.nest(IFLA_LINKINFO, |message| {
        message.attribute(IFLA_INFO_KIND, b"veth");
        message.nest(IFLA_INFO_DATA, |message| {
            message.nest(VETH_INFO_PEER, |message| {
                message.interface(0);
                message.end(ENDS[1], mtu);
            });
        });
    });
    message.finish()
}

fn set_up(name: &str) -> Vec<u8> {
    let mut message = Message::new(0, IFF_UP);
    message.attribute(IFLA_IFNAME, name.as_bytes());
    message.finish()
}

/// The kernel's verdict.
fn check(answer: &[u8]) -> anyhow::Result<()> {
    let kind = answer.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let code = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(std::io::Error::from_raw_os_error(-code).into()),
        _ => bail!("an answer of {} bytes that makes no sense", answer.len()),
    }
}

/// A netlink message about an interface.
struct Message(Vec<u8>);

impl Message {
    fn new(flags: u16, up: u32) -> Message {
        let mut message = Message(vec![0; HEADER]);
        message.0[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        message.0[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        message.interface(up);
        message
    }

    /// `struct ifinfomsg`: of any family and kind, with these flags set.
    fn interface(&mut self, flags: u32) {
        self.0.extend([0; 8]);
        self.0.extend(flags.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
    }

    /// Name and MTU of one end.
    fn end(&mut self, name: &str, mtu: u32) {
        self.attribute(IFLA_IFNAME, name.as_bytes());
        self.attribute(IFLA_MTU, &mtu.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |message| message.0.extend(value));
    }

    fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Message)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        inner(self);
        let len = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_kernels_shape() {
        let message = set_up("ab");
        assert_eq!(message.len(), 16 + 16 + 8);
        assert_eq!(message[..4], 40_u32.to_ne_bytes());
        assert_eq!(message[24..32], [IFF_UP.to_ne_bytes(), IFF_UP.to_ne_bytes()].concat());
        assert_eq!(message[32..], [&6_u16.to_ne_bytes()[..], &3_u16.to_ne_bytes(), b"ab\0\0"].concat());
        let message = create(9000);
        assert_eq!(message.len() % 4, 0);
        let len = u32::from_ne_bytes(message[..4].try_into().expect("four bytes"));
        assert_eq!(len as usize, message.len());
    }

    #[test]
    fn the_kernels_verdict_is_read() {
        let mut answer = vec![0; 36];
        answer[4] = 2;
        assert!(check(&answer).is_ok());
        answer[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert!(check(&answer).expect_err("EPERM").to_string().contains("permitted"));
        assert!(check(&[]).is_err());
        assert!(check(&[0; 36]).is_err());
    }
}
