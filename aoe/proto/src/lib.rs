//! ATA over Ethernet (AoE) as values: wire formats, and the two ends of the protocol as pure state machines.
//!
//! Nothing here reads a clock, opens a socket or starts a thread. Time is a [`core::time::Duration`] since an origin
//! that the caller chose, and always comes in as an argument; frames come in and go out as byte slices. So the same
//! code runs over packet sockets, over memory, and over a simulated Ethernet on virtual time.
//!
//! How to read this crate:
//!
//! 1. [`wire`] has the formats: the common header, the four commands, IDENTIFY DEVICE data.
//! 2. [`shelf`] is the target: it answers frames from a block store.
//! 3. [`initiator`] is the client: it turns block requests into frames, and replies into completions.
//! 4. [`port`] names the local Ethernet ports that both ends are told about.

#![forbid(unsafe_code)]

pub mod initiator;
pub mod port;
pub mod shelf;
pub mod wire;

#[cfg(test)]
mod testing;
