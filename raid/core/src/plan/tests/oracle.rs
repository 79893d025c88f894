//! Plans carried out on rows of random bytes, against a search over all sets of reads.
//!
//! Small rows are gone through completely: each member present, absent or being recovered, each block held or not, untouched, given
//! whole or in part, wanted or not. For each the plan is carried out as the planner's text says, byte for byte, and refusals and costs are compared
//! with a slow search that knows nothing of the planner's reasoning.

use super::*;
use std::collections::BTreeMap;

/// Bytes in a block; a partial write covers the first half.
const BLOCK: usize = 4;

type Block = [u8; BLOCK];

struct Noise(u64);

impl Noise {
    fn block(&mut self) -> Block {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((word ^ (word >> 31)) as u32).to_le_bytes()
    }
}

fn xor(blocks: impl IntoIterator<Item = Block>) -> Block {
    blocks.into_iter().fold([0; BLOCK], |sum, block| core::array::from_fn(|i| sum[i] ^ block[i]))
}

/// A row on its members: what is true of each block, what each member really stores, and what is in memory.
struct Row {
    /// Present content of each block: of an absent one, what parity says.
    truth: BTreeMap<u8, Block>,
    /// What the members store; nonsense on those that cannot be read.
    disk: BTreeMap<u8, Block>,
}

impl Row {
    fn new(ask: &Ask, noise: &mut Noise) -> Self {
        let mut truth: BTreeMap<u8, Block> = ask.data.iter().map(|m| (m.0, noise.block())).collect();
        truth.insert(ask.parity.0, xor(truth.values().copied()));
        if !ask.parity_trusted {
            // An absent data block is defined by the parity, right or not, and absent parity by the data. With every block known the
            // parity may be anything.
            let absent = ask.all().minus(ask.readable).minus(ask.held);
            if absent.is_empty() {
                truth.insert(ask.parity.0, noise.block());
            }
        }
        let mut disk = truth.clone();
        for member in ask.all().minus(ask.readable) {
            disk.insert(member.0, noise.block());
        }
        Self { truth, disk }
    }
}

/// Carries `plan` out and checks every promise.
fn carry_out(ask: &Ask, plan: &Plan, noise: &mut Noise) {
    let Row { truth, mut disk } = Row::new(ask, noise);
    assert!(ask.readable.contains_all(plan.read), "an unreadable block is read");
    assert!(!plan.read.intersects(ask.held), "a held block is read");
    assert!(ask.writable.contains_all(plan.write), "an absent member is written");
    let mut memory: BTreeMap<u8, Block> = ask.held.intersection(ask.all()).iter().map(|m| (m.0, truth[&m.0])).collect();
    memory.extend(plan.read.iter().map(|m| (m.0, disk[&m.0])));
    if let Some(member) = plan.rebuild {
        let others = ask.all().without(member);
        memory.insert(member.0, xor(others.iter().map(|m| memory[&m.0])));
    }
    for member in ask.want {
        assert_eq!(memory[&member.0], truth[&member.0], "a reader gets wrong bytes");
    }
    let mut new: BTreeMap<u8, Block> = ask.overwrite.iter().map(|m| (m.0, noise.block())).collect();
    for member in ask.partial {
        let mut block = memory[&member.0];
        block[..BLOCK / 2].copy_from_slice(&noise.block()[..BLOCK / 2]);
        new.insert(member.0, block);
    }
    let parity = match plan.parity {
        ParityWork::None => None,
        ParityWork::Rmw => {
            assert!(ask.parity_trusted && ask.rmw_level != RmwLevel::Never, "rmw where it is forbidden");
            let changes = new.iter().flat_map(|(member, block)| [*block, memory[member]]);
            Some(xor(changes.chain([memory[&ask.parity.0]])))
        }
        ParityWork::Rcw => Some(xor(ask.data.iter().map(|m| *new.get(&m.0).unwrap_or_else(|| &memory[&m.0])))),
    };
    for member in plan.write {
        let block = if member == ask.parity { parity } else { new.get(&member.0).copied() };
        disk.insert(member.0, block.expect("a block is written that has no new content"));
    }
    assert!(plan.write.contains_all(ask.touched().intersection(ask.writable)), "a write is lost");
    let mut after = truth;
    after.extend(&new);
    if ask.touched().is_empty() {
        assert_eq!((plan.parity, plan.write), (ParityWork::None, MemberSet::EMPTY), "a read writes");
        return;
    }
    for member in ask.data.intersection(ask.readable) {
        assert_eq!(disk[&member.0], after[&member.0], "member {member} has wrong data");
    }
    // Whoever reads later, one absent member included, finds the new data: parity is the XOR of all of it.
    if ask.writable.contains(ask.parity) {
        assert_eq!(disk[&ask.parity.0], xor(ask.data.iter().map(|m| after[&m.0])), "parity is wrong");
    }
}

