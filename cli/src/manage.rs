//! `add`, `fail`, `remove` and `stop`: commands on a running array, sent to its control socket.

use std::process::ExitCode;

use anyhow::bail;
use raid_engine::member::spec::MemberSpec;

use crate::control::client::ControlArgs;
use crate::control::messages::{Member, Stopped};
use crate::members::parse_member;
use crate::output::print;

/// An array and one of its members.
#[derive(Debug, clap::Args)]
struct Target {
    #[command(flatten)]
    array: ControlArgs,

    /// e<shelf>.<slot>, or the path of a file or block device
    #[arg(value_name = "MEMBER", value_parser = parse_member)]
    member: MemberSpec,
}

/// Add a member to a running array: it becomes a spare, and replaces a member that is missing
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid add r5 e9.5    # rebuilt at once if a member is missing; `etherraid detail r5` shows how far it is

A member that was away comes back by itself. Files must lie where members of the array do, or in a --member-dir of `run`.")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    target: Target,
}

/// Mark a member of a running array faulty
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid fail r5 e9.1    # the array goes on without it, and a spare takes its place

Refused when the array could not go on without it.")]
pub(crate) struct FailArgs {
    #[command(flatten)]
    target: Target,
}

/// Let go of a faulty or missing member, or of a spare
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid remove r5 e9.1")]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    target: Target,
}

/// Stop a running array: requests under way are finished, and it is marked clean
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  etherraid stop r5

SIGTERM does the same. The exit status is 1 when the array could not be marked clean, as when members are away: the next run resyncs it.")]
pub(crate) struct StopArgs {
    #[command(flatten)]
    array: ControlArgs,
}

fn change(target: &Target, path: &str, done: &str) -> anyhow::Result<ExitCode> {
    let member = target.member.to_string();
    let _: serde_json::Value = target.array.post(path, &Member { member })?;
    print(&format!("{}: {} {done}\n", target.array.name(), target.member))?;
    Ok(ExitCode::SUCCESS)
}

/// `add`.
pub(crate) fn add(args: AddArgs) -> anyhow::Result<ExitCode> {
    change(&args.target, "/add", "added")
}

/// `fail`.
pub(crate) fn fail(args: FailArgs) -> anyhow::Result<ExitCode> {
    change(&args.target, "/fail", "set faulty")
}

/// `remove`.
pub(crate) fn remove(args: RemoveArgs) -> anyhow::Result<ExitCode> {
    change(&args.target, "/remove", "removed")
}

/// `stop`.
pub(crate) fn stop(args: StopArgs) -> anyhow::Result<ExitCode> {
    let name = args.array.name();
    let Stopped { exit } = args.array.post("/stop", &serde_json::json!({}))?;
    if exit != 0 {
        bail!("{name}: stopped without being marked clean: the next run resyncs it");
    }
    print(&format!("{name}: stopped\n"))?;
    Ok(ExitCode::SUCCESS)
}
