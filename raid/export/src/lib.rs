//! Front ends: the array as a block device for whoever needs one.
//!
//! A front end takes requests from a client, submits them to the array under a plug, and answers in the order in which they end.
//! It decides nothing about stripes: it only knows sectors, buffers and a status.
//!
//! | module | owns |
//! |---|---|
//! | [`nbd::proto`] | the NBD wire format: constants, parse, emit; pure |
//! | [`nbd::session`] | one client's protocol state as a value: bytes in, requests and replies out; pure |
//! | [`nbd::backend`] | what a front end needs from the array, as two traits |
//! | [`nbd::address`] | where to serve, as users write it |
//! | [`nbd::server`] | Unix and TCP sockets, a thread per connection, the plug rule, bounds on clients |
//! | [`nbd::uri`], [`nbd::client`] | the other side: where a client connects, and a small client |
//! | [`engine`] | the backend over a running array |
//!
//! To read this crate, go in that order.

pub mod engine;
pub mod nbd;
