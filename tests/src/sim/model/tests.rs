//! The model of allowed values against hand-made histories.

use super::*;

fn model() -> Model {
    Model::new(false)
}

/// Writes one sector, from one step to another.
fn write(model: &mut Model, from: u64, to: u64, fua: bool) -> WriteId {
    let id = model.submit(from, false, 9, 1);
    model.ended(to, id, true, fua);
    id
}

fn holds(model: &mut Model, id: WriteId, at: u64) -> bool {
    let data = if id == 0 { [0; SECTOR] } else { contents(id, 9) };
    model.check(9, &data, at, at + 1).is_ok()
}

#[test]
fn an_acknowledged_write_replaces_what_ended_before_it() {
    let mut model = model();
    let a = write(&mut model, 1, 2, false);
    let b = write(&mut model, 3, 4, false);
    assert!(!holds(&mut model, 0, 10));
    assert!(!holds(&mut model, a, 10));
    assert!(holds(&mut model, b, 10));
}

#[test]
fn overlapping_writes_may_end_either_way_until_one_is_seen() {
    let mut model = model();
    let a = model.submit(1, false, 9, 1);
    let b = model.submit(2, false, 9, 1);
    model.ended(3, a, true, false);
    model.ended(4, b, true, false);
    assert!(holds(&mut model, a, 10));
    assert!(!holds(&mut model, b, 12), "it was a that stayed");
}

#[test]
fn a_read_beside_a_write_sees_the_old_or_the_new() {
    let mut model = model();
    let a = write(&mut model, 1, 2, true);
    let b = model.submit(5, false, 9, 1);
    assert!(holds(&mut model, a, 10));
    assert!(holds(&mut model, b, 12));
    assert!(holds(&mut model, a, 14), "nothing is settled while it is under way");
    model.ended(20, b, true, false);
    assert!(!holds(&mut model, a, 21));
    assert!(model.check(9, &contents(a, 9), 19, 22).is_ok(), "the read began before the write had ended");
}

#[test]
fn what_was_flushed_survives_and_what_was_not_may_be_gone() {
    let mut model = model();
    let a = write(&mut model, 1, 2, false);
    model.flushed(3);
    let b = write(&mut model, 4, 5, false);
    let c = model.submit(6, false, 9, 1);
    model.crashed(7);
    model.caches_lost(7);
    for id in [a, b, c] {
        let mut one = Model {
            writes: model.writes.clone(),
            sectors: model.sectors.clone(),
            unflushed: Vec::new(),
            garbage: false,
            lost_at: 7,
            floor: 0,
        };
        assert!(holds(&mut one, id, 10), "{id}");
        assert!(!holds(&mut one, 0, 11));
    }
}

#[test]
fn a_read_that_was_under_way_when_caches_were_lost_settles_nothing() {
    let mut model = model();
    let a = write(&mut model, 1, 2, false);
    model.caches_lost(5);
    assert!(model.check(9, &contents(a, 9), 4, 6).is_ok(), "read before the loss, or kept");
    assert!(holds(&mut model, 0, 10), "lost after it was read");
    assert!(!holds(&mut model, a, 12), "this one began after the loss");
}

#[test]
fn a_crash_without_lost_caches_keeps_acknowledged_writes() {
    let mut model = model();
    write(&mut model, 1, 2, false);
    model.crashed(7);
    assert!(!holds(&mut model, 0, 10));
}

#[test]
fn fua_is_durable_at_once() {
    let mut model = model();
    let a = write(&mut model, 1, 2, true);
    model.caches_lost(3);
    assert!(!holds(&mut model, 0, 10));
    assert!(holds(&mut model, a, 11));
}

#[test]
fn a_flush_does_not_bring_back_what_was_lost_before_it() {
    let mut model = model();
    let a = write(&mut model, 1, 2, false);
    model.caches_lost(3);
    model.flushed(4);
    assert!(holds(&mut model, 0, 10), "lost before the flush");
    assert!(!holds(&mut model, a, 12), "and settled by the read before");
    let b = write(&mut model, 14, 15, false);
    model.caches_lost(17);
    model.flushed(16);
    assert!(!holds(&mut model, 0, 20), "flushed before it was lost");
    assert!(holds(&mut model, b, 21));
}

#[test]
fn unknown_sectors_hold_anything_until_written() {
    let mut model = model();
    write(&mut model, 1, 2, true);
    model.unknown(3, [9]);
    assert!(model.check(9, &[7; SECTOR], 4, 5).is_ok());
    let b = write(&mut model, 6, 7, false);
    assert!(model.check(9, &[7; SECTOR], 8, 9).is_err());
    assert!(holds(&mut model, b, 10));
}

#[test]
fn damaged_data_and_data_of_other_sectors_are_found() {
    let mut model = model();
    let a = write(&mut model, 1, 2, true);
    assert!(model.check(9, &contents(a, 8), 3, 4).is_err());
    let mut torn = contents(a, 9);
    torn[300] ^= 1;
    assert!(model.check(9, &torn, 3, 4).is_err());
    assert!(model.check(10, &contents(a, 10), 3, 4).is_err(), "never written");
}
