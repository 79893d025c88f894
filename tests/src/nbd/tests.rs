//! The clients against qemu-nbd, so that a failure against our server is our server's.

use super::*;
use crate::{md, pattern, require};
use std::path::PathBuf;

const SIZE: u64 = 8 << 20;
const LIMIT: Duration = Duration::from_secs(60);

struct Served {
    _proc: Proc,
    file: PathBuf,
    socket: PathBuf,
    dir: tempfile::TempDir,
}

fn serve() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("disk"), dir.path().join("sock"));
    pattern::blank(&file, SIZE).unwrap();
    Served { _proc: qemu_nbd(&file, &socket), file, socket, dir }
}

#[test]
fn our_client_writes_reads_and_counts_answers() {
    require!("qemu-nbd");
    let served = serve();
    let mut client = Client::connect(&served.socket).unwrap();
    assert_eq!(client.size(), SIZE);
    // Bit 0: the server sent flags at all; bit 2: it takes flushes.
    assert_eq!(client.transmission_flags() & 0b101, 0b101);
    let data = pattern::bytes(3, 4096, 8192);
    client.write(4096, &data, false).unwrap();
    client.write(65536, &data, true).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(4096, 8192).unwrap(), data);
    assert_eq!(client.read(65536, 8192).unwrap(), data);

    let mut sent: Vec<u64> = (0..16).map(|i| client.send_write(i * 4096, &data[..4096], false).unwrap()).collect();
    sent.push(client.send_flush().unwrap());
    let mut answered: Vec<u64> = sent
        .iter()
        .map(|_| {
            let answer = client.answer().unwrap();
            assert_eq!(answer.error, 0);
            answer.cookie
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, sent);
    assert!(client.write(SIZE, &data, false).is_err(), "beyond the end must be refused");
    client.disconnect().unwrap();
}

#[test]
fn a_server_that_is_none_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    assert!(Client::connect(&path).is_err());
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&[7; 18]).unwrap();
    });
    let text = Client::connect(&path).err().unwrap().to_string();
    assert!(text.contains("server magic"), "{text}");
    server.join().unwrap();
}

#[test]
fn nbdcopy_goes_in_and_out() {
    require!("qemu-nbd", "nbdcopy");
    let served = serve();
    let image = served.dir.path().join("image");
    pattern::image(&image, 9, SIZE).unwrap();
    nbdcopy_in(&image, &served.socket).ok(LIMIT);
    md::same_bytes(&image, &served.file, SIZE).unwrap();
    let back = served.dir.path().join("back");
    nbdcopy_out(&served.socket, &back).ok(LIMIT);
    md::same_bytes(&image, &back, SIZE).unwrap();
}

#[test]
fn fio_verifies_and_finds_a_wrong_byte() {
    require!("qemu-nbd", "fio");
    let served = serve();
    for bs in ["4k", "60k", "1m"] {
        fio_randwrite_verify(&served.socket, bs, 1 << 20, 4 << 20).ok(LIMIT);
    }
    let job = ["--rw=write", "--bs=4k", "--size=64k", "--verify=crc32c", "--do_verify=0"];
    fio(&served.socket, &job).ok(LIMIT);
    let verify = ["--rw=write", "--bs=4k", "--size=64k", "--verify=crc32c", "--verify_only=1"];
    fio(&served.socket, &verify).ok(LIMIT);
    let mut client = Client::connect(&served.socket).unwrap();
    client.write(8192, &[0; 512], false).unwrap();
    let found = fio(&served.socket, &verify).finish(LIMIT);
    assert!(!found.status.success(), "{}{}", found.stdout, found.stderr);
}

#[test]
fn qemu_io_passes_on_what_matches() {
    require!("qemu-nbd", "qemu-io");
    let served = serve();
    qemu_io(&served.socket, &["write -P 0x5a 1536 70144", "read -P 0x5a 1536 70144", "read -P 0 0 1536", "flush"]);
}

#[test]
fn qemu_io_fails_on_what_does_not_match() {
    require!("qemu-nbd", "qemu-io");
    let served = serve();
    let wrong = std::panic::catch_unwind(|| qemu_io(&served.socket, &["read -P 1 0 512"]));
    assert!(wrong.is_err());
}