/// What can be known in memory when `read` was read: what it has, and an unreadable block of the row if all others are there.
fn knows(ask: &Ask, read: MemberSet) -> MemberSet {
    let have = read.union(ask.held).intersection(ask.all());
    let unknown = ask.all().minus(have);
    if unknown.len() == 1 && !unknown.intersects(ask.readable) { ask.all() } else { have }
}

/// The fewest blocks read by any allowed way, by trying all sets of readable blocks; `None` when there is no way.
fn fewest_reads(ask: &Ask) -> Option<usize> {
    let touched = ask.touched();
    if !touched.is_empty() && ask.all().minus(ask.writable).len() > 1 {
        return None;
    }
    let base = ask.want.union(ask.partial);
    let bits = ask.all().intersection(ask.readable).minus(ask.held).0;
    let mut fewest = None;
    let mut read = bits;
    loop {
        let known = knows(ask, MemberSet(read));
        let enough = if touched.is_empty() || !ask.writable.contains(ask.parity) {
            known.contains_all(base)
        } else {
            let have = MemberSet(read).union(ask.held);
            let rmw = ask.parity_trusted
                && ask.rmw_level != RmwLevel::Never
                && have.contains_all(touched.with(ask.parity))
                && known.contains_all(base);
            rmw || known.contains_all(base.union(ask.data.minus(ask.overwrite)))
        };
        let count = MemberSet(read).len();
        if enough && fewest.is_none_or(|fewest| count < fewest) {
            fewest = Some(count);
        }
        if read == 0 {
            return fewest;
        }
        read = (read - 1) & bits;
    }
}

fn judge(ask: &Ask, noise: &mut Noise) {
    let fewest = fewest_reads(ask);
    match plan(ask) {
        Ok(plan) => {
            // Every allowed method is among those searched, so the plan is minimal if and only if the counts are equal.
            assert_eq!(Some(plan.read.len()), fewest, "reads more than needed: {ask:?} {plan:?}");
            carry_out(ask, &plan, noise);
        }
        Err(Refusal::TooManyAbsent { absent }) => {
            assert_eq!(fewest, None, "refused what can be done: {ask:?}");
            assert!(absent.len() >= 2 && !ask.readable.contains_all(absent), "{ask:?} names {absent}");
        }
    }
}

/// Calls `judge` with every combination of states of a row with `data` data blocks.
fn every_ask(data: u8) {
    let mut noise = Noise(u64::from(data));
    let members = u32::from(data) + 1;
    let digit = |number: u32, base: u32, place: u32| number / base.pow(place) % base;
    let pick = |number: u32, base: u32, values: &[u32]| -> MemberSet {
        (0..members).filter(|&m| values.contains(&digit(number, base, m))).map(|m| MemberIndex(m as u8)).collect()
    };
    for states in 0..3u32.pow(members) {
        let writable = pick(states, 3, &[0, 1]);
        let readable = pick(states, 3, &[0]);
        for writes in 0..3u32.pow(members - 1) {
            for held_want in 0..1u64 << (2 * members) {
                let held = MemberSet(held_want & ((1 << members) - 1));
                let want = MemberSet(held_want >> members);
                for rules in 0..6 {
                    let ask = Ask {
                        data: MemberSet::all(MemberCount(data)),
                        parity: MemberIndex(data),
                        readable,
                        writable,
                        held,
                        overwrite: pick(writes, 3, &[1]).without(MemberIndex(data)),
                        partial: pick(writes, 3, &[2]).without(MemberIndex(data)),
                        want,
                        parity_trusted: rules < 3,
                        rmw_level: RmwLevel::from_number(rules % 3).unwrap(),
                    };
                    judge(&ask, &mut noise);
                }
            }
        }
    }
}

#[test]
fn every_state_of_rows_up_to_four_members() {
    every_ask(1);
    every_ask(2);
    every_ask(3);
}

fn any_ask() -> impl Strategy<Value = Ask> {
    (3u8..=7, any::<u8>(), any::<[u8; 8]>(), any::<bool>(), 0u64..3).prop_map(
        |(members, turn, states, trusted, level)| {
            let all = MemberSet::all(MemberCount(members));
            let parity = MemberIndex(turn % members);
            let choose =
                |test: &dyn Fn(u8) -> bool| -> MemberSet { all.iter().filter(|m| test(states[m.index()])).collect() };
            let data = all.without(parity);
            // Bits 0-2: absent or recovering, rarely; 3-4: written; 5: held; 6-7: wanted, one in four.
            let writable = choose(&|state| state & 7 != 0);
            Ask {
                data,
                parity,
                readable: choose(&|state| state & 7 > 1),
                writable,
                held: choose(&|state| state & 32 != 0),
                overwrite: choose(&|state| state >> 3 & 3 == 1).intersection(data),
                partial: choose(&|state| state >> 3 & 3 == 2).intersection(data),
                want: choose(&|state| state >> 6 == 0),
                parity_trusted: trusted,
                rmw_level: RmwLevel::from_number(level).unwrap(),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn larger_rows(ask in any_ask(), seed: u64) {
        judge(&ask, &mut Noise(seed));
    }
}
