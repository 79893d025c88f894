//! The life cycle in a world of devices that crash.

mod checks;
mod histories;
mod joining;
mod losing;
mod marking;
mod mdadm;
mod starting;
mod stopping;
mod syncing;
mod world;
