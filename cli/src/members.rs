//! Members as the user names them: parsed, opened, looked at.
//!
//! Used by `create`, `run` and by a running array that a member is added to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use raid_core::md::superblock::SuperblockError;
use raid_core::md::{Superblock, Uuid};
use raid_core::parity::Kernels;
use raid_engine::assembly::read_superblock;
use raid_engine::member::aoe::Links;
use raid_engine::member::devices::Device;
use raid_engine::member::spec::MemberSpec;
use raid_engine::runtime::opener::Opener;
use raid_engine::slab::Slab;

use crate::runtime_dir::ArrayLock;

/// A MEMBER on the command line. Paths become absolute: a running array may have another working directory than who speaks to it.
pub(crate) fn parse_member(text: &str) -> Result<MemberSpec, String> {
    match text.parse::<MemberSpec>().map_err(|error| error.to_string())? {
        MemberSpec::Path(path) => {
            std::path::absolute(&path).map(MemberSpec::Path).map_err(|error| format!("{}: {error}", path.display()))
        }
        MemberSpec::Memory(_) => {
            Err("memory members are lost with the process: they are for bench and demo".to_owned())
        }
        aoe @ MemberSpec::Aoe(_) => Ok(aoe),
    }
}

/// Memory for data, with the fastest of the parity kernels.
pub(crate) fn slab() -> anyhow::Result<Arc<Slab>> {
    let start = Instant::now();
    let calibration = Kernels::calibrate(|| start.elapsed().as_nanos() as u64);
    tracing::debug!(kernels = calibration.name(), "parity");
    Slab::new(calibration).context("address space for data: is it limited (ulimit -v)?")
}

/// Opens members, and remembers since when: copies of frames that an earlier process sent may still be under way.
#[derive(Debug)]
pub(crate) struct Members {
    /// Reads and writes them.
    pub(crate) opener: Opener,
    frame_lifetime: Duration,
    start: Instant,
}

impl Members {
    /// Over `links`, if there are any.
    pub(crate) fn new(slab: &Arc<Slab>, links: Option<Arc<dyn Links>>) -> anyhow::Result<Members> {
        let lifetime = links.as_ref().map_or(0, |links| links.tunables().aoe_frame_lifetime);
        let opener = Opener::new(slab, links).context("memory for opening members")?;
        Ok(Members { opener, frame_lifetime: Duration::from_millis(lifetime), start: Instant::now() })
    }

    /// Waits until nothing that was sent before can arrive any more. To be called before devices are written to that did not belong to the
    /// array before; for those that did, the engine does it.
    pub(crate) fn settle(&self) {
        std::thread::sleep(self.frame_lifetime.saturating_sub(self.start.elapsed()));
    }

    /// The superblock on a device, if there is one that is valid, or remains of one.
    pub(crate) fn look(&mut self, device: &Device) -> std::io::Result<Found> {
        Ok(match read_superblock(&mut self.opener, device)? {
            Ok(superblock) => Found::Superblock(Box::new(superblock)),
            Err(SuperblockError::Magic(_) | SuperblockError::DeviceTooSmall(_)) => Found::None,
            Err(error) => Found::Damaged(error),
        })
    }
}

/// What a device carries of md.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// Nothing.
    None,
    /// A member of an array.
    Superblock(Box<Superblock>),
    /// A superblock that is not valid.
    Damaged(SuperblockError),
}

/// Whether the array with this UUID runs on this host.
pub(crate) fn is_running(uuid: Uuid) -> anyhow::Result<bool> {
    Ok(ArrayLock::take(uuid)?.is_none())
}
