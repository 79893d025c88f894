//! Other people's clients: qemu-io, nbdinfo, nbdcopy, fio, and libnbd by its Python binding.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::*;

/// Where a program is; says so when it is not there.
fn tool(name: &str) -> Option<PathBuf> {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        println!("SKIPPED: {name} is not installed");
    }
    found
}

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn uri(served: &Served) -> String {
    served.at().uri()
}

/// Bytes that look random and differ everywhere.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn assert_nothing_held(served: &Served) {
    eventually("the last buffer", || served.array.pool.held.load(Ordering::SeqCst) == 0);
    eventually("the last backend", || served.array.open.load(Ordering::SeqCst) == 0);
}

#[test]
fn qemu_io() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let served = serve(Array::new(64 << 20));
    let commands = [
        "write -P 0x11 0 1M",
        // Not a multiple of a sector: qemu reads, changes and writes what our block size asks for.
        "write -P 0x22 1000 3000",
        "read -P 0x11 0 1000",
        "read -P 0x22 1000 3000",
        "read -P 0x11 4000 1000000",
        "write -f -P 0x33 40M 2M",
        "flush",
        "read -P 0x33 40M 2M",
        "write -z 41M 512k",
        "read -P 0 41M 512k",
        "discard 40M 1M",
        "read -P 0 40M 1M",
        "aio_write -P 0x44 8M 1M",
        "aio_write -P 0x55 9M 1M",
        "aio_write -P 0x66 10M 64k",
        "aio_flush",
        "read -P 0x44 8M 1M",
        "read -P 0x55 9M 1M",
        "read -P 0x66 10M 64k",
    ];
    let mut command = Command::new(qemu_io);
    command.args(["-f", "raw"]);
    for line in commands {
        command.args(["-c", line]);
    }
    let output = run(command.arg(uri(&served)));
    let text = String::from_utf8_lossy(&output.stdout);
    // qemu-io ends with 0 when a pattern does not match.
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    assert_eq!(text.matches("Pattern verification").count(), 0, "{text}");
    let bytes = served.array.bytes();
    assert!(bytes[1000..4000].iter().all(|&b| b == 0x22) && bytes[4000] == 0x11 && bytes[999] == 0x11);
    assert!(bytes[(10 << 20)..][..65536].iter().all(|&b| b == 0x66));
    assert_nothing_held(&served);
}

#[test]
fn qemu_io_on_a_read_only_export() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let served = serve(Array::new(1 << 20).with_info(|info| info.read_only = true));
    run(Command::new(&qemu_io).args(["-r", "-f", "raw", "-c", "read -P 0 0 1M"]).arg(uri(&served)));
    let output = Command::new(&qemu_io).args(["-f", "raw", "-c", "write 0 512"]).arg(uri(&served)).output().unwrap();
    assert!(!output.status.success());
    assert!(served.array.bytes().iter().all(|&b| b == 0));
}

#[test]
fn nbdinfo() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let served = serve(Array::new(64 << 20));
    let output = run(Command::new(&nbdinfo).arg("--json").arg(uri(&served)));
    let text = String::from_utf8(output.stdout).unwrap();
    let facts = [
        r#""protocol": "newstyle-fixed""#,
        r#""TLS": false"#,
        r#""structured": true"#,
        r#""export-name": "md0""#,
        r#""description": "memory""#,
        r#""is_read_only": false"#,
        r#""can_flush": true"#,
        r#""can_fua": true"#,
        r#""can_trim": true"#,
        r#""can_zero": true"#,
        r#""can_multi_conn": true"#,
        r#""can_df": true"#,
        r#""can_cache": true"#,
        r#""block_size_minimum": 512"#,
        r#""block_size_preferred": 65536"#,
        r#""block_size_maximum": 33554432"#,
        r#""export-size": 67108864"#,
    ];
    for fact in facts {
        assert!(text.contains(fact), "{fact} is not in {text}");
    }
    let output = run(Command::new(&nbdinfo).arg("--list").arg(uri(&served)));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(r#"export="md0":"#), "{text}");
    let by_name = format!("nbd+unix:///md0?socket={}", path_of(served.at()).display());
    let output = run(Command::new(&nbdinfo).arg("--size").arg(by_name));
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "67108864");
    let unknown = format!("nbd+unix:///md7?socket={}", path_of(served.at()).display());
    assert!(!Command::new(&nbdinfo).arg("--size").arg(unknown).output().unwrap().status.success());
    assert_nothing_held(&served);
}

