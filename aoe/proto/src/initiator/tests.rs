//! The initiator against a scripted target, one rule per test, and against random histories.

mod data;
mod discovery;
mod errors;
mod harness;
mod history;
mod hold;
mod jumbo;
mod overtaken;
mod paths;
mod silence;
