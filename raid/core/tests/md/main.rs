//! md's formats against what Linux and mdadm make of them.

mod common;
mod mdadm;
mod vectors;
