//! SIGTERM and SIGINT as a request to end; SIGXFSZ as nothing.
//!
//! From [`Signals::new`] on none of them kills the process any more; whoever made it must listen. SIGXFSZ comes with a write beyond the limit
//! on file sizes: that fails as any other write to a bad disk, and its error is what counts.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals. Made and used within a tokio runtime.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Held so that it is caught.
    _file_size: Signal,
}

impl Signals {
    /// Starts to catch them.
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _file_size: signal(SignalKind::from_raw(libc::SIGXFSZ))?,
        })
    }

    /// The next one's name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
