//! The pieces of the data path, each alone: parity kernels, cutting requests into parts, AoE headers.

#![allow(missing_docs, reason = "criterion's macros make public items without documentation")]

use std::hint::black_box;

use aoe_proto::wire::{Address, AtaRequest, Command, Header, Lba, MacAddr, Shelf, Slot, Tag};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use raid_core::geometry::{Geometry, Layout};
use raid_core::parity::Kernels;
use raid_core::units::{MemberCount, Sector, Sectors};
use raid_engine::message::{ClientId, PartOp};
use raid_engine::plug::{Memory, PART_SECTORS_MAX, Whole, sort, split};
use raid_engine::slab::Slab;

/// Parity of four sources, by each set of kernels that this CPU runs.
fn parity(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parity of 4");
    for bytes in [4 << 10, 64 << 10] {
        let sources = vec![vec![0x5a_u8; bytes]; 4];
        let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        let mut parity = vec![0; bytes];
        group.throughput(Throughput::Bytes(4 * bytes as u64));
        for kernels in Kernels::available() {
            group.bench_function(BenchmarkId::new(kernels.name(), bytes), |bencher| {
                bencher.iter(|| kernels.xor_into(black_box(&mut parity), black_box(&sources)));
            });
        }
    }
    group.finish();
}

/// A plug of 64 requests of 4 KiB at scattered places, and one of 1 MiB: cut into parts, and those sorted.
fn plug(criterion: &mut Criterion) {
    let slab = Slab::with_bytes(Kernels::portable(), 4 << 20).expect("address space");
    let zeroes = slab.zeroes(PART_SECTORS_MAX as u32);
    let geometry = Geometry::new(MemberCount(5), Sectors(128), Sectors(1 << 19), Layout::LeftSymmetric).expect("valid");
    let whole = |request: u32, at: u64, sectors: u64| Whole {
        client: ClientId(1),
        request,
        op: PartOp::Write { fua: false },
        at: Sector(at),
        sectors: Sectors(sectors),
        memory: Memory::Zeroes(zeroes),
    };
    let scattered: Vec<Whole> = (0..64).map(|i| whole(i, u64::from(i) * 7919 % (1 << 18) * 8, 8)).collect();
    let large = [whole(0, 4 * 128 * 8, 2048)];
    let mut parts = Vec::with_capacity(256);
    let mut group = criterion.benchmark_group("plug");
    for (name, requests) in [("64 requests of 4k", &scattered[..]), ("1 request of 1m", &large)] {
        group.throughput(Throughput::Elements(requests.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                parts.clear();
                for request in requests {
                    split(&geometry, black_box(request), &mut parts);
                }
                sort(&mut parts);
                black_box(parts.len())
            });
        });
    }
    group.finish();
}

/// The headers of a read request: written, and read again.
fn headers(criterion: &mut Criterion) {
    let address = Address { shelf: Shelf(1), slot: Slot(1) };
    let header = Header::request(MacAddr([2; 6]), MacAddr([4; 6]), address, Command::ATA, Tag(0x8000_0001));
    let request = AtaRequest::read(Lba(0x1234_5678), 16, true);
    let mut frame = [0; 64];
    let len = request.emit(&header, &mut frame);
    criterion.bench_function("emit a read request", |bencher| {
        bencher.iter(|| black_box(&request).emit(black_box(&header), black_box(&mut frame)));
    });
    criterion.bench_function("parse a read request", |bencher| {
        bencher.iter(|| {
            let (header, arg) = Header::parse(black_box(&frame[..len])).expect("whole");
            (header, AtaRequest::parse(arg).expect("whole").0)
        });
    });
}

criterion_group!(pieces, parity, plug, headers);
criterion_main!(pieces);
