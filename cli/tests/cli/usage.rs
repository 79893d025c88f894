//! What is wrong with a command line is told, with exit status 2, and without touching anything.

use crate::common::{Files, etherraid};

/// Exit status 2, and a message that names all of `words`.
fn refused(args: &[&str], words: &[&str]) {
    let output = etherraid(args).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: {word:?} is not in {text}");
    }
}

#[test]
fn bad_command_lines() {
    refused(&[], &["Usage"]);
    refused(&["crate", "x"], &["create"]);
    refused(&["create", "a/b", "-l", "5", "-n", "3", "d0", "d1", "d2"], &["slash"]);
    refused(&["create", "x", "-l", "6", "-n", "4", "d0", "d1", "d2", "d3"], &["levels 4 and 5"]);
    refused(&["create", "x", "-l", "5", "-n", "3", "-c", "64KB", "d0", "d1", "d2"], &["64KB"]);
    refused(&["create", "x", "-l", "5", "-n", "3", "-p", "up", "d0", "d1", "d2"], &["up"]);
    refused(&["create", "x", "-l", "5", "-n", "3", "-e", "0.90", "d0", "d1", "d2"], &["0.90"]);
    refused(&["create", "x", "-l", "5", "-n", "3", "e9.255", "d1", "d2"], &["e9.255", "254"]);
    refused(&["run", "x", "d0", "d1"], &["--nbd unix:PATH"]);
    refused(&["run", "x", "--nbd", "unix:/tmp/x"], &["MEMBER"]);
    refused(&["run", "x", "--nbd", "/tmp/x", "d0"], &["unix:PATH"]);
    refused(&["run", "x", "--nbd", "tcp:127.0.0.1", "d0"], &["no port", "0 to 65535"]);
    refused(&["run", "x", "--nbd", "tcp:127.0.0.1:99999", "d0"], &["no port", "0 to 65535"]);
    refused(&["run", "x", "--nbd", "unix:/tmp/x", "--scan"], &["-i"]);
    refused(&["run", "x", "--nbd", "unix:/tmp/x", "--scan", "d0"], &["--scan"]);
    refused(&["run", "x", "--nbd", "unix:/tmp/x", "mem:1M"], &["bench and demo"]);
    refused(&["run", "x", "--nbd", "unix:/tmp/x", "--uuid", "1", "d0"], &["--uuid"]);
    refused(&["run", "x", "--nbd", "unix:/tmp/x", "--cpus", "1-", "d0"], &["0,2-3"]);
    refused(&["run", "x", "--nbd", "unix:/tmp/x", "--set", "rmw_level=9", "d0"], &["rmw_level", "0 to 2"]);
    refused(&["run", "x", "--nbd", "unix:/tmp/x", "--set", "rmv_level=1", "d0"], &["rmw_level"]);
    refused(
        &["run", "x", "--nbd", "unix:/tmp/x", "--set", "group_thread_cnt=9", "d0"],
        &["group_thread_cnt takes 0 to 2"],
    );
    refused(&["run", "x", "--nbd", "unix:/tmp/x", "--fault", "loss=2", "d0"], &["loss=2"]);
    refused(&["add", "x"], &["MEMBER"]);
    refused(&["shelf", "-i", "eth0"], &["-d"]);
    refused(&["shelf", "-d", "1.1=/tmp/x"], &["-i"]);
    refused(&["shelf", "-i", "eth0", "-d", "1.1"], &["SHELF.SLOT=PATH"]);
    refused(&["shelf", "-i", "eth0", "-d", "1.1=/a", "-d", "e1.1=/b"], &["e1.1", "twice"]);
    refused(&["shelf", "-i", "eth0", "-d", "1.1=/a", "-b", "0"], &["-b", "1"]);
    refused(&["shelf", "-i", "eth0", "-d", "1.1=/a", "-m", "02:00:00:00:00:01"], &["--state"]);
}

#[test]
fn what_create_cannot_do_is_told_and_changes_nothing() {
    let files = Files::new(4);
    let before = files.contents(4);
    let members = files.members(4);
    let create = |more: &[&str], members: &[&String], words: &[&str]| {
        let mut args = vec!["create", &files.name, "-l", "5"];
        args.extend(more);
        args.extend(members.iter().map(|member| member.as_str()));
        refused(&args, words);
        assert!(files.contents(4) == before, "{args:?} changed a member");
    };
    let [a, b, c, d] = &members[..] else { panic!("four") };
    create(&["-n", "4"], &[a, b, c], &["3 members given", "ask for 4"]);
    create(&["-n", "3"], &[a, b, c, d], &["4 members given", "ask for 3"]);
    create(&["-n", "3", "-x", "2"], &[a, b, c, d], &["4 members given", "ask for 5"]);
    create(&["-n", "3"], &[a, b, a], &["disk0 is given twice"]);
    create(&["-n", "3", "-b", "internal"], &[a, b, c], &["not supported yet", "-b none"]);
    create(&["-n", "3", "-k", "bitmap"], &[a, b, c], &["not supported yet", "-k resync"]);
    create(&["-n", "3", "-k", "ppl"], &[a, b, c], &["not supported yet", "-k resync"]);
    std::os::unix::fs::symlink(a, files.dir.path().join("alias")).expect("a link");
    let alias = files.dir.path().join("alias").display().to_string();
    create(&["-n", "3"], &[a, b, &alias], &["given twice, under two names", "disk0"]);
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [&["--help"][..], &["--version"], &["create", "--help"], &["run", "--help"], &["shelf", "-h"]] {
        let output = etherraid(args).output().expect("runs");
        assert!(output.status.success() && !output.stdout.is_empty(), "{args:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("--fault"), "for tests only");
    }
}
