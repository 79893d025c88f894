//! Tests of the planner: tables of the cases by name, and every combination of states of small rows carried out on bytes.

use proptest::prelude::*;

use super::*;
use crate::units::MemberCount;

mod oracle;

fn set(members: &[u8]) -> MemberSet {
    members.iter().map(|&member| MemberIndex(member)).collect()
}

/// A healthy row with `data` data blocks, parity on the member after them.
fn row(data: u8) -> Ask {
    let all = MemberSet::all(MemberCount(data + 1));
    Ask {
        data: MemberSet::all(MemberCount(data)),
        parity: MemberIndex(data),
        readable: all,
        writable: all,
        held: MemberSet::EMPTY,
        overwrite: MemberSet::EMPTY,
        partial: MemberSet::EMPTY,
        want: MemberSet::EMPTY,
        parity_trusted: true,
        rmw_level: RmwLevel::Fewer,
    }
}

impl Ask {
    fn overwrite(mut self, members: &[u8]) -> Self {
        self.overwrite = set(members);
        self
    }
    fn partial(mut self, members: &[u8]) -> Self {
        self.partial = set(members);
        self
    }
    fn want(mut self, members: &[u8]) -> Self {
        self.want = set(members);
        self
    }
    fn held(mut self, members: &[u8]) -> Self {
        self.held = set(members);
        self
    }
    fn absent(mut self, members: &[u8]) -> Self {
        self.readable = self.readable.minus(set(members));
        self.writable = self.writable.minus(set(members));
        self
    }
    fn recovering(mut self, members: &[u8]) -> Self {
        self.readable = self.readable.minus(set(members));
        self
    }
    fn untrusted(mut self) -> Self {
        self.parity_trusted = false;
        self
    }
    fn level(mut self, level: RmwLevel) -> Self {
        self.rmw_level = level;
        self
    }
}

fn planned(
    method: Method,
    read: &[u8],
    rebuild: Option<u8>,
    parity: ParityWork,
    write: &[u8],
) -> Result<Plan, Refusal> {
    Ok(Plan { read: set(read), rebuild: rebuild.map(MemberIndex), parity, write: set(write), method })
}

fn too_many(absent: &[u8]) -> Result<Plan, Refusal> {
    Err(Refusal::TooManyAbsent { absent: set(absent) })
}

#[test]
fn reads() {
    use ParityWork::None as NoWork;
    let table = [
        ("nothing wanted", row(3), planned(Method::Read, &[], None, NoWork, &[])),
        ("one block", row(3).want(&[1]), planned(Method::Read, &[1], None, NoWork, &[])),
        ("held blocks are not read", row(3).want(&[0, 1]).held(&[1]), planned(Method::Read, &[0], None, NoWork, &[])),
        ("parity", row(3).want(&[3]), planned(Method::Read, &[3], None, NoWork, &[])),
        (
            "another member's absence does not matter",
            row(3).want(&[1]).absent(&[0]),
            planned(Method::Read, &[1], None, NoWork, &[]),
        ),
        (
            "an absent block from all others",
            row(3).want(&[1]).absent(&[1]),
            planned(Method::Reconstruct, &[0, 2, 3], Some(1), NoWork, &[]),
        ),
        (
            "a block being recovered is not read",
            row(3).want(&[1, 2]).recovering(&[1]),
            planned(Method::Reconstruct, &[0, 2, 3], Some(1), NoWork, &[]),
        ),
        (
            "a held absent block",
            row(3).want(&[1]).absent(&[1]).held(&[1]),
            planned(Method::Read, &[], None, NoWork, &[]),
        ),
        (
            "rebuilt from what is held and the rest",
            row(3).want(&[1]).absent(&[1]).held(&[0, 3]),
            planned(Method::Reconstruct, &[2], Some(1), NoWork, &[]),
        ),
        (
            "rebuilt from untrusted parity",
            row(3).want(&[1]).absent(&[1]).untrusted(),
            planned(Method::Reconstruct, &[0, 2, 3], Some(1), NoWork, &[]),
        ),
        (
            "two absent, a present block",
            row(3).want(&[2]).absent(&[0, 1]),
            planned(Method::Read, &[2], None, NoWork, &[]),
        ),
        ("two absent, one of them", row(3).want(&[1]).absent(&[0, 1]), too_many(&[0, 1])),
        (
            "two absent, one of them held",
            row(3).want(&[1]).absent(&[0, 1]).held(&[0]),
            planned(Method::Reconstruct, &[2, 3], Some(1), NoWork, &[]),
        ),
        ("a data block and parity absent", row(3).want(&[1]).absent(&[1, 3]), too_many(&[1, 3])),
    ];
    for (name, ask, want) in table {
        assert_eq!(plan(&ask), want, "{name}");
    }
}

