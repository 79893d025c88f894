//! `create`: writes the superblocks of a new array, as `mdadm --create` does.
//!
//! Looks at all members before it writes to any: what carries data that we know of is refused unless `--run` is given, what belongs to a running array
//! always.

mod signature;

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::ValueEnum;
use raid_core::geometry::Layout;
use raid_core::md::create::{CHUNK_DEFAULT, CreateError, Created, NewArray};
use raid_core::md::text::{Field, human_size, level_name};
use raid_core::md::{Minor, Uuid};
use raid_core::units::{Bytes, MemberCount, Sectors};
use raid_engine::assembly::{AssemblyError, Named, create_array, random_uuid};
use raid_engine::member::devices::Device;
use raid_engine::member::spec::{MemberSpec, parse_size};
use raid_engine::tunables::Settings;

use crate::detail::fields_text;
use crate::interfaces::InterfaceArgs;
use crate::members::{Found, Members, parse_member, slab};
use crate::output;
use crate::runtime_dir::{ArrayLock, parse_name};
use crate::usage::usage;

/// Write the superblocks of a new array
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid create r5 -l 5 -n 5 -c 64K -i eth1 e9.0 e9.1 e9.2 e9.3 e9.4     # five AoE devices
  etherraid create r5 -l 5 -n 3 -x 1 /dev/sdb /dev/sdc /dev/sdd /dev/sde    # three disks and a spare
  etherraid create r5 -l 5 -n 3 --assume-clean disk0.img disk1.img disk2.img    # full of zeroes: parity is right as it is

What a member holds is lost. One that carries a superblock, a file system or a partition table is refused without --run; one of an array that
runs on this host always. `etherraid run` starts the array.")]
pub(crate) struct Args {
    /// The array's name; it is stored after the host's name
    #[arg(value_parser = parse_name)]
    name: String,

    /// Level: 5, or 4 (parity on the last member)
    #[arg(short, long, value_parser = parse_level)]
    level: i32,

    /// How many members hold data and parity
    #[arg(short = 'n', long, value_name = "N")]
    raid_devices: u8,

    /// Chunk size [default: 512K]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_sectors)]
    chunk: Option<Sectors>,

    /// Layout: left-symmetric, left-asymmetric, right-symmetric, right-asymmetric, parity-first, parity-last [default: left-symmetric]
    #[arg(short = 'p', long = "layout", alias = "parity")]
    layout: Option<Layout>,

    /// Superblock version: 1.0, 1.1 or 1.2
    #[arg(short = 'e', long, default_value = "1.2")]
    metadata: Minor,

    /// Write-intent bitmap
    #[arg(short, long, value_enum, default_value_t = Bitmap::None)]
    bitmap: Bitmap,

    /// How data and parity are kept consistent over a crash
    #[arg(short = 'k', long, value_enum, default_value_t = Policy::Resync)]
    consistency_policy: Policy,

    /// Parity matches the data already, as on members full of zeroes: no resync
    #[arg(long)]
    assume_clean: bool,

    /// How many of the members are spares, named last
    #[arg(short = 'x', long, value_name = "N", default_value_t = 0)]
    spare_devices: u8,

    /// Space to use on each member [default: what the smallest has]
    #[arg(short = 'z', long, value_name = "SIZE", value_parser = parse_sectors)]
    size: Option<Sectors>,

    /// Overwrite what the members carry
    #[arg(long)]
    run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    interfaces: InterfaceArgs,

    /// e<shelf>.<slot>, or the path of a file or block device
    #[arg(required = true, value_name = "MEMBER", value_parser = parse_member)]
    members: Vec<MemberSpec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bitmap {
    None,
    Internal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    Resync,
    Bitmap,
    Ppl,
}

fn parse_level(text: &str) -> Result<i32, String> {
    let number = text.strip_prefix("raid").unwrap_or(text);
    match number.parse() {
        Ok(level @ (4 | 5)) => Ok(level),
        _ => Err("levels 4 and 5 are supported".to_owned()),
    }
}

fn parse_sectors(text: &str) -> Result<Sectors, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    bytes.whole_sectors().ok_or_else(|| format!("{text}: a multiple of 512 bytes is needed"))
}

/// Carries the command out.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    check(&args)?;
    args.interfaces.check(&args.members)?;
    let settings = Settings::default();
    let mut members = Members::new(&slab()?, args.interfaces.links(&settings.aoe, args.members.len()))?;
    let named = open(&args, &mut members)?;
    // Held until the superblocks are written: nobody starts an array whose members we overwrite.
    let _locks = look(&args, &mut members, &named)?;
    members.settle();
    let host = rustix::system::uname();
    let new = NewArray {
        name: &args.name,
        homehost: host.nodename().to_str().ok(),
        minor: args.metadata,
        level: args.level,
        layout: args.layout.unwrap_or(if args.level == 4 { Layout::ParityLast } else { Layout::LeftSymmetric }),
        chunk: args.chunk.unwrap_or(CHUNK_DEFAULT),
        members: MemberCount(args.raid_devices),
        size: args.size,
        assume_clean: args.assume_clean,
        set_uuid: random_uuid(),
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    };
    let created = create_array(&mut members.opener, &new, &named).map_err(|error| name_member(error, &named))?;
    if created.sizes_differ {
        tracing::warn!("the largest member has over 1 % more room than is used");
    }
    print(&args, &created)?;
    Ok(ExitCode::SUCCESS)
}

