//! SIGTERM and SIGINT as a request to end.
//!
//! From [`Signals::new`] on neither kills the process any more; whoever made it must listen.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The two signals. Made and used within a tokio runtime.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to catch them.
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one's name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
