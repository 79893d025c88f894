//! mdadm reads what we write.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use super::world::{DEVICE, Setup, World};
use crate::message::IoStatus;

/// The fields of `mdadm -E` on what a device holds, or `None` where there is no mdadm.
fn examine(world: &World, handle: u16) -> Option<Vec<(String, String)>> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[0; 4096]).unwrap();
    file.write_all(&*world.devices[&handle].stored).unwrap();
    file.as_file().set_len(DEVICE.bytes().0).unwrap();
    let output = match Command::new("mdadm").arg("-E").arg(file.path()).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIPPED: mdadm cannot be run: {error}");
            return None;
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let field = |line: &str| line.split_once(" : ").map(|(name, value)| (name.trim().into(), value.trim().into()));
    Some(text.lines().filter_map(field).collect())
}

fn check(world: &World, handle: u16, expected: &[(&str, &str)]) {
    let Some(fields) = examine(world, handle) else { return };
    for (name, value) in expected {
        let found = fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
        assert!(
            found.is_some_and(|found| found.starts_with(value)),
            "device {handle}: {name} is {found:?}, not {value}"
        );
    }
    let checksum = fields.iter().find(|(name, _)| name == "Checksum").unwrap();
    assert!(checksum.1.ends_with("correct"), "{checksum:?}");
}

#[test]
fn every_state_is_read_by_mdadm() {
    let mut world = World::new(Setup { spares: 1, ..Setup::default() });
    world.workers[0].busy = true;
    world.write(0);
    world.settle();
    check(&world, 0, &[("State", "active"), ("Device Role", "Active device 0"), ("Array State", "AAAA")]);
    check(&world, 4, &[("State", "active"), ("Device Role", "spare")]);

    world.sync_held = true;
    world.member_error(2, IoStatus::Failed);
    world.settle();
    check(&world, 1, &[("Array State", "AAAA"), ("Feature Map", "0x0")]);
    check(&world, 4, &[("Device Role", "Active device 2"), ("Feature Map", "0x2"), ("Recovery Offset", "0 sectors")]);

    world.sync_held = false;
    world.workers[0].busy = false;
    world.pass(Duration::from_secs(10));
    for handle in [0, 1, 3, 4] {
        check(&world, handle, &[("State", "clean"), ("Array State", "AAAA"), ("Feature Map", "0x0")]);
    }
    world.member_error(3, IoStatus::Failed);
    world.settle();
    check(&world, 4, &[("State", "clean"), ("Array State", "AAA."), ("Events", "")]);
}
