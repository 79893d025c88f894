//! NBD, fixed newstyle, as in the protocol text of the NetworkBlockDevice project (`doc/proto.md`).
//!
//! [`proto`] and [`session`] are pure: no clock, no descriptor. [`server`] moves the bytes and calls the [`backend`];
//! [`address`] says where. For the other side there are [`uri`] and a small [`client`], which the bench and the tests use.

pub mod address;
pub mod backend;
pub mod client;
pub mod proto;
pub mod server;
pub mod session;
pub mod uri;