/// What can be seen without opening anything.
fn check(args: &Args) -> anyhow::Result<()> {
    if args.bitmap == Bitmap::Internal || args.consistency_policy == Policy::Bitmap {
        return usage("a write-intent bitmap is not supported yet: use -b none -k resync");
    }
    if args.consistency_policy == Policy::Ppl {
        return usage("a partial parity log is not supported yet: use -k resync");
    }
    let wanted = usize::from(args.raid_devices) + usize::from(args.spare_devices);
    if args.members.len() != wanted {
        let (devices, spares) = (args.raid_devices, args.spare_devices);
        let given = args.members.len();
        return usage(format!("{given} members given where -n {devices} and -x {spares} ask for {wanted}"));
    }
    for (index, member) in args.members.iter().enumerate() {
        if args.members[..index].contains(member) {
            return usage(format!("{member} is given twice"));
        }
    }
    Ok(())
}

fn open(args: &Args, members: &mut Members) -> anyhow::Result<Vec<Named>> {
    let mut named: Vec<Named> = Vec::new();
    let mut seen: Vec<(&MemberSpec, FileId)> = Vec::new();
    for member in &args.members {
        // Block devices are opened for us alone: the second time would be refused without telling why.
        if let MemberSpec::Path(path) = member
            && let Ok(id) = FileId::of(path)
        {
            if let Some((first, _)) = seen.iter().find(|(_, other)| *other == id) {
                return usage(format!("{member} is given twice, under two names: it is the same as {first}"));
            }
            seen.push((member, id));
        }
        let device = members.opener.open(member, false)?;
        named.push(Named { name: member.to_string(), device });
    }
    Ok(named)
}

/// Which file or block device a path leads to, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileId {
    Block(u64),
    File(u64, u64),
}

impl FileId {
    fn of(path: &Path) -> std::io::Result<FileId> {
        let metadata = std::fs::metadata(path)?;
        let is_block = metadata.file_type().is_block_device();
        Ok(if is_block { FileId::Block(metadata.rdev()) } else { FileId::File(metadata.dev(), metadata.ino()) })
    }
}

/// Refuses members that carry something. Answers with the locks of the arrays that are overwritten.
fn look(args: &Args, members: &mut Members, named: &[Named]) -> anyhow::Result<Vec<ArrayLock>> {
    let mut locks: Vec<(Uuid, ArrayLock)> = Vec::new();
    let mut occupied = Vec::new();
    for member in named {
        match members.look(&member.device).with_context(|| member.name.clone())? {
            Found::Superblock(superblock) => {
                let uuid = superblock.set_uuid;
                if !locks.iter().any(|(held, _)| *held == uuid) {
                    let Some(lock) = ArrayLock::take(uuid)? else {
                        bail!(
                            "{} belongs to the running array {} ({uuid}): stop that first",
                            member.name,
                            superblock.name()
                        );
                    };
                    locks.push((uuid, lock));
                }
                occupied.push(format!("{} is a member of array {} ({uuid})", member.name, superblock.name()));
            }
            Found::Damaged(error) => {
                occupied.push(format!("{} has remains of an md superblock ({error})", member.name))
            }
            Found::None => {
                if let Some(what) = signature_on(members, &member.device).with_context(|| member.name.clone())? {
                    occupied.push(format!("{} seems to hold {what}", member.name));
                }
            }
        }
    }
    if !occupied.is_empty() && !args.run {
        bail!("{}: use --run to overwrite", occupied.join("; "));
    }
    for what in occupied {
        tracing::warn!("{what}: overwritten");
    }
    Ok(locks.into_iter().map(|(_, lock)| lock).collect())
}

fn signature_on(members: &mut Members, device: &Device) -> std::io::Result<Option<&'static str>> {
    let sectors = Sectors((signature::LOOK_BYTES / 512) as u64).min(device.sectors());
    let head = members.opener.read(device, raid_core::units::Sector::ZERO, sectors)?;
    Ok(signature::find(&head))
}

/// `create` counts devices; users name them.
fn name_member(error: AssemblyError, named: &[Named]) -> anyhow::Error {
    match &error {
        AssemblyError::Create(CreateError::DeviceTooSmall { index, needed, .. }) => {
            let size = named[*index].device.sectors();
            anyhow::anyhow!(
                "{} has {} KiB: too small, at least {} KiB are needed",
                named[*index].name,
                size.0 / 2,
                needed.0.div_ceil(2)
            )
        }
        _ => error.into(),
    }
}

fn print(args: &Args, created: &Created) -> anyhow::Result<()> {
    let superblock = &created.superblocks[0];
    let geometry = &created.geometry;
    let array: Bytes = geometry.array_sectors().bytes();
    let used: Bytes = geometry.component_size().bytes();
    if args.json {
        let value = serde_json::json!({
            "name": superblock.name(),
            "uuid": superblock.set_uuid.to_string(),
            "version": superblock.minor.to_string(),
            "level": level_name(args.level),
            "layout": geometry.layout().to_string(),
            "chunk_bytes": geometry.chunk().bytes().0,
            "array_size_bytes": array.0,
            "used_dev_size_bytes": used.0,
            "raid_devices": args.raid_devices,
            "spare_devices": args.spare_devices,
            "members": args.members.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        return output::print_json(&value);
    }
    let kib = |size: Bytes| format!("{}{}", size.0 / 1024, human_size(size));
    let field = |name, value| Field { name, value };
    let fields = fields_text(&[
        field("Version", superblock.minor.to_string()),
        field("Raid Level", level_name(args.level)),
        field("Array Size", kib(array)),
        field("Used Dev Size", kib(used)),
        field("Raid Devices", args.raid_devices.to_string()),
        field("Spare Devices", args.spare_devices.to_string()),
        field("Layout", geometry.layout().to_string()),
        field("Chunk Size", format!("{}K", geometry.chunk().0 / 2)),
        field("Name", superblock.name()),
        field("UUID", superblock.set_uuid.to_string()),
    ]);
    output::print(&format!("{}: created\n{fields}", args.name))
}
