//! `demo` as a whole, over both of its networks.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::etherraid;

/// What was told by a demo that went well.
fn demo(args: &[&str]) -> String {
    let output = etherraid(["demo"].iter().chain(args)).assert().success().get_output().clone();
    let told = String::from_utf8(output.stdout).expect("text");
    assert_eq!(told.matches("every byte is right").count(), 3, "{told}");
    assert_eq!(told.matches("active, degraded").count(), 2, "{told}");
    for text in ["rebuilt", "none failed", "No request failed, and every byte read was right"] {
        assert!(told.contains(text), "{told}");
    }
    assert!(told.lines().any(|line| line.contains("|   4k |")), "a table: {told}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    told
}

#[test]
fn over_the_network_that_there_is() {
    let told = demo(&[]);
    let root = rustix::process::geteuid().is_root();
    assert!(root || told.contains("inside this process"), "{told}");
    nothing_is_left();
}

#[test]
fn inside_the_process() {
    assert!(demo(&["--in-process"]).contains("inside this process"));
}

#[test]
fn killed_half_way() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_etherraid"));
    let mut child = command.arg("demo").stdout(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.map(|line| line.expect("readable")).any(|line| line.contains("A shelf is lost")));
    child.kill().expect("running");
    child.wait().expect("killed");
    nothing_is_left();
}

fn nothing_is_left() {
    for end in ["er-host", "er-shelves"] {
        assert!(!Path::new("/sys/class/net").join(end).exists(), "{end} is left behind");
    }
}
