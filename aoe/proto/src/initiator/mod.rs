//! The AoE initiator as a value.
