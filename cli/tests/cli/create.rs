//! `create`: what it writes, what mdadm says of that, and what it refuses to overwrite.

use std::os::unix::fs::FileExt;
use std::process::Command;

use serde_json::Value;

use crate::common::{Files, etherraid, has};

/// Exit status 1, a message that names all of `words`, and members as they were.
fn refused(files: &Files, count: usize, more: &[&str], words: &[&str]) {
    let before = files.contents(count);
    let n = count.to_string();
    let args = [&["create", &files.name, "-l", "5", "-n", &n][..], more].concat();
    let output = etherraid(&args).args(files.members(count)).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
    assert!(files.contents(count) == before, "{args:?} changed a member");
}

/// `mdadm -E` of a member; `None` without mdadm.
fn examine(files: &Files, index: usize) -> Option<String> {
    if !has("mdadm") {
        return None;
    }
    let output = Command::new("mdadm").arg("-E").arg(files.path(index)).output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn holds(text: &str, name: &str, value: &str) {
    let found =
        text.lines().filter_map(|line| line.split_once(" : ")).any(|(n, v)| n.trim() == name && v.contains(value));
    assert!(found, "no `{name} : {value}` in {text}");
}

#[test]
fn mdadm_accepts_each_member() {
    let files = Files::new(5);
    let args =
        ["create", &files.name, "-l", "5", "-n", "4", "-x", "1", "-c", "128K", "-p", "right-asymmetric", "--json"];
    let output = etherraid(args).args(files.members(5)).output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let created: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(created["chunk_bytes"], 128 << 10);
    assert_eq!(created["layout"], "right-asymmetric");
    assert_eq!(created["array_size_bytes"].as_u64(), created["used_dev_size_bytes"].as_u64().map(|size| 3 * size));
    for index in 0..5 {
        let Some(text) = examine(&files, index) else { return };
        holds(&text, "Array UUID", created["uuid"].as_str().expect("text"));
        holds(&text, "Name", created["name"].as_str().expect("text"));
        holds(&text, "Checksum", "correct");
        holds(&text, "Version", "1.2");
        holds(&text, "Chunk Size", "128K");
        holds(&text, "Layout", "right-asymmetric");
        holds(&text, "State", "active");
        holds(&text, "Array State", "AAAA");
        let role = if index < 4 { format!("Active device {index}") } else { "spare".to_owned() };
        holds(&text, "Device Role", &role);
    }
}

#[test]
fn other_versions_levels_and_sizes() {
    for version in ["1.0", "1.1"] {
        let files = Files::new(3);
        files.create(3, &["-e", version, "--assume-clean", "-z", "4M"]);
        let Some(text) = examine(&files, 2) else { return };
        holds(&text, "Version", version);
        holds(&text, "State", "clean");
        holds(&text, "Used Dev Size", "8192 sectors");
    }
    let files = Files::new(3);
    etherraid(["create", &files.name, "-l", "raid4", "-n", "3"]).args(files.members(3)).assert().success();
    if let Some(text) = examine(&files, 0) {
        holds(&text, "Raid Level", "raid4");
        holds(&text, "Chunk Size", "512K");
    }
}

#[test]
fn what_a_member_carries_is_overwritten_only_with_run() {
    let files = Files::new(3);
    files.create(3, &[]);
    refused(&files, 3, &[], &["disk0 is a member of array", &files.name, "--run"]);
    let before = files.contents(3);
    files.create(3, &["--run"]);
    assert!(files.contents(3) != before);

    let files = Files::new(3);
    let file = std::fs::File::options().write(true).open(files.path(1)).expect("there");
    file.write_all_at(&[0x53, 0xEF], 0x438).expect("written");
    refused(&files, 3, &[], &["disk1 seems to hold an ext2", "--run"]);
    files.create(3, &["--run"]);
}

#[test]
fn a_damaged_superblock_is_something_too() {
    let files = Files::new(3);
    files.create(3, &[]);
    for index in 0..3 {
        let file = std::fs::File::options().write(true).open(files.path(index)).expect("there");
        file.write_all_at(&[0x11; 8], 4096 + 200).expect("written");
    }
    refused(&files, 3, &[], &["remains of an md superblock", "checksum", "--run"]);
}

#[test]
fn members_that_cannot_be_used() {
    let files = Files::new(3);
    std::fs::File::options().write(true).open(files.path(2)).expect("there").set_len(1 << 20).expect("shorter");
    refused(&files, 3, &[], &["disk2 has 1024 KiB: too small", "are needed"]);
    std::fs::remove_file(files.path(2)).expect("there");
    std::fs::create_dir(files.path(2)).expect("room");
    let output = etherraid(["create", "x", "-l", "5", "-n", "3"]).args(files.members(3)).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("neither a file nor a block device"), "{text}");
    std::fs::remove_dir(files.path(2)).expect("there");
    let output = etherraid(["create", "x", "-l", "5", "-n", "3"]).args(files.members(3)).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("disk2: No such file"), "{text}");
    let output = etherraid(["create", "x", "-l", "5", "-n", "3", "e9.0", "e9.1", "e9.2"]).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("needs an interface"), "{text}");
}
