//! Socket filters: which frames the kernel queues for a role. Classic BPF, run on each frame from its Ethernet header on.
//!
//! Used by [`super::PacketLink`] when it opens its socket. Pure; the tests run the programs in a small interpreter.

use super::Role;
use aoe_proto::wire::{Address, Command, Shelf, Slot};

/// One instruction, laid out as the kernel's `sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u16,
    pub(super) jump_true: u8,
    pub(super) jump_false: u8,
    pub(super) k: u32,
}

/// Load the byte at `k`.
const LOAD_BYTE: u16 = 0x30;
/// Load the big-endian word at `k`.
const LOAD_WORD: u16 = 0x20;
/// Accumulator &= `k`.
const AND: u16 = 0x54;
/// Jump if accumulator == `k`.
const JUMP_EQUAL: u16 = 0x15;
/// Jump if accumulator & `k` is not 0.
const JUMP_SET: u16 = 0x45;
/// Return `k`: the bytes to keep.
const RETURN: u16 = 0x06;

const FLAGS_AT: u32 = 14;
/// Shelf, slot and, in the word's last byte, command.
const ADDRESS_AT: u32 = 16;
const COMMAND_AT: u32 = 19;
const TAG_AT: u32 = 20;
const FLAG_RESPONSE: u32 = 0x08;
const KEEP: u32 = u32::MAX;
/// Set in every tag of ours; the kernel's own driver never sets it.
const TAG_OURS: u32 = 1 << 31;
const TAG_WORKER_SHIFT: u32 = 23;
const TAG_WORKER_MASK: u32 = TAG_OURS | 0xFF << TAG_WORKER_SHIFT;

const fn op(code: u16, k: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, k }
}

const fn jump(code: u16, k: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, k }
}

/// More devices are not told apart by a program, which looks at each in turn, but by the shelf.
const DEVICES_MAX: usize = 64;
const SHELF_MASK: u32 = 0xFFFF_0000;
const SLOT_MASK: u32 = 0x0000_FF00;

const fn word(address: Address) -> u32 {
    (address.shelf.0 as u32) << 16 | (address.slot.0 as u32) << 8
}

/// Requests to `devices`, and to several at a time; without a device, or with too many, to any.
fn shelf(devices: &[Address]) -> Vec<Instruction> {
    let mut program = vec![op(LOAD_BYTE, FLAGS_AT), jump(JUMP_SET, FLAG_RESPONSE, 0, 1), op(RETURN, 0)];
    if devices.is_empty() || devices.len() > DEVICES_MAX {
        program.push(op(RETURN, KEEP));
        return program;
    }
    let of = |mask, addresses: &[Address]| {
        let matched =
            addresses.iter().flat_map(move |&address| [jump(JUMP_EQUAL, word(address) & mask, 0, 1), op(RETURN, KEEP)]);
        [op(LOAD_WORD, ADDRESS_AT), op(AND, mask)].into_iter().chain(matched).collect::<Vec<_>>()
    };
    program.extend(of(SHELF_MASK | SLOT_MASK, devices));
    program.extend(of(SHELF_MASK, &[Address { shelf: Shelf::ALL, slot: Slot(0) }]));
    program.extend(of(SLOT_MASK, &[Address { shelf: Shelf(0), slot: Slot::ALL }]));
    program.push(op(RETURN, 0));
    program
}

