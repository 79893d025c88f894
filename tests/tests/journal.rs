//! What an operator reads in the journal: each change of state is one line, with its priority, and there are no others.

use etherraid_tests::proc::{Cmd, Proc};
use etherraid_tests::rig::{self, HOST, VbladeRig};
use etherraid_tests::{binary, nbd, pattern, require, wait};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

const MEMBER_BYTES: u64 = 32 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// An array whose standard error is what it takes for the journal.
struct Logged<'a> {
    proc: Proc,
    rig: &'a VbladeRig,
}

impl<'a> Logged<'a> {
    fn start(rig: &'a VbladeRig) -> Self {
        let spec = rig.spec();
        spec.create(&["-c", rig::CHUNK, "--assume-clean"]);
        let log = rig.dir.path().join("log");
        let run = format!(
            "exec 2> {0}; export JOURNAL_STREAM=$(stat -L -c %d:%i {0}); exec {1} run {2} -i {HOST} {3} --nbd unix:{4} \
             --set member_hold=3",
            log.display(),
            binary::path().display(),
            spec.name(),
            spec.members().join(" "),
            rig.dir.path().join("nbd").display(),
        );
        let proc = Cmd::new("sh").args(["-c", &run]).netns(&rig.netns).spawn();
        proc.wait_for_line("ready", LIMIT);
        Self { proc, rig }
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.rig.dir.path().join("log")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn wait_for(&self, line: &str) {
        wait::until(line, LIMIT, || self.lines().iter().any(|found| found == line).then_some(()));
    }

    fn write(&self, seed: u64) {
        write(&self.rig.dir.path().join("nbd"), seed);
    }

    fn end(mut self) -> Vec<String> {
        self.proc.signal(Signal::TERM);
        self.proc.wait(LIMIT).expect("it ends");
        self.lines()
    }
}

fn write(socket: &Path, seed: u64) {
    let mut client = nbd::Client::connect(socket).unwrap();
    client.write(0, &pattern::bytes(seed, 0, 4 << 20), false).unwrap();
    client.flush().unwrap();
    client.disconnect().unwrap();
}

#[test]
fn a_member_goes_and_comes_back() {
    require!(netns, "vblade");
    let rig = VbladeRig::new(3, MEMBER_BYTES);
    let array = Logged::start(&rig);
    array.write(1);
    rig.vblades[1].suspend();
    // The write needs it, waits for it, and goes on without it.
    array.write(2);
    array.wait_for("<4>e9.1: recorded as missing");
    rig.vblades[1].resume();
    array.wait_for("<6>e9.1: in sync in slot 1");
    array.write(3);
    assert_eq!(
        array.end(),
        [
            "<4>e9.1: does not answer",
            "<3>e9.1: missing; slot 1 is lost",
            "<4>e9.1: recorded as missing",
            "<6>e9.1: answers again",
            "<6>e9.1: is back",
            "<6>recover from sector 0",
            "<6>recover done",
            "<6>e9.1: in sync in slot 1",
            "<6>SIGTERM: stopping",
        ]
    );
}

#[test]
fn more_than_parity_covers_go_and_come_back() {
    require!(netns, "vblade");
    let rig = VbladeRig::new(3, MEMBER_BYTES);
    let array = Logged::start(&rig);
    array.write(1);
    rig.vblades[..2].iter().for_each(|vblade| vblade.suspend());
    let socket = rig.dir.path().join("nbd");
    std::thread::scope(|scope| {
        let held = scope.spawn(|| write(&socket, 2));
        array.wait_for("<3>suspended: 2 members do not answer or are lost");
        rig.vblades[..2].iter().for_each(|vblade| vblade.resume());
        held.join().expect("it goes on, and no write fails");
    });
    array.wait_for("<6>no longer suspended");
    wait::until("both answer", LIMIT, || {
        (array.lines().iter().filter(|line| line.contains("answers again")).count() == 2).then_some(())
    });
    let mut lines = array.end();
    // Which of the two is noticed first is not fixed.
    lines.sort();
    assert_eq!(
        lines,
        [
            "<3>suspended: 2 members do not answer or are lost",
            "<4>e9.0: does not answer",
            "<4>e9.1: does not answer",
            "<6>SIGTERM: stopping",
            "<6>e9.0: answers again",
            "<6>e9.1: answers again",
            "<6>no longer suspended",
        ]
    );
}
