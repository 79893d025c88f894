//! Serving until the end, and the end itself: clients first, then the array.
//!
//! NBD refuses new requests; those under way end and are replied to; then the array is stopped and marked clean. Where more members are away than parity
//! covers, requests are held, and nothing would ever end: then, or after a second signal, the held requests end with an error and the superblocks
//! stay dirty.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raid_engine::array::{ArrayState, Command, Detail};
use raid_engine::runtime::running::Running;
use raid_export::nbd::server::Server;
use tokio::sync::oneshot;

use crate::control::server::{ControlServer, Event};
use crate::notify;
use crate::runtime_dir::ArrayLock;
use crate::sysfs::Tree;

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Signals this close to the first are the same wish: timeout(1) and terminals send more than one.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Serves; answers with the exit status. Who is told of the end may run the array again at once: its lock, its name and its sockets are free
/// by then. `ended` is called when nothing more is sent to a member.
pub(super) fn until_stopped(
    running: &Arc<Running>,
    server: Server,
    control: ControlServer,
    files: Option<Tree>,
    events: &Receiver<Event>,
    lock: ArrayLock,
    ended: impl FnOnce(i32),
) -> i32 {
    let mut end = End { waiting: Vec::new(), since: None, hurried: false };
    match events.recv() {
        Ok(event) => end.take(event),
        // Without the control thread nobody could end the array but by a kill.
        Err(_) => tracing::error!("the control thread has died: stopping"),
    }
    notify::stopping();
    server.begin_stop();
    end.drain(running, &server, events);
    let exit = end.stop(running, events);
    server.stop();
    // Whoever is told that it has ended may use the directory again.
    drop(files);
    // Who runs it next counts from its own start how long frames may be in the network: none is sent after this.
    running.end();
    ended(exit);
    drop(lock);
    control.unbind();
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
    /// When a signal came first.
    since: Option<Instant>,
    /// What is held is to be given up.
    hurried: bool,
}

impl End {
    fn take(&mut self, event: Event) {
        match (event, self.since) {
            (Event::Stop(to), _) => self.waiting.push(to),
            (Event::Signal(name), None) => {
                tracing::info!("{name}: stopping");
                self.since = Some(Instant::now());
            }
            (Event::Signal(name), Some(since)) if since.elapsed() >= SAME_SIGNAL => {
                tracing::warn!("{name} again: giving up what is held");
                self.hurried = true;
            }
            (Event::Signal(_), Some(_)) => {}
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

    /// Waits for the clients' requests to end, or for a reason to give them up.
    fn drain(&mut self, running: &Running, server: &Server, events: &Receiver<Event>) {
        while server.connections() > 0 && !self.hurried {
            let cut_off = |detail: Detail| detail.array_state == ArrayState::Suspended || detail.fenced;
            self.hurried = running.detail().is_ok_and(cut_off);
            if !self.hurried {
                self.look(events);
            }
        }
    }

    /// Stops the array; answers with the exit status.
    fn stop(&mut self, running: &Arc<Running>, events: &Receiver<Event>) -> i32 {
        let mut told_to_abandon = self.hurried;
        let stopping = stop_on_thread(running, told_to_abandon);
        while !stopping.is_finished() {
            self.look(events);
            if self.hurried && !told_to_abandon {
                told_to_abandon = true;
                abandon_on_thread(running);
            }
        }
        stopping.join().unwrap_or(1)
    }
}

fn stop_on_thread(running: &Arc<Running>, abandon: bool) -> JoinHandle<i32> {
    let running = Arc::clone(running);
    std::thread::spawn(move || running.stop(abandon))
}

/// Hurries a stop that is under way. It is answered when the array has ended, so nobody waits for it.
fn abandon_on_thread(running: &Arc<Running>) {
    let running = Arc::clone(running);
    std::thread::spawn(move || {
        // A refusal means that it has ended already.
        let _ = running.command(Command::Stop { abandon: true });
    });
}
