//! The targets of the simulation: our shelf, and plain ones that execute each frame as it comes.
//!
//! Each serves one [`Disk`] and can be restarted over it. A plain target knows nothing of repeated requests; the one that is like vblade has no
//! flush either, and stores at once.

use std::time::Duration;

use aoe_proto::port::{PortId, PortInfo};
use aoe_proto::shelf::{BlockStore, DeviceConfig, DeviceState, Outcome, Shelf, ShelfConfig, StoreError};
use aoe_proto::wire::{
    Address, AtaError, AtaReply, AtaString, Body, CCmd, Command, ConfigInfo, Frame, Header, Identify, LbaBytes,
    MacAddr, Opcode, SECTOR, Status, Tag, pad,
};

use super::disk::Disk;

/// What kind of target a member is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours: recognises repeated requests, and tells when it was started.
    Ours,
    /// Executes everything, flushes included.
    Plain,
    /// As vblade: executes everything, has no flush.
    Vblade,
}

/// Answers that our shelf remembers: more than it gets in two frame lifetimes.
const DUPLICATE_ENTRIES: usize = 1 << 16;

/// Ethernet header.
const ETHERNET: usize = 14;

/// Headers before the data of an ATA frame.
const DATA_AT: usize = 36;

/// See the module's text.
pub struct Target {
    kind: Kind,
    address: Address,
    disk: Disk,
    info: PortInfo,
    buffers: u16,
    shelf: Option<Box<Shelf<Disk>>>,
    reply: Vec<u8>,
}

impl Target {
    /// A target that has not been started.
    pub fn new(kind: Kind, address: Address, disk: Disk, info: PortInfo, buffers: u16) -> Target {
        let reply = vec![0; info.mtu as usize + ETHERNET];
        Target { kind, address, disk, info, buffers, shelf: None, reply }
    }

    /// What kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Starts it, or starts it anew: `boot` differs each time. Ours executes no write before `changes_from`, as it does not
    /// know which requests its predecessor answered. Hands its beacons to `send`.
    pub fn start(&mut self, boot: u32, lifetime: Duration, changes_from: Duration, mut send: impl FnMut(&[u8])) {
        if self.kind != Kind::Ours {
            let (to, from) = (MacAddr::BROADCAST, self.info.mac);
            let header = Header::request(to, from, self.address, Command::CONFIG, Tag::UNSOLICITED);
            let len = self.config().emit(&Header { response: true, ..header }, &mut self.reply);
            let len = pad(&mut self.reply, len);
            return send(&self.reply[..len]);
        }
        let config = ShelfConfig {
            frame_lifetime: lifetime,
            duplicate_entries: DUPLICATE_ENTRIES,
            changes_from,
            ..ShelfConfig::new(boot)
        };
        let mut shelf = Shelf::new(config);
        shelf.set_port(PortId(0), Some(self.info)).expect("the MTU is large enough");
        let device = DeviceConfig::new(self.address, self.buffers, &self.serial());
        shelf.add_device(device, DeviceState::default(), self.disk.clone()).expect("the device is all right");
        shelf.beacon(PortId(0));
        let mut outcome = shelf.poll_reply(&mut self.reply);
        while let Some(one) = outcome {
            if let Outcome::Reply(len) = one {
                send(&self.reply[..len]);
            }
            outcome = shelf.poll_reply(&mut self.reply);
        }
        self.shelf = Some(Box::new(shelf));
    }

    /// Answers a frame: hands replies to `send`.
    pub fn handle(&mut self, now: Duration, frame: &[u8], mut send: impl FnMut(&[u8])) {
        let Some(shelf) = &mut self.shelf else {
            let len = self.plain(frame);
            if len > 0 {
                send(&self.reply[..len]);
            }
            return;
        };
        let mut outcome = Some(shelf.handle_frame(now, PortId(0), frame, &mut self.reply));
        let many = outcome == Some(Outcome::Many);
        while let Some(one) = outcome {
            if let Outcome::Reply(len) | Outcome::Save { len, .. } = one {
                send(&self.reply[..len]);
            }
            outcome = if many { shelf.poll_reply(&mut self.reply) } else { None };
        }
    }

    fn serial(&self) -> String {
        format!("sim-{}", self.address)
    }

    fn config(&self) -> ConfigInfo<'static> {
        ConfigInfo::reply(self.buffers, 0x4019, self.info.sectors_per_frame(), CCmd::READ, b"")
    }

    /// What a simple target does with a frame; length of its reply, 0 for none.
    fn plain(&mut self, frame: &[u8]) -> usize {
        let Ok(Frame { header, body }) = Frame::parse(frame) else { return 0 };
        let to_us = header.dst == self.info.mac || header.dst == MacAddr::BROADCAST;
        if header.response || !to_us || !header.address.covers(self.address) {
            return 0;
        }
        let answer = header.reply(self.info.mac, self.address, None);
        match body {
            Body::Config(_) => {
                let len = self.config().emit(&answer, &mut self.reply);
                pad(&mut self.reply, len)
            }
            Body::AtaRequest(request, data) => {
                let flags = request.flags;
                let (error, lba) = (AtaError(0), LbaBytes([0; 6]));
                let mut registers = AtaReply { flags, error, sectors: 0, status: Status::OK, lba };
                let given = match self.execute(request.opcode, request.lba(), usize::from(request.sectors), data) {
                    Ok(given) => given,
                    Err(StoreError::Medium) => {
                        (registers.status, registers.error) = (Status::FAILED, AtaError::UNC);
                        0
                    }
                    Err(_) => {
                        (registers.status, registers.error) = (Status::FAILED, AtaError::ABRT);
                        0
                    }
                };
                let len = registers.emit(&answer, &mut self.reply);
                pad(&mut self.reply, len + given)
            }
            _ => 0,
        }
    }

    /// Bytes of data in the reply.
    fn execute(
        &mut self,
        opcode: Opcode,
        lba: aoe_proto::wire::Lba,
        sectors: usize,
        data: &[u8],
    ) -> Result<usize, StoreError> {
        let len = sectors * SECTOR;
        match opcode {
            Opcode::READ_SECTORS_EXT => {
                self.disk.read(lba, &mut self.reply[DATA_AT..DATA_AT + len])?;
                Ok(len)
            }
            Opcode::WRITE_SECTORS_EXT if data.len() >= len => self.disk.write(lba, &data[..len], false).map(|()| 0),
            Opcode::FLUSH_CACHE_EXT if self.kind == Kind::Plain => self.disk.flush().map(|()| 0),
            Opcode::IDENTIFY => {
                let flush = self.kind == Kind::Plain;
                let model = AtaString::new(if flush { "plain" } else { "like vblade" });
                let serial = AtaString::new(&self.serial());
                let disk = Identify::disk(self.disk.sectors());
                let identify = Identify { model, serial, flush, flush_ext: flush, ..disk };
                identify.emit(self.reply[DATA_AT..].first_chunk_mut().expect("a frame holds a sector"));
                Ok(SECTOR)
            }
            _ => Err(StoreError::Io),
        }
    }
}
