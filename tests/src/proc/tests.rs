//! Output, time limits, signals, and death with the parent.

use super::*;
use crate::wait;

const SHORT: Duration = Duration::from_secs(10);

fn sh(script: &str) -> Cmd {
    Cmd::new("sh").args(["-c", script])
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name in parentheses; a zombie is not alive.
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn output_and_status_are_kept() {
    let done = sh("echo out; echo err >&2; exit 3").finish(SHORT);
    assert_eq!(done.status.code(), Some(3));
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(done.fails_with(3), "err\n");
    assert_eq!(sh("echo fine").ok(SHORT), "fine\n");
}

#[test]
#[should_panic(expected = "and said why")]
fn a_failure_shows_the_output() {
    sh("echo and said why; exit 1").ok(SHORT);
}

#[test]
fn a_line_is_waited_for_while_it_runs() {
    let proc = sh("echo one; echo ready now >&2; exec sleep 1000").spawn();
    assert_eq!(proc.wait_for_line("ready", SHORT), "ready now");
}

#[test]
#[should_panic(expected = "ended without a line")]
fn a_process_that_ends_ends_the_wait() {
    sh("echo other").spawn().wait_for_line("ready", Duration::from_secs(600));
}

#[test]
#[should_panic(expected = "still runs")]
fn an_endless_process_is_no_endless_wait() {
    sh("exec sleep 1000").finish(Duration::from_millis(50));
}

#[test]
#[should_panic(expected = "cannot run `no-such-program-anywhere`")]
fn a_missing_program_is_named() {
    Cmd::new("no-such-program-anywhere").spawn();
}

#[test]
fn signals_arrive_and_stopped_is_running() {
    let mut proc = sh("trap 'echo got it; exit 7' TERM; echo set; while :; do sleep 0.01; done").spawn();
    proc.wait_for_line("set", SHORT);
    proc.signal(Signal::STOP);
    assert!(proc.is_running());
    proc.signal(Signal::CONT);
    proc.signal(Signal::TERM);
    let done = proc.finish(SHORT);
    assert_eq!(done.status.code(), Some(7));
    assert_eq!(done.stdout, "set\ngot it\n");
}

#[test]
fn a_dropped_process_is_gone() {
    let proc = sh("exec sleep 1000").spawn();
    let pid = proc.pid();
    assert!(is_alive(pid));
    drop(proc);
    assert!(!is_alive(pid));
}

#[test]
fn a_child_dies_with_the_thread_that_spawned_it() {
    let pid = std::thread::spawn(|| {
        let proc = sh("exec sleep 1000").spawn();
        let pid = proc.pid();
        // What a killed test does: ends without running any drop.
        std::mem::forget(proc);
        pid
    })
    .join()
    .unwrap();
    wait::until("the child's death", SHORT, || (!is_alive(pid)).then_some(()));
}

#[test]
fn long_output_keeps_its_end() {
    let done = sh(&format!("seq {}", MAX_LINES + 10)).finish(Duration::from_secs(60));
    assert_eq!(done.stdout.lines().last(), Some((MAX_LINES + 10).to_string().as_str()));
}
