//! The system calls that a running array or shelf makes; all others fail with EPERM.
//!
//! Among those that are missing on purpose: execve, fork's relatives of other processes, mount, ptrace, module and key calls, connect and listen.
//! Sockets may be made of three families only. Calls through io_uring are not seen by this filter; Landlock and capabilities hold there, too.

use std::collections::BTreeMap;

use anyhow::Context;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Files and what is read and written through them.
const FILES: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_flock,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
];

/// Sockets that exist, and what waits for them. `socket` itself is in [`families`].
const SOCKETS: &[libc::c_long] = &[
    libc::SYS_bind,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
];

/// Memory, threads, signals to ourselves, time.
const PROCESS: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_membarrier,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Mostly answered without a call; not while the first two threads to ask do so at once.
    libc::SYS_getcpu,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_getrusage,
    libc::SYS_capget,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
];

/// Calls of the same kind that newer architectures lack.
#[cfg(target_arch = "x86_64")]
const OLD: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_time,
    libc::SYS_getrlimit,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[libc::c_long] = &[];

/// The filter; `None` on an architecture that it knows nothing of.
pub(super) fn filter() -> anyhow::Result<Option<BpfProgram>> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(None) };
    let all = [FILES, SOCKETS, PROCESS, OLD].concat();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = all.into_iter().map(|call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, families()?);
    let others = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, others, SeccompAction::Allow, arch).context("seccomp filter")?;
    Ok(Some(filter.try_into().context("seccomp filter")?))
}

/// Sockets are made to notify systemd, to reach shelves, and to ask for the names of interfaces.
fn families() -> anyhow::Result<Vec<SeccompRule>> {
    let family = |family: libc::c_int| {
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family as u64)?;
        SeccompRule::new(vec![condition])
    };
    let all = [family(libc::AF_UNIX), family(libc::AF_PACKET), family(libc::AF_NETLINK)];
    all.into_iter().collect::<Result<_, _>>().context("seccomp filter")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads that ask at once for the first time make the call itself, and an error there is taken for the impossible.
    #[test]
    fn what_is_mostly_answered_without_a_call_is_allowed() {
        for call in [libc::SYS_getcpu, libc::SYS_clock_gettime, libc::SYS_gettimeofday, libc::SYS_getrandom] {
            assert!(PROCESS.contains(&call), "{call}");
        }
    }

    #[test]
    fn a_thread_makes_the_calls_that_are_allowed() {
        let Some(filter) = filter().expect("valid") else {
            println!("SKIPPED: no filter for this architecture");
            return;
        };
        let dir = tempfile::tempdir().expect("a directory");
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                seccompiler::apply_filter(&filter).expect("a filter for this thread");
                std::fs::write(dir.path().join("a"), "b").expect("files may be written");
                std::thread::spawn(|| ()).join().expect("threads may be started");
                assert!(std::os::unix::net::UnixDatagram::unbound().is_ok());
                let denied = |done: std::io::Result<()>| {
                    assert_eq!(done.expect_err("denied").kind(), std::io::ErrorKind::PermissionDenied);
                };
                denied(std::net::UdpSocket::bind("127.0.0.1:0").map(drop));
                denied(std::os::unix::net::UnixStream::connect("/nonexistent").map(drop));
                denied(std::process::Command::new("/bin/true").status().map(drop));
                denied(std::os::unix::fs::chown("/nonexistent", None, None));
            });
            inside.join().expect("as it should be");
        });
    }
}
