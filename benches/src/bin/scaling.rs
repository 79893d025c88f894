//! `scaling GROUPS WRITES`: random writes of 4 KiB to an array with so many worker groups, each with a front end of its own; on one thread and on virtual time, so that
//! what a write costs can be counted on a machine with few CPUs. Prints, as CSV: groups, writes, hand-overs and contended atomics per write.
//!
//! The members are memory, of which only what is written is taken. `benches/scaling.sh` counts the instructions.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use raid_core::geometry::Layout;
use raid_core::md::Minor;
use raid_core::md::assemble::Options;
use raid_core::md::create::NewArray;
use raid_core::parity::Kernels;
use raid_core::units::{MemberCount, Sector, Sectors};
use raid_engine::array::Tunables;
use raid_engine::assembly::{Named, assemble_array, create_array, random_uuid};
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::client::{Client, Op, Request};
use raid_engine::runtime::opener::Opener;
use raid_engine::runtime::stepped::Stepped;
use raid_engine::slab::{Buf, Slab};

/// Members, and the size of each: 128 regions.
const MEMBERS: u8 = 5;
const MEMBER: &str = "mem:512M";

/// Requests that each front end keeps outstanding.
const DEPTH: u64 = 64;

/// Sectors of a request.
const SIZE: Sectors = Sectors(8);

/// Stripe cache for each group.
const STRIPES: usize = 128;

/// Virtual time between two steps.
const STEP: Duration = Duration::from_micros(10);

/// A front end and its free buffers.
struct Load {
    client: Client,
    free: Vec<Buf>,
    state: u64,
}

impl Load {
    fn new(array: &Stepped, index: u64) -> anyhow::Result<Load> {
        let mut client = array.client()?.context("too many front ends")?;
        let bufs = (0..DEPTH).map(|_| client.alloc(SIZE.bytes().0 as usize).context("no memory for buffers"));
        Ok(Load { free: bufs.collect::<anyhow::Result<_>>()?, client, state: index })
    }

    /// Submits what is free, at most `most`; answers how many.
    fn submit(&mut self, most: u64) -> u64 {
        let places = self.client.sectors().0 / SIZE.0;
        let mut count = 0;
        while count < most
            && let Some(buf) = self.free.pop()
        {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = Sector((self.state >> 33) % places * SIZE.0);
            self.client.submit(Request { id: 0, op: Op::Write { fua: false }, at, sectors: SIZE, buf: Some(buf) });
            count += 1;
        }
        self.client.unplug();
        count
    }

    fn collect(&mut self) -> anyhow::Result<()> {
        while let Some(reply) = self.client.poll() {
            ensure!(reply.status.is_ok(), "a write failed: {:?}", reply.status);
            self.free.push(reply.buf.context("a request's buffer comes back")?);
        }
        Ok(())
    }
}

fn start(groups: usize) -> anyhow::Result<Stepped> {
    // A part of the address space that is left to it under valgrind, too.
    let slab = Slab::with_bytes(Kernels::detect(), 20 << 30)?;
    let mut opener = Opener::new(&slab, None)?;
    let spec: MemberSpec = MEMBER.parse().map_err(anyhow::Error::msg)?;
    let open = |index| {
        let device = opener.open(&spec, false)?;
        Ok(Named { name: format!("m{index}"), device })
    };
    let members = (0..MEMBERS).map(open).collect::<anyhow::Result<Vec<Named>>>()?;
    let new = NewArray {
        name: "scaling",
        homehost: None,
        minor: Minor::V2,
        level: 5,
        layout: Layout::LeftSymmetric,
        chunk: Sectors(128),
        members: MemberCount(MEMBERS),
        size: None,
        assume_clean: true,
        set_uuid: random_uuid(),
        now: 1_000_000,
    };
    create_array(&mut opener, &new, &members)?;
    let start = assemble_array(&mut opener, &members, &Options::default(), false, Tunables::default())?;
    let devices: Vec<_> = (0..).map(MemberHandle).zip(members.iter().map(|member| member.device.clone())).collect();
    Ok(Stepped::new(start, &slab, groups, STRIPES * groups, &devices, Duration::ZERO)?)
}

fn main() -> anyhow::Result<()> {
    let args: Vec<u64> = std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    let [groups, writes] = args[..] else { bail!("usage: scaling GROUPS WRITES") };
    let mut array = start(groups as usize)?;
    let mut loads = (0..groups).map(|index| Load::new(&array, index)).collect::<anyhow::Result<Vec<_>>>()?;
    let (mut now, mut left) = (Duration::ZERO, writes);
    while left > 0 || loads.iter().any(|load| load.client.in_flight() > 0) {
        for load in &mut loads {
            left -= load.submit(left);
        }
        now += STEP;
        array.step(now, 1_000_000);
        loads.iter_mut().try_for_each(Load::collect)?;
    }
    let handed = array.totals().handed;
    let per_write = |count: u64| count as f64 / writes as f64;
    println!("{groups},{writes},{:.3},{:.4}", per_write(handed.handoffs), per_write(handed.contended));
    Ok(())
}
