//! Where the `etherraid` binary is that the end-to-end tests run.
//!
//! Cargo gives a test only the binaries of its own package, so it is looked for in the build directory that holds the running
//! test. `ETHERRAID_BIN` names another one.

use crate::proc::Cmd;
use std::path::{Path, PathBuf};

/// The variable that names a binary to use instead.
const OVERRIDE: &str = "ETHERRAID_BIN";

/// The binary under test. Panics with what to do when there is none.
pub fn path() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has an executable");
    match locate(std::env::var_os(OVERRIDE).map(PathBuf::from), &test) {
        Ok(path) => path,
        Err(text) => panic!("{text}"),
    }
}

/// A command that runs the binary under test with `command` as its first argument.
pub fn etherraid(command: &str) -> Cmd {
    Cmd::new(path()).arg(command)
}

fn locate(named: Option<PathBuf>, test: &Path) -> Result<PathBuf, String> {
    if let Some(path) = named {
        return match path.is_file() {
            true => Ok(path),
            false => Err(format!("{OVERRIDE} names {}, which is no file", path.display())),
        };
    }
    // target/PROFILE/deps/TEST, and target/PROFILE/etherraid.
    let profile = test.parent().and_then(Path::parent).unwrap_or(test);
    let path = profile.join("etherraid");
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "no binary at {}: build it with `cargo build -p etherraid` (same profile and target directory), or set {OVERRIDE}",
            path.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_beside_the_test_or_named() {
        let dir = tempfile::tempdir().unwrap();
        let deps = dir.path().join("deps");
        std::fs::create_dir(&deps).unwrap();
        let test = deps.join("some_test-0123");
        let text = locate(None, &test).unwrap_err();
        assert!(text.contains("cargo build -p etherraid"), "{text}");

        let beside = dir.path().join("etherraid");
        std::fs::write(&beside, "").unwrap();
        assert_eq!(locate(None, &test), Ok(beside));

        let named = dir.path().join("other");
        assert!(locate(Some(named.clone()), &test).is_err());
        std::fs::write(&named, "").unwrap();
        assert_eq!(locate(Some(named.clone()), &test), Ok(named));
    }
}
