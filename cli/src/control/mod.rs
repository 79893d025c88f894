//! The control socket of a running array: JSON over HTTP on a Unix socket with mode 0600, so that curl works too.
//! `docs/CONTROL.md` has all requests, replies and errors, each as a command that a test runs.

pub(crate) mod client;
pub(crate) mod messages;
pub(crate) mod server;
