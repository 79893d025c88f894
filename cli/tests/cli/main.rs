//! The binary from outside: usage, `create`, `run` and the commands on a running array, over file members. No root is needed; network tests are
//! in the end-to-end tests.
//!
//! A test that lacks a program says `SKIPPED: why`.

mod bench;
mod common;
mod create;
mod demo;
mod run;
mod service;
mod tools;
mod usage;
