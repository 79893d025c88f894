//! Everybody's NBD clients against `run`, over the Unix socket and over TCP: what one writes by one way another reads by the other, and parity is
//! right. And clients that nobody wants: what they do disturbs no one.

use etherraid_tests::array::{Running, Spec};
use etherraid_tests::nbd::{self, Client, TOOL_LIMIT};
use etherraid_tests::proc::Cmd;
use etherraid_tests::{md, pattern, require, rig, skip, wait};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const MEMBERS: usize = 4;
const MEMBER_BYTES: u64 = 40 << 20;
/// Bytes that the copying tools move.
const IMAGE_BYTES: u64 = 24 << 20;
/// Limit for the server to notice something.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// An array over files that is served in two ways.
struct Served {
    array: Running,
    files: Vec<PathBuf>,
    dir: TempDir,
}

impl Served {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = rig::blank_files(dir.path(), MEMBERS, MEMBER_BYTES);
        let spec = Spec::local(&files);
        spec.create(&["-c", rig::CHUNK]);
        let array = spec.run(&["--nbd", "tcp:127.0.0.1:0"]);
        array.wait_in_sync();
        Self { array, files, dir }
    }

    /// The Unix socket's, and the port's.
    fn uris(&self) -> [String; 2] {
        let uris: [String; 2] = self.array.uris().try_into().expect("two addresses, two URIs");
        assert_eq!(uris[0], nbd::uri(self.array.socket()));
        assert!(uris[1].starts_with("nbd://127.0.0.1:"), "{}", uris[1]);
        uris
    }

    fn port(&self) -> u16 {
        let [_, uri] = self.uris();
        uri.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URI with a port")
    }

    fn size(&self) -> u64 {
        Client::connect(self.array.socket()).unwrap().size()
    }

    /// Ends the array and looks at what it has left.
    fn end(self) {
        self.array.stop();
        let files: Vec<&Path> = self.files.iter().map(PathBuf::as_path).collect();
        md::parity_of_array_is_right(&files).unwrap();
    }
}

#[test]
fn nbdinfo_tells_what_there_is() {
    require!("nbdinfo");
    let served = Served::start();
    for uri in served.uris() {
        let text = Cmd::new("nbdinfo").arg("--json").arg(&uri).ok(TOOL_LIMIT);
        let info: Value = serde_json::from_str(&text).expect("JSON");
        let export = &info["exports"][0];
        assert_eq!(export["export-size"], served.size(), "{text}");
        for yes in ["can_multi_conn", "can_cache", "can_df", "can_flush", "can_fua", "can_trim", "can_zero"] {
            assert_eq!(export[yes], true, "{yes} in {text}");
        }
        assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]), "{text}");
        let map = Cmd::new("nbdinfo").args(["--map", "--json"]).arg(&uri).ok(TOOL_LIMIT);
        let map: Value = serde_json::from_str(&map).expect("JSON");
        let extents = map.as_array().expect("a list");
        assert!(extents.iter().all(|extent| extent["type"] == 0), "{map}");
        let mapped: u64 = extents.iter().filter_map(|extent| extent["length"].as_u64()).sum();
        assert_eq!(mapped, served.size(), "{map}");
    }
    served.end();
}

#[test]
fn nbdcopy_with_four_connections_and_qemu_img_agree() {
    require!("nbdcopy", "qemu-img");
    let served = Served::start();
    let (image, back) = (served.dir.path().join("image"), served.dir.path().join("back"));
    let [unix, tcp] = served.uris();
    for (seed, to, from) in [(1, &unix, &tcp), (2, &tcp, &unix)] {
        pattern::image(&image, seed, IMAGE_BYTES).unwrap();
        let copy = || Cmd::new("nbdcopy").args(["--connections=4", "--requests=16"]);
        copy().arg("--flush").arg(&image).arg(to).ok(TOOL_LIMIT);
        copy().arg(from).arg(&back).ok(TOOL_LIMIT);
        md::same_bytes(&image, &back, IMAGE_BYTES).unwrap();
    }
    let convert = || Cmd::new("qemu-img").args(["convert", "-f", "raw", "-O", "raw"]);
    for (seed, to, from) in [(3, &tcp, &unix), (4, &unix, &tcp)] {
        pattern::image(&image, seed, served.size()).unwrap();
        convert().args(["-n", "-W", "-m", "8"]).arg(&image).arg(to).ok(TOOL_LIMIT);
        Cmd::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&image).arg(from).ok(TOOL_LIMIT);
        convert().arg(from).arg(&back).ok(TOOL_LIMIT);
        md::same_bytes(&image, &back, served.size()).unwrap();
    }
    served.end();
}

