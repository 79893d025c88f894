//! System calls that neither rustix nor the standard library has. The only unsafe code of this crate.

pub(crate) mod landlock;
