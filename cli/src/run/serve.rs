//! Serving until the end, and the end itself: clients first, then the array.
//!
//! NBD refuses new requests; those under way end and are replied to; then the array is stopped and marked clean. Where more members are away than parity
//! covers, requests are held, and nothing would ever end: then, or when told a second time, the held requests end with an error and the superblocks
//! stay dirty.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use raid_engine::array::{ArrayState, Command};
use raid_engine::runtime::running::Running;
use raid_export::nbd::server::Server;
use tokio::sync::oneshot;

use crate::control::server::{ControlServer, Event};

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Serves; answers with the exit status.
pub(super) fn until_stopped(
    running: &Arc<Running>,
    server: Server,
    control: ControlServer,
    events: &Receiver<Event>,
) -> i32 {
    let mut end = End { waiting: Vec::new(), told: 0 };
    while end.told == 0 {
        match events.recv() {
            Ok(event) => end.take(event),
            // The control thread has died; the array goes on, and so would a kill be all that ends it.
            Err(_) => end.told = 1,
        }
    }
    server.begin_stop();
    let abandon = end.drain(running, &server, events);
    let exit = end.stop(running, abandon, events);
    server.stop();
    for to in end.waiting {
        // Who asked may have gone away.
        let _ = to.send(exit);
    }
    control.finish();
    exit
}

/// What has been asked of the end.
#[derive(Debug)]
struct End {
    /// Who waits to be told how it ended.
    waiting: Vec<oneshot::Sender<i32>>,
    /// How often it was asked for.
    told: u32,
}

impl End {
    fn take(&mut self, event: Event) {
        self.told += 1;
        match event {
            Event::Signal(name) if self.told == 1 => tracing::info!("{name}: stopping"),
            Event::Signal(name) => tracing::warn!("{name} again: giving up what is held"),
            Event::Stop(to) => self.waiting.push(to),
        }
    }

    /// Waits for an event for a moment.
    fn look(&mut self, events: &Receiver<Event>) {
        match events.recv_timeout(LOOK) {
            Ok(event) => self.take(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
        }
    }

    /// Waits for the clients' requests to end; answers whether what is left is to be given up.
    fn drain(&mut self, running: &Running, server: &Server, events: &Receiver<Event>) -> bool {
        while server.connections() > 0 {
            let cut_off =
                running.detail().is_ok_and(|detail| detail.array_state == ArrayState::Suspended || detail.fenced);
            if cut_off || self.told > 1 {
                return true;
            }
            self.look(events);
        }
        false
    }

    /// Stops the array; a further request to end hurries it.
    fn stop(&mut self, running: &Arc<Running>, abandon: bool, events: &Receiver<Event>) -> i32 {
        let mut stopping = vec![stop_on_thread(running, abandon)];
        let hurried = self.told.max(1 + u32::from(abandon));
        while stopping.iter().any(|thread| !thread.is_finished()) {
            self.look(events);
            if self.told > hurried && stopping.len() == 1 {
                stopping.push(hurry_on_thread(running));
            }
        }
        let first = stopping.swap_remove(0);
        first.join().unwrap_or(1)
    }
}

fn stop_on_thread(running: &Arc<Running>, abandon: bool) -> JoinHandle<i32> {
    let running = Arc::clone(running);
    std::thread::spawn(move || running.stop(abandon))
}

/// A stop of which the first one takes the exit status.
fn hurry_on_thread(running: &Arc<Running>) -> JoinHandle<i32> {
    let running = Arc::clone(running);
    std::thread::spawn(move || {
        // A refusal means that it has ended already.
        let _ = running.command(Command::Stop { abandon: true });
        0
    })
}
