//! Tests of the wire formats: golden bytes, both ways; every truncation; hostile counts; random round trips.

mod captures;
mod golden;
mod hostile;
mod identify;
mod names;
