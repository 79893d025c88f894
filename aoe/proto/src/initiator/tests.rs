//! The initiator against a scripted target.
