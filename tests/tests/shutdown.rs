//! The ends of an array: SIGTERM, which is orderly, and SIGKILL, which is a crash.

use etherraid_tests::array::Spec;
use etherraid_tests::crash::{self, Model};
use etherraid_tests::nbd::{self, Client};
use etherraid_tests::rig::{self, VbladeRig};
use etherraid_tests::{md, pattern, require};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const MEMBERS: usize = 4;
const MEMBER_BYTES: u64 = 48 << 20;
const BLOCK: usize = 4096;
/// NBD's error for a request that comes after the server began to stop.
const ESHUTDOWN: u32 = 108;
/// Writes under way at SIGTERM.
const IN_FLIGHT: u64 = 64;

fn as_paths(files: &[PathBuf]) -> Vec<&Path> {
    files.iter().map(PathBuf::as_path).collect()
}

fn states(files: &[&Path]) -> Vec<String> {
    files.iter().map(|file| md::examine(file).field("State").to_owned()).collect()
}

#[test]
fn sigterm_finishes_what_is_in_flight_and_marks_the_array_clean() {
    require!("mdadm");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    let mut array = spec.run(&[]);
    array.wait_in_sync();

    let mut client = Client::connect(array.socket()).unwrap();
    let mut sent: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
    for n in 0..IN_FLIGHT {
        let offset = n * BLOCK as u64;
        let data = pattern::bytes(1, offset, BLOCK);
        sent.insert(client.send_write(offset, &data, false).unwrap(), (offset, data));
    }
    array.sigterm();
    // All of these were sent before the signal: each is done, or refused, and none goes without an answer.
    let mut done = Vec::new();
    while !sent.is_empty() {
        let answer = client.answer().expect("an answer to each write");
        let write = sent.remove(&answer.cookie).expect("each write is answered once");
        match answer.error {
            0 => done.push(write),
            ESHUTDOWN => {}
            other => panic!("error {other} in an orderly end"),
        }
    }
    // What comes after is refused, or finds nobody there.
    if client.send_write(0, &[0; BLOCK], false).is_ok()
        && let Ok(answer) = client.answer()
    {
        assert_eq!(answer.error, ESHUTDOWN);
    }
    assert_eq!(array.wait_exit().code(), Some(0));
    assert!(Client::connect(array.socket()).is_err());
    assert_eq!(states(&as_paths(&files)), ["clean"; MEMBERS]);
    md::parity_of_array_is_right(&as_paths(&files)).unwrap();

    let array = spec.run(&[]);
    assert!(array.detail().is_idle(), "a clean array needs no resync");
    let mut client = Client::connect(array.socket()).unwrap();
    for (offset, data) in done {
        assert!(client.read(offset, BLOCK).unwrap() == data, "an answered write at {offset} is gone");
    }
    client.disconnect().unwrap();
    array.stop();
}

#[test]
fn sigterm_of_an_idle_array_is_clean() {
    require!("mdadm");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    let mut array = spec.run(&[]);
    array.wait_in_sync();
    array.sigterm();
    assert_eq!(array.wait_exit().code(), Some(0));
    assert!(!array.socket().exists(), "the socket is left behind");
    assert_eq!(states(&as_paths(&files)), ["clean"; MEMBERS]);
}

/// After a crash: found dirty, resynced while it serves, flushed data there, and the same with any member absent.
fn recovers(spec: &Spec<'_>, files: &[&Path], dir: &Path, model: &Model) {
    assert_eq!(states(files), vec!["active"; files.len()], "a crash in the midst of writes leaves the array dirty");
    let array = spec.run(&[]);
    let mut client = Client::connect(array.socket()).unwrap();
    model.check(&mut client);
    let detail = array.wait_in_sync();
    assert_eq!(detail.last_sync_action(), Some("resync"), "{detail:?}");
    model.check(&mut client);
    client.disconnect().unwrap();
    let image = rig::image_of(&array, &dir.join("resynced"));
    array.stop();
    assert_eq!(states(files), vec!["clean"; files.len()]);
    md::parity_of_array_is_right(files).unwrap();
    rig::reads_the_same_without_any_one(spec, dir, &image);
}

#[test]
fn sigkill_during_writes_over_files() {
    require!("mdadm", "nbdcopy");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    let array = spec.run(&[]);
    array.wait_in_sync();
    let mut model = Model::new(2000);
    crash::write_and_kill(array, &mut model);
    recovers(&spec, &as_paths(&files), dir.path(), &model);
}

#[test]
fn sigkill_during_writes_over_vblades() {
    require!(netns, "vblade", "mdadm", "nbdcopy");
    let rig = VbladeRig::new(MEMBERS, MEMBER_BYTES);
    let array = rig.start_array(&[]);
    let mut model = Model::new(2000);
    crash::write_and_kill(array, &mut model);
    recovers(&rig.spec(), &rig.files(), rig.dir.path(), &model);
}

#[test]
fn a_dirty_array_with_a_member_missing_is_refused_unless_forced() {
    require!("mdadm", "nbdcopy");
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    let array = spec.run(&[]);
    array.wait_in_sync();
    crash::write_and_kill(array, &mut Model::new(2000));
    let before: Vec<Vec<u8>> = files.iter().map(|f| md::superblock_bytes(f).unwrap()).collect();
    let fewer = spec.with_members(&spec.members()[1..]);
    let text = fewer.run_refused(&["--run"]).fails_with(1);
    assert!(text.contains("--force"), "it must say what to try: {text}");
    let after: Vec<Vec<u8>> = files.iter().map(|f| md::superblock_bytes(f).unwrap()).collect();
    assert!(before == after, "a refused assembly changes nothing");
    let array = fewer.run(&["--run", "--force"]);
    assert_eq!(array.detail().degraded(), 1);
    array.stop();
}

#[test]
fn an_array_runs_once() {
    let dir = tempfile::tempdir().unwrap();
    let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
    let spec = Spec::local(&files);
    spec.create(&["-c", rig::CHUNK]);
    let array = spec.run(&[]);
    spec.run_refused(&[]).fails_with(1);
    nbd::Client::connect(array.socket()).unwrap().flush().unwrap();
    array.stop();
    spec.run(&[]).stop();
}
