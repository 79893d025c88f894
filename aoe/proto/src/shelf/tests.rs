//! Tests of the shelf.
