//! Linux md's on-disk formats and its rules for putting an array together, as values: no I/O.
//!
//! - [`superblock`]: the version 1 superblock, byte for byte;
//! - [`create`]: the superblocks of a new array, laid out as mdadm does;
//! - [`assemble`]: from the superblocks found, which member has which role, or why the array must not start;
//! - [`text`]: fields in mdadm's words, for `examine` and `detail`;
//! - [`uuid`]: md's spelling of UUIDs.
//!
//! Called by the engine's array life cycle and by the offline commands. Everything that comes from a disk is hostile until checked: parsing never
//! panics, whatever the bytes.

pub mod assemble;
pub mod create;
pub mod superblock;
pub mod text;
pub mod uuid;

pub use superblock::{Features, Minor, Role, Superblock, SuperblockError};
pub use uuid::Uuid;
