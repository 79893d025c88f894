//! A running array as operators change it: members by name.
//!
//! Used by the control socket, from several threads.

use std::sync::Arc;

use raid_core::md::Uuid;
use raid_engine::array::{Command, CommandError, CommandErrorKind};
use raid_engine::assembly::random_uuid;
use raid_engine::member::aoe::Links;
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::running::Running;
use raid_engine::slab::Slab;

use crate::members::{Found, Members, is_running, parse_member};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Served {
    running: Arc<Running>,
    slab: Arc<Slab>,
    links: Option<Arc<dyn Links>>,
    uuid: Uuid,
}

impl Served {
    pub(super) fn new(running: Arc<Running>, slab: Arc<Slab>, links: Option<Arc<dyn Links>>, uuid: Uuid) -> Served {
        Served { running, slab, links, uuid }
    }

    /// The array.
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// Opens a device and takes it in.
    pub(crate) fn add(&self, member: &str) -> Result<(), CommandError> {
        let member = parse(member)?;
        let failed = |error: anyhow::Error| refused(CommandErrorKind::Io, format!("{error:#}"));
        let mut members = Members::new(&self.slab, self.links.clone()).map_err(failed)?;
        let device = members.opener.open(&member, false);
        let device = device.map_err(|error| refused(CommandErrorKind::NoDevice, error.to_string()))?;
        let found =
            members.look(&device).map_err(|error| failed(anyhow::Error::new(error).context(member.to_string())))?;
        if let Found::Superblock(superblock) = found {
            let uuid = superblock.set_uuid;
            if uuid != self.uuid && is_running(uuid).map_err(failed)? {
                let text =
                    format!("{member} belongs to the running array {} ({uuid}): stop that first", superblock.name());
                return Err(refused(CommandErrorKind::Busy, text));
            }
        }
        members.settle();
        // Its channels are opened anew by each thread of the array; ours go first.
        drop(members);
        self.running.add(device, member.to_string(), random_uuid().0)
    }

    /// Marks a device faulty.
    pub(crate) fn fail(&self, member: &str) -> Result<(), CommandError> {
        self.running.command(Command::Fail(self.find(member)?))
    }

    /// Lets go of a device.
    pub(crate) fn remove(&self, member: &str) -> Result<(), CommandError> {
        self.running.command(Command::Remove(self.find(member)?))
    }

    fn find(&self, member: &str) -> Result<MemberHandle, CommandError> {
        let name = parse(member)?.to_string();
        let unknown =
            || refused(CommandErrorKind::NoDevice, format!("{name} is not a device of the array: see `detail`"));
        self.running.find(&name)?.ok_or_else(unknown)
    }
}

fn parse(member: &str) -> Result<MemberSpec, CommandError> {
    parse_member(member).map_err(|text| refused(CommandErrorKind::NoDevice, text))
}

fn refused(kind: CommandErrorKind, text: String) -> CommandError {
    CommandError { kind, text }
}
