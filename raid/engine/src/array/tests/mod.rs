//! The life cycle in a world of devices that crash.

mod marking;
mod world;
