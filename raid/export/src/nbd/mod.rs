//! NBD, fixed newstyle, as in the protocol text of the NetworkBlockDevice project (`doc/proto.md`).
//!
//! [`proto`] and [`session`] are pure: no clock, no descriptor. [`server`] moves the bytes and calls the [`backend`];
//! [`address`] says where.

pub mod address;
pub mod backend;
pub mod proto;
pub mod server;
pub mod session;