#[test]
fn writes_to_a_healthy_row() {
    use ParityWork::{Rcw, Rmw};
    use RmwLevel::{Fewer, Never, Tie};
    let table = [
        ("full", row(4).overwrite(&[0, 1, 2, 3]), planned(Method::Full, &[], None, Rcw, &[0, 1, 2, 3, 4])),
        ("3 members: rcw", row(2).overwrite(&[0]), planned(Method::Rcw, &[1], None, Rcw, &[0, 2])),
        ("3 members, level 2", row(2).overwrite(&[0]).level(Tie), planned(Method::Rcw, &[1], None, Rcw, &[0, 2])),
        ("4 members: a tie is rcw", row(3).overwrite(&[0]), planned(Method::Rcw, &[1, 2], None, Rcw, &[0, 3])),
        (
            "4 members, level 2: a tie is rmw",
            row(3).overwrite(&[0]).level(Tie),
            planned(Method::Rmw, &[0, 3], None, Rmw, &[0, 3]),
        ),
        ("5 members: rmw", row(4).overwrite(&[1]), planned(Method::Rmw, &[1, 4], None, Rmw, &[1, 4])),
        (
            "5 members, level 0",
            row(4).overwrite(&[1]).level(Never),
            planned(Method::Rcw, &[0, 2, 3], None, Rcw, &[1, 4]),
        ),
        (
            "5 members, untrusted",
            row(4).overwrite(&[1]).untrusted(),
            planned(Method::Rcw, &[0, 2, 3], None, Rcw, &[1, 4]),
        ),
        ("two of four blocks: rcw", row(4).overwrite(&[1, 2]), planned(Method::Rcw, &[0, 3], None, Rcw, &[1, 2, 4])),
        ("partial block, rmw", row(4).partial(&[1]), planned(Method::Rmw, &[1, 4], None, Rmw, &[1, 4])),
        (
            "partial block, rcw reads it too",
            row(2).partial(&[0]).level(Fewer),
            planned(Method::Rcw, &[0, 1], None, Rcw, &[0, 2]),
        ),
        ("all blocks in part", row(2).partial(&[0, 1]), planned(Method::Rcw, &[0, 1], None, Rcw, &[0, 1, 2])),
        (
            "old content held: parity alone is read",
            row(3).overwrite(&[0]).held(&[0]),
            planned(Method::Rmw, &[3], None, Rmw, &[0, 3]),
        ),
        (
            "all others held: rcw reads nothing",
            row(4).overwrite(&[0]).held(&[1, 2, 3]),
            planned(Method::Rcw, &[], None, Rcw, &[0, 4]),
        ),
        (
            "old and parity held: rmw reads nothing",
            row(4).overwrite(&[0]).held(&[0, 4]),
            planned(Method::Rmw, &[], None, Rmw, &[0, 4]),
        ),
        (
            "all held: rcw on level 2 too",
            row(4).overwrite(&[0]).held(&[0, 1, 2, 3, 4]).level(Tie),
            planned(Method::Rcw, &[], None, Rcw, &[0, 4]),
        ),
        (
            "a block read for a reader costs rcw nothing",
            row(4).overwrite(&[0]).want(&[1, 2, 3]),
            planned(Method::Rcw, &[1, 2, 3], None, Rcw, &[0, 4]),
        ),
        (
            "old content for a reader",
            row(2).overwrite(&[0, 1]).want(&[0]),
            planned(Method::Full, &[0], None, Rcw, &[0, 1, 2]),
        ),
        ("2 members", row(1).overwrite(&[0]), planned(Method::Full, &[], None, Rcw, &[0, 1])),
        ("2 members, in part", row(1).partial(&[0]), planned(Method::Rcw, &[0], None, Rcw, &[0, 1])),
    ];
    for (name, ask, want) in table {
        assert_eq!(plan(&ask), want, "{name}");
    }
}

