//! A running array as operators change it: members by name, tunables, sync work.
//!
//! Used by the control socket and the files of `--sysfs`, from several threads.

use std::sync::{Arc, Mutex};

use aoe_net::driver::LINKS_MAX;
use raid_core::md::Uuid;
use raid_engine::array::{Command, CommandError, CommandErrorKind, SyncAction};
use raid_engine::assembly::random_uuid;
use raid_engine::member::aoe::paths::{DevicePaths, Way};
use raid_engine::member::aoe::{Care, Links};
use raid_engine::member::spec::MemberSpec;
use raid_engine::message::MemberHandle;
use raid_engine::runtime::running::Running;
use raid_engine::slab::Slab;
use raid_engine::tunables::Settings;

use crate::control::messages::{self, Detail, Interface, Tunable};
use crate::errors::one_line;
use crate::interfaces::{InterfaceArgs, Interfaces};
use crate::members::{Found, Members, is_running, parse_member};
use crate::sandbox::{Sandbox, directory};
use crate::tools::{Others, Takeover};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Served {
    running: Arc<Running>,
    slab: Arc<Slab>,
    links: Option<Arc<Interfaces>>,
    uuid: Uuid,
    /// In force.
    settings: Mutex<Settings>,
    /// Held by whoever changes them, which may take a while.
    tuning: Mutex<()>,
    sandbox: Arc<Sandbox>,
    /// Where members that are added are reserved first; unset without `--takeover` and `--reserve`.
    reserves: Option<Reserves>,
}

/// The reservations of a running array.
#[derive(Debug)]
pub(super) struct Reserves {
    interfaces: InterfaceArgs,
    others: Others,
    held: Mutex<Vec<Takeover>>,
}

impl Reserves {
    /// With those that were taken at the start.
    pub(super) fn new(interfaces: InterfaceArgs, others: Others, held: Option<Takeover>) -> Reserves {
        let reserves = Reserves { interfaces, others, held: Mutex::default() };
        held.into_iter().for_each(|taken| reserves.keep(taken));
        reserves
    }

    /// Keeps what is to be released at the end.
    fn keep(&self, taken: Takeover) {
        if self.others == Others::Respect {
            self.held.lock().expect("no panic while held").push(taken);
        }
    }
}

impl Served {
    pub(super) fn new(
        running: Arc<Running>,
        slab: Arc<Slab>,
        links: Option<Arc<Interfaces>>,
        uuid: Uuid,
        settings: Settings,
        sandbox: Arc<Sandbox>,
        reserves: Option<Reserves>,
    ) -> Served {
        let tuning = Mutex::new(());
        Served { running, slab, links, uuid, settings: Mutex::new(settings), tuning, sandbox, reserves }
    }

    /// The array.
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// How it stands.
    pub(crate) fn detail(&self) -> Result<Detail, CommandError> {
        let mut detail = Detail::from(self.running.detail()?);
        if self.links.is_some() {
            detail.conflicts = messages::conflicts(&self.running.paths()?);
        }
        Ok(detail)
    }

    /// The interfaces in use, and what is reached over each.
    pub(crate) fn interfaces(&self) -> Result<Vec<Interface>, CommandError> {
        let Some(links) = &self.links else { return Ok(Vec::new()) };
        let paths = self.running.paths()?;
        let interface = |name: String| {
            let there =
                |device: &&DevicePaths| device.paths.iter().any(|path| path.interface == name && path.state == Way::Up);
            let devices = paths.iter().filter(there).map(|device| device.address.to_string()).collect();
            Interface { name, devices }
        };
        Ok(links.names().into_iter().map(interface).collect())
    }

    /// Uses these interfaces from now on, and no others; all of them or none.
    pub(crate) fn set_interfaces(&self, names: Vec<String>) -> Result<Vec<Interface>, CommandError> {
        let invalid = |text: &str| refused(CommandErrorKind::Invalid, text.to_owned());
        let Some(links) = &self.links else {
            return Err(invalid("the array has no AoE members: it was run without -i"));
        };
        if names.is_empty() || names.len() > LINKS_MAX {
            let text = format!("name 1 to {LINKS_MAX} interfaces: those that lead to the shelves");
            return Err(refused(CommandErrorKind::Invalid, text));
        }
        if self.reserves_members() {
            let text = "members are reserved for the addresses of the present interfaces, and would refuse what comes from others: \
                        stop the array and run it with the new ones";
            return Err(refused(CommandErrorKind::Busy, text.to_owned()));
        }
        let _tuning = self.tuning.lock().expect("no panic while held");
        let before = links.set_names(names.clone());
        if let Err(error) = self.running.relink() {
            links.set_names(before);
            return Err(error);
        }
        tracing::info!("interfaces: {}", names.join(", "));
        self.interfaces()
    }

    /// Looks after the paths to an AoE member, or to all.
    pub(crate) fn care(&self, member: Option<&str>, care: Care) -> Result<(), CommandError> {
        let handle = member.map(|member| self.find(member)).transpose()?;
        self.running.care(handle, care)
    }

