//! NBD clients: the well-known tools as commands, and a small one of our own ([`Client`]). The tools do not say which writes had been answered when
//! the server went away; it does.

pub use raid_export::nbd::client::{Answer, Client};

use crate::proc::{Cmd, Proc};
use std::path::Path;
use std::time::Duration;

/// Limit for a tool that copies or verifies a whole test array.
pub const TOOL_LIMIT: Duration = Duration::from_secs(240);

/// The default export of the server on `socket`, as a URI.
pub fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

/// A fio job over `socket` with these job arguments; stops at the first error. Run it with `finish` or `spawn`.
pub fn fio(socket: &Path, args: &[&str]) -> Cmd {
    Cmd::new("fio")
        .args([
            "--name=job",
            "--ioengine=nbd",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--random_generator=tausworthe64",
        ])
        .arg(format!("--uri={}", uri(socket)))
        .args(args)
}

/// Writes every block of `size` bytes from `offset` once, in random order, and reads all back against CRC-32C.
pub fn fio_randwrite_verify(socket: &Path, bs: &str, offset: u64, size: u64) -> Cmd {
    fio(
        socket,
        &[
            "--rw=randwrite",
            "--verify=crc32c",
            "--iodepth=32",
            &format!("--bs={bs}"),
            &format!("--offset={offset}"),
            &format!("--size={size}"),
        ],
    )
}

/// Copies a file to the start of the export, with a flush at the end.
pub fn nbdcopy_in(file: &Path, socket: &Path) -> Cmd {
    Cmd::new("nbdcopy").arg("--flush").arg(file).arg(uri(socket))
}

/// Copies the whole export to a file.
pub fn nbdcopy_out(socket: &Path, file: &Path) -> Cmd {
    Cmd::new("nbdcopy").arg(uri(socket)).arg(file)
}

/// Runs qemu-io's commands in order; fails at the first that fails, a pattern that does not match included.
pub fn qemu_io(socket: &Path, commands: &[&str]) {
    let mut cmd = Cmd::new("qemu-io").args(["-f", "raw"]);
    for command in commands {
        cmd = cmd.arg("-c").arg(command);
    }
    let done = cmd.arg(uri(socket)).finish(TOOL_LIMIT);
    let wrong = done.stdout.contains("verification failed") || done.stdout.contains("error");
    assert!(!wrong, "qemu-io: {}{}", done.stdout, done.stderr);
    done.ok();
}

/// A stand-in for our server in the harness's own tests: qemu-nbd over a raw file.
pub fn qemu_nbd(file: &Path, socket: &Path) -> Proc {
    let proc = Cmd::new("qemu-nbd").args(["-f", "raw", "-t", "-e", "4", "-k"]).arg(socket).arg(file).spawn();
    crate::wait::until("qemu-nbd's socket", Duration::from_secs(20), || {
        std::os::unix::net::UnixStream::connect(socket).ok()
    });
    proc
}

#[cfg(test)]
mod tests;