#[test]
fn writes_to_a_degraded_row() {
    use ParityWork::{None as NoWork, Rcw, Rmw};
    let table = [
        (
            "full, data absent",
            row(3).overwrite(&[0, 1, 2]).absent(&[1]),
            planned(Method::Full, &[], None, Rcw, &[0, 2, 3]),
        ),
        (
            "full, parity absent",
            row(3).overwrite(&[0, 1, 2]).absent(&[3]),
            planned(Method::NoParity, &[], None, NoWork, &[0, 1, 2]),
        ),
        ("parity absent", row(3).overwrite(&[0]).absent(&[3]), planned(Method::NoParity, &[], None, NoWork, &[0])),
        (
            "parity absent, in part",
            row(3).partial(&[0]).absent(&[3]),
            planned(Method::NoParity, &[0], None, NoWork, &[0]),
        ),
        (
            "the absent block given whole",
            row(4).overwrite(&[1]).absent(&[1]),
            planned(Method::Rcw, &[0, 2, 3], None, Rcw, &[4]),
        ),
        (
            "the absent block given in part",
            row(4).partial(&[1]).absent(&[1]),
            planned(Method::Reconstruct, &[0, 2, 3, 4], Some(1), Rcw, &[4]),
        ),
        ("another block: rmw", row(4).overwrite(&[0]).absent(&[1]), planned(Method::Rmw, &[0, 4], None, Rmw, &[0, 4])),
        (
            "all other blocks: rmw rather than a rebuild",
            row(3).overwrite(&[0, 2]).absent(&[1]),
            planned(Method::Rmw, &[0, 2, 3], None, Rmw, &[0, 2, 3]),
        ),
        (
            "another block, level 0: the absent one is rebuilt",
            row(3).overwrite(&[0]).absent(&[1]).level(RmwLevel::Never),
            planned(Method::Reconstruct, &[0, 2, 3], Some(1), Rcw, &[0, 3]),
        ),
        (
            "another block, untrusted parity: rebuilt, then all data",
            row(3).overwrite(&[0]).absent(&[1]).untrusted(),
            planned(Method::Reconstruct, &[0, 2, 3], Some(1), Rcw, &[0, 3]),
        ),
        (
            "a reader of the absent block makes the rebuild free",
            row(3).overwrite(&[0]).absent(&[1]).want(&[1]),
            planned(Method::Reconstruct, &[0, 2, 3], Some(1), Rcw, &[0, 3]),
        ),
        (
            "data being recovered takes the write",
            row(3).overwrite(&[1]).recovering(&[1]),
            planned(Method::Rcw, &[0, 2], None, Rcw, &[1, 3]),
        ),
        (
            "data being recovered, in part",
            row(3).partial(&[1]).recovering(&[1]),
            planned(Method::Reconstruct, &[0, 2, 3], Some(1), Rcw, &[1, 3]),
        ),
        (
            "parity being recovered: all data, whatever the level",
            row(4).overwrite(&[0]).recovering(&[4]).level(RmwLevel::Tie),
            planned(Method::Rcw, &[1, 2, 3], None, Rcw, &[0, 4]),
        ),
    ];
    for (name, ask, want) in table {
        assert_eq!(plan(&ask), want, "{name}");
    }
}

#[test]
fn writes_that_cannot_land_whole() {
    let table = [
        ("two absent", row(4).overwrite(&[0]).absent(&[1, 2]), too_many(&[1, 2])),
        ("two absent, full", row(2).overwrite(&[0, 1]).absent(&[0, 2]), too_many(&[0, 2])),
        (
            "parity absent and a part of an unreadable block",
            row(3).partial(&[0]).absent(&[3]).recovering(&[0]),
            too_many(&[0, 3]),
        ),
        (
            "parity being recovered and an untouched block absent",
            row(3).overwrite(&[0]).recovering(&[3]).absent(&[1]),
            too_many(&[1, 3]),
        ),
    ];
    for (name, ask, want) in table {
        assert_eq!(plan(&ask), want, "{name}");
    }
}