    /// Opens a device and takes it in; where members are reserved for this host, after reserving it.
    pub(crate) fn add(&self, member: &str) -> Result<(), CommandError> {
        let member = parse(member)?;
        let (Some(reserves), MemberSpec::Aoe(_)) = (&self.reserves, &member) else {
            return self.open_and_add(&member);
        };
        let taken = Takeover::take(&reserves.interfaces, std::slice::from_ref(&member), reserves.others);
        let taken = taken.map_err(|error| refused(CommandErrorKind::Io, one_line(error.as_ref())))?;
        let added = self.open_and_add(&member);
        match added {
            Ok(()) => reserves.keep(taken),
            Err(_) => taken.give_back(),
        }
        added
    }

    /// Whether members are reserved for this host.
    pub(crate) fn reserves_members(&self) -> bool {
        self.reserves.is_some()
    }

    /// Releases what `--reserve` has reserved: the array has ended, and is clean.
    pub(super) fn release(&self) {
        if let Some(reserves) = &self.reserves {
            reserves.held.lock().expect("no panic while held").drain(..).for_each(Takeover::release);
        }
    }

    fn open_and_add(&self, member: &MemberSpec) -> Result<(), CommandError> {
        if let MemberSpec::Path(path) = member
            && !self.sandbox.allows(path)
        {
            let text = format!(
                "{member}: this array takes files from {} alone: run it with --member-dir {} to add from there",
                self.sandbox.members(),
                directory(path).display()
            );
            return Err(refused(CommandErrorKind::NoDevice, text));
        }
        let failed = |error: anyhow::Error| refused(CommandErrorKind::Io, one_line(error.as_ref()));
        let links = self.links.clone().map(|links| links as Arc<dyn Links>);
        let mut members = Members::new(&self.slab, links).map_err(failed)?;
        let device = members.opener.open(member, false);
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

    /// Starts or stops sync work.
    pub(crate) fn action(&self, action: SyncAction) -> Result<(), CommandError> {
        self.running.command(Command::Action(action))
    }

    /// The table of tunables, with the values in force.
    pub(crate) fn tunables(&self) -> Vec<Tunable> {
        messages::tunables(&self.settings.lock().expect("no panic while held"))
    }

    /// Sets tunables, all of them or none, and answers with the table.
    pub(crate) fn tune(&self, pairs: &[String]) -> Result<Vec<Tunable>, CommandError> {
        let _tuning = self.tuning.lock().expect("no panic while held");
        let settings = self.settings.lock().expect("no panic while held").clone();
        let next = tuned(&settings, pairs)?;
        // First: the change may itself make initiators.
        self.tune_links(next.aoe);
        if let Err(error) = self.running.tune(&next) {
            self.tune_links(settings.aoe);
            return Err(error);
        }
        for pair in pairs {
            tracing::info!("tuned: {pair}");
        }
        let table = messages::tunables(&next);
        *self.settings.lock().expect("no panic while held") = next;
        Ok(table)
    }

    fn tune_links(&self, tunables: aoe_proto::initiator::Tunables) {
        if let Some(links) = &self.links {
            links.tune(tunables);
        }
    }

    fn find(&self, member: &str) -> Result<MemberHandle, CommandError> {
        let name = parse(member)?.to_string();
        let unknown =
            || refused(CommandErrorKind::NoDevice, format!("{name} is not a device of the array: see `detail`"));
        self.running.find(&name)?.ok_or_else(unknown)
    }
}

/// The settings after a change.
fn tuned(settings: &Settings, pairs: &[String]) -> Result<Settings, CommandError> {
    let mut next = settings.clone();
    for pair in pairs {
        next.set_pair(pair).map_err(|error| refused(CommandErrorKind::Invalid, error.to_string()))?;
    }
    Ok(next)
}

fn parse(member: &str) -> Result<MemberSpec, CommandError> {
    parse_member(member).map_err(|text| refused(CommandErrorKind::NoDevice, text))
}

fn refused(kind: CommandErrorKind, text: String) -> CommandError {
    CommandError { kind, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tune(pairs: &[&str]) -> Result<Settings, CommandError> {
        let pairs: Vec<String> = pairs.iter().map(ToString::to_string).collect();
        tuned(&Settings::default(), &pairs)
    }

    #[test]
    fn what_is_valid_is_taken() {
        let next = tune(&["rmw_level=2", "aoe_maxout=7", "stripe_cache_size=256"]).expect("valid");
        assert_eq!(next.get("rmw_level").as_deref(), Ok("2"));
        assert_eq!(next.aoe.aoe_maxout, 7);
        assert_eq!(tune(&[]), Ok(Settings::default()));
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let kind = |pairs: &[&str]| tune(pairs).map_err(|error| error.kind);
        assert_eq!(kind(&["rmw_level=3"]), Err(CommandErrorKind::Invalid));
        assert_eq!(kind(&["rmw_level=1", "no_such=3"]), Err(CommandErrorKind::Invalid));
        assert_eq!(kind(&["rmw_level"]), Err(CommandErrorKind::Invalid));
    }
}
