//! What commands print: results to standard output, messages to standard error.
//!
//! Who reads may have seen enough and gone, as in `etherraid detail r5 | head -1`. That is no failure of what was done, so [`print()`] passes over
//! it; what goes on printing as it works ends there instead ([`tell`]). The printing macros of std would panic: a test keeps them out of this crate.

use std::fmt::{self, Display};
use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Prints results.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match write(text) {
        Err(error) if error.is::<ReaderGone>() => Ok(()),
        done => done,
    }
}

/// Prints `value` as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Prints a line of a story; an error that `main` says nothing of when nobody listens any more.
pub(crate) fn tell(line: impl Display) -> anyhow::Result<()> {
    write(&format!("{line}\n"))
}

/// A message to the user, with the program's name before it. It is lost when standard error is closed.
pub(crate) fn complain(message: impl Display) {
    let _ = writeln!(std::io::stderr(), "etherraid: {message}");
}

/// Who read standard output has closed it.
#[derive(Debug)]
pub(crate) struct ReaderGone;

impl Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads what is printed")
    }
}

impl std::error::Error for ReaderGone {}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        done => done.context("printing the results"),
    }
}
