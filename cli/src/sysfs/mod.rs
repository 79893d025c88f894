//! `run --sysfs DIR`: a running array as real files, with md's names and words, by FUSE: `cat`, `echo` and poll(2) as on `/sys/block/md0/md`.
//!
//! ```text
//! DIR/block/NAME/md/*         one file a tunable (content::tunable), one a value of the array (content::ARRAY), a link a slot
//! DIR/block/NAME/md/dev-*/*   the same for each member (content::DEVICE)
//! DIR/block/NAME/size         in sectors
//! DIR/proc/mdstat             the array as `status` prints it
//! ```
//!
//! Everything is asked of the array when it is read, and goes the way of the control socket ([`Served`]) when it is written; there is no second table. Of the parts,
//! [`content`] says what is in the files, [`nodes`] numbers them, [`handles`] keeps what is open, [`files`] and [`kernel`] answer the kernel, [`mountpoint`] finds room and mounts, and
//! [`unmount`] takes the tree away at the end, for which this process has no right any more.
//!
//! The tree is there before the array is, so that a directory that is taken is found out before anything is written; until [`Tree::serve`] it has no array in it.
//!
//! Bounds: [`THREADS`] requests at a time, [`handles::OPEN_MAX`] files open, a page a file.

mod content;
mod files;
mod handles;
mod kernel;
mod mountpoint;
mod nodes;
mod unmount;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use anyhow::Context;
use fuser::{Config, Session, SessionACL};
use raid_engine::runtime::watch::Changes;

use crate::run::served::Served;
use crate::sandbox::Sandbox;
use files::Files;
use kernel::Kernel;
pub(crate) use unmount::Args as UnmountArgs;
use unmount::Unmounter;
pub(crate) use unmount::run as unmount_after;

/// Requests carried out at a time. Writes may have to wait for work under way in the array; reads go on meanwhile.
const THREADS: usize = 8;

/// A mounted tree; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Tree {
    files: Arc<Files>,
    /// Only held.
    _unmounter: Unmounter,
}

impl Tree {
    /// Mounts it at `dir`, for the array that is run as `name`. Its threads keep what `sandbox` keeps.
    pub(crate) fn start(dir: &Path, name: &str, sandbox: &Arc<Sandbox>) -> anyhow::Result<Tree> {
        let at = || format!("files at {}", dir.display());
        let (device, unmounter) = mountpoint::mount(dir).with_context(at)?;
        let files = Arc::new(Files::new(name));
        let (ready, is_ready) = sync_channel(1);
        let body = {
            let (kernel, sandbox) = (Kernel(Arc::clone(&files)), Arc::clone(sandbox));
            move || answer(kernel, device, &sandbox, &ready)
        };
        std::thread::Builder::new().name("sysfs".into()).spawn(body).with_context(at)?;
        is_ready.recv().context("the thread has died").flatten().with_context(at)?;
        Ok(Tree { files, _unmounter: unmounter })
    }

    /// From now on the array is in it. The calling thread has given up all that it is to give up.
    pub(crate) fn serve(&self, served: Arc<Served>) -> anyhow::Result<()> {
        let files = Arc::clone(&self.files);
        files.serve(Arc::clone(&served));
        let body = move || {
            let mut seen = Changes::default();
            while let Some(changes) = served.running().watch().wait_beyond(seen) {
                files.wake(&changes);
                seen = changes;
            }
        };
        std::thread::Builder::new().name("sysfs-poll".into()).spawn(body)?;
        Ok(())
    }
}

/// The body of the thread that answers the kernel, until the tree is unmounted.
fn answer(kernel: Kernel, device: OwnedFd, sandbox: &Sandbox, ready: &SyncSender<anyhow::Result<()>>) {
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    let session = sandbox.enter().and_then(|()| Ok(Session::from_fd(kernel, device, SessionACL::All, config)?));
    let session = match session {
        Ok(session) => session,
        Err(error) => {
            // Who waits for it is there.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    if let Err(error) = session.run() {
        tracing::error!(%error, "the files are no longer served");
    }
}