#[test]
fn rmw_wins_below_half_the_row() {
    // The published rule: k whole blocks of D, rmw if and only if k < (D - 1) / 2.
    for data in 1..=20u8 {
        for touched in 1..=data {
            let ask = row(data).overwrite(&(0..touched).collect::<Vec<_>>());
            let rmw = plan(&ask).unwrap().parity == ParityWork::Rmw;
            assert_eq!(rmw, 2 * i32::from(touched) < i32::from(data) - 1, "{touched} of {data}");
        }
    }
}

#[test]
fn contradictions_are_caught() {
    let mut parity_written = row(3);
    parity_written.overwrite = set(&[3]);
    let mut twice = row(3).overwrite(&[0]);
    twice.partial = set(&[0]);
    let mut unwritable = row(3);
    unwritable.writable = set(&[0]);
    let mut parity_in_data = row(3);
    parity_in_data.data = set(&[0, 1, 2, 3]);
    for ask in [parity_written, twice, unwritable, parity_in_data, row(3).want(&[9])] {
        std::panic::catch_unwind(|| plan(&ask)).expect_err("a contradiction went through");
    }
}

#[test]
fn levels() {
    for number in 0..3 {
        assert_eq!(RmwLevel::from_number(number).unwrap().number(), number);
    }
    assert_eq!(RmwLevel::from_number(3), None);
    assert_eq!(RmwLevel::default().number(), 1);
}

fn sync_row(kind: SyncKind) -> SyncAsk {
    let all = MemberSet::all(MemberCount(4));
    SyncAsk {
        data: set(&[0, 1, 2]),
        parity: MemberIndex(3),
        readable: all,
        writable: all,
        held: MemberSet::EMPTY,
        kind,
    }
}

#[test]
fn sync_of_a_row() {
    let recovery = |member| SyncKind::Recovery(MemberIndex(member));
    let compare = |read: &[u8], write: Option<u8>| {
        Ok(SyncPlan { read: set(read), compare: true, rebuild: None, write: write.map(MemberIndex) })
    };
    let rebuild = |read: &[u8], member| {
        Ok(SyncPlan {
            read: set(read),
            compare: false,
            rebuild: Some(MemberIndex(member)),
            write: Some(MemberIndex(member)),
        })
    };
    for kind in [SyncKind::Resync, SyncKind::Repair] {
        assert_eq!(sync(&sync_row(kind)), compare(&[0, 1, 2, 3], Some(3)));
    }
    let check = sync_row(SyncKind::Check);
    assert_eq!(sync(&check), compare(&[0, 1, 2, 3], None));
    assert_eq!(sync(&SyncAsk { held: set(&[1, 3]), ..check }), compare(&[0, 2], None));
    assert_eq!(sync(&SyncAsk { readable: set(&[0, 1, 3]), ..check }), Ok(SyncPlan::SKIP));
    assert_eq!(sync(&SyncAsk { readable: set(&[0, 1, 2]), ..sync_row(SyncKind::Resync) }), Ok(SyncPlan::SKIP));

    let data = SyncAsk { readable: set(&[0, 2, 3]), ..sync_row(recovery(1)) };
    assert_eq!(sync(&data), rebuild(&[0, 2, 3], 1));
    assert_eq!(sync(&SyncAsk { held: set(&[0]), ..data }), rebuild(&[2, 3], 1));
    let held = SyncPlan { read: MemberSet::EMPTY, compare: false, rebuild: None, write: Some(MemberIndex(1)) };
    assert_eq!(sync(&SyncAsk { held: set(&[1]), ..data }), Ok(held));
    let parity = SyncAsk { readable: set(&[0, 1, 2]), ..sync_row(recovery(3)) };
    assert_eq!(sync(&parity), rebuild(&[0, 1, 2], 3));
    assert_eq!(sync(&sync_row(recovery(1))), Ok(SyncPlan::SKIP));
    assert_eq!(sync(&SyncAsk { writable: set(&[0, 2, 3]), ..data }), Ok(SyncPlan::SKIP));
    let two = SyncAsk { readable: set(&[2, 3]), ..data };
    assert_eq!(sync(&two), Err(Refusal::TooManyAbsent { absent: set(&[0, 1]) }));
}