#[test]
fn nbdinfo_maps_all_as_data() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let served = serve(Array::new(64 << 20));
    for uri in served.server.addresses().iter().map(Address::uri) {
        let text = String::from_utf8(run(Command::new(&nbdinfo).arg("--map").arg(&uri)).stdout).unwrap();
        let fields: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(fields, [["0", "67108864", "0", "data"]], "{uri}");
        let totals = run(Command::new(&nbdinfo).args(["--map", "--totals"]).arg(&uri));
        assert!(String::from_utf8(totals.stdout).unwrap().contains("100.0%"), "{uri}");
    }
    assert_nothing_held(&served);
}

#[test]
fn libnbd_block_status() {
    let served = serve(Array::new(16 << 20));
    python(&served, include_str!("clients/block_status.py"));
    assert_eq!(served.array.seen(), 0);
    assert_nothing_held(&served);
}

#[test]
fn qemu_converts_and_compares_over_tcp() {
    let Some(qemu_img) = tool("qemu-img") else { return };
    let served = serve(Array::new(16 << 20));
    let mut image = noise(16 << 20);
    image[(5 << 20)..(9 << 20)].fill(0);
    let (source, copy) = (served.dir.path().join("in"), served.dir.path().join("out"));
    std::fs::write(&source, &image).unwrap();
    let uri = served.server.addresses()[1].uri();
    run(Command::new(&qemu_img).args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&source).arg(&uri));
    assert!(served.array.bytes() == image);
    run(Command::new(&qemu_img).args(["compare", "-f", "raw", "-F", "raw"]).arg(&source).arg(&uri));
    run(Command::new(&qemu_img).args(["convert", "-f", "raw", "-O", "raw"]).arg(&uri).arg(&copy));
    assert!(std::fs::read(&copy).unwrap() == image);
    assert_nothing_held(&served);
}

#[test]
fn nbdcopy_in_and_out() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let served = serve(Array::new(64 << 20));
    let mut image = noise(64 << 20);
    // A hole, which nbdcopy writes as zeroes.
    image[(20 << 20)..(30 << 20)].fill(0);
    let (source, copy) = (served.dir.path().join("in"), served.dir.path().join("out"));
    std::fs::write(&source, &image).unwrap();
    // Several connections, many requests, zeroes found and flushed at the end.
    run(Command::new(&nbdcopy).args(["--flush", "--connections=4", "--requests=64"]).arg(&source).arg(uri(&served)));
    assert!(served.array.bytes() == image);
    run(Command::new(&nbdcopy).arg("--connections=4").arg(uri(&served)).arg(&copy));
    assert!(std::fs::read(&copy).unwrap() == image);
    // With one connection and the odd request size.
    run(Command::new(&nbdcopy)
        .args(["--connections=1", "--requests=3", "--request-size=32768"])
        .arg(uri(&served))
        .arg(&copy));
    assert!(std::fs::read(&copy).unwrap() == image);
    assert_nothing_held(&served);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(fio) = tool("fio") else { return };
    if !String::from_utf8_lossy(&run(Command::new(&fio).arg("--enghelp")).stdout).contains("nbd") {
        println!("SKIPPED: fio has no nbd engine");
        return;
    }
    for (block, depth) in [("4k", 64), ("60k", 32), ("1m", 8), ("512", 128)] {
        let served = serve(Array::new(24 << 20));
        let size = if block == "512" { "1m" } else { "24m" };
        run(Command::new(&fio)
            .current_dir(served.dir.path())
            .args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"])
            .args(["--randseed=7", "--fsync=50"])
            .arg(format!("--uri={}", uri(&served)))
            .arg(format!("--bs={block}"))
            .arg(format!("--iodepth={depth}"))
            .arg(format!("--size={size}")));
        assert_nothing_held(&served);
    }
}

/// Runs a script with `uri` defined and `nbd` imported.
fn python(served: &Served, script: &str) {
    let python = PathBuf::from("/usr/bin/python3");
    let has_nbd = Command::new(&python).args(["-c", "import nbd"]).stderr(Stdio::null()).status();
    if !has_nbd.is_ok_and(|status| status.success()) {
        println!("SKIPPED: /usr/bin/python3 has no libnbd");
        return;
    }
    let file = served.dir.path().join("script.py");
    let mut out = std::fs::File::create(&file).unwrap();
    writeln!(out, "import nbd, os, random\nuri = {:?}\npath = {:?}", uri(served), path_of(served.at())).unwrap();
    out.write_all(script.as_bytes()).unwrap();
    drop(out);
    run(Command::new(python).arg(file));
}

#[test]
fn libnbd_negotiation_and_errors() {
    let served = serve(Array::new(1 << 20));
    python(&served, include_str!("clients/negotiation.py"));
    assert_nothing_held(&served);
}

#[test]
fn libnbd_many_in_flight_on_two_connections() {
    let served = serve(Array::new(16 << 20));
    python(&served, include_str!("clients/in_flight.py"));
    assert_nothing_held(&served);
}
