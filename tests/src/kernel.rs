//! Another Linux kernel, run as a process, for tests against the real md and the real aoe driver.
//!
//! A kernel of the 7.x series as user-mode Linux in a small Debian root boots in about two seconds. The root is laid once, in
//! [`root`], outside the repository; that takes about a minute and needs the network, root and debootstrap. The package mirror
//! is the one that this machine's own apt uses. Each [`Job`] runs in a mount namespace of its own, so jobs may overlap. What its script
//! may call is in [`guest`].

pub mod guest;

use crate::netns::NetNs;
use crate::proc::{Cmd, Finished};
use anyhow::{Context, bail, ensure};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Overrides where the root file system is kept.
const ROOT_VARIABLE: &str = "ETHERRAID_KERNEL_DIR";
const DEFAULT_DIR: &str = "/var/tmp/etherraid-kernel";
/// Debian release of the root file system.
const RELEASE: &str = "trixie";
/// Release that the kernel comes from: older ones fail on CPUs with a large register state.
const KERNEL_RELEASE: &str = "sid";
const PACKAGES: &str =
    "kmod,mdadm,aoetools,vblade,fio,nbd-client,iproute2,ethtool,busybox-static,udev,e2fsprogs,xfsprogs,libnbd-bin";
const SETUP_LIMIT: Duration = Duration::from_secs(15 * 60);
/// Longest job over a network.
const NET_LIMIT: Duration = Duration::from_secs(240);
/// Memory of a job in MiB, unless it says otherwise.
const MEMORY_MIB: u32 = 768;
const KERNEL: &str = "/usr/bin/linux.uml";
/// What comes before the script's exit status in the output.
const STATUS_MARK: &str = "kernel-rc ";

/// The directory that holds the root file system and its lock.
fn dir() -> PathBuf {
    std::env::var_os(ROOT_VARIABLE).map_or_else(|| DEFAULT_DIR.into(), PathBuf::from)
}

/// The root file system.
pub fn root() -> PathBuf {
    dir().join("root")
}

/// Lays the root file system unless it is there. Processes that ask at the same time wait for the one that does it.
pub fn ensure() -> anyhow::Result<()> {
    ensure!(crate::skip::is_root(), "needs root");
    std::fs::create_dir_all(dir())?;
    let lock = File::create(dir().join("lock"))?;
    lock.lock()?;
    let ready = root().join(".ready");
    if ready.exists() {
        return Ok(());
    }
    ensure!(crate::skip::find_program("debootstrap").is_some(), "debootstrap is not installed");
    let mirror = mirror()?;
    if root().exists() {
        std::fs::remove_dir_all(root())?;
    }
    step(
        Cmd::new("debootstrap")
            .args(["--variant=minbase", &format!("--include={PACKAGES}"), RELEASE])
            .arg(root())
            .arg(&mirror),
    )?;
    unpack_kernel(&mirror)?;
    File::create(ready)?;
    Ok(())
}

/// The Debian mirror that this machine's apt uses.
fn mirror() -> anyhow::Result<String> {
    let text = Cmd::new("apt-get")
        .args(["indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"])
        .finish(SETUP_LIMIT)
        .stdout;
    pick_mirror(&text).map(str::to_owned).context("apt's sources name no Debian mirror")
}

fn pick_mirror(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| line.strip_prefix("Debian|Debian|"))
}

/// Downloads the kernel's package with apt, from a sources list of its own, and unpacks it into the root.
fn unpack_kernel(mirror: &str) -> anyhow::Result<()> {
    let apt = tempfile::tempdir()?;
    let at = |name: &str| apt.path().join(name).display().to_string();
    std::fs::create_dir_all(at("lists/partial"))?;
    std::fs::create_dir_all(at("cache/archives/partial"))?;
    std::fs::write(at("sources.list"), format!("deb {mirror} {KERNEL_RELEASE} main\n"))?;
    let options = [
        format!("Dir::Etc::SourceList={}", at("sources.list")),
        "Dir::Etc::SourceParts=-".to_owned(),
        format!("Dir::State::Lists={}", at("lists")),
        format!("Dir::Cache={}", at("cache")),
        "APT::Sandbox::User=root".to_owned(),
    ];
    let apt_get = |command: &[&str]| {
        let options = options.iter().flat_map(|option| ["-o", option.as_str()]);
        Cmd::new("apt-get").args(options).args(command)
    };
    step(apt_get(&["update", "-q"]))?;
    step(apt_get(&[
        "install",
        "--download-only",
        "--no-install-recommends",
        "--reinstall",
        "-y",
        "-q",
        "user-mode-linux",
    ]))?;
    let archives = PathBuf::from(at("cache/archives"));
    let package = std::fs::read_dir(archives)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("user-mode-linux_")))
        .context("apt downloaded no user-mode-linux")?;
    step(Cmd::new("dpkg").arg("-x").arg(package).arg(root()))?;
    link_modules()
}

/// Puts the kernel's modules where modprobe looks for them.
fn link_modules() -> anyhow::Result<()> {
    let version = std::fs::read_dir(root().join("usr/lib/uml/modules"))?
        .flatten()
        .next()
        .context("the kernel's package has no modules")?
        .file_name();
    let modules = root().join("usr/lib/modules");
    std::fs::create_dir_all(&modules)?;
    let target = Path::new("/usr/lib/uml/modules").join(&version);
    std::os::unix::fs::symlink(target, modules.join(version))?;
    Ok(())
}