/// A fio job that verifies each block of `size` bytes from `offset`, over any address.
fn fio_verify(uri: &str, bs: &str, offset: u64, size: u64) -> Cmd {
    Cmd::new("fio")
        .args(["--name=job", "--ioengine=nbd", "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"])
        .args(["--verify_state_save=0", "--random_generator=tausworthe64", "--iodepth=32", "--fsync=200"])
        .args([format!("--uri={uri}"), format!("--bs={bs}"), format!("--offset={offset}"), format!("--size={size}")])
}

#[test]
fn fio_verifies_by_both_ways_at_once() {
    require!("fio");
    let served = Served::start();
    let [unix, tcp] = served.uris();
    for bs in ["4k", "68k", "1m"] {
        let jobs = [(&unix, 0), (&tcp, 32 << 20)];
        let running = jobs.map(|(uri, offset)| fio_verify(uri, bs, offset, 16 << 20).spawn());
        for job in running {
            job.finish(TOOL_LIMIT).ok();
        }
    }
    served.end();
}

#[test]
fn libnbd_on_many_connections() {
    const PYTHON: &str = "/usr/bin/python3";
    if !Cmd::new(PYTHON).args(["-c", "import nbd"]).finish(TOOL_LIMIT).status.success() {
        skip::report("Python has no libnbd");
        return;
    }
    let served = Served::start();
    let script = served.dir.path().join("script.py");
    std::fs::write(&script, include_str!("many_connections.py")).unwrap();
    let done = Cmd::new(PYTHON).arg(&script).args(served.uris()).ok(TOOL_LIMIT);
    assert!(done.contains("all as expected"), "{done}");
    served.end();
}

/// Reads from each until the server has closed it.
fn wait_closed(mut streams: Vec<TcpStream>) {
    for stream in &mut streams {
        stream.set_read_timeout(Some(NOTICE_LIMIT)).unwrap();
        // A reset is an end too; a time-out is none.
        match stream.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

#[test]
fn hostile_clients_disturb_nobody() {
    require!("fio", "nbdinfo");
    let served = Served::start();
    let [unix, tcp] = served.uris();
    let port = served.port();
    let connect = || TcpStream::connect(("127.0.0.1", port)).expect("the port is listened on");
    let load = fio_verify(&unix, "16k", 0, 48 << 20).spawn();
    let mut kept = Client::connect(served.array.socket()).unwrap();

    let mut garbage: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    for stream in &mut garbage {
        // The server may have closed by the second piece.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\n").and_then(|()| stream.write_all(&[0x55; 4096]));
    }
    wait_closed(garbage);
    // Far more than may negotiate at a time, and all of them say nothing.
    let silent: Vec<TcpStream> = (0..60).map(|_| connect()).collect();
    wait::until("an honest client is let in", NOTICE_LIMIT, || {
        let size = Cmd::new("nbdinfo").arg("--size").arg(&tcp).finish(TOOL_LIMIT);
        (size.status.success() && size.stdout.trim() == kept.size().to_string()).then_some(())
    });
    // Vanish with writes under way.
    for _ in 0..8 {
        let mut client = Client::connect(served.array.socket()).unwrap();
        for n in 0..16 {
            client.send_write((56 << 20) + n * 65536, &[9; 65536], false).unwrap();
        }
        drop(client);
    }
    let data = pattern::bytes(7, 60 << 20, 65536);
    kept.write(60 << 20, &data, true).unwrap();
    assert!(kept.read(60 << 20, data.len()).unwrap() == data);
    load.finish(TOOL_LIMIT).ok();
    drop(silent);
    served.end();
}

/// A client that is stopped in mid-flight holds up neither others nor, for long, the end of the array.
#[test]
fn a_client_that_never_reads_does_not_hold_up_the_end() {
    let served = Served::start();
    let mut lazy = Client::connect(served.array.socket()).unwrap();
    for _ in 0..32 {
        lazy.send_read(0, 1 << 20).unwrap();
    }
    let mut other = Client::connect(served.array.socket()).unwrap();
    let data = pattern::bytes(3, 0, 1 << 20);
    other.write(0, &data, false).unwrap();
    assert!(other.read(0, data.len()).unwrap() == data);
    served.end();
    drop(lazy);
}
