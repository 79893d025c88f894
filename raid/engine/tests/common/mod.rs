//! What the engine's integration tests share: an array made of named members, and requests that verify.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod ethernet;

use std::sync::Arc;
use std::time::{Duration, Instant};

use raid_core::geometry::Layout;
use raid_core::md::Minor;
use raid_core::md::assemble::Options;
use raid_core::md::create::NewArray;
use raid_core::parity::Kernels;
use raid_core::units::{MemberCount, Sector, Sectors};
use raid_engine::array::{Detail, Tunables};
use raid_engine::assembly::{Named, assemble_array, create_array, random_uuid};
use raid_engine::member::aoe::Links;
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::IoStatus;
use raid_engine::runtime::client::{Client, Op, Request};
use raid_engine::runtime::groups::Groups;
use raid_engine::runtime::opener::Opener;
use raid_engine::runtime::running::Running;
use raid_engine::runtime::topology;
use raid_engine::slab::Slab;
use raid_engine::tunables::Settings;

pub(crate) struct Rig {
    pub(crate) slab: Arc<Slab>,
    pub(crate) opener: Opener,
    pub(crate) members: Vec<Named>,
    pub(crate) tunables: Tunables,
}

impl Rig {
    /// Opens members by name and makes an array of them.
    pub(crate) fn new(names: &[String], assume_clean: bool, links: Option<Arc<dyn Links>>) -> Rig {
        let slab = Slab::with_bytes(Kernels::detect(), 4 << 30).expect("address space");
        let mut opener = Opener::new(&slab, links).expect("memory");
        let members: Vec<Named> = names.iter().map(|name| open(&mut opener, name)).collect();
        let new = NewArray {
            name: "t",
            homehost: None,
            minor: Minor::V2,
            level: 5,
            layout: Layout::LeftSymmetric,
            chunk: Sectors(128),
            members: MemberCount(names.len() as u8),
            size: None,
            assume_clean,
            set_uuid: random_uuid(),
            now: 1_000_000,
        };
        create_array(&mut opener, &new, &members).expect("valid");
        let tunables = Tunables { safe_mode_delay: Duration::from_secs(3600), ..Tunables::default() };
        Rig { slab, opener, members, tunables }
    }

    pub(crate) fn run(&mut self, workers: usize) -> Running {
        let tunables = self.tunables.clone();
        let options = Options { run: true, ..Options::default() };
        let start = assemble_array(&mut self.opener, &self.members, &options, false, tunables).expect("assembles");
        let cpus = topology::allowed().expect("affinity");
        let groups = Groups::per_cpu(workers, cpus);
        let devices: Vec<_> = start
            .members
            .iter()
            .map(|m| (m.device.handle, self.members[usize::from(m.device.handle.0)].device.clone()))
            .collect();
        let settings = Settings { stripe_cache_size: 64, ..Settings::default() };
        Running::start(start, &self.slab, &groups, &settings, &devices).expect("starts")
    }
}

pub(crate) fn open(opener: &mut Opener, name: &str) -> Named {
    let spec: MemberSpec = name.parse().expect("a member name");
    Named { name: name.to_owned(), device: opener.open(&spec, false).expect("opens") }
}

/// Runs one request and answers with its status and data.
pub(crate) fn request(client: &mut Client, op: Op, at: u64, sectors: u64, data: Option<&[u8]>) -> (IoStatus, Vec<u8>) {
    let buf = (op != Op::Flush).then(|| {
        let mut buf = client.alloc(sectors as usize * 512).expect("memory");
        if let Some(data) = data {
            buf.copy_from_slice(data);
        }
        buf
    });
    client.submit(Request { id: 1, op, at: Sector(at), sectors: Sectors(sectors), buf });
    client.unplug();
    loop {
        if let Some(reply) = client.poll() {
            let data = reply.buf.as_ref().map_or(Vec::new(), |b| b.to_vec());
            if let Some(buf) = reply.buf {
                client.free(buf);
            }
            return (reply.status, data);
        }
        client.wait(Some(Duration::from_secs(20)));
    }
}

pub(crate) fn pattern(sector: u64, pass: u8) -> [u8; 512] {
    let mut data = [pass; 512];
    for (i, chunk) in data.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&(sector.wrapping_mul(0x9e37_79b9) ^ ((i as u64) << 40) ^ u64::from(pass)).to_le_bytes());
    }
    data
}

pub(crate) fn fill(client: &mut Client, from: u64, sectors: u64, pass: u8) {
    let mut at = from;
    while at < from + sectors {
        let len = (from + sectors - at).min(777);
        let data: Vec<u8> = (at..at + len).flat_map(|s| pattern(s, pass)).collect();
        assert_eq!(request(client, Op::Write { fua: at.is_multiple_of(2) }, at, len, Some(&data)).0, IoStatus::Ok);
        at += len;
    }
}

pub(crate) fn check(client: &mut Client, from: u64, sectors: u64, pass: u8) {
    let mut at = from;
    while at < from + sectors {
        let len = (from + sectors - at).min(1000);
        let (status, data) = request(client, Op::Read, at, len, None);
        assert_eq!(status, IoStatus::Ok);
        for (i, got) in data.chunks(512).enumerate() {
            assert_eq!(got, pattern(at + i as u64, pass), "sector {}", at + i as u64);
        }
        at += len;
    }
}

/// Polls the array until it stands as wanted. The bound is for a hang, not a measure.
pub(crate) fn wait_for(array: &Running, what: &str, wanted: impl Fn(&Detail) -> bool) -> Detail {
    let start = Instant::now();
    loop {
        let detail = array.detail().expect("it runs");
        if wanted(&detail) {
            return detail;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "never {what}: {detail:?}");
        std::thread::yield_now();
    }
}