fn step(cmd: Cmd) -> anyhow::Result<()> {
    let done = cmd.finish(SETUP_LIMIT);
    if !done.status.success() {
        let mut lines = done.stdout.lines().chain(done.stderr.lines());
        bail!("set-up failed: {}", lines.next_back().unwrap_or("no output"));
    }
    Ok(())
}

/// The interface that the kernel sees as `vec0`.
pub struct Net<'a> {
    /// Namespace that holds the interface.
    pub netns: &'a NetNs,
    /// The interface; the kernel takes all of its frames.
    pub interface: &'a str,
    /// Its MTU.
    pub mtu: u32,
}

/// What to run under the kernel.
pub struct Job<'a> {
    /// A shell script, run as root with proc, sysfs and devtmpfs mounted.
    pub script: &'a str,
    /// Files that appear as `/dev/ubdb`, `/dev/ubdc` and on.
    pub disks: &'a [&'a Path],
    /// Its network, if any.
    pub net: Option<Net<'a>>,
    /// When it is killed.
    pub limit: Duration,
    /// Its memory in MiB.
    pub memory_mib: u32,
}

impl<'a> Job<'a> {
    /// A script with disks and no network.
    pub fn new(script: &'a str, disks: &'a [&'a Path]) -> Self {
        Self { script, disks, net: None, limit: Duration::from_secs(100), memory_mib: MEMORY_MIB }
    }

    /// The same with a network, under a limit that is enough for much traffic.
    #[must_use]
    pub fn on(self, netns: &'a NetNs, interface: &'a str, mtu: u32) -> Self {
        Self { net: Some(Net { netns, interface, mtu }), limit: NET_LIMIT, ..self }
    }
}

/// What came of a job.
#[derive(Debug)]
pub struct Outcome {
    /// The script's exit status; `None` when the kernel ended before the script did.
    pub status: Option<i32>,
    /// Everything on the console.
    pub output: String,
}

impl Outcome {
    /// The output. Panics with it unless the script ended with status 0.
    pub fn ok(self) -> String {
        assert_eq!(self.status, Some(0), "{}", self.output);
        self.output
    }
}

/// Boots the kernel with `job` and waits for its end.
pub fn run(job: &Job<'_>) -> anyhow::Result<Outcome> {
    ensure()?;
    let work = tempfile::tempdir()?;
    std::fs::write(work.path().join("script"), job.script)?;
    let init = work.path().join("init");
    std::fs::write(&init, init_script(job))?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&init, mode)?;
    for (n, _) in (1..).zip(job.disks) {
        File::create(work.path().join(format!("disk{n}")))?;
    }
    std::fs::create_dir_all(root().join("job"))?;
    // Ahead of what else runs here: a driver in there takes a pause of its host for a network that loses frames.
    let mut cmd = Cmd::new("nice")
        .args(["-n", "-20", "unshare", "-m", "--propagation", "private", "sh", "-ec", MOUNT_AND_BOOT])
        .arg(root())
        .arg(work.path())
        .arg(job.disks.len().to_string());
    for disk in job.disks {
        cmd = cmd.arg(std::fs::canonicalize(disk)?);
    }
    let cmd = cmd.arg(KERNEL).args(kernel_arguments(job));
    let done = cmd.maybe_netns(job.net.as_ref().map(|net| net.netns)).finish(job.limit);
    Ok(outcome(&done))
}

/// Arguments: root, work directory, number of disks, the disks, the kernel's command line.
const MOUNT_AND_BOOT: &str = r#"
root=$0; work=$1; disks=$2; shift 2
mount --bind "$work" "$root/job"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
n=1
while [ $n -le "$disks" ]; do mount --bind "$1" "$root/job/disk$n"; shift; n=$((n + 1)); done
exec chroot "$root" "$@" 2>&1
"#;

fn init_script(job: &Job<'_>) -> String {
    let net = match job.net {
        Some(_) => "ip link set lo up; ip link set vec0 up\n",
        None => "",
    };
    format!(
        "#!/bin/sh\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root\n\
         mount -t proc proc /proc; mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs dev /dev 2>/dev/null; mount -t tmpfs tmpfs /run; mkdir -p /run/lock\n\
         {net}sh /job/script; echo {STATUS_MARK}$?\n\
         busybox poweroff -f\n"
    )
}

fn kernel_arguments(job: &Job<'_>) -> Vec<String> {
    let fixed = "root=none rootfstype=hostfs rootflags=/ rw init=/job/init con=null con0=null,fd:1 ssl=null quiet seccomp=on uml_dir=/tmp/";
    let memory = format!("mem={}M", job.memory_mib);
    let mut arguments: Vec<String> = std::iter::once(memory).chain(fixed.split(' ').map(str::to_owned)).collect();
    arguments.extend((1..).zip(job.disks).map(|(n, _)| format!("ubd{n}=/job/disk{n}")));
    if let Some(net) = &job.net {
        arguments.push(format!("vec0:transport=raw,ifname={},depth=128,gro=0,mtu={}", net.interface, net.mtu));
    }
    arguments
}

fn outcome(done: &Finished) -> Outcome {
    let status = done
        .stdout
        .lines()
        .filter_map(|line| line.split_once(STATUS_MARK))
        .filter_map(|(_, number)| number.trim().parse().ok())
        .next_back();
    Outcome { status, output: format!("{}{}", done.stdout, done.stderr) }
}

#[cfg(test)]
mod tests;