/// The program for `role`, for a shelf of these `devices`; `None` keeps everything of our EtherType.
pub(super) fn program(role: Role, devices: &[Address]) -> Option<Vec<Instruction>> {
    match role {
        Role::Everything => None,
        Role::Shelf => Some(shelf(devices)),
        Role::Initiator { worker, discovers } => {
            let ours = TAG_OURS | u32::from(worker) << TAG_WORKER_SHIFT;
            let mut program = vec![op(LOAD_BYTE, FLAGS_AT), jump(JUMP_SET, FLAG_RESPONSE, 1, 0), op(RETURN, 0)];
            if discovers {
                // Beacons have tag 0, and answers to a discovery are of interest whoever asked.
                program.extend([
                    op(LOAD_BYTE, COMMAND_AT),
                    jump(JUMP_EQUAL, u32::from(Command::CONFIG.0), 0, 1),
                    op(RETURN, KEEP),
                ]);
            }
            program.extend([
                op(LOAD_WORD, TAG_AT),
                op(AND, TAG_WORKER_MASK),
                jump(JUMP_EQUAL, ours, 0, 1),
                op(RETURN, KEEP),
                op(RETURN, 0),
            ]);
            Some(program)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with a program: the bytes that it keeps.
    fn run(program: &[Instruction], frame: &[u8]) -> u32 {
        let mut accumulator = 0u32;
        let mut at = 0;
        loop {
            let Instruction { code, jump_true, jump_false, k } = program[at];
            at += 1;
            let load = |len: usize| {
                let bytes = frame.get(k as usize..k as usize + len)?;
                Some(bytes.iter().fold(0u32, |word, &b| word << 8 | u32::from(b)))
            };
            match code {
                LOAD_BYTE | LOAD_WORD => match load(if code == LOAD_BYTE { 1 } else { 4 }) {
                    Some(value) => accumulator = value,
                    None => return 0,
                },
                AND => accumulator &= k,
                JUMP_EQUAL => at += usize::from(if accumulator == k { jump_true } else { jump_false }),
                JUMP_SET => at += usize::from(if accumulator & k != 0 { jump_true } else { jump_false }),
                RETURN => return k,
                other => panic!("opcode {other:#x}"),
            }
        }
    }

    fn frame(response: bool, command: u8, tag: u32) -> Vec<u8> {
        let mut frame = vec![0u8; 60];
        frame[14] = if response { 0x18 } else { 0x10 };
        frame[19] = command;
        frame[20..24].copy_from_slice(&tag.to_be_bytes());
        frame
    }

    #[test]
    fn each_role_keeps_its_frames() {
        let worker = |worker, discovers| Role::Initiator { worker, discovers };
        let tag = |worker: u32, sequence: u32| 1 << 31 | worker << 23 | sequence;
        // (role, reply, command, tag, kept)
        let table = [
            (Role::Shelf, false, 0, 7, true),
            (Role::Shelf, false, 1, 0, true),
            (Role::Shelf, true, 0, 7, false),
            (worker(3, false), true, 0, tag(3, 0), true),
            (worker(3, false), true, 0, tag(3, 0x7F_FFFF), true),
            (worker(3, false), true, 1, tag(3, 9), true),
            (worker(3, false), true, 0, tag(2, 9), false),
            (worker(3, false), true, 0, tag(3, 9) & !(1 << 31), false),
            (worker(3, false), false, 0, tag(3, 9), false),
            (worker(3, false), true, 1, 0, false),
            (worker(3, true), true, 1, 0, true),
            (worker(3, true), true, 1, tag(9, 1), true),
            (worker(3, true), true, 0, tag(9, 1), false),
            (worker(3, true), true, 0, tag(3, 1), true),
            (worker(3, true), false, 1, tag(3, 1), false),
            (worker(255, false), true, 0, tag(255, 1), true),
            (worker(255, false), true, 0, tag(127, 1), false),
        ];
        for (role, reply, command, tag, kept) in table {
            let program = program(role, &[]).unwrap();
            let keeps = run(&program, &frame(reply, command, tag)) > 0;
            assert_eq!(keeps, kept, "{role:?} reply {reply} command {command} tag {tag:#x}");
        }
        assert_eq!(program(Role::Everything, &[]), None);
    }

    #[test]
    fn a_shelf_takes_requests_to_its_devices_and_to_all() {
        let devices: Vec<Address> = (0..64).map(|slot| Address::new(7, slot)).chain([Address::new(7, 99)]).collect();
        let keeps = |count: usize, response: bool, shelf: u16, slot: u8| {
            let mut frame = frame(response, 0, 1);
            frame[16..18].copy_from_slice(&shelf.to_be_bytes());
            frame[18] = slot;
            run(&program(Role::Shelf, &devices[..count]).unwrap(), &frame) > 0
        };
        for count in [1, 3, 64] {
            for slot in 0..70 {
                assert_eq!(keeps(count, false, 7, slot), usize::from(slot) < count, "{count} devices, slot {slot}");
                assert!(!keeps(count, false, 8, slot) && !keeps(count, true, 7, slot));
            }
            assert!(
                keeps(count, false, 0xFFFF, 0xFF) && keeps(count, false, 0xFFFF, 3) && keeps(count, false, 7, 0xFF)
            );
            assert!(!keeps(count, true, 0xFFFF, 0xFF));
        }
        assert!(keeps(0, false, 9, 9) && keeps(65, false, 9, 9) && !keeps(65, true, 7, 1));
    }

    #[test]
    fn frames_without_a_header_are_dropped() {
        for role in [Role::Initiator { worker: 0, discovers: true }, Role::Initiator { worker: 0, discovers: false }] {
            for len in 0..24 {
                let full = frame(true, 0, 1 << 31);
                assert_eq!(run(&program(role, &[]).unwrap(), &full[..len]), 0, "{len} bytes");
            }
        }
        for len in 0..15 {
            assert_eq!(run(&program(Role::Shelf, &[]).unwrap(), &frame(false, 0, 0)[..len]), 0, "{len} bytes");
        }
    }
}
