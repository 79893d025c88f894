//! The target: a shelf of devices that answers AoE frames.
