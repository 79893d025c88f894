//! The targets of the simulation: our shelf, and a plain one that executes each frame as it comes, as vblade does.

use aoe_proto::port::{PortId, PortInfo};
use aoe_proto::shelf::{BlockStore, DeviceConfig, DeviceState, Outcome, Shelf, ShelfConfig, StoreError};
use aoe_proto::wire::{
    Address, AtaReply, AtaString, Body, CCmd, ConfigInfo, Frame, Identify, Lba, LbaBytes, MacAddr, Opcode, SECTOR,
    Status, pad,
};
use core::time::Duration;

/// The device that all targets serve.
pub(crate) const DEVICE: Address = Address::new(7, 0);

/// A store in memory.
#[derive(Clone)]
pub(crate) struct Store(pub(crate) Vec<u8>);

impl Store {
    fn bytes(&mut self, lba: Lba, len: usize) -> &mut [u8] {
        &mut self.0[lba.0 as usize * SECTOR..][..len]
    }
}

impl BlockStore for Store {
    fn sectors(&self) -> u64 {
        (self.0.len() / SECTOR) as u64
    }
    fn read(&mut self, lba: Lba, buf: &mut [u8]) -> Result<(), StoreError> {
        buf.copy_from_slice(self.bytes(lba, buf.len()));
        Ok(())
    }
    fn write(&mut self, lba: Lba, data: &[u8], _fua: bool) -> Result<(), StoreError> {
        self.bytes(lba, data.len()).copy_from_slice(data);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    fn trim(&mut self, lba: Lba, sectors: u64) -> Result<(), StoreError> {
        self.bytes(lba, sectors as usize * SECTOR).fill(0);
        Ok(())
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// A target on one or two ports.
pub(crate) enum Target {
    /// Ours, with its duplicate cache.
    Shelf(Box<Shelf<Store>>),
    /// One that knows nothing of duplicates.
    Plain(Store),
}

impl Target {
    /// Our shelf over `store`, started at `now`.
    pub(crate) fn shelf(store: Store, boot: u32, now: Duration, lifetime: Duration, ports: &[PortInfo]) -> Target {
        let config = ShelfConfig { frame_lifetime: lifetime, changes_from: now, ..ShelfConfig::new(boot) };
        let mut shelf = Shelf::new(config);
        for (port, info) in (0..).zip(ports) {
            shelf.set_port(PortId(port), Some(*info)).expect("the MTU is large enough");
        }
        shelf
            .add_device(DeviceConfig::new(DEVICE, 32, "simulated"), DeviceState::default(), store)
            .expect("the device is all right");
        Target::Shelf(Box::new(shelf))
    }

    pub(crate) fn store(&self) -> &Store {
        match self {
            Target::Shelf(shelf) => shelf.store(DEVICE).expect("it has the device"),
            Target::Plain(store) => store,
        }
    }

    /// Answers a frame: the replies, if there are any.
    pub(crate) fn handle(&mut self, now: Duration, port: PortId, info: PortInfo, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut reply = vec![0; info.mtu as usize + 14];
        let mut replies = Vec::new();
        match self {
            Target::Plain(store) => {
                let len = plain(store, info, frame, &mut reply);
                replies.extend((len > 0).then(|| reply[..len].to_vec()));
            }
            Target::Shelf(shelf) => {
                let mut outcome = Some(shelf.handle_frame(now, port, frame, &mut reply));
                let many = outcome == Some(Outcome::Many);
                while let Some(now_one) = outcome {
                    if let Outcome::Reply(len) | Outcome::Save { len, .. } = now_one {
                        replies.push(reply[..len].to_vec());
                    }
                    outcome = if many { shelf.poll_reply(&mut reply) } else { None };
                }
            }
        }
        replies
    }
}

/// What a simple target does with a frame; length of its reply, 0 for none.
fn plain(store: &mut Store, info: PortInfo, frame: &[u8], reply: &mut [u8]) -> usize {
    let Ok(Frame { header, body }) = Frame::parse(frame) else { return 0 };
    let to_us = header.dst == info.mac || header.dst == MacAddr::BROADCAST;
    if header.response || !to_us || !header.address.covers(DEVICE) {
        return 0;
    }
    let answer = header.reply(info.mac, DEVICE, None);
    match body {
        Body::Config(_) => {
            let config = ConfigInfo::reply(16, 0x4019, info.sectors_per_frame(), CCmd::READ, b"");
            let len = config.emit(&answer, reply);
            pad(reply, len)
        }
        Body::AtaRequest(request, data) => {
            let len = usize::from(request.sectors) * SECTOR;
            let mut registers = AtaReply {
                flags: request.flags,
                error: aoe_proto::wire::AtaError(0),
                sectors: 0,
                status: Status::OK,
                lba: LbaBytes([0; 6]),
            };
            let mut given = 0;
            match request.opcode {
                Opcode::READ_SECTORS_EXT => {
                    store.read(request.lba(), &mut reply[36..36 + len]).expect("memory");
                    given = len;
                }
                Opcode::WRITE_SECTORS_EXT if data.len() >= len => {
                    store.write(request.lba(), &data[..len], false).expect("memory");
                }
                Opcode::FLUSH_CACHE_EXT => {}
                Opcode::IDENTIFY => {
                    let identify = Identify { model: AtaString::new("plain"), ..Identify::disk(store.sectors()) };
                    identify.emit(reply[36..].first_chunk_mut().expect("a frame holds a sector"));
                    given = SECTOR;
                }
                _ => registers.status = Status::FAILED,
            }
            let len = registers.emit(&answer, reply);
            pad(reply, len + given)
        }
        _ => 0,
    }
}
