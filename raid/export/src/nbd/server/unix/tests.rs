//! Sockets that are taken, stale, refused or raced for.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use super::*;

/// Leaves a socket behind that nobody listens on, as a killed server does. It never listened: a program that another test
/// starts right now may hold a copy of a descriptor for a moment, and a copy of a listening socket would look alive.
fn leave_stale(path: &Path) {
    let socket = stream_socket().unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
}

#[test]
fn mode_and_removal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixSocket::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let next = || rustix::net::accept_with(&listener, SocketFlags::CLOEXEC);
    assert_eq!(next().err(), Some(Errno::AGAIN));
    let _client = UnixStream::connect(&path).unwrap();
    assert!(next().is_ok());
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    leave_stale(&path);
    assert!(path.exists());
    let live = UnixSocket::bind(&path).unwrap();
    let error = UnixSocket::bind(&path).unwrap_err();
    assert!(matches!(&error, BindError::InUse(p) if *p == path));
    assert_eq!(
        error.to_string(),
        format!("{} is in use by a running server: stop that or choose another path", path.display())
    );
    // The probe did no harm.
    let _client = UnixStream::connect(&path).unwrap();
    drop(live);
}

#[test]
fn a_full_backlog_is_a_live_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let _live = UnixSocket::bind(&path).unwrap();
    let address = SocketAddrUnix::new(&path).unwrap();
    let mut clients = vec![];
    loop {
        let client = stream_socket().unwrap();
        match rustix::net::connect(&client, &address) {
            Ok(()) => clients.push(client),
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                break;
            }
        }
    }
    assert!(matches!(UnixSocket::bind(&path), Err(BindError::InUse(_))));
}

#[test]
fn other_files_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(UnixSocket::bind(&path), Err(BindError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    let link = dir.path().join("l");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(UnixSocket::bind(&link), Err(BindError::NotASocket(_))));
}

#[test]
fn path_limits() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().as_os_str().len() + 1;
    let fits = dir.path().join("x".repeat(MAX_PATH_BYTES - base));
    UnixSocket::bind(&fits).unwrap();
    let long = dir.path().join("x".repeat(MAX_PATH_BYTES + 1 - base));
    let error = UnixSocket::bind(&long).unwrap_err();
    assert!(matches!(&error, BindError::PathTooLong(p) if *p == long));
    assert!(error.to_string().contains("108 bytes long, the limit is 107"));
    let missing = UnixSocket::bind(&dir.path().join("no/such")).unwrap_err();
    assert!(matches!(missing, BindError::System { what: "cannot open its directory", .. }));
}

#[test]
fn a_file_that_took_our_place_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixSocket::bind(&path).unwrap();
    // Another file of another inode: made before the old one goes.
    let other = dir.path().join("o");
    std::fs::write(&other, "").unwrap();
    std::fs::rename(&other, &path).unwrap();
    drop(listener);
    assert!(path.exists());
}

#[test]
fn two_that_start_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for _ in 0..50 {
        leave_stale(&path);
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| UnixSocket::bind(&path))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        assert!(results.iter().all(|result| matches!(result, Ok(_) | Err(BindError::InUse(_)))));
    }
}
